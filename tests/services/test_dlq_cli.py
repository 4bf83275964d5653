"""`gemstream dlq`: what could not be read is listed, shown and brought back."""

import json
from pathlib import Path

import pytest
from aiokafka import ConsumerRecord

from protos.interaction_pb2 import Interaction
from services.local_kafka import RunningKafka
from stream.dead_letters import DeadLetters
from stream.decode import Rejected
from stream.producer import Producer
from stream.topics import TopicsConfig
from tests.services.test_cli import gemstream
from tests.stream.nodes import read_all

pytestmark = pytest.mark.broker

GOOD = Interaction(
    event_id="e1", user_id="ann", item_id=7, event_time_ms=1_700_000_000_000
).SerializeToString()


def record(offset: int, key: bytes | None, value: bytes | None) -> ConsumerRecord:
    headers = (("trace", b"t1"),)
    return ConsumerRecord("x", 1, offset, 0, 0, key, value, None, 0, 0, headers)


@pytest.fixture
async def options(kafka: RunningKafka, topics: TopicsConfig, tmp_path: Path) -> list[str]:
    """Options of a topic that holds rubbish, a null value and a record under the wrong key."""
    async with Producer(kafka.bootstrap) as producer:
        letters = DeadLetters(producer, topics.interactions, topics.dead_letters)
        for offset, (key, value) in enumerate([(b"k", b"\xffrubbish"), (b"k", None), (b"k", GOOD)]):
            await letters.write([Rejected(record(offset, key, value), f"reason [{offset}]")])
    config = tmp_path / "gemstream.toml"
    config.write_text(
        f'[topics]\ninteractions = "{topics.interactions}"\ndead_letters = "{topics.dead_letters}"\n'
        f'compression_jobs = "{topics.compression_jobs}"\n'
    )
    return ["--config", str(config), "--bootstrap", kafka.bootstrap]


async def test_list_show_and_replay(
    kafka: RunningKafka, topics: TopicsConfig, options: list[str]
) -> None:
    table = await gemstream("dlq", "list", *options)
    assert "reason [1]" in table.stdout
    listed = json.loads((await gemstream("dlq", "list", "--json", *options)).stdout)
    assert [letter["reason"] for letter in listed] == ["reason [0]", "reason [1]", "reason [2]"]
    assert listed[0]["source"] == f"{topics.interactions}-1@0"

    shown = json.loads(
        (await gemstream("dlq", "show", listed[2]["letter"], "--json", *options)).stdout
    )
    assert shown["interaction"]["user_id"] == "ann"
    assert shown["headers"] == {"trace": "t1"}
    assert bytes.fromhex(shown["value_hex"]) == GOOD
    assert (await gemstream("dlq", "show", "0:999", *options)).returncode == 3

    done = await gemstream("dlq", "replay", "--all", "--rekey", "--json", *options)
    assert done.returncode == 1
    outcome = json.loads(done.stdout)
    assert outcome["replayed"] == 1
    assert len(outcome["failed"]) == 2
    (back,) = await read_all(kafka.bootstrap, topics.interactions, 1)
    assert (back.key, back.value, back.headers) == (b"ann", GOOD, (("trace", b"t1"),))


async def test_replay_wants_to_know_what(options: list[str]) -> None:
    done = await gemstream("dlq", "replay", *options)
    assert done.returncode == 1
    assert "--all" in done.stderr
