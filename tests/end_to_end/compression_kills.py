"""A state node, workers that come and go, and a broker, all of them killed at random under a steady stream of events."""

import asyncio
import multiprocessing
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path

import grpc
from aiokafka.errors import KafkaError

import model.compression  # noqa: F401
import services.wiring.roles  # noqa: F401  both before anything is forked
from protos import admin_pb2, admin_pb2_grpc
from protos.interaction_pb2 import Interaction
from services.local_kafka import RunningKafka
from services.process import run_role
from services.settings import load_settings
from stream.deletions import send_forget
from stream.errors import StreamError
from stream.producer import Producer
from stream.topics import TopicsConfig
from tests.end_to_end.processes import Deployment
from tests.state.builders import START_MS

NUM_ITEMS, MAX_WORKERS = 60, 3
SETTLED_WITHIN_S = 120.0


class Role:
    """One role in a process of its own, forked off a clean server that has imported everything: torch takes its time."""

    def __init__(self, deployed: Deployment, role: str) -> None:
        """Nothing runs yet."""
        self.deployed = deployed
        self.name = role
        self.process: BaseProcess | None = None

    def start(self) -> None:
        """As `gemstream run ROLE --config ...`."""
        processes = multiprocessing.get_context("forkserver")
        processes.set_forkserver_preload(["tests.end_to_end.compression_kills"])
        arguments = (self.deployed.config, self.deployed.log, self.name)
        self.process = processes.Process(target=_run, args=arguments, daemon=True)
        self.process.start()

    def signal(self, number: int) -> None:
        """Nothing to a process that is gone."""
        if self.process is not None and self.process.is_alive():
            os.kill(self.process.pid or 0, number)

    def end(self) -> None:
        """Without a chance to tidy up."""
        self.signal(signal.SIGKILL)
        if self.process is not None:
            self.process.join(10)
            self.process = None


def _run(config: Path, log: Path, role: str) -> None:
    with log.open("ab") as file:
        os.dup2(file.fileno(), sys.stdout.fileno())
        os.dup2(file.fileno(), sys.stderr.fileno())
    sys.exit(run_role(role, load_settings(config, {})))


class Chaos:
    """Everything that runs, and what may happen to it."""

    def __init__(
        self, directory: Path, broker: RunningKafka, bundle: Path, num_users: int, seed: int
    ) -> None:
        """Nothing runs but the broker. No history grows past max_history where there are enough users."""
        self.broker = broker
        self.topics = TopicsConfig(num_partitions=3)
        self.num_users = num_users
        self.random = random.Random(seed)
        self.happened: Counter[str] = Counter()
        self.num_events = 0
        self.owner = self._deployment(directory / "owner", bundle)
        self._owner = Role(self.owner, "state-node")
        self._workers = [
            Role(self._deployment(directory / f"worker-{n}", bundle), "compression-worker")
            for n in range(MAX_WORKERS)
        ]
        self._num_wanted = 2
        self._paused: list[Role] = []
        self._events: dict[Callable[[], None], int] = {
            self._kill_worker: 4,
            self._kill_owner: 2,
            self._kill_broker: 1,
            self._scale: 2,
            self._pause_worker: 1,
            self._forget: 3,
        }

    def run(self, seconds: float) -> None:
        """Events and misfortune for a while."""
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            self.keep_running()
            self.produce(100)
            (happens,) = self.random.choices([*self._events], [*self._events.values()])
            happens()
            self.happened[happens.__name__.strip("_")] += 1
            pause_end_s = time.monotonic() + self.random.uniform(1, 4)
            while time.monotonic() < pause_end_s:
                self.produce(40)
                time.sleep(0.2)  # between two small bursts
            self._resume()

    def settle(self) -> None:
        """Nothing happens any more: wait until everything is applied and nobody is owed a summary."""
        give_up_s = time.monotonic() + SETTLED_WITHIN_S
        while not self._is_settled():
            assert time.monotonic() < give_up_s, "no summary for somebody, see the logs"
            self.keep_running()
            time.sleep(0.2)  # between two looks

    def stop(self) -> None:
        """End all processes."""
        for each in (self._owner, *self._workers):
            each.end()

    def keep_running(self) -> None:
        """What a supervisor does."""
        for each in (self._owner, *self._workers[: self._num_wanted]):
            if each.process is not None and not each.process.is_alive():
                self.happened[f"{each.name} ended with {each.process.exitcode}"] += 1
                each.process = None
            if each.process is None:
                each.start()

    def produce(self, count: int) -> None:
        """Lost for this test where the broker is away."""
        events = []
        for _ in range(count):
            self.num_events += 1
            events.append(
                Interaction(
                    event_id=str(self.num_events),
                    user_id=f"user-{self.random.randrange(self.num_users)}",
                    item_id=self.random.randint(1, NUM_ITEMS),
                    event_time_ms=START_MS + self.num_events * 60_000,
                )
            )
        try:
            asyncio.run(self.owner.produce(events))
        except KafkaError:
            self.happened["nothing produced"] += 1

    def logs(self) -> str:
        """Of all processes."""
        logs = [each.deployed.log for each in (self._owner, *self._workers)]
        return "\n".join(log.read_text() for log in logs if log.exists())

    def _deployment(self, directory: Path, bundle: Path) -> Deployment:
        directory.mkdir()
        deployed = Deployment(directory, self.broker.bootstrap, self.topics, bundle)
        with deployed.config.open("a") as config:
            config.write("[dispatch]\nredispatch_after_s = 2.0\n")
        return deployed

    def _kill_worker(self) -> None:
        self.random.choice(self._workers[: self._num_wanted]).signal(signal.SIGKILL)

    def _kill_owner(self) -> None:
        self._owner.signal(signal.SIGKILL)

    def _kill_broker(self) -> None:
        self.broker.kill()
        time.sleep(self.random.uniform(0, 1))  # how long it is away
        self.broker.restart()

    def _scale(self) -> None:
        """Out, or in by one that is told to stop."""
        self._num_wanted = self._num_wanted % MAX_WORKERS + 1
        for worker in self._workers[self._num_wanted :]:
            worker.signal(signal.SIGTERM)

    def _pause_worker(self) -> None:
        worker = self.random.choice(self._workers[: self._num_wanted])
        worker.signal(signal.SIGSTOP)
        self._paused.append(worker)

    def _resume(self) -> None:
        for worker in self._paused:
            worker.signal(signal.SIGCONT)
        self._paused.clear()

    def _forget(self) -> None:
        """A history is rewritten, whatever is being compressed."""
        user, item = self.random.randrange(self.num_users), self.random.randint(1, NUM_ITEMS)

        async def send() -> None:
            async with Producer(self.broker.bootstrap) as producer:
                await send_forget(producer, self.topics.interactions, f"user-{user}", item)

        try:
            asyncio.run(send())
        except StreamError:
            self.happened["nothing produced"] += 1

    def _is_settled(self) -> bool:
        with grpc.insecure_channel(self.owner.state) as channel:
            admin = admin_pb2_grpc.AdminServiceStub(channel)
            try:
                store = admin.DescribeStore(admin_pb2.DescribeStoreRequest(), timeout=5)
            except grpc.RpcError:
                return False
        return (
            len(store.partitions) == self.topics.num_partitions
            and store.dirty_users == 0
            and all(
                each.phase == "ready" and each.HasField("lag_records") and each.lag_records == 0
                for each in store.partitions
            )
        )
