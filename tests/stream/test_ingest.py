"""From a real broker into a real RocksDB: bad neighbours, restarts, two members, unreachable offsets."""

import asyncio
import random
import threading
import uuid
from collections.abc import Sequence
from pathlib import Path
from unittest.mock import ANY

import pytest
from aiokafka import AIOKafkaProducer, ConsumerRecord, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete

from services.local_kafka import RunningKafka
from state.arrivals import Position
from state.segments import HistoryConfig
from stream.dead_letters import CUT_FROM, REASON, SOURCE_OFFSET, DeadLetters
from stream.decode import Decoded, Decoder, DecoderConfig, Record, Rejected
from stream.deletions import send_forget
from stream.errors import OffsetUnreachable, TopicMismatch
from stream.phases import Phase
from stream.producer import Producer
from stream.topics import TopicsConfig, partition_of
from tests.state.builders import SMALL
from tests.stream.nodes import DEADLINE_S, Node, event, produce, read_all, running, until

pytestmark = pytest.mark.broker


class Gate(Decoder):
    """Lets the first poll wait."""

    def __init__(self) -> None:
        super().__init__(DecoderConfig(), 3)
        self.reached, self.opened = threading.Event(), threading.Event()
        self.partition = -1

    def decode(self, partition: int, records: Sequence[Record]) -> Decoded:
        self.partition = partition
        self.reached.set()
        self.opened.wait(DEADLINE_S)
        return super().decode(partition, records)


@pytest.fixture
def group() -> str:
    return f"state-{uuid.uuid4().hex[:8]}"


async def test_events_become_state_and_rubbish_becomes_dead_letters(
    kafka: RunningKafka, topics: TopicsConfig, tmp_path: Path, group: str
) -> None:
    records: list[tuple[bytes | None, bytes | None]] = [event("ann", n) for n in range(16)]
    records[5:5] = [(b"ann", b"rubbish"), (b"\xff", None), (None, b"{}")]
    await produce(kafka.bootstrap, topics.interactions, records)
    node = Node(kafka.bootstrap, topics, tmp_path, group)
    async with running(node):
        await until(lambda: node.applied() == 16 and node.ingest.counters["dead_letters"] == 3)
        assert node.items("ann") == list(range(4, 17))
        assert node.moves >= 1
    letters = await read_all(kafka.bootstrap, topics.dead_letters, 3)
    assert sorted(letter.value or b"" for letter in letters) == [b"", b"rubbish", b"{}"]
    for letter in letters:
        headers = dict(letter.headers)
        assert headers[REASON]
        assert int(headers[SOURCE_OFFSET]) >= 0


async def test_large_rubbish_with_odd_headers_is_kept_whole(
    kafka: RunningKafka, topics: TopicsConfig, tmp_path: Path, group: str
) -> None:
    rubbish = random.Random(1).randbytes(1_040_000)  # all that the source topic takes
    producer = AIOKafkaProducer(bootstrap_servers=kafka.bootstrap, max_request_size=2 << 20)
    await producer.start()
    for headers in ([], [("empty", None), ("twice", b"1"), ("twice", b"2")]):
        await producer.send_and_wait(topics.interactions, rubbish, key=b"ann", headers=headers)
    await producer.stop()
    await produce(kafka.bootstrap, topics.interactions, [event("ann", 0)])
    node = Node(kafka.bootstrap, topics, tmp_path, group)
    async with running(node):
        await until(lambda: node.applied() == 1 and node.ingest.counters["dead_letters"] == 2)
    letters = await read_all(kafka.bootstrap, topics.dead_letters, 2)
    assert [letter.value == rubbish for letter in letters] == [True, True]


async def test_a_record_of_nothing_stops_nothing(
    kafka: RunningKafka, topics: TopicsConfig, tmp_path: Path, group: str
) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=kafka.bootstrap)
    await producer.start()
    nothing = producer.create_batch()  # the only way past the client's own check
    nothing.append(key=None, value=None, timestamp=None)
    await (await producer.send_batch(nothing, topics.interactions, partition=0))
    await producer.stop()
    await produce(kafka.bootstrap, topics.interactions, [event("ann", 0)])
    node = Node(kafka.bootstrap, topics, tmp_path, group)
    async with running(node):
        await until(lambda: node.applied() == 1 and node.ingest.counters["dead_letters"] == 1)
    (letter,) = await read_all(kafka.bootstrap, topics.dead_letters, 1)
    assert (letter.key, letter.value) == (b"", None)


async def test_what_the_dead_letter_topic_refuses_is_cut_and_says_so(
    kafka: RunningKafka, topics: TopicsConfig
) -> None:
    record = ConsumerRecord(  # its value is more than this stand-in for a small topic takes
        topics.interactions,
        1,
        7,
        0,
        0,
        b"ann",
        random.Random(1).randbytes(1_200_000),
        None,
        0,
        0,
        (),
    )
    async with Producer(kafka.bootstrap) as producer:
        letters = DeadLetters(producer, topics.interactions, topics.compression_jobs)
        await letters.write([Rejected(record, "too large")])
    (letter,) = await read_all(kafka.bootstrap, topics.compression_jobs, 1)
    assert letter.value == record.value[: 64 << 10]
    assert dict(letter.headers)[CUT_FROM] == b"1200000"


async def test_a_restart_goes_on_where_the_store_stands(
    kafka: RunningKafka, topics: TopicsConfig, tmp_path: Path, group: str
) -> None:
    await produce(kafka.bootstrap, topics.interactions, [event("ann", n) for n in range(5)])
    first = Node(kafka.bootstrap, topics, tmp_path, group)
    async with running(first):
        await until(lambda: first.applied() == 5)
    await produce(kafka.bootstrap, topics.interactions, [event("ann", n) for n in range(5, 9)])
    # Another group has no committed offsets: the store's own decide.
    second = Node(kafka.bootstrap, topics, tmp_path, f"{group}-other")
    async with running(second):
        await until(lambda: second.applied() == 4)
        assert second.items("ann") == list(range(1, 10))
        assert second.ingest.counters["replayed"] == 0


async def test_an_item_is_forgotten_in_its_place_in_the_log(
    kafka: RunningKafka, topics: TopicsConfig, tmp_path: Path, group: str
) -> None:
    await produce(kafka.bootstrap, topics.interactions, [event("ann", n) for n in range(9)])
    async with Producer(kafka.bootstrap) as producer:
        assert await send_forget(producer, topics.interactions, "ann", 4) == 9
    again = [event("ann", 3), event("ann", 9)]
    await produce(kafka.bootstrap, topics.interactions, again)
    for path in (tmp_path / "first", tmp_path / "rebuilt"):
        node = Node(kafka.bootstrap, topics, path, f"{group}-{path.name}")
        async with running(node):
            await until(lambda: node.applied() == 10)  # noqa: B023
            assert node.items("ann") == [1, 2, 3, *range(5, 11)]
            counters = node.ingest.counters
            assert (counters["forgotten"], counters["refused"]) == (1, 1)


async def test_two_members_share_the_users_and_a_leaver_hands_over(
    kafka: RunningKafka, topics: TopicsConfig, tmp_path: Path, group: str
) -> None:
    users = [f"user-{n}" for n in range(30)]
    await produce(kafka.bootstrap, topics.interactions, [event(user, 0) for user in users])
    stays = Node(kafka.bootstrap, topics, tmp_path / "stays", group)
    leaves = Node(kafka.bootstrap, topics, tmp_path / "leaves", group)
    async with running(stays):
        async with running(leaves):
            await until(
                lambda: (
                    bool(leaves.consumer.assigned())
                    and len(leaves.consumer.assigned()) + len(stays.consumer.assigned()) == 3
                )
            )
            await produce(kafka.bootstrap, topics.interactions, [event(user, 1) for user in users])
            await until(
                lambda: (
                    sum(2 in stays.items(user) or 2 in leaves.items(user) for user in users) == 30
                )
            )
        await produce(kafka.bootstrap, topics.interactions, [event(user, 2) for user in users])
        await until(lambda: all(stays.items(user) == [1, 2, 3] for user in users))


async def lose_to_retention(bootstrap: str, topics: TopicsConfig, before_offset: int) -> int:
    """Remove the first records of ann's partition; returns the partition."""
    where = TopicPartition(topics.interactions, partition_of("ann", topics.num_partitions))
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    await admin.delete_records({where: RecordsToDelete(before_offset=before_offset)})
    await admin.close()
    return int(where.partition)


async def test_an_offset_that_retention_overtook_is_refused_with_both_numbers_or_accepted(
    kafka: RunningKafka, topics: TopicsConfig, tmp_path: Path, group: str
) -> None:
    await produce(kafka.bootstrap, topics.interactions, [event("ann", n) for n in range(5)])
    node = Node(kafka.bootstrap, topics, tmp_path, group)
    async with running(node):
        await until(lambda: node.applied() == 5)
    await produce(kafka.bootstrap, topics.interactions, [event("ann", n) for n in range(5, 20)])
    partition = await lose_to_retention(kafka.bootstrap, topics, before_offset=10)
    again = Node(kafka.bootstrap, topics, tmp_path, group)
    async with running(again) as task:
        async with asyncio.timeout(DEADLINE_S):
            with pytest.raises(
                OffsetUnreachable, match="needs offset 5, but the topic now begins at 10"
            ):
                await task
    accepting = Node(kafka.bootstrap, topics, tmp_path, group, accept_hole=True)
    async with running(accepting):
        await until(lambda: accepting.applied() == 10)
        assert accepting.items("ann")[-10:] == list(range(11, 21))
    after = Node(kafka.bootstrap, topics, tmp_path, group)
    async with running(after):
        await until(lambda: after.consumer.phases.in_phase(Phase.READY) == {0, 1, 2})
        (hole,) = after.stores.get(partition).holes()
        assert (hole.start_offset, hole.end_offset) == (5, 10)


async def test_a_partition_is_ready_once_it_reached_the_end_it_was_given_at(
    kafka: RunningKafka, topics: TopicsConfig, tmp_path: Path, group: str
) -> None:
    await produce(kafka.bootstrap, topics.interactions, [event("ann", n) for n in range(5)])
    gate = Gate()
    node = Node(kafka.bootstrap, topics, tmp_path, group, decoder=gate)
    async with running(node):
        await until(gate.reached.is_set)
        assert node.consumer.phases.all()[gate.partition] is Phase.CATCHING_UP
        assert not node.consumer.phases.all_ready()
        gate.opened.set()
        await until(node.consumer.phases.all_ready)
        assert node.stores.get(gate.partition).position() == Position(5, ANY)


async def test_a_marker_of_a_transaction_at_the_end_keeps_nothing_waiting(
    kafka: RunningKafka, topics: TopicsConfig, tmp_path: Path, group: str
) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=kafka.bootstrap, transactional_id=group)
    await producer.start()
    async with producer.transaction():
        key, value = event("ann", 0)
        partition = partition_of("ann", topics.num_partitions)
        await producer.send_and_wait(topics.interactions, value, key=key, partition=partition)
    await producer.stop()
    node = Node(kafka.bootstrap, topics, tmp_path, group)
    async with running(node):
        await until(node.consumer.phases.all_ready)
        await until(lambda: node.applied() == 1)


@pytest.mark.parametrize(
    ("num_events", "message"),
    [(0, "at offset 5, but the topic ends at 0"), (9, "offset 4 is not the one that was applied")],
    ids=["shorter", "longer"],
)
async def test_a_topic_made_anew_is_refused(
    kafka: RunningKafka,
    topics: TopicsConfig,
    tmp_path: Path,
    group: str,
    num_events: int,
    message: str,
) -> None:
    await produce(kafka.bootstrap, topics.interactions, [event("ann", n) for n in range(5)])
    node = Node(kafka.bootstrap, topics, tmp_path, group)
    async with running(node):
        await until(lambda: node.applied() == 5)
    other = TopicsConfig(
        interactions=topics.dead_letters,  # another topic stands in for the one made anew
        dead_letters=topics.interactions,
        compression_jobs=topics.compression_jobs,
        num_partitions=topics.num_partitions,
    )
    events = [event("ann", n) for n in range(num_events)]
    await produce(kafka.bootstrap, other.interactions, events)
    again = Node(kafka.bootstrap, other, tmp_path, f"{group}-other")
    async with running(again) as task:
        async with asyncio.timeout(DEADLINE_S):
            with pytest.raises(OffsetUnreachable, match=message):
                await task


async def test_a_topic_that_is_deleted_ends_the_reading(
    kafka: RunningKafka, topics: TopicsConfig, tmp_path: Path, group: str
) -> None:
    await produce(kafka.bootstrap, topics.interactions, [event("ann", n) for n in range(5)])
    node = Node(kafka.bootstrap, topics, tmp_path, group)
    async with running(node) as task:
        await until(lambda: node.applied() == 5)
        admin = AIOKafkaAdminClient(bootstrap_servers=kafka.bootstrap)
        await admin.start()
        await admin.delete_topics([topics.interactions])
        await admin.close()
        async with asyncio.timeout(DEADLINE_S):
            with pytest.raises(TopicMismatch, match="is gone"):
                await task


def test_small_history_is_what_these_tests_count_on() -> None:
    assert HistoryConfig(recent_len=4, mid_term_len=12, chunk_len=3, max_history=30) == SMALL
