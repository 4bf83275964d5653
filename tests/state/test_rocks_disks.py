"""Disks that are full or not ours, and stores that somebody else has open, on a real RocksDB."""

import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from state.errors import StoreError, StoreFull, StoreLocked, StoreNotWritable
from state.key_value_store import MemoryStore
from state.rocks_config import RocksConfig
from state.rocks_store import RocksMemory, RocksStore
from state.user_store import UserStore
from tests.disks import mounted_disk
from tests.state.builders import SMALL, stored_histories
from tests.state.test_rocks_store import NUM_POLLS, POLL, apply_from, open_users

HALF = NUM_POLLS * POLL // 2
NOBODY = 65534


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with mounted_disk(tmp_path / "disk", "4m") as disk:
        yield disk


def fill(disk: Path) -> Path:
    """Leave not one byte free."""
    ballast = disk / "ballast"
    try:
        with ballast.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4_096))
    except OSError:
        return ballast


@contextmanager
def largest_file(num_bytes: int) -> Iterator[None]:
    """What a write meets at a limit or quota, also where no file system can be mounted."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def assert_goes_on(path: Path) -> None:
    """After a restart the store stands where it stood, and the rest of the log leads to the same state."""
    expected = UserStore(MemoryStore(), SMALL, 0)
    apply_from(expected, 0)
    store = open_users(path)
    position = store.position()
    assert position is not None
    assert position.next_offset >= HALF
    apply_from(store, position.next_offset)
    assert stored_histories(store.database) == stored_histories(expected.database)
    store.close()


def assert_refuses_writes(store: UserStore, disk_full: str) -> None:
    position = store.position()
    assert position is not None
    for _ in range(3):  # never as if written, however often it is tried
        with pytest.raises(StoreFull, match=disk_full):
            apply_from(store, position.next_offset)
    stopped_at = store.position()
    assert stopped_at is not None
    assert stopped_at.next_offset < NUM_POLLS * POLL


def test_a_full_disk_loses_and_doubles_nothing(small_disk: Path) -> None:
    path = small_disk / "00003"
    store = open_users(path)
    apply_from(store, 0, HALF)
    ballast = fill(small_disk)
    assert_refuses_writes(store, rf"{path}: the disk is full, 0 of \d+ bytes are free.*Free space")
    store.close()
    with pytest.raises(StoreFull, match="the disk is full"):
        open_users(path)
    ballast.unlink()
    assert_goes_on(path)


def test_a_file_size_limit_loses_and_doubles_nothing(tmp_path: Path) -> None:
    store = open_users(tmp_path / "00003")
    apply_from(store, 0, HALF)
    (log,) = (tmp_path / "00003").glob("*.log")
    with largest_file(log.stat().st_size + 500):
        assert_refuses_writes(store, r"the disk is full.*File too large")
    store.close()
    assert_goes_on(tmp_path / "00003")


def test_a_read_only_disk(small_disk: Path) -> None:
    open_users(small_disk / "00003").close()
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    for name in ("00003", "00004"):
        with pytest.raises(StoreNotWritable, match=rf"{name}: .*Read-only file system"):
            open_users(small_disk / name)


@pytest.mark.parametrize("path", ["file", "file/00003"])
def test_a_file_where_a_directory_should_be(tmp_path: Path, path: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreNotWritable, match="data_dir must be a directory"):
        open_users(tmp_path / path)


@contextmanager
def somebody_else() -> Iterator[None]:
    """Another user than the files', as root may be; who is not root has no need to."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


def test_a_directory_of_somebody_else() -> None:
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary)  # pytest's own cannot even be entered by others
        open_users(directory / "00003").close()
        for closed in (directory, directory / "00003"):
            closed.chmod(0o555)
        with somebody_else():
            for name in ("00003", "00004"):
                with pytest.raises(StoreNotWritable, match=rf"{name}: .*Permission denied"):
                    open_users(directory / name)
        directory.chmod(0o755)


def test_open_twice_in_one_process(tmp_path: Path) -> None:
    with closing(open_users(tmp_path)):
        with pytest.raises(StoreLocked, match="this process has the store open already"):
            open_users(tmp_path)
    open_users(tmp_path).close()


OPEN_ELSEWHERE = """
import sys
from pathlib import Path
from state.rocks_config import RocksConfig
from state.rocks_store import RocksMemory, RocksStore
store = RocksStore(Path(sys.argv[1]), RocksMemory(RocksConfig()))
print("open", flush=True)
sys.stdin.read()
"""


def test_open_in_another_process(tmp_path: Path) -> None:
    command = [sys.executable, "-c", OPEN_ELSEWHERE, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"open\n"
        with pytest.raises(StoreLocked, match="another process has the store open; stop it"):
            open_users(tmp_path)
        other.kill()
    open_users(tmp_path).close()


def test_a_directory_named_like_the_lock_is_not_taken_for_it(tmp_path: Path) -> None:
    (tmp_path / "LOCK").touch()
    with pytest.raises(StoreNotWritable):
        open_users(tmp_path / "LOCK")


def test_too_many_open_files(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    in_use = len(os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (in_use + 3, hard))
    try:
        with pytest.raises(StoreError, match=r"ulimit -n.*max_open_files"):
            open_users(tmp_path / "00003")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


FORKED = """
import os, sys
from pathlib import Path
from state.errors import StoreError
from state.key_value_store import Batch, Family
from state.rocks_config import RocksConfig
from state.rocks_store import RocksMemory, RocksStore
store = RocksStore(Path(sys.argv[1]), RocksMemory(RocksConfig()))
batch = Batch()
batch.put(Family.SYSTEM, b"key", b"value")
if os.fork() == 0:
    try:
        store.write(batch)
    except StoreError as error:
        os._exit(9 if "fork" in str(error) else 1)
    os._exit(0)
sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
"""


def test_a_fork_may_not_use_the_store(tmp_path: Path) -> None:
    forked = subprocess.run([sys.executable, "-c", FORKED, tmp_path], check=False, timeout=30)
    assert forked.returncode == 9


def test_size_on_disk_while_files_come_and_go(tmp_path: Path) -> None:
    with closing(RocksStore(tmp_path, RocksMemory(RocksConfig()))) as store:
        (tmp_path / "dangling").symlink_to(tmp_path / "gone")
        assert store.disk_bytes() > 0
