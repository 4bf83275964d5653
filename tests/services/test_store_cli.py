"""`gemstream store list|verify|restore`, as somebody in front of an incident uses them: no node runs."""

import json
from hashlib import sha256
from pathlib import Path

import pytest

from services.cli.output import print_table
from services.store_verification import StoreVerification
from state.checkpoint_manifest import short_name
from state.errors import StoreNotWritable
from state.key_value_store import KeyValueStore
from tests.services.calls import Done, call
from tests.state.builders import SMALL
from tests.state.checkpointing import PARTITION, Machine, add, contents, open_rocks


class Site:
    """A stopped node with two checkpoints, at the offsets 100 and 150, and a store at 170."""

    def __init__(self, path: Path) -> None:
        (path / "repository").mkdir()
        self.config = path / "gemstream.toml"
        self.config.write_text(
            'data_dir = "data"\n[checkpoints]\nuri = "repository"\n'
            "[history]\nrecent_len = 4\nmid_term_len = 12\nchunk_len = 3\nmax_history = 30\n"
        )
        self.machine = Machine(path / "data", str(path / "repository"))
        self.files = path / "repository" / "interactions" / f"{PARTITION:05d}" / "files"
        store = self.machine.open()
        add(store, 100)
        self.machine.take(store)
        self.then = contents(store)
        add(store, 50)
        self.newest = self.machine.take(store).manifest
        add(store, 20)
        store.close()

    def call(self, *arguments: str) -> Done:
        return call("store", *arguments, "--config", str(self.config))


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_list(site: Site) -> None:
    listed = site.call("list", "--json").document()
    assert [(each["partition"], each["next_offset"]) for each in listed] == [(3, 150), (3, 100)]
    assert all(each["files"] > 3 and each["bytes"] > 1_000 for each in listed)
    table = site.call("list").stdout
    assert "2 checkpoints of interactions at" in table
    assert "150" in table
    manifest = site.files.parent / f"{site.newest.name}.json"
    manifest.write_text("{")
    assert "its manifest cannot be read" in site.call("list").stdout


def test_without_a_repository_the_setting_is_named(tmp_path: Path) -> None:
    path = tmp_path / "gemstream.toml"
    path.write_text("")
    done = call("store", "list", "--config", str(path))
    assert done.code == 1
    assert "set `uri` in [checkpoints]" in done.stderr
    done = call("store", "verify", "--config", str(path), "--data-dir", str(tmp_path))
    assert done.code == 0
    assert "no checkpoints are kept" in done.stdout


def test_verify_of_what_is_right(site: Site) -> None:
    for deep in ([], ["--deep"]):
        found = site.call("verify", "--json", *deep).document()
        assert not found["damaged"]
        assert [each["damage"] for each in found["checkpoints"]] == [[], []]
        (store,) = found["stores"]
        assert (store["partition"], store["next_offset"], store["users"]) == (3, 170, 5)
    assert list((site.config.parent / "data" / "state").glob(".*")) == []


def test_verify_names_a_damaged_checkpoint(site: Site) -> None:
    largest = max(site.files.iterdir(), key=lambda path: path.stat().st_size)
    data = largest.read_bytes()
    largest.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    assert site.call("verify").code == 0, "sizes alone do not tell"
    deep = site.call("verify", "--deep")
    assert deep.code == 1
    assert "DAMAGED" in deep.stdout
    assert f"its contents have another hash ({largest.name})" in deep.stdout
    assert f"delete {largest}: the next checkpoint" in deep.stdout
    largest.unlink()
    shallow = site.call("verify", "--json")
    assert shallow.code == 1
    assert json.dumps(shallow.document()).count(f"is missing ({largest.name})") >= 1


def test_verify_names_a_damaged_store(site: Site) -> None:
    largest = max(
        site.machine.directory.path(PARTITION).glob("*.sst"), key=lambda path: path.stat().st_size
    )
    data = bytearray(largest.read_bytes())
    data[200] ^= 1
    largest.write_bytes(data)
    done = site.call("verify")
    assert done.code == 1
    assert "Corruption" in done.stdout
    assert str(largest.name) in done.stdout


def test_restore_of_the_newest(site: Site) -> None:
    (restored,) = site.call("restore", "--partition", "all", "--json").document()
    assert (restored["partition"], restored["next_offset"]) == (3, 150)
    assert restored["path"].endswith("data/state/00003")
    assert site.call("verify", "--json").document()["stores"][0]["next_offset"] == 150


def test_restore_of_an_older_one_warns_of_newer_ones_or_removes_them(site: Site) -> None:
    older = ["restore", "--partition", "3", "--offset", "100"]
    assert "restore again with --discard-newer" in site.call(*older).stdout
    assert site.machine.offsets() == [150, 100]
    done = site.call(*older, "--discard-newer")
    assert "newer" not in done.stdout
    assert site.machine.offsets() == [100]
    assert site.machine.restored() == site.then


def test_restore_of_one_of_two_at_an_offset(site: Site) -> None:
    store = site.machine.open()
    first, second = (site.machine.take(store, full=True).manifest for _ in range(2))
    store.close()
    listed = site.call("list", "--json").document()
    shown = [short_name(each.name) for each in (second, first, site.newest)]
    assert [each["checkpoint"] for each in listed] == shown
    assert shown[1] in site.call("list").stdout
    for name in (shown[1], first.name):
        restore = ["restore", "--partition", "3", "--checkpoint", name, "--json"]
        (restored,) = site.call(*restore).document()
        assert (restored["checkpoint"], restored["newer_checkpoints"]) == (shown[1], 1)


def test_damaged_users_are_listed_and_passed_over(site: Site) -> None:
    store = site.machine.open()
    store.quarantine.add({"user-1": "chunk 3: a block of 3 interactions fails its checksum"})
    damaged = site.machine.take(store).manifest
    store.close()
    assert damaged.damaged_users == 1
    assert site.call("list", "--json").document()[0]["damaged_users"] == 1
    assert "1 damaged users" in site.call("list").stdout
    assert f"checkpoint {damaged.name}: 1 damaged users" in site.call("verify").stdout
    done = site.call("restore", "--partition", "3", "--json")
    assert done.document()[0]["checkpoint"] == short_name(site.newest.name)
    assert f"checkpoint {short_name(damaged.name)} is passed over: 1 damaged users" in done.stderr
    (restored,) = site.call("restore", "--partition", "3", "--offset", "170", "--json").document()
    assert restored["checkpoint"] == short_name(damaged.name)


def test_restore_into_another_directory(site: Site, tmp_path: Path) -> None:
    done = site.call("restore", "--partition", "3", "--data-dir", str(tmp_path / "copy"))
    assert done.code == 0
    assert (tmp_path / "copy" / "state" / "00003" / "CURRENT").is_file()
    assert site.call("verify", "--json").document()["stores"][0]["next_offset"] == 170


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (
            ["--partition", "3", "--offset", "99"],
            3,
            "no checkpoint at offset 99; there are 150-",
        ),
        (
            ["--partition", "3", "--checkpoint", "x"],
            3,
            "partition 3 has no checkpoint x; there are",
        ),
        (["--partition", "all", "--checkpoint", "x"], 2, "is of one partition"),
        (["--partition", "7"], 3, "partition 7 has no checkpoint"),
        (["--partition", "seven"], 2, "neither a number nor `all`"),
    ],
)
def test_what_cannot_be_restored(site: Site, arguments: list[str], code: int, words: str) -> None:
    done = site.call("restore", *arguments)
    assert done.code == code
    assert words in done.stderr


def test_a_damaged_checkpoint_is_not_put_in_place(site: Site) -> None:
    max(site.files.iterdir(), key=lambda path: path.stat().st_size).write_bytes(b"")
    done = site.call("restore", "--partition", "3", "--offset", "150")
    assert done.code == 1
    assert site.newest.name in done.stderr
    assert "choose one with --checkpoint" in done.stderr
    assert site.call("verify", "--json").document()["stores"][0]["next_offset"] == 170


def test_restore_reads_the_copy_first(site: Site) -> None:
    """A checkpoint whose hashes are right may have been made of a store that was damaged."""
    manifest_path = site.files.parent / f"{site.newest.name}.json"
    table = max(
        (file for file in site.newest.files if file.name.endswith(".sst")),
        key=lambda file: file.num_bytes,
    )
    data = bytearray((site.files / table.sha256).read_bytes())
    data[200] ^= 1
    digest = sha256(data).hexdigest()
    (site.files / digest).write_bytes(data)
    manifest_path.write_text(manifest_path.read_text().replace(table.sha256, digest))
    done = site.call("restore", "--partition", "3")
    assert done.code == 1
    assert "Corruption" in done.stderr
    assert "partition 3 keeps the store that it has" in done.stderr
    assert site.machine.restorer.local_offset(3) == 170
    assert site.call("restore", "--partition", "3", "--no-check").code == 0
    assert site.machine.restorer.local_offset(3) == 150
    done = site.call("restore", "--partition", "3", "--offset", "100", "--discard-newer")
    assert done.code == 0
    assert site.machine.restored() == site.then


def test_verify_reads_a_directory_that_cannot_be_written(site: Site) -> None:
    path = site.machine.directory.path(PARTITION)
    before = sorted((each.name, each.stat().st_mtime_ns) for each in path.iterdir())

    def open_elsewhere(place: Path) -> KeyValueStore:
        if place == path:
            raise StoreNotWritable("Read-only file system")
        return open_rocks(place)

    verification = StoreVerification(None, site.machine.directory, SMALL, open_elsewhere, print)
    (report,) = verification.check_stores(None)
    assert (report.next_offset, report.users, report.damage) == (170, 5, [])
    assert before == sorted((each.name, each.stat().st_mtime_ns) for each in path.iterdir())
    table = max(path.glob("*.sst"), key=lambda each: each.stat().st_size)
    data = bytearray(table.read_bytes())
    data[200] ^= 1
    table.write_bytes(data)
    (report,) = verification.check_stores(None)
    assert any(str(table) in each for each in report.damage)


def test_a_narrow_table_loses_no_digit(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    print_table("title", ["partition", "next offset", "result"], [(3, "1" * 60, "z" * 60)])
    shown = capsys.readouterr().out
    assert (shown.count("1"), shown.count("z")) == (60, 60)
