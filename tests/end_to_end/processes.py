"""Real processes of the roles, as an operator would run them."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import grpc
import psutil
from aiokafka import AIOKafkaProducer

from protos import admin_pb2, admin_pb2_grpc, recommender_pb2, recommender_pb2_grpc
from protos.interaction_pb2 import Interaction
from services.interaction_messages import interaction_to_wire
from services.ports import free_port
from state.event_log import EventLog
from stream.topics import TopicsConfig

DEADLINE_S = 90.0


def wait_for(what: str, condition: Callable[[], bool]) -> None:
    """Look until it is true. Raises AssertionError after the deadline."""
    give_up_at = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < give_up_at, f"waited {DEADLINE_S:.0f} s in vain for: {what}"
        time.sleep(0.05)  # between two looks


def free_address() -> str:
    return f"127.0.0.1:{free_port()}"


class Deployment:
    """A configuration, the processes started with it, and what they answer."""

    def __init__(
        self,
        directory: Path,
        bootstrap: str,
        topics: TopicsConfig,
        bundle: Path,
        *,
        chooses_engine: bool = False,
    ) -> None:
        """`chooses_engine`: as by default, which takes a compilation before a node answers."""
        self.directory = directory
        self.bootstrap = bootstrap
        self.topics = topics
        self.state = free_address()
        self.recommender = free_address()
        self.metrics = free_address()
        self.config = directory / "gemstream.toml"
        self.log = directory / "roles.log"
        self.config.write_text(
            f'bootstrap = "{bootstrap}"\ndata_dir = "data"\nbundle = "{bundle}"\n'
            "[history]\nrecent_len = 8\nmid_term_len = 16\nchunk_len = 4\nmax_history = 1000\n"
            f'[topics]\ninteractions = "{topics.interactions}"\ndead_letters = "{topics.dead_letters}"\n'
            f'compression_jobs = "{topics.compression_jobs}"\nowners = "{topics.owners}"\nitems = "{topics.items}"\n'
            f'trending = "{topics.trending}"\ntrending_counts = "{topics.trending_counts}"\nnum_partitions = {topics.num_partitions}\n'
            f'[consumer]\ngroup = "{topics.interactions}"\nmax_poll_records = 50\nsession_timeout_ms = 6000\n'
            f'[compression_worker]\ngroup = "{topics.compression_jobs}"\nmetrics_listen = "127.0.0.1:0"\n'
            f'[state_node]\nlisten = "{self.state}"\nmetrics_listen = "{self.metrics}"\n'
            f'[inference_node]\nlisten = "{self.recommender}"\n'
            'metrics_listen = "127.0.0.1:0"\n'
            f'[trending]\ngroup = "{topics.trending}"\nmetrics_listen = "127.0.0.1:0"\npublish_interval_s = 0.2\n'
        )
        if not chooses_engine:
            with self.config.open("a") as config:
                config.write('[inference_node.engine]\nname = "torch"\nprecision = "fp32"\n')
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *arguments: str) -> None:
        """`gemstream ARGUMENTS --config ...` in the background."""
        with self.log.open("ab") as log:
            command = [
                sys.executable,
                "-m",
                "services.cli",
                *arguments,
                "--config",
                str(self.config),
            ]
            self.process = subprocess.Popen(command, stdout=log, stderr=log)

    def stop(self) -> None:
        """SIGTERM, and the exit code must be 0."""
        assert self.process is not None
        self.process.terminate()
        assert self.process.wait(30) == 0, self.log.read_text()
        self.process = None

    def kill_role(self, role: str) -> None:
        """SIGKILL the running process of a role."""
        assert self.process is not None
        members = [psutil.Process(self.process.pid)]
        members += members[0].children(recursive=True)
        victim = next(each for each in members[::-1] if ["run", role] == run_arguments(each))
        os.kill(victim.pid, signal.SIGKILL)
        if victim.pid == self.process.pid:
            self.process.wait(10)
        else:
            victim.wait(10)

    def describe_user(self, user: str) -> admin_pb2.UserDescription | None:
        """None while nobody knows the user, or nobody answers."""
        with grpc.insecure_channel(self.state) as channel:
            admin = admin_pb2_grpc.AdminServiceStub(channel)
            try:
                return admin.DescribeUser(admin_pb2.DescribeUserRequest(user_id=user), timeout=5)
            except grpc.RpcError:
                return None

    def applied(self) -> int:
        """Events behind the store's offsets; 0 when nobody answers."""
        with grpc.insecure_channel(self.state) as channel:
            admin = admin_pb2_grpc.AdminServiceStub(channel)
            try:
                store = admin.DescribeStore(admin_pb2.DescribeStoreRequest(), timeout=5)
            except grpc.RpcError:
                return 0
            return sum(partition.next_offset for partition in store.partitions)

    def recommend(self, user: str, **fields: object) -> recommender_pb2.RecommendResponse:
        """What a caller without our code would do."""
        with grpc.insecure_channel(self.recommender) as channel:
            stub = recommender_pb2_grpc.RecommenderServiceStub(channel)
            request = recommender_pb2.RecommendRequest(user_id=user, **fields)  # type: ignore[arg-type]
            return stub.Recommend(request, timeout=30, wait_for_ready=True)

    async def produce(self, events: Sequence[Interaction]) -> None:
        """A plain producer, as the contract describes it."""
        producer = AIOKafkaProducer(bootstrap_servers=self.bootstrap)
        await producer.start()
        for event in events:
            await producer.send(
                self.topics.interactions, event.SerializeToString(), key=event.user_id.encode()
            )
        await producer.stop()


def run_arguments(process: psutil.Process) -> list[str]:
    """The two words after `services.cli`, of a process that may be gone."""
    try:
        line = process.cmdline()
    except psutil.Error:
        return []
    if "services.cli" not in line or "setpriv" in line[0]:
        return []
    start = line.index("services.cli") + 1
    return line[start : start + 2]


def to_messages(log: EventLog) -> list[Interaction]:
    """The events of a log as a producer would send them."""
    return [
        interaction_to_wire(row, log.user_ids[user], event_id)
        for event_id, user, row in zip(
            log.event_ids, log.user_index.tolist(), log.rows.tolist(), strict=True
        )
    ]
