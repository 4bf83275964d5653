"""One topic with everything a producer can get wrong, between good neighbours, through a real broker and RocksDB."""

import json
import random
import uuid
from dataclasses import dataclass
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.structs import ConsumerRecord

from protos.interaction_pb2 import Interaction
from services.local_kafka import RunningKafka
from stream.dead_letters import CUT_FROM, REASON, SOURCE_OFFSET, SOURCE_PARTITION, SOURCE_TOPIC
from stream.topics import TopicsConfig, partition_of
from tests.services.test_cli import gemstream
from tests.state.builders import START_MS
from tests.stream.nodes import Node, event, read_all, running, until

pytestmark = pytest.mark.broker

FIVE_MB = random.Random(1).randbytes(5_000_000)
NUM_PARTITIONS = 3
PARTITION = partition_of("ann", NUM_PARTITIONS)
STRANGER, FORGOTTEN = (
    next(name for name in map(str, range(99)) if (partition_of(name, 3) == PARTITION) == same)
    for same in (False, True)
)


@dataclass(frozen=True)
class Bad:
    """A record, and words of the reason why it is refused."""

    value: bytes | None
    reason: str
    key: bytes | None = b"ann"


def message(**fields: object) -> bytes:
    values = {"event_id": "bad", "user_id": "ann", "item_id": 7, "event_time_ms": START_MS}
    return Interaction(**{**values, **fields}).SerializeToString()  # type: ignore[arg-type]


BAD = {
    "truncated": Bad(message()[:-3], "not a gemstream.v1.Interaction"),
    "a number where the user is": Bad(message(user_id="") + b"\x10\x05", "user_id has 0 bytes"),
    "bytes where the item is": Bad(message(item_id=0) + b"\x1a\x01\x07", "item_id is 0"),
    "JSON": Bad(b'{"event_id": "e", "user_id": "ann", "item_id": 7}', "Interaction"),
    "text": Bad("gr\u00fc\u00dfe".encode("utf-16"), ""),
    "nothing": Bad(b"", "user_id has 0 bytes"),
    "no user": Bad(message(user_id=""), "user_id has 0 bytes", b""),
    "a long user": Bad(message(user_id="u" * 10_240), "user_id has 10240 bytes", b"u" * 10_240),
    "no event id": Bad(message(event_id=""), "event_id has 0 bytes"),
    "no time": Bad(message(event_time_ms=0), "event_time_ms is 0"),
    "before the epoch": Bad(message(event_time_ms=-START_MS), f"event_time_ms is -{START_MS}"),
    "seconds": Bad(message(event_time_ms=START_MS // 1_000), "looks like seconds"),
    "the last moment": Bad(message(event_time_ms=2**63 - 1), "event_time_ms"),
    "null without key": Bad(None, "user_id has 0 bytes", b""),
    "null under no text": Bad(None, "no user id", b"\xff\xfe"),
    "another's partition": Bad(message(user_id=STRANGER), "belongs to partition"),
    "5 MB": Bad(FIVE_MB, "5000000 bytes"),
}

NEWER = message(event_id="newer", item_id=500, event_time_ms=START_MS + 500, kinds=[3, 99])
NEWER += b"\xa2\x06\x03abc" + b"\xa8\x06\x01"  # fields 100 and 101 of a schema to come


async def take_large_records(bootstrap: str, topic: str) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    large = {"max.message.bytes": "8000000", "message.timestamp.type": "LogAppendTime"}
    await admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, large)])
    await admin.close()


async def produce_all(bootstrap: str, topic: str) -> tuple[dict[int, str], int]:
    """Every bad record behind a good one; returns the bad ones' names by offset, and the end of the partition."""
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, max_request_size=8 << 20)
    await producer.start()

    async def send(key: bytes | None, value: bytes | None, name: str = "") -> int:
        headers = [("trace", name.encode()), ("trace", b"twice"), ("empty", b"")]
        sent = await producer.send_and_wait(topic, value, key, PARTITION, headers=headers)
        return int(sent.offset)

    names = {}
    await send(FORGOTTEN.encode(), message(event_id="f", user_id=FORGOTTEN))
    for number, (name, bad) in enumerate(BAD.items()):
        await send(*event("ann", number))
        names[await send(bad.key, bad.value, name)] = name
    await send(b"ann", NEWER)
    end = await send(FORGOTTEN.encode(), None) + 1
    await producer.stop()
    return names, end


def assert_kept_whole(letter: ConsumerRecord, topic: str, names: dict[int, str]) -> None:
    ours = dict(letter.headers)
    offset = int(ours[SOURCE_OFFSET])
    name = names[offset]
    assert (letter.key, letter.value) == (BAD[name].key, BAD[name].value), name
    assert letter.headers[:3] == (("trace", name.encode()), ("trace", b"twice"), ("empty", b""))
    assert ours[SOURCE_TOPIC] == topic.encode()
    assert ours[SOURCE_PARTITION] == str(PARTITION).encode()
    assert BAD[name].reason in ours[REASON].decode()
    assert CUT_FROM not in ours


async def test_bad_input_is_kept_and_stops_nobody(
    kafka: RunningKafka, topics: TopicsConfig, tmp_path: Path
) -> None:
    await take_large_records(kafka.bootstrap, topics.interactions)
    names, end = await produce_all(kafka.bootstrap, topics.interactions)
    node = Node(kafka.bootstrap, topics, tmp_path, f"state-{uuid.uuid4().hex[:8]}")
    async with running(node):
        await until(lambda: node.items("ann")[-1:] == [500])
        await until(lambda: node.ingest.counters["deletions"] == 1)
        store = node.stores.get(PARTITION)
        position = store.position()
        assert position is not None
        assert position.next_offset == end
        assert node.applied() == len(BAD) + 2
        assert node.items("ann")[-3:] == [len(BAD) - 1, len(BAD), 500]
        assert node.items(FORGOTTEN) == []
        stored = store.read_user("ann", "")
        assert stored is not None
        assert stored.decode("ann").rows["kinds"][-1] == 1 << 3  # what is not known yet is left out
    letters = await read_all(kafka.bootstrap, topics.dead_letters, len(BAD))
    assert sorted(int(dict(letter.headers)[SOURCE_OFFSET]) for letter in letters) == sorted(names)
    for letter in letters:
        assert_kept_whole(letter, topics.interactions, names)
    await assert_operators_can_work(kafka.bootstrap, topics, tmp_path)


async def assert_operators_can_work(bootstrap: str, topics: TopicsConfig, path: Path) -> None:
    """`gemstream dlq` on all of it, and the largest one on its way back."""
    config = path / "gemstream.toml"
    config.write_text(
        f'[topics]\ninteractions = "{topics.interactions}"\ndead_letters = "{topics.dead_letters}"\n'
        f'compression_jobs = "{topics.compression_jobs}"\nnum_partitions = {NUM_PARTITIONS}\n'
    )
    options = ["--config", str(config), "--bootstrap", bootstrap]
    listed = json.loads((await gemstream("dlq", "list", "--json", *options)).stdout)
    assert len(listed) == len(BAD)
    (large,) = [each["letter"] for each in listed if BAD["5 MB"].reason in each["reason"]]
    shown = json.loads((await gemstream("dlq", "show", large, "--json", *options)).stdout)
    assert bytes.fromhex(shown["value_hex"]) == FIVE_MB
    replayed = await gemstream("dlq", "replay", large, *options)
    assert replayed.returncode == 0, replayed.stderr
    records = await read_all(bootstrap, topics.interactions, 2 * len(BAD) + 4)
    assert (records[-1].key, records[-1].value) == (b"ann", FIVE_MB)
    assert records[-1].headers[:2] == (("trace", b"5 MB"), ("trace", b"twice"))
