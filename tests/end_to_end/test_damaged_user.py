"""One damaged chunk in a deployment: the node goes on, the operator sees who it is, and a deletion ends it."""

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from protos.interaction_pb2 import Interaction
from services.local_kafka import RunningKafka
from state import keys
from state.key_value_store import Batch, Family
from state.store_directory import StoreDirectory
from stream.topics import TopicsConfig, partition_of
from tests.end_to_end.processes import Deployment, wait_for
from tests.state.builders import START_MS
from tests.state.checkpointing import open_rocks

pytestmark = [pytest.mark.broker, pytest.mark.slow]

USERS = ["ann", *(f"user-{n}" for n in range(20))]


@pytest.fixture
def deployed(kafka: RunningKafka, topics: TopicsConfig, tmp_path: Path) -> Iterator[Deployment]:
    deployment = Deployment(tmp_path, kafka.bootstrap, topics, tmp_path / "no-bundle")
    yield deployment
    if deployment.process is not None:
        deployment.process.kill()
        deployment.process.wait(10)
        print(deployment.log.read_text())


def events(first: int, count: int, time: int) -> list[Interaction]:
    return [
        Interaction(
            event_id=f"{user}-{n}", user_id=user, item_id=n + 1, event_time_ms=START_MS + time + n
        )
        for n in range(first, first + count)
        for user in USERS
    ]


def damage_first_chunk(deployed: Deployment, user: str) -> None:
    partition = partition_of(user, deployed.topics.num_partitions)
    database = open_rocks(StoreDirectory(deployed.directory / "data/state").path(partition))
    key = keys.chunk_key(keys.user_prefix(user.encode()), 0)
    (chunk,) = database.get(Family.USERS, [key])
    assert chunk is not None
    batch = Batch()
    batch.put(Family.USERS, key, chunk[:-1] + bytes([chunk[-1] ^ 1]))
    database.write(batch)
    database.close()


def gemstream(deployed: Deployment, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "services.cli", *arguments, "--config", str(deployed.config)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def metric(deployed: Deployment, name: str) -> float:
    with urllib.request.urlopen(f"http://{deployed.metrics}/metrics", timeout=5) as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(name))


async def test_the_node_goes_on_without_him_until_he_is_deleted(deployed: Deployment) -> None:
    deployed.start("run", "state-node")
    await deployed.produce(events(0, 40, time=0))
    wait_for("the events in the state", lambda: deployed.applied() == 40 * len(USERS))
    deployed.stop()
    damage_first_chunk(deployed, "ann")
    deployed.start("run", "state-node")
    late = events(100, 3, time=-98)
    await deployed.produce(late)
    wait_for("the late events in the state", lambda: deployed.applied() == 43 * len(USERS))
    assert metric(deployed, "gemstream_quarantined_users") == 1
    assert metric(deployed, "gemstream_ingest_quarantined_total") == 3
    assert metric(deployed, "gemstream_ingest_interactions_total") == 3 * (len(USERS) - 1)
    letters = json.loads(gemstream(deployed, "dlq", "list", "--json").stdout)
    assert [letter["bytes"] for letter in letters] == [len(late[0].SerializeToString())] * 3
    assert all("user 'ann' is quarantined: chunk 0" in letter["reason"] for letter in letters)
    show = gemstream(deployed, "user", "show", "ann")
    assert (show.returncode, "chunk 0" in show.stderr) == (1, True)
    deployed.stop()
    assert deployed.log.read_text().count("is quarantined, and the events") == 1

    verified = gemstream(deployed, "store", "verify")
    assert verified.returncode == 1
    assert "user 'ann', chunk 0: a block of 4 interactions fails its checksum" in verified.stdout
    deployed.start("run", "state-node")
    wait_for("the node", lambda: deployed.applied() == 43 * len(USERS))
    assert metric(deployed, "gemstream_quarantined_users") == 1
    done = gemstream(deployed, "user", "delete", "ann", "--yes")
    assert (done.returncode, done.stdout.strip()) == (0, "user ann is deleted")
    assert metric(deployed, "gemstream_quarantined_users") == 0
    deployed.stop()
    assert gemstream(deployed, "store", "verify").returncode == 0
