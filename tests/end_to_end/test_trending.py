"""A burst of events to answers for users of whom nothing is known, through real processes, one of them killed."""

import asyncio
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import GroupCoordinatorNotAvailableError

from model.bundle import load_bundle
from protos import recommender_pb2 as wire
from protos.interaction_pb2 import Interaction
from protos.recommender_pb2 import RecommendResponse
from services.local_kafka import RunningKafka
from stream.topic_reader import read_topic
from stream.topics import TopicsConfig
from stream.trending_counts import Window
from tests.end_to_end.processes import DEADLINE_S, Deployment, wait_for
from tests.stream.trending import interaction

pytestmark = [pytest.mark.broker, pytest.mark.slow]
WITHIN_S = 5.0


@pytest.fixture
def deployed(
    kafka: RunningKafka, topics: TopicsConfig, tmp_path: Path, bundle: Path
) -> Iterator[Deployment]:
    deployment = Deployment(tmp_path, kafka.bootstrap, topics, bundle)
    yield deployment
    end(deployment)


def end(deployed: Deployment) -> None:
    """SIGKILL whatever still runs, and show what it said."""
    if deployed.process is not None:
        deployed.process.kill()
        deployed.process.wait()
        print(deployed.log.read_text())


def views(item: int, count: int, *, first: int = 0) -> list[Interaction]:
    """Of as many users, from the `first` one on."""
    now_ms = time.time_ns() // 1_000_000
    return [interaction(f"user-{n}", item, now_ms) for n in range(first, first + count)]


def ids(reply: RecommendResponse) -> list[int]:
    return [entry.item.item_id for entry in reply.items]


async def counted(deployed: Deployment) -> Counter[int]:
    """By item, what the table's changelog holds."""
    newest = {}
    async for record in read_topic(deployed.bootstrap, deployed.topics.trending_counts):
        newest[record.partition, record.key] = record.value
    totals: Counter[int] = Counter()
    for value in filter(None, newest.values()):
        pairs = Window.decode(value).pairs
        totals.update(dict(zip(pairs.item_ids.tolist(), pairs.weights.tolist(), strict=True)))
    return totals


async def test_a_burst_reaches_strangers_and_a_kill_changes_no_count(
    deployed: Deployment, bundle: Path
) -> None:
    catalogue = load_bundle(bundle).catalogue
    rare, rarer, known = (
        int(catalogue.item_ids[i]) for i in catalogue.by_popularity()[[-2, -1, 0]]
    )
    deployed.start("up")
    assert deployed.recommend("a stranger", k=3).source == wire.SOURCE_POPULAR
    await deployed.produce(views(rare, 20))
    wait_for("the burst", lambda: ids(deployed.recommend("a stranger", k=3))[0] == rare)

    sent_s = time.monotonic()
    await deployed.produce([*views(rarer, 30), *views(999_999, 40)])  # the latter nobody knows
    wait_for("a second one", lambda: ids(deployed.recommend("a stranger", k=3))[0] == rarer)
    assert time.monotonic() - sent_s < WITHIN_S
    reply = deployed.recommend("a stranger", k=3)
    assert ids(reply)[:2] == [rarer, rare]
    assert [entry.source for entry in reply.items] == [
        wire.SOURCE_TRENDING,
        wire.SOURCE_TRENDING,
        wire.SOURCE_POPULAR,
    ]
    assert reply.source == wire.SOURCE_TRENDING
    assert rarer not in ids(deployed.recommend("a stranger", k=3, exclude_item_ids=[rarer]))
    shown = subprocess.run(
        [
            *(sys.executable, "-m", "services.cli", "recommend", "a stranger", "-k", "3"),
            *("--config", str(deployed.config)),
        ],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout
    assert "trending items: nothing is known of this user" in shown

    little = deployed.recommend("user-1", k=5)  # one to three interactions of five
    assert little.source == wire.SOURCE_PERSONAL
    assert {entry.source for entry in little.items} >= {wire.SOURCE_PERSONAL, wire.SOURCE_TRENDING}

    await deployed.produce(views(known, 25))
    deployed.kill_role("trending")
    await deployed.produce([*views(known, 25, first=25), *views(rare, 20, first=20)])
    wait_for("what came after the kill", lambda: ids(deployed.recommend("a stranger"))[0] == known)
    wait_for("all of it", lambda: ids(deployed.recommend("a stranger"))[:2] == [known, rare])
    deployed.stop()
    assert await counted(deployed) == {rare: 40, rarer: 30, 999_999: 40, known: 50}


async def test_the_role_alone_goes_on_where_it_was(
    kafka: RunningKafka, topics: TopicsConfig, tmp_path: Path
) -> None:
    deployed = Deployment(tmp_path, kafka.bootstrap, topics, tmp_path / "no bundle")
    try:
        await stop_and_kill(deployed)
    finally:
        if deployed.process is not None:
            deployed.process.kill()
            print(deployed.log.read_text())


async def stop_and_kill(deployed: Deployment) -> None:
    """Every event that was ever sent is counted in the end, and once."""
    total = 0
    for number in range(3):
        deployed.start("run", "trending")
        wait_for("the start", lambda: started(deployed) > number or has_ended(deployed))  # noqa: B023
        if number == 0:
            while not await counted(deployed):
                await deployed.produce(views(7, 1, first=total))
                total += 1
        await deployed.produce(views(7, 200, first=total))
        total += 200
        if number == 1:
            deployed.stop()
        else:  # in the middle of it
            deployed.kill_role("trending")
            deployed.process = None
    deployed.start("run", "trending")
    give_up_at = time.monotonic() + DEADLINE_S
    while (await counted(deployed))[7] < total:
        assert time.monotonic() < give_up_at
    deployed.stop()
    assert await counted(deployed) == {7: total}


async def test_members_come_and_go_under_a_stream_of_events(
    kafka: RunningKafka, topics: TopicsConfig, tmp_path: Path
) -> None:
    """One joins and leaves, one joins and is killed; every event is counted once, and the first one never ends."""
    members = []
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        members.append(Deployment(tmp_path / name, kafka.bootstrap, topics, tmp_path / "no bundle"))
    first, second = members
    sent = 0

    async def send_until_there_are(num_members: int) -> None:
        nonlocal sent
        async with asyncio.timeout(DEADLINE_S):
            while await num_members_of(first) != num_members:
                await first.produce(views(7, 30, first=sent))
                sent += 30

    try:
        first.start("run", "trending")
        await send_until_there_are(1)
        for leave in (second.stop, lambda: second.kill_role("trending")):
            second.start("run", "trending")
            await send_until_there_are(2)
            await until_counted(first, sent)
            leave()
            await send_until_there_are(1)
            await until_counted(first, sent)
        second.process = None
        assert not has_ended(first)
        first.stop()
    finally:
        for member in members:
            end(member)
    assert await counted(first) == {7: sent}


async def num_members_of(deployed: Deployment) -> int:
    """As the coordinator says; 0 while they are at odds, and while a fresh broker has none."""
    client = AIOKafkaAdminClient(bootstrap_servers=deployed.bootstrap)
    await client.start()
    try:
        [response] = await client.describe_consumer_groups([deployed.topics.trending])
    except GroupCoordinatorNotAvailableError:
        return 0
    finally:
        await client.close()
    [(_, _, state, _, _, members, *_)] = response.groups
    return len(members) if state == "Stable" else 0


async def until_counted(deployed: Deployment, total: int) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while (await counted(deployed))[7] != total:
            await asyncio.sleep(0.1)  # between two looks


def has_ended(deployed: Deployment) -> bool:
    return deployed.process is None or deployed.process.poll() is not None


def started(deployed: Deployment) -> int:
    return deployed.log.read_text().count("counting what trends")
