"""A bundle follows another through real processes: compressed for all users meanwhile, killed half-way, the old one retired."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from rich.progress import Progress

from model.bundle import load_bundle
from model.training.train import train
from protos import recommender_pb2 as wire
from services.local_kafka import RunningKafka
from stream.topics import TopicsConfig
from tests.end_to_end.processes import Deployment, free_address, to_messages, wait_for
from tests.model.worlds import SMALL, make_event_log
from tests.services.calls import call

pytestmark = [pytest.mark.broker, pytest.mark.slow]

USERS = [f"user-{index}" for index in range(24)]
MISSING = wire.DEGRADATION_SUMMARY_MISSING


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The one in use, and the next."""
    directory = tmp_path_factory.mktemp("bundles")
    for name, seed in (("old", 0), ("new", 5)):
        config = replace(SMALL, max_steps=3, seed=seed)
        train(make_event_log(), None, config, directory / name, Progress(disable=True))
    return directory / "old", directory / "new"


class Rolling(Deployment):
    """A deployment whose candidate answers all users, and its candidate's worker."""

    def configure(self, bundle: Path, candidate: Path | None) -> None:
        lines = self.config.read_text().split("[inference_node.engine]")[0].splitlines()
        lines[2] = f'bundle = "{bundle}"'
        lines += ["[inference_node.engine]", 'name = "torch"', 'precision = "fp32"']
        if candidate is not None:
            lines += ["[inference_node.candidate]", f'bundle = "{candidate}"', "share = 1.0"]
        text = "\n".join(lines) + "\n"
        if "candidate_metrics_listen" not in text:
            worker = "[compression_worker]\n"
            text = text.replace(worker, f'{worker}candidate_metrics_listen = "{free_address()}"\n')
        self.config.write_text(text)

    def start_candidate_worker(self) -> "subprocess.Popen[bytes]":
        command = [*self.command("run", "compression-worker"), "--bundle", "candidate"]
        with self.log.open("ab") as log:
            return subprocess.Popen(command, stdout=log, stderr=log)

    def command(self, *arguments: str) -> list[str]:
        prefix = [sys.executable, "-m", "services.cli"]
        return [*prefix, *arguments, "--config", str(self.config)]

    def rollout(self, *arguments: str) -> list[dict[str, Any]]:
        """Partitions after `gemstream store rollout ARGUMENTS`."""
        done = call("store", "rollout", *arguments, "--config", str(self.config), "--json")
        assert done.code == 0, done.stderr
        partitions: list[dict[str, Any]] = done.document()[self.state]["partitions"]
        return partitions

    def marked(self) -> int:
        return sum(int(one["rollout"]["changed"]) for one in self.rollout("status"))

    def states(self) -> set[str]:
        return {one["rollout"]["state"] for one in self.rollout("status")}

    def is_ready(self) -> bool:
        """Whether all partitions are served, so that a command reaches them."""
        with grpc.insecure_channel(self.state) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            try:
                reply = stub.Check(health_pb2.HealthCheckRequest(), timeout=5)
            except grpc.RpcError:
                return False
            return bool(reply.status == health_pb2.HealthCheckResponse.SERVING)

    def boundaries(self, user: str) -> dict[str, int]:
        """Where the user's summaries end, by bundle, and "" for where they are to end."""
        description = self.describe_user(user)
        if description is None:
            return {}
        found = {each.bundle_version: each.boundary for each in description.summaries}
        return found | {"": description.meta.lifecycle_boundary}

    def wait_for_summaries(self, version: str) -> None:
        for user in USERS:
            wait_for(
                f"the summary of {user}",
                lambda: (ends := self.boundaries(user)).get(version) == ends.get("", 0) > 0,  # noqa: B023
            )


@pytest.fixture
def deployed(
    kafka: RunningKafka, topics: TopicsConfig, tmp_path: Path, bundles: tuple[Path, Path]
) -> Iterator[Rolling]:
    deployment = Rolling(tmp_path, kafka.bootstrap, topics, bundles[0])
    deployment.configure(*bundles)
    yield deployment
    if deployment.process is not None:
        deployment.process.kill()
        print(deployment.log.read_text())


async def test_everybody_is_compressed_for_the_next_bundle_and_the_old_one_leaves(
    deployed: Rolling, bundles: tuple[Path, Path]
) -> None:
    old, new = (load_bundle(path).version for path in bundles)
    events = to_messages(make_event_log())
    half = len(events) // 2
    deployed.start("up")
    await deployed.produce(events[:half])
    await asyncio.to_thread(deployed.wait_for_summaries, old)
    assert_served_and_flagged(deployed, new)
    worker = deployed.start_candidate_worker()
    try:
        roll_out(deployed, bundles[1], new, half)
        assert deployed.boundaries("user-3")[old] == 16
        wait_for(
            "the way to the new process",  # until then an older copy answers, and says so
            lambda: not deployed.recommend("user-3", k=5).degraded,
        )
        await deployed.produce(events[half:])  # both bundles go on meanwhile
        wait_for("all events in the state", lambda: deployed.applied() == len(events))
        for version in (new, old):
            deployed.wait_for_summaries(version)
        wait_for("the end of the walk", lambda: deployed.states() == {"done"})
    finally:
        worker.terminate()
        worker.wait(30)
    deployed.stop()
    deployed.configure(bundles[1], candidate=None)
    deployed.start("up")
    wait_for("the state node", lambda: deployed.applied() == len(events))
    await asyncio.to_thread(retire_and_go_on, deployed, bundles[0], old, new)
    deployed.stop()


def assert_served_and_flagged(deployed: Rolling, new: str) -> None:
    """Without a summary, from recent and mid-term."""
    reply = deployed.recommend("user-3", k=5)
    assert (reply.bundle_version, reply.source) == (new, wire.SOURCE_PERSONAL)
    assert list(reply.degraded) == [MISSING]
    segments = reply.segments
    assert (segments.recent, segments.mid_term, segments.lifecycle) == (8, 8, 0)


def roll_out(deployed: Rolling, bundle: Path, new: str, num_events: int) -> None:
    """Paused and killed half-way."""
    deployed.rollout("start", str(bundle), "--rate", "2")
    wait_for("some marks", lambda: deployed.marked() >= 3)
    deployed.rollout("pause", new)
    paused = deployed.marked()
    assert paused < len(USERS)
    deployed.kill_role("state-node")
    wait_for("the state node", lambda: deployed.applied() == num_events)
    wait_for("its partitions", lambda: deployed.describe_user("user-3") is not None)
    assert (deployed.marked(), deployed.states()) == (paused, {"paused"})
    wait_for("partitions to be ready", deployed.is_ready)
    deployed.rollout("start", new, "--rate", "100")
    deployed.rollout("resume", new)
    deployed.wait_for_summaries(new)


def retire_and_go_on(deployed: Rolling, bundle: Path, old: str, new: str) -> None:
    """What was the next bundle is the one in use."""
    wait_for("partitions to be ready", deployed.is_ready)
    deployed.rollout("retire", str(bundle))
    wait_for(
        "old summaries to go", lambda: not any(old in deployed.boundaries(user) for user in USERS)
    )
    more = to_messages(make_event_log())
    for number, event in enumerate(more):
        event.event_id = f"again-{number}"
        event.event_time_ms += 10**10
    asyncio.run(deployed.produce(more))
    wait_for("more events", lambda: deployed.boundaries("user-3").get("") == 112)
    deployed.wait_for_summaries(new)
    assert old not in deployed.boundaries("user-3")
