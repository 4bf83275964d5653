"""The command line: tables for people, one JSON document for programs, exit codes, errors that help."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest

from services.clients import StateClient
from services.local_kafka import RunningKafka
from stream.topics import TopicsConfig
from tests.services.nodes import FakeOwner, recommending


async def gemstream(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "services.cli", *arguments]
    return await asyncio.to_thread(
        subprocess.run, command, capture_output=True, text=True, timeout=60, check=False
    )


async def test_user_show() -> None:
    owner = FakeOwner()
    owner.add("ann [bold]", 20)
    async with owner.serving() as address:
        table = await gemstream("user", "show", "ann [bold]", "--state", address)
        document = await gemstream("user", "show", "ann [bold]", "--state", address, "--json")
        stranger = await gemstream("user", "show", "nobody", "--state", address)
    assert table.returncode == 0
    assert "User ann [bold]: 20 interactions" in table.stdout
    assert "a summary is owed" in table.stdout
    parsed = json.loads(document.stdout)
    assert (parsed["recent"], parsed["mid_term"], parsed["lifecycle"]) == ("4", "10", "6")
    assert len(document.stdout.splitlines()) == 1
    assert stranger.returncode == 3
    assert "no state for user 'nobody'" in stranger.stderr
    assert stranger.stdout == ""


async def test_store_stats() -> None:
    owner = FakeOwner()
    owner.add("ann", 20)
    async with owner.serving() as address:
        table = await gemstream("store", "stats", "--state", address)
        document = await gemstream("store", "stats", "--state", address, "--json")
    assert "1 users" in table.stdout
    assert json.loads(document.stdout)["dirty_users"] == "1"


async def test_recommend() -> None:
    owner = FakeOwner()
    owner.add("ann", 20)
    async with owner.serving() as state, StateClient(state, 5.0) as users:
        async with recommending(users) as address:
            arguments = ["recommend", "ann", "-k", "2", "--exclude", "20", "--address", address]
            table = await gemstream(*arguments)
            document = await gemstream(*arguments, "--json")
            popular = await gemstream("recommend", "nobody", "--address", address)
            refused = await gemstream("recommend", "x" * 300, "--address", address)
    assert "made from 4 recent, 10 mid-term and 0 lifecycle" in table.stdout
    items = [entry["item"]["item_id"] for entry in json.loads(document.stdout)["items"]]
    assert items == ["19", "18"]
    assert "popular items" in popular.stdout
    assert refused.returncode == 1
    assert "user_id has 300 bytes" in refused.stderr


async def test_nobody_answers() -> None:
    for arguments in (
        ["user", "show", "ann", "--state", "127.0.0.1:1"],
        ["store", "stats", "--state", "127.0.0.1:1"],
        ["recommend", "ann", "--address", "127.0.0.1:1"],
    ):
        done = await gemstream(*arguments)
        assert done.returncode == 4
        assert "no answer from 127.0.0.1:1" in done.stderr


async def test_wrong_usage() -> None:
    for arguments in (
        ["nonsense"],
        ["recommend"],
        ["recommend", "ann", "-k", "0"],
        ["run", "chef"],
    ):
        assert (await gemstream(*arguments)).returncode == 2


async def test_up_without_a_bundle_says_what_to_do(tmp_path: Path) -> None:
    done = await gemstream("up", "--bundle", str(tmp_path / "none"))
    assert done.returncode == 1
    assert "gemstream train" in done.stderr


@pytest.mark.parametrize(
    ("text", "phrase"),
    [
        ("user_id,item_id\na,1\n", "missing columns ['event_time_ms']"),
        ("user_id,item_id,event_time_ms,price\na,1,1700000000000,3\n", "unknown columns ['price']"),
        ("user_id,item_id,event_time_ms\na,1,1700000000\n", "it looks like seconds"),
        ("user_id,item_id,event_time_ms\na,0,1700000000000\n", "item_id is 0"),
        ("user_id,item_id,event_time_ms\na,apple,1700000000000\n", "column item_id"),
        ("user_id,item_id,event_time_ms,kinds\na,1,1700000000000,viewed\n", "'viewed'"),
    ],
)
async def test_event_logs_at_fault_are_explained(tmp_path: Path, text: str, phrase: str) -> None:
    path = tmp_path / "events.csv"
    path.write_text(text)
    done = await gemstream("produce", str(path), "--bootstrap", "127.0.0.1:1")
    assert done.returncode == 1
    assert phrase in done.stderr


@pytest.mark.broker
async def test_produce(kafka: RunningKafka, topics: TopicsConfig, tmp_path: Path) -> None:
    events = tmp_path / "events.csv"
    events.write_text(
        "user_id,item_id,event_time_ms,kinds\n"
        + "".join(f"user-{n % 5},{n + 1},{1_700_000_000_000 + n},view|like\n" for n in range(2_500))
    )
    config = tmp_path / "gemstream.toml"
    config.write_text(
        f'[topics]\ninteractions = "{topics.interactions}"\ndead_letters = "{topics.dead_letters}"\n'
        f'compression_jobs = "{topics.compression_jobs}"\nnum_partitions = {topics.num_partitions}\n'
    )
    arguments = ["produce", str(events), "--config", str(config), "--bootstrap", kafka.bootstrap]
    done = await gemstream(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"produced": 2_500, "users": 5, "bootstrap": kafka.bootstrap}
