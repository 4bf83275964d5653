"""Checkpoints as an operator meets them: a node lost with its disk, a deleted user, the `store` commands."""

import shutil
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete

from protos.interaction_pb2 import Interaction
from services.local_kafka import RunningKafka
from stream.topics import TopicsConfig
from tests.end_to_end.processes import Deployment, to_messages, wait_for
from tests.end_to_end.test_main_job import assert_same_as_uninterrupted, read_log
from tests.model.worlds import make_event_log
from tests.services.calls import call

pytestmark = [pytest.mark.broker, pytest.mark.slow]


@pytest.fixture
def events() -> list[Interaction]:
    return to_messages(make_event_log())


class Nodes:
    """State nodes with disks of their own that share topics, group and repository."""

    def __init__(self, directory: Path, bootstrap: str, topics: TopicsConfig) -> None:
        self.directory = directory
        self.bootstrap = bootstrap
        self.topics = topics
        self.repository = directory / "repository"
        self.repository.mkdir()
        self.started: list[Deployment] = []

    def add(self, name: str) -> Deployment:
        (self.directory / name).mkdir()
        node = Deployment(
            self.directory / name, self.bootstrap, self.topics, self.directory / "none"
        )
        text = node.config.read_text()
        node.config.write_text(f'{text}[checkpoints]\nuri = "../repository"\ninterval_s = 3600.0\n')
        self.started.append(node)
        return node


@pytest.fixture
def nodes(kafka: RunningKafka, topics: TopicsConfig, tmp_path: Path) -> Any:
    made = Nodes(tmp_path, kafka.bootstrap, topics)
    yield made
    for node in made.started:
        if node.process is not None:
            node.process.kill()
            node.process.wait(10)
            print(node.log.read_text())


def store(node: Deployment, *arguments: str) -> Any:
    """`gemstream store ARGUMENTS --json`."""
    done = call("store", *arguments, "--json", "--config", str(node.config))
    assert done.code == 0, done.stderr
    return done.document()


def served(node: Deployment) -> list[int]:
    done = call("store", "stats", "--json", "--config", str(node.config))
    partitions = done.document()["partitions"] if done.code == 0 else []
    return [each["partition"] for each in partitions if each["phase"] == "ready"]


def take(nodes: Sequence[Deployment]) -> dict[int, int]:
    """Checkpoints by the nodes; partition to next offset."""
    replies = [store(node, "checkpoint") for node in nodes]
    assert [reply["failures"] for reply in replies] == [[] for _ in nodes]
    return {
        each["partition"]: int(each["next_offset"])
        for reply in replies
        for each in reply["checkpoints"]
    }


async def test_a_node_lost_with_its_disk_is_replaced_though_kafka_forgot(
    nodes: Nodes, events: list[Interaction]
) -> None:
    first, second = nodes.add("first"), nodes.add("second")
    await first.produce(events[:600])
    first.start("run", "state-node")
    wait_for("the first node alone", lambda: first.applied() == 600)
    second.start("run", "state-node")
    wait_for(
        "a partition on each node",
        lambda: len(served(first)) < 3 and sorted(served(first) + served(second)) == [0, 1, 2],
    )
    offsets = take([first, second])
    assert sum(offsets.values()) == 600
    await first.produce(events[600:900])
    wait_for("more than the checkpoints", lambda: first.applied() + second.applied() == 900)
    records = await read_log(first, 900)

    assert first.process is not None
    first.process.send_signal(signal.SIGKILL)
    first.process.wait(10)
    first.process = None
    shutil.rmtree(first.directory)
    await forget(nodes, offsets)
    await second.produce(events[900:])
    wait_for("everything on the other node", lambda: second.applied() == len(events))
    second.stop()
    assert "restored to offset" in second.log.read_text()
    known = {(record.partition, record.offset) for record in records}  # type: ignore[attr-defined]
    later = await read_log(second, len(events) - 600)
    records += [
        record
        for record in later
        if (record.partition, record.offset) not in known  # type: ignore[attr-defined]
    ]
    assert len(records) == len(events)
    assert_same_as_uninterrupted(second, records)
    assert not store(second, "verify", "--deep")["damaged"]


async def forget(nodes: Nodes, offsets: dict[int, int]) -> None:
    """What retention would do to the records before the checkpoints."""
    admin = AIOKafkaAdminClient(bootstrap_servers=nodes.bootstrap)
    await admin.start()
    await admin.delete_records(
        {
            TopicPartition(nodes.topics.interactions, partition): RecordsToDelete(offset)
            for partition, offset in offsets.items()
        }
    )
    await admin.close()


async def test_an_older_checkpoint_does_not_bring_a_deleted_user_back(
    nodes: Nodes, events: list[Interaction]
) -> None:
    node = nodes.add("only")
    await node.produce(events)
    node.start("run", "state-node")
    wait_for("all events in the state", lambda: node.applied() == len(events))
    wait_for("all partitions", lambda: served(node) == [0, 1, 2])
    offsets = take([node])
    assert node.describe_user("user-3") is not None
    assert [each["unchanged"] for each in store(node, "checkpoint")["checkpoints"]] == [True] * 3
    assert f"offset {offsets[0]}, " in call("store", "stats", "--config", str(node.config)).stdout
    refused = call("store", "checkpoint", "--partition", "9", "--config", str(node.config))
    assert (refused.code, "partition 9 is not served" in refused.stderr) == (3, True)
    in_use = [each["left_out"] for each in store(node, "verify")["stores"]]
    assert ["stop the state node" in reason for reason in in_use] == [True] * 3
    assert call("user", "delete", "user-3", "--yes", "--config", str(node.config)).code == 0
    node.stop()

    shutil.rmtree(node.directory / "data" / "state")
    node.start("run", "state-node")
    wait_for("all partitions again", lambda: served(node) == [0, 1, 2])
    assert "restored to offset" in node.log.read_text()
    assert node.describe_user("user-3") is None
    assert node.describe_user("user-4") is not None
    assert node.applied() == len(events) + 1
    pruned = store(node, "checkpoint", "--prune")
    assert sorted(int(each["next_offset"]) for each in pruned["checkpoints"]) != sorted(
        offsets.values()
    )
    assert len(store(node, "list")) == 3
    node.stop()
