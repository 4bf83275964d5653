"""A damaged user in a poll: his records become dead letters, once each, and nobody else's are lost or doubled."""

import uuid
from pathlib import Path

import pytest
from aiokafka import ConsumerRecord

from protos.interaction_pb2 import Interaction
from services.local_kafka import RunningKafka
from state import keys
from state.key_value_store import Batch, Family
from stream.dead_letter_log import read_dead_letters, replay
from stream.dead_letters import REASON
from stream.deletions import send_deletion, send_forget
from stream.producer import Producer
from stream.topics import TopicsConfig, partition_of
from tests.state.builders import START_MS
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
    message = Interaction(
        event_id=f"{user}-late", user_id=user, item_id=999, event_time_ms=START_MS + 1
    )
    return user.encode(), message.SerializeToString()


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
        counters = node.ingest.counters
        assert (counters["dead_letters"], counters["duplicates"], counters["replayed"]) == (1, 0, 0)
    letters = await letters_of(kafka.bootstrap, topics, 4)
    ours = [letter for letter in letters if letter.value != b"rubbish"]
    sent = [value for key, value in poll if key == b"ann"]
    assert [letter.value for letter in ours] == sent, "bytes and all, in their order"
    for letter in ours:
        assert b"user 'ann' is quarantined: chunk 0: " in dict(letter.headers)[REASON]
    assert sum("is quarantined, and" in record.message for record in caplog.records) == 1
    await leave_quarantine(Node(kafka.bootstrap, topics, tmp_path, group), kafka.bootstrap)


async def leave_quarantine(node: Node, bootstrap: str) -> None:
    """After a restart, by a deletion; what waited is refused then, as all that happened before it."""
    topics = node.topics
    await produce(bootstrap, topics.interactions, [event("ann", 22), event("bob", 20)])
    async with Producer(bootstrap) as producer, running(node):
        await send_forget(producer, topics.interactions, "ann", 3)
        await until(lambda: node.ingest.counters["quarantined"] == 2 and node.applied() == 1)
        await send_deletion(producer, topics.interactions, "ann")
        await until(lambda: node.ingest.counters["deletions"] == 1)
        assert node.items("ann") == []
        async for letter in read_dead_letters(bootstrap, topics.dead_letters):
            if letter.key == b"ann":
                await replay(producer, letter, rekey=False)
        await until(lambda: node.ingest.counters["refused"] == 4)
        assert node.ingest.counters["quarantined"] == 2
