"""The command line: tables for people, one JSON document for programs, exit codes, errors that help."""

import asyncio
import json
import logging
import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from services.cli import main
from services.clients import StateClient
from services.local_kafka import RunningKafka
from stream.topics import TopicsConfig
from tests.services.nodes import FakeOwner, recommending


async def gemstream(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "services.cli", *arguments]
    environment = {**os.environ, **variables}
    return await asyncio.to_thread(
        subprocess.run,
        command,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=environment,
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


async def test_user_delete() -> None:
    owner = FakeOwner()
    owner.add("ann", 20)
    async with owner.serving() as address:
        refused = await gemstream("user", "delete", "ann", "--state", address)
        assert refused.returncode != 0
        assert owner.deleted == []
        done = await gemstream("user", "delete", "ann", "--yes", "--json", "--state", address)
        shown = await gemstream("user", "show", "ann", "--state", address)
    assert json.loads(done.stdout) == {"deleted": "ann"}
    assert owner.deleted == ["ann"]
    assert shown.returncode == 3


async def test_user_forget() -> None:
    owner = FakeOwner()
    owner.add("ann", 20)
    forget = ["user", "forget", "ann", "20", "--timeout", "5"]
    async with owner.serving() as address:
        refused = await gemstream(*forget, "--state", address)
        assert refused.returncode != 0
        assert newest_item(owner, "ann") == 20
        done = await gemstream(*forget, "--yes", "--json", "--state", address)
        assert newest_item(owner, "ann") == 19
        owner.stuck_at = 30
        late = await gemstream(*forget, "--yes", "--timeout", "1", "--state", address)
    assert json.loads(done.stdout) == {"user": "ann", "forgotten_item": "20"}
    assert late.returncode == 1
    assert "the request is in the log, but not applied after 1 s" in late.stderr


def newest_item(owner: FakeOwner, user: str) -> int:
    stored = owner.store_of(user).read_user(user, "")
    assert stored is not None
    return int(stored.decode(user).rows["item_id"][-1])


async def test_store_stats() -> None:
    owner = FakeOwner()
    owner.add("ann", 20)
    async with owner.serving() as address:
        table = await gemstream("store", "stats", "--state", address)
        document = await gemstream("store", "stats", "--state", address, "--json")
    assert "1 users" in table.stdout
    assert json.loads(document.stdout)["dirty_users"] == "1"


async def test_control_characters_are_shown_escaped() -> None:
    owner = FakeOwner()
    owner.add("a\x1b[2J\nb", 1)
    async with owner.serving() as address:
        table = await gemstream("user", "show", "a\x1b[2J\nb", "--state", address)
    assert r"User a\x1b[2J\nb: 1 interactions" in table.stdout


async def test_addresses_come_from_option_environment_file(tmp_path: Path) -> None:
    owner = FakeOwner()
    owner.add("ann", 20)
    path = tmp_path / "gemstream.toml"
    config = ["--config", str(path)]
    async with owner.serving() as state, StateClient(state, 5.0) as users:
        async with recommending(users) as recommender:
            path.write_text(
                f'[state_node]\nlisten = "{state}"\n[inference_node]\nlisten = "{recommender}"\n'
            )
            for arguments in (["user", "show", "ann"], ["store", "stats"], ["recommend", "ann"]):
                assert (await gemstream(*arguments, *config)).returncode == 0
            path.write_text('[state_node]\nlisten = "127.0.0.1:1"\nadvertise = "127.0.0.1:2"\n')
            done = await gemstream("store", "stats", *config)
            assert "no answer from 127.0.0.1:2" in done.stderr
            done = await gemstream("store", "stats", *config, GEMSTREAM_STATE="127.0.0.1:3")
            assert "no answer from 127.0.0.1:3" in done.stderr
            done = await gemstream(
                "store", "stats", *config, "--state", state, GEMSTREAM_STATE="127.0.0.1:3"
            )
            assert done.returncode == 0


async def test_recommend_says_that_the_state_could_not_be_read() -> None:
    async with StateClient("127.0.0.1:1", 1.0) as users:
        async with recommending(users) as address:
            table = await gemstream("recommend", "ann", "--address", address)
            document = await gemstream("recommend", "ann", "--address", address, "--json")
    assert "popular items: the user's state could not be read" in table.stdout
    assert "nothing is known" not in table.stdout
    assert json.loads(document.stdout)["state_version"] == "0"


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


@pytest.mark.slow
async def test_no_broker_is_one_line(tmp_path: Path) -> None:
    events = tmp_path / "events.csv"
    events.write_text("user_id,item_id,event_time_ms\na,1,1700000000000\n")
    nobody = ["--bootstrap", "127.0.0.1:1"]
    for done in await asyncio.gather(
        gemstream("produce", str(events), *nobody), gemstream("dlq", "list", *nobody)
    ):
        assert done.returncode == 4
        assert len(done.stderr.splitlines()) == 1


async def test_a_role_with_a_wrong_configuration_ends_with_78(tmp_path: Path) -> None:
    path = tmp_path / "gemstream.toml"
    path.write_text("[history]\nrecent = 1\n")
    for config in (path, tmp_path / "none.toml"):
        done = await gemstream("run", "inference-node", "--config", str(config))
        assert done.returncode == 78
        assert str(config) in done.stderr
    assert (await gemstream("store", "stats", "--config", str(path))).returncode == 1


def interrupt(process: "subprocess.Popen[str]") -> str:
    """As somebody does who presses Ctrl-C again where nothing happens: Python loses one that comes within a destructor."""
    for _ in range(5):
        process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            return process.communicate(timeout=3)[1]
    process.kill()
    return process.communicate()[1]


def test_an_interrupted_command_ends_with_130() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        command = [sys.executable, "-m", "services.cli", "recommend", "ann", "--address", address]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            connection, _ = silent.accept()
            errors = interrupt(process)
            connection.close()
    assert process.returncode == 130
    assert "Traceback" not in errors


def test_an_interrupt_outside_of_a_command_ends_with_130(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "aiokafka")  # main sets it; caplog sets it back

    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(main, "app", interrupted)
    with pytest.raises(SystemExit) as ended:
        main.main()
    assert ended.value.code == 130


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
