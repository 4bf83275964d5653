"""Checkpoints and repositories that are damaged, away, misplaced or not understood."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from state.checkpoint_manifest import Manifest
from state.errors import (
    ConfigError,
    CorruptValue,
    DamagedCheckpoint,
    RepositoryUnavailable,
)
from state.segments import HistoryConfig
from tests.state.checkpointing import (
    PARTITION,
    Machine,
    add,
    contents,
    wait_until_older_than_a_millisecond,
)


def largest_file(place: Path, manifest: Manifest, among: set[str]) -> Path:
    chosen = max(
        (file for file in manifest.files if file.sha256 in among), key=lambda file: file.num_bytes
    )
    return place / "files" / chosen.sha256


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize(
    ("harm", "words"),
    [(flip, "another hash"), (cut, "bytes, not"), (Path.unlink, "is missing")],
    ids=["flipped", "cut", "missing"],
)
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_restored(
    machine: Machine,
    other: Machine,
    place: Path,
    caplog: pytest.LogCaptureFixture,
    harm: Callable[[Path], None],
    words: str,
) -> None:
    store = machine.open()
    add(store, 100)
    first = machine.take(store).manifest
    then = contents(store)
    add(store, 100)
    second = machine.take(store).manifest
    store.close()
    only_new = {file.sha256 for file in second.files} - {file.sha256 for file in first.files}
    harm(largest_file(place, second, only_new))
    assert other.restored() == then
    assert second.name in caplog.text
    assert words in caplog.text


def test_without_a_usable_checkpoint_or_a_store_the_node_does_not_begin_from_nothing(
    machine: Machine, other: Machine, place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = machine.open()
    add(store, 100)
    manifest = machine.take(store).manifest
    flip(largest_file(place, manifest, {file.sha256 for file in manifest.files}))
    with pytest.raises(DamagedCheckpoint, match=r"no store here.*move .*00003 away") as unusable:
        other.restored()
    assert isinstance(unusable.value, CorruptValue), "the exit code that a supervisor leaves alone"
    assert len(str(unusable.value)) < 250 + len(str(place))
    assert "another hash" in caplog.text
    behind = other.open()
    add(behind, 10)
    then = contents(behind)
    behind.close()
    assert other.restored() == then
    assert "goes on with the store that is here, at offset 10" in caplog.text
    store.close()


@pytest.mark.parametrize("process", ["the same", "another"])
def test_a_damaged_file_of_the_store_is_no_checkpoint(
    machine: Machine, tmp_path: Path, place: Path, process: str
) -> None:
    store = machine.open()
    add(store, 500)
    first = machine.take(store).manifest
    path = max(
        machine.directory.path(PARTITION).glob("*.sst"), key=lambda path: path.stat().st_size
    )
    flip(path)
    add(store, 5)
    if process == "another":
        machine = Machine(tmp_path / "one", str(place.parents[1]))
    for full in (False, True):
        with pytest.raises(
            CorruptValue, match=rf"{path.name} .*{first.name}.*restore --partition 3"
        ):
            machine.take(store, full=full)
    assert machine.offsets() == [500]
    store.close()


def test_files_of_another_node_with_the_same_names_and_sizes_are_no_damage(
    machine: Machine, other: Machine
) -> None:
    """It came to the same state by itself, stood further than the checkpoint, and kept its own store."""
    store, twin = machine.open(), other.open()
    add(store, 100)
    add(twin, 100)
    theirs = machine.take(store).manifest
    twin.database.flush_memory()
    add(twin, 1)
    ours = other.take(twin).manifest
    sizes = {(file.name, file.num_bytes): file.sha256 for file in theirs.files}
    assert any(
        sizes.get((file.name, file.num_bytes), file.sha256) != file.sha256
        for file in ours.files
        if file.name.endswith(".sst")
    ), "no file has the name and the size of another"
    store.close()
    twin.close()


@pytest.mark.parametrize("text", ["{", "{}", '{"format_version": 9}'])
def test_checkpoints_go_on_beside_a_manifest_that_cannot_be_read(
    machine: Machine, other: Machine, place: Path, caplog: pytest.LogCaptureFixture, text: str
) -> None:
    store = machine.open()
    add(store, 100)
    machine.take(store)
    add(store, 50)
    unreadable = place / f"{machine.take(store).manifest.name}.json"
    unreadable.write_text(text)
    newest = machine.writer.newest(PARTITION)
    assert newest is not None
    assert newest.next_offset == 100
    assert unreadable.stem in caplog.text
    machine.take(store)
    machine.take(store, prune=True)
    readable = machine.writer.newest(PARTITION)
    assert readable is not None
    assert readable.next_offset == 150
    assert other.restored() == contents(store)
    store.close()


def test_a_manifest_that_cannot_be_read_and_is_further_is_never_kept_instead(
    machine: Machine, place: Path
) -> None:
    store = machine.open()
    add(store, 100)
    first = machine.take(store).manifest
    (place / f"{900:020d}-{first.created_at_ms}.json").write_text("{}")
    machine.take(store, prune=True)
    assert machine.offsets() == [900, 100]
    with pytest.raises(DamagedCheckpoint, match=r"has no 'format_version'; move .*json away"):
        machine.repository.read(PARTITION, machine.repository.names(PARTITION)[0])
    wait_until_older_than_a_millisecond(machine)
    machine.repository.prune(PARTITION, keep=3, max_age_s=0.001)
    assert machine.offsets() == [100]
    store.close()


def test_damage_in_the_repository_is_written_over(
    machine: Machine, other: Machine, place: Path
) -> None:
    store = machine.open()
    add(store, 100)
    manifest = machine.take(store).manifest
    stored = place / "files" / max(manifest.files, key=lambda file: file.num_bytes).sha256
    stored.unlink()
    assert machine.take(store).is_new, "though nothing was written since"
    flip(stored)
    assert not machine.take(store).is_new, "the size does not tell"
    full = machine.take(store, full=True)
    assert full.uploaded_bytes == full.manifest.num_bytes
    assert not list((place / "files").glob("*.part"))
    assert other.restored() == contents(store)
    store.close()


def test_a_repository_that_is_away_must_not_look_empty(
    machine: Machine, place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place.parents[1].rmdir()
    with pytest.raises(RepositoryUnavailable, match=r"partition 3 has no store.*make it, mount it"):
        machine.restored()
    store = machine.open()
    add(store, 10)
    then = contents(store)
    with pytest.raises(RepositoryUnavailable, match="make it, mount it"):
        machine.take(store)
    store.close()
    assert machine.restored() == then
    assert "goes on with the store that is here" in caplog.text


def rewrite(place: Path, **changes: object) -> None:
    (path,) = place.glob("*.json")
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"format_version": 3}, "format version 3; this release reads versions 1 to 2"),
        ({"partition": 4}, "is one of partition 4"),
        ({"topic": "clicks"}, "of 'clicks'"),
        ({"next_offset": 7}, "was it renamed?"),
        ({"files": [{"name": "../x", "num_bytes": 1, "sha256": "a" * 64}]}, r"'../x'"),
        ({"surprise": 1}, "cannot be read"),
    ],
)
def test_manifests_that_are_not_understood_are_refused(
    machine: Machine,
    other: Machine,
    place: Path,
    caplog: pytest.LogCaptureFixture,
    changes: dict[str, object],
    words: str,
) -> None:
    store = machine.open()
    add(store, 100)
    machine.take(store)
    store.close()
    rewrite(place, **changes)
    with pytest.raises(DamagedCheckpoint, match="none of its 1 checkpoints"):
        other.restored()
    assert words in caplog.text


def test_the_contents_of_another_partition_are_refused(
    machine: Machine, other: Machine, place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Even if every hash is right."""
    store = machine.open()
    add(store, 100)
    machine.take(store)
    store.close()
    place.rename(place.parent / "00004")
    rewrite(place.parent / "00004", partition=4)
    with pytest.raises(DamagedCheckpoint, match="none of its 1 checkpoints"):
        other.restorer.before_open(4)
    assert "made for partition 3, not 4" in caplog.text


def test_histories_of_other_lengths_are_refused(
    machine: Machine, tmp_path: Path, place: Path
) -> None:
    store = machine.open()
    add(store, 100)
    machine.take(store)
    longer = HistoryConfig(recent_len=5, mid_term_len=12, chunk_len=3, max_history=30)
    changed = Machine(tmp_path / "two", str(place.parents[1]), longer)
    with pytest.raises(ConfigError, match="restore the setting, or set another"):
        changed.restorer.before_open(PARTITION)
    add(store, 1)
    with pytest.raises(ConfigError, match="restore the setting, or set another"):
        changed.take(store)
    store.close()
