"""A damaged user in a poll: his records become dead letters, once each, and nobody else's are lost or doubled."""

import uuid
from pathlib import Path

import pytest
from aiokafka import ConsumerRecord

from services.local_kafka import RunningKafka
from state import keys
from state.key_value_store import Batch, Family
from stream.dead_letter_log import read_dead_letters, replay
from stream.dead_letters import REASON
from stream.deletions import send_deletion, send_forget
from stream.producer import Producer
from stream.topics import TopicsConfig, partition_of
from tests.stream.nodes import Node, event, produce, read_all, running, until


def damage_first_chunk(node: Node, user: str) -> None:
    store = node.stores.open(partition_of(user, node.topics.num_partitions))
    key = keys.chunk_key(keys.user_prefix(user.encode()), 0)
    (chunk,) = store.database.get(Family.USERS, [key])
    assert chunk is not None
    batch = Batch()
    batch.put(Family.USERS, key, chunk[:-1] + bytes([chunk[-1] ^ 1]))
    store.database.write(batch)
    node.stores.close_all()


def late(user: str) -> tuple[bytes, bytes]:
    """Older than what is sealed, so that the fold reads all chunks."""
    return event(user, -1)


async def letters_of(bootstrap: str, topics: TopicsConfig, count: int) -> list[ConsumerRecord]:
    found = await read_all(bootstrap, topics.dead_letters, count)
    everything = [letter async for letter in read_dead_letters(bootstrap, topics.dead_letters)]
    assert len(everything) == count, "none twice"
    return found


@pytest.mark.broker
async def test_one_damaged_user_of_a_poll_and_a_restart_and_the_way_out(
    kafka: RunningKafka, topics: TopicsConfig, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    group, users = f"state-{uuid.uuid4().hex[:8]}", ["ann", "bob", *(f"u{n}" for n in range(9))]
    await produce(
        kafka.bootstrap, topics.interactions, [event(user, n) for user in users for n in range(20)]
    )
    first = Node(kafka.bootstrap, topics, tmp_path, group)
    async with running(first):
        await until(lambda: first.applied() == 20 * len(users))
    damage_first_chunk(first, "ann")
    poll = [event("ann", 20), *map(late, users), (b"bob", b"rubbish"), event("ann", 21)]
    await produce(kafka.bootstrap, topics.interactions, poll)
    node = Node(kafka.bootstrap, topics, tmp_path, group)
    async with running(node):
        await until(lambda: node.ingest.counters["quarantined"] == 3)
        await until(lambda: node.applied() == len(users) - 1)
        assert node.ingest.counters["dead_letters"] == 1
        assert node.ingest.counters["duplicates"] == node.ingest.counters["replayed"] == 0
    letters = await letters_of(kafka.bootstrap, topics, 4)
    ours = [letter for letter in letters if letter.value != b"rubbish"]
    assert [letter.value for letter in ours] == [value for key, value in poll if key == b"ann"], (
        "bytes and all, in their order"
    )
    for letter in ours:
        assert b"user 'ann' is quarantined: chunk 0: " in dict(letter.headers)[REASON]
    assert sum("is quarantined, and" in record.message for record in caplog.records) == 1

    await produce(kafka.bootstrap, topics.interactions, [event("ann", 22), event("bob", 20)])
    async with Producer(kafka.bootstrap) as producer:
        await send_forget(producer, topics.interactions, "ann", 3)
    again = Node(kafka.bootstrap, topics, tmp_path, group)
    async with running(again):
        await until(lambda: again.ingest.counters["quarantined"] == 2 and again.applied() == 1)
        async with Producer(kafka.bootstrap) as producer:
            await send_deletion(producer, topics.interactions, "ann")
            await until(lambda: again.ingest.counters["deletions"] == 1)
            assert again.items("ann") == []
            for letter in [
                each async for each in read_dead_letters(kafka.bootstrap, topics.dead_letters)
            ]:
                if letter.key == b"ann":
                    await replay(producer, letter, rekey=False)
        await until(lambda: again.ingest.counters["refused"] == 4)
        assert again.ingest.counters["quarantined"] == 2
