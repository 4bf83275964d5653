"""A state node whose disk fills up or cannot be used: it says so, ends, and goes on once the cause is gone."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from protos.interaction_pb2 import Interaction
from services.local_kafka import RunningKafka
from services.supervisor import EX_CONFIG
from stream.topics import TopicsConfig
from tests.disks import mounted_disk
from tests.end_to_end.processes import Deployment, to_messages, wait_for
from tests.end_to_end.test_main_job import assert_same_as_uninterrupted, read_log
from tests.model.worlds import make_event_log
from tests.state.test_rocks_disks import fill

pytestmark = [pytest.mark.broker, pytest.mark.slow]


@pytest.fixture
def deployed(kafka: RunningKafka, topics: TopicsConfig, tmp_path: Path) -> Iterator[Deployment]:
    """A state node on a disk of 16 MB."""
    with mounted_disk(tmp_path / "data", "16m"):
        deployment = Deployment(tmp_path, kafka.bootstrap, topics, tmp_path / "no-bundle")
        yield deployment
        if deployment.process is not None:
            deployment.process.kill()
            deployment.process.wait(10)
            print(deployment.log.read_text())


def events() -> list[Interaction]:
    return to_messages(make_event_log())


def ended(deployed: Deployment) -> tuple[int, str]:
    """Exit code and last line of the role."""
    assert deployed.process is not None
    code, deployed.process = deployed.process.wait(60), None
    return code, deployed.log.read_text().splitlines()[-1]


async def test_a_full_disk_ends_the_node_and_a_restart_goes_on(deployed: Deployment) -> None:
    log = events()
    deployed.start("run", "state-node")
    await deployed.produce(log[:600])
    wait_for("the first events in the state", lambda: deployed.applied() == 600)
    ballast = fill(deployed.directory / "data")
    await deployed.produce(log[600:])
    for _ in range(2):
        code, line = ended(deployed)
        assert code == 1
        assert "the disk is full, 0 of 16777216 bytes are free" in line
        assert "Traceback" not in deployed.log.read_text()
        deployed.start("run", "state-node")
    ended(deployed)
    ballast.unlink()
    deployed.start("run", "state-node")
    wait_for("all events in the state", lambda: deployed.applied() == len(log))
    deployed.stop()
    assert_same_as_uninterrupted(deployed, await read_log(deployed, len(log)))


def test_a_read_only_disk_needs_a_person(deployed: Deployment) -> None:
    subprocess.run(["mount", "-o", "remount,ro", deployed.directory / "data"], check=True)
    deployed.start("run", "state-node")
    code, line = ended(deployed)
    assert code == EX_CONFIG
    assert "Read-only file system" in line


async def test_a_damaged_file_needs_a_person(deployed: Deployment) -> None:
    deployed.start("run", "state-node")
    await deployed.produce(events()[:300])
    wait_for("the events in the state", lambda: deployed.applied() == 300)
    deployed.stop()
    for manifest in deployed.directory.glob("data/state/*/MANIFEST-*"):
        manifest.write_bytes(b"rubbish")
    deployed.start("run", "state-node")
    code, line = ended(deployed)
    assert code == EX_CONFIG
    assert "gemstream store verify" in line
