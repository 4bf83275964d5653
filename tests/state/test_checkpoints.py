"""Checkpoints of a real RocksDB: taken, shared, kept, restored; and processes killed meanwhile."""

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from state import keys
from state.checkpoint_config import CheckpointsConfig
from state.errors import (
    CheckpointError,
    ConfigError,
    RepositoryUnavailable,
    StoreLocked,
)
from state.key_value_store import Family
from state.partition_stores import PartitionStores
from state.summary import Summary
from tests.state.builders import SMALL
from tests.state.checkpointing import (
    PARTITION,
    Machine,
    add,
    always_owned,
    contents,
    delete,
    open_rocks,
    wait_until_older_than_a_millisecond,
)


def test_another_machine_goes_on_where_the_checkpoint_stands(
    machine: Machine, other: Machine
) -> None:
    store = machine.open()
    add(store, 200)
    taken = machine.take(store)
    then = contents(store)
    add(store, 50)
    assert taken.is_new
    assert taken.manifest.next_offset == 200
    assert other.restored() == then
    store.close()


def test_a_checkpoint_is_of_one_moment_while_writes_go_on(machine: Machine, other: Machine) -> None:
    store = machine.open()
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            add(store, 7)

    add(store, 7)
    writer = threading.Thread(target=write)
    writer.start()
    manifests = [machine.take(store).manifest for _ in range(3)]
    stop.set()
    writer.join()
    store.close()
    twin = Machine(other.directory.path(0).parent.parent / "twin", "/").open()
    add(twin, manifests[-1].next_offset)
    assert other.restored()[0] == contents(twin)[0]
    twin.close()


def test_successive_checkpoints_share_their_files(machine: Machine, place: Path) -> None:
    store = machine.open()
    add(store, 500)
    first = machine.take(store)
    assert first.uploaded_bytes == first.manifest.num_bytes
    add(store, 5)
    second = machine.take(store)
    tables = [file for file in first.manifest.files if file.name.endswith(".sst")]
    assert tables
    assert set(tables) < set(second.manifest.files)
    assert second.uploaded_bytes < second.manifest.num_bytes
    assert all(
        (place / "files" / file.sha256).stat().st_size == file.num_bytes
        for file in second.manifest.files
    )
    assert [path.name for path in machine.directory.path(0).parent.glob(".*")] == []
    store.close()


def test_nothing_new_is_not_taken_again_but_a_summary_is_new(machine: Machine) -> None:
    store = machine.open()
    assert machine.writer.take(store, always_owned) is None, "nothing was applied yet"
    add(store, 200)
    first = machine.take(store)
    again = machine.take(store)
    assert (again.is_new, again.manifest) == (False, first.manifest)
    tokens = np.zeros((2, 3), np.float32)
    summary = Summary(
        bundle_version="v1", boundary=3, count=3, accumulators=b"", tokens=tokens, built_at_ms=1
    )
    assert store.put_summary("user-1", summary, 0, 0)[0]
    store.close()
    store = machine.open()
    assert machine.take(store).is_new
    assert not machine.take(store).is_new
    assert machine.offsets() == [200, 200]
    store.close()


def test_a_store_that_is_behind_is_replaced_and_one_that_is_not_stays(
    machine: Machine, other: Machine
) -> None:
    behind = other.open()
    add(behind, 30)
    behind.close()
    store = machine.open()
    add(store, 100)
    machine.take(store)
    then = contents(store)
    assert other.restored() == then
    ahead = other.open()
    add(ahead, 20)
    further = contents(ahead)
    ahead.close()
    assert other.restored() == further
    store.close()


def test_the_newest_are_kept_and_files_leave_with_the_last_that_names_them(
    machine: Machine, place: Path
) -> None:
    store = machine.open()
    for _ in range(5):
        add(store, 20)
        machine.take(store)
    assert machine.offsets() == [100, 80, 60]
    machine.take(store, prune=True)
    assert machine.offsets() == [100]
    manifest = machine.repository.read(PARTITION, machine.repository.names(PARTITION)[0])
    assert {path.name for path in (place / "files").iterdir()} == {
        file.sha256 for file in manifest.files
    }
    store.close()


def test_old_ones_leave_save_the_newest(machine: Machine) -> None:
    store = machine.open()
    for _ in range(3):
        add(store, 20)
        machine.take(store)
    wait_until_older_than_a_millisecond(machine)
    assert machine.repository.prune(PARTITION, keep=3, max_age_s=0.001) == 2
    assert machine.offsets() == [60]
    store.close()


def test_a_file_that_nobody_names_stays_for_a_while(machine: Machine, place: Path) -> None:
    store = machine.open()
    add(store, 20)
    machine.take(store)
    young, old = place / "files" / ("a" * 64), place / "files" / ("b" * 64)
    young.write_bytes(b"being uploaded")
    old.write_bytes(b"of an upload that was killed")
    os.utime(old, (time.time() - 4_000,) * 2)
    add(store, 20)
    machine.take(store)
    assert young.exists()
    assert not old.exists()
    store.close()


def test_half_an_upload_is_no_checkpoint(machine: Machine, other: Machine, place: Path) -> None:
    store = machine.open()
    add(store, 100)
    calls = 0

    def lose_partition() -> None:
        nonlocal calls
        calls += 1
        if calls == 12:
            raise CheckpointError("it went to another member")

    with pytest.raises(CheckpointError, match="another member"):
        machine.take(store, lose_partition)
    assert any((place / "files").iterdir())
    assert machine.offsets() == []
    assert other.restored() == ({}, None)
    assert list(machine.directory.path(0).parent.glob(".*")) == []
    machine.take(store)
    assert machine.offsets() == [100]
    assert Machine(place.parent / "three", str(place.parents[1])).restored() == contents(store)
    store.close()


KILLED = """
import sys
from pathlib import Path
from pyarrow import fs
import state.object_storage as storage
from tests.state.checkpointing import Machine, add, always_owned

class Stalls(storage.ObjectStorage):
    def writing(self, path):
        if path.endswith(".part") or len(self.files(path.rpartition("/")[0])) >= 3:
            print("half-way", flush=True)
            sys.stdin.read()
        return super().writing(path)

machine = Machine(Path(sys.argv[1]), sys.argv[2])
machine.repository._storage = Stalls(sys.argv[2])
store = machine.open()
add(store, 100)
store.flush()
machine.writer.take(store, always_owned)
"""


def test_a_process_killed_while_it_uploads_leaves_no_checkpoint(
    machine: Machine, tmp_path: Path, place: Path
) -> None:
    command = [sys.executable, "-c", KILLED, str(tmp_path / "one"), str(place.parents[1])]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"half-way\n"
        process.send_signal(signal.SIGKILL)
        process.wait()
    scratch = tmp_path / "one" / "state" / f".checkpoint-{PARTITION:05d}"
    assert scratch.is_dir()
    assert len(list((place / "files").iterdir())) == 3
    assert machine.offsets() == []
    machine.directory.clean()
    assert not scratch.exists()
    store = machine.open()
    machine.take(store)
    assert machine.offsets() == [100]
    store.close()


def test_an_older_state_does_not_pass_for_the_newest(machine: Machine, other: Machine) -> None:
    store, behind = machine.open(), other.open()
    add(store, 100)
    machine.take(store)
    add(behind, 10)
    with pytest.raises(CheckpointError, match="stands at offset 10, and there is .* 100 already"):
        other.take(behind)
    store.close()
    behind.close()


def test_a_deleted_user_leaves_with_the_old_checkpoints(machine: Machine, other: Machine) -> None:
    store = machine.open()
    add(store, 100, users=4)
    machine.take(store)
    delete(store, "user-1")
    machine.take(store)
    assert erase_marks(other) == 1, "deleted, and its values are still in the files"
    assert store.erase_deleted() == 1
    assert machine.take(store).is_new, "without any new record"
    assert erase_marks(other) == 0
    assert len(machine.offsets()) == 3
    store.close()


def test_prune_leaves_nothing_of_a_deleted_user(
    machine: Machine, other: Machine, place: Path
) -> None:
    store = machine.open()
    add(store, 100, users=4)
    machine.take(store)
    delete(store, "user-1")
    manifest = machine.take(store, prune=True).manifest
    assert machine.offsets() == [101]
    assert erase_marks(other) == 0
    assert {path.name for path in (place / "files").iterdir()} == {
        file.sha256 for file in manifest.files
    }
    store.close()


def erase_marks(machine: Machine) -> int:
    """Deleted users whose values may lie in the files of the newest checkpoint."""
    machine.restorer.restore(PARTITION, machine.repository.names(PARTITION)[0])
    store = machine.open()
    marks = list(store.database.scan(Family.SYSTEM, *keys.erase_range()))
    store.close()
    return len(marks)


def test_a_store_in_use_is_not_replaced(machine: Machine, other: Machine) -> None:
    store = machine.open()
    add(store, 100)
    machine.take(store)
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys; from pathlib import Path; from tests.state.checkpointing import Machine\n"
            "machine = Machine(Path(sys.argv[1]), '/'); store = machine.open(); print('open', flush=True)\n"
            "sys.stdin.read()",
            str(other.directory.path(0).parents[1]),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"open\n"
        (name,) = other.repository.names(PARTITION)
        with pytest.raises(StoreLocked, match="stop the state node first"):
            other.restorer.restore(PARTITION, name)
        holder.kill()
    other.restorer.restore(PARTITION, name)
    store.close()


def test_a_replacement_that_was_killed_is_finished_or_undone(machine: Machine) -> None:
    store = machine.open()
    add(store, 100)
    then = contents(store)
    store.close()
    path = machine.directory.path(PARTITION)
    aside = path.parent / f".replaced-{PARTITION:05d}"
    path.rename(aside)  # killed before the new one was in its place
    assert machine.restored() == then
    shutil.copytree(path, aside)  # killed before the old one was removed
    assert machine.restored() == then
    assert not aside.exists()


def test_a_restore_ends_when_the_node_stops(machine: Machine, other: Machine) -> None:
    store = machine.open()
    add(store, 100)
    machine.take(store)
    store.close()
    other.restorer.stop()
    with pytest.raises(RepositoryUnavailable, match="the node stops"):
        other.restored()


def test_partitions_close_while_another_is_being_restored(machine: Machine) -> None:
    """A rebalance waits for closing, and must not wait for a long restore."""
    begun, go_on = threading.Event(), threading.Event()

    def restore_slowly(partition: int) -> None:
        if partition == 1:
            begun.set()
            assert go_on.wait(30)

    stores = PartitionStores(
        lambda partition: open_rocks(machine.directory.path(partition)),
        SMALL,
        before_open=restore_slowly,
    )
    stores.open(0)
    opening = threading.Thread(target=stores.open, args=[1])
    opening.start()
    assert begun.wait(30)
    stores.close(0)
    assert stores.partitions() == []
    go_on.set()
    opening.join()
    assert stores.partitions() == [1]
    stores.close_all()


@pytest.mark.parametrize(
    "uri",
    ["s3://key:secret@bucket/x", "s3://bucket/x?region=a&secret_key=b", "s3://key@bucket", ""],
)
def test_credentials_in_an_address_are_refused_and_not_repeated(uri: str) -> None:
    with pytest.raises(ConfigError, match="AWS_ACCESS_KEY_ID") as refused:
        CheckpointsConfig(uri=uri)
    assert "secret@" not in str(refused.value)


def test_an_address_of_no_use_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="ftp://x"):
        Machine(tmp_path, "ftp://x/y")
