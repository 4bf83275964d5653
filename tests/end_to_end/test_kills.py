"""Nothing lost, nothing doubled: members of the group killed, paused, joining and leaving, on a real broker."""

import asyncio
import os
import random
import signal
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path

import psutil
import pytest
from aiokafka import AIOKafkaConsumer, ConsumerRecord
from aiokafka.admin import AIOKafkaAdminClient

from protos.interaction_pb2 import Interaction
from services.local_kafka import RunningKafka
from state.key_value_store import MemoryStore
from state.user_store import UserStore
from stream.decode import Decoder, DecoderConfig
from stream.topics import TopicsConfig
from tests.end_to_end.members import POINTS, End, Member
from tests.state.builders import SMALL, START_MS, stored_histories
from tests.stream.nodes import produce

pytestmark = [pytest.mark.broker, pytest.mark.slow]

NUM_KILLS = 100
DEADLINE_S = 90.0
Pair = tuple[bytes | None, bytes | None]


@pytest.fixture
def processes() -> Iterator[list[BaseProcess]]:
    """What is left of these at the end is killed."""
    started: list[BaseProcess] = []
    yield started
    for process in started:
        if process.is_alive():
            process.kill()
        process.join()


async def until(what: str, condition: Callable[[], Awaitable[bool]]) -> None:
    try:
        async with asyncio.timeout(DEADLINE_S):
            while not await condition():
                await asyncio.sleep(0.05)
    except TimeoutError:
        pytest.fail(f"waited {DEADLINE_S:.0f} s in vain for: {what}")


def make_log(rng: random.Random, num_events: int, first: int = 0) -> list[Pair]:
    """Events of thirty users, some late, some sent twice, with rubbish and deletions between them."""
    log: list[Pair] = []
    for number in range(first, first + num_events):
        user = f"user-{rng.randrange(30)}"
        lateness = rng.choice([0, 0, 0, 5, 400])
        event = Interaction(
            event_id=f"event-{number}",
            user_id=user,
            item_id=rng.randrange(1, 500),
            event_time_ms=START_MS + number - lateness,
        )
        log.append((user.encode(), event.SerializeToString()))
        if rng.random() < 0.05:
            log.append(rng.choice(log[-200:]))
        if rng.random() < 0.01:
            log.append((user.encode(), b"rubbish"))
        if rng.random() < 0.002:
            log.append((user.encode(), None))
    return log


async def read_log(kafka: RunningKafka, topics: TopicsConfig) -> dict[int, list[ConsumerRecord]]:
    """What really is in the topic, by partition."""
    consumer = AIOKafkaConsumer(
        topics.interactions, bootstrap_servers=kafka.bootstrap, auto_offset_reset="earliest"
    )
    await consumer.start()
    try:
        ends = await consumer.end_offsets(consumer.assignment())
        log: dict[int, list[ConsumerRecord]] = {where.partition: [] for where in ends}
        while any(len(log[where.partition]) < end for where, end in ends.items()):
            for where, records in (await consumer.getmany(timeout_ms=1_000)).items():
                log[where.partition] += records
    finally:
        await consumer.stop()
    return log


async def committed(kafka: RunningKafka, topics: TopicsConfig) -> dict[int, int]:
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka.bootstrap)
    await admin.start()
    try:
        offsets = await admin.list_consumer_group_offsets(topics.interactions)
    finally:
        await admin.close()
    return {where.partition: offset.offset for where, offset in offsets.items()}


def ends_of(log: dict[int, list[ConsumerRecord]]) -> dict[int, int]:
    return {partition: records[-1].offset + 1 for partition, records in log.items()}


async def is_applied(
    kafka: RunningKafka, topics: TopicsConfig, log: dict[int, list[ConsumerRecord]]
) -> bool:
    return await committed(kafka, topics) == ends_of(log)


def assert_is_the_log_so_far(store: UserStore, log: Sequence[ConsumerRecord]) -> int:
    """A store is what one uninterrupted pass over the log up to its position gives; returns the position."""
    position = store.position()
    if position is None:
        return 0
    seen = [record for record in log if record.offset < position.next_offset]
    expected = UserStore(MemoryStore(), SMALL, store.partition)
    expected.apply(Decoder(DecoderConfig(), 3).decode(store.partition, seen).arrivals)
    assert stored_histories(store.database) == stored_histories(expected.database)
    assert position == expected.position()
    return position.next_offset


def positions(member: Member, log: dict[int, list[ConsumerRecord]]) -> dict[int, int]:
    """Check every store of a member that is gone; returns their positions."""
    stores = member.stores()
    found = {
        partition: assert_is_the_log_so_far(stores.open(partition), log[partition])
        for partition in log
        if (member.directory / str(partition)).exists()
    }
    stores.close_all()
    return found


async def test_a_hundred_kills_lose_and_double_nothing(
    kafka: RunningKafka, topics: TopicsConfig, tmp_path: Path, processes: list[BaseProcess]
) -> None:
    seed = int.from_bytes(os.urandom(4))
    print(f"seed {seed}")
    rng = random.Random(seed)
    points = [*POINTS, "some time"]
    points.remove("partitions are given up")  # nobody else is here to give them to
    for number in range(NUM_KILLS):
        await produce(kafka.bootstrap, topics.interactions, make_log(rng, 200, first=200 * number))
        point = rng.choice(points)
        nth = 1 if "partitions" in point else rng.randint(1, 3)
        end = None if point == "some time" else End(point, nth)
        process = Member(tmp_path / "node", kafka.bootstrap, topics, "the-one", end).start()
        processes.append(process)
        await asyncio.to_thread(process.join, rng.random() if end is None else DEADLINE_S)
        assert end is None or not process.is_alive(), f"never came to {end}"
        process.kill()
        await asyncio.to_thread(process.join)
        assert process.exitcode == -signal.SIGKILL
    log = await read_log(kafka, topics)
    survivor = Member(tmp_path / "node", kafka.bootstrap, topics, "the-one")
    processes.append(survivor.start())
    await until("all events in the state", partial(is_applied, kafka, topics, log))
    await end_well(processes[-1])
    assert positions(survivor, log) == ends_of(log)


async def test_members_join_leave_die_and_sleep(
    kafka: RunningKafka, topics: TopicsConfig, tmp_path: Path, processes: list[BaseProcess]
) -> None:
    """A sleeper is paused with a poll in hand until others own its partitions: its late write must not land."""
    rng = random.Random(7)

    def start(name: str, end: End | None = None) -> tuple[Member, BaseProcess]:
        member = Member(tmp_path / name, kafka.bootstrap, topics, None, end)
        processes.append(member.start())
        return member, processes[-1]

    await produce(kafka.bootstrap, topics.interactions, make_log(rng, 600))
    sleeper, asleep = start("sleeper", End("the lease is looked at", 4, signal.SIGSTOP))
    await until("the sleeper pauses", partial(is_paused, asleep))
    stays, staying = start("stays")
    log = await read_log(kafka, topics)
    await until("the other takes over", partial(is_applied, kafka, topics, log))
    assert not sleeper.reported("refused")
    os.kill(asleep.pid or 0, signal.SIGCONT)
    await until("the late write is refused", partial(has_reported, sleeper, "refused"))

    dies, dying = start("dies", End("partitions were taken over", 1))
    await produce(kafka.bootstrap, topics.interactions, make_log(rng, 600, first=600))
    await asyncio.to_thread(dying.join, DEADLINE_S)
    assert dying.exitcode == -signal.SIGKILL
    leaves, leaving = start("leaves", End("after the commit", 3, signal.SIGTERM))
    await produce(kafka.bootstrap, topics.interactions, make_log(rng, 600, first=1_200))
    await asyncio.to_thread(leaving.join, DEADLINE_S)
    assert leaving.exitcode == 0

    log = await read_log(kafka, topics)
    await until("all events in the state", partial(is_applied, kafka, topics, log))
    for process in (asleep, staying):
        await end_well(process)
    everywhere = [positions(member, log) for member in (sleeper, stays, dies, leaves)]
    furthest = {partition: max(at.get(partition, 0) for at in everywhere) for partition in log}
    assert furthest == ends_of(log)


async def is_paused(process: BaseProcess) -> bool:
    return psutil.Process(process.pid).status() == psutil.STATUS_STOPPED


async def has_reported(member: Member, what: str) -> bool:
    return member.reported(what)


async def end_well(process: BaseProcess) -> None:
    process.terminate()
    await asyncio.to_thread(process.join, 30)
    assert process.exitcode == 0
