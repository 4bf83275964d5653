"""Options as RocksDB itself writes them down, and the memory that databases share."""

import random
import re
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from state.key_value_store import Batch, Family
from state.rocks_config import RocksConfig
from state.rocks_store import RocksMemory, RocksStore

FAMILIES = ["default", *(family.value for family in Family)]


def written_options(path: Path) -> dict[str, dict[str, str]]:
    """The sections of the newest OPTIONS file, by their titles."""
    newest = max(path.glob("OPTIONS-*"))
    sections: dict[str, dict[str, str]] = {}
    for line in newest.read_text().splitlines():
        if title := re.fullmatch(r"\[(.*)\]", line.strip()):
            section = sections.setdefault(title[1], {})
        elif "=" in line:
            name, value = line.strip().split("=", 1)
            section[name] = value
    return sections


@pytest.mark.parametrize("opened", [1, 2], ids=["created", "reopened"])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_has_its_options(tmp_path: Path, family: str, opened: int) -> None:
    for _ in range(opened):
        RocksStore(tmp_path, RocksMemory(RocksConfig(memtable_bytes=32 << 20))).close()
    sections = written_options(tmp_path)
    columns = sections[f'CFOptions "{family}"']
    assert columns["compression"] == "kLZ4Compression"
    assert columns["write_buffer_size"] == str(4 << 20)
    assert columns["arena_block_size"] == str(64 << 10)
    table = sections[f'TableOptions/BlockBasedTable "{family}"']
    assert table["filter_policy"].startswith("bloomfilter")
    assert table["block_size"] == str(16 << 10)
    assert table["no_block_cache"] == "false"
    assert table["cache_index_and_filter_blocks"] == "true"
    assert table["pin_l0_filter_and_index_blocks_in_cache"] == "true"


def test_a_reopened_database_has_its_options(tmp_path: Path) -> None:
    for _ in range(2):
        RocksStore(tmp_path, RocksMemory(RocksConfig(max_open_files=99))).close()
    database = written_options(tmp_path)["DBOptions"]
    assert database["atomic_flush"] == "true"
    assert database["paranoid_checks"] == "true"
    assert database["wal_recovery_mode"] == "kTolerateCorruptedTailRecords"
    assert database["max_open_files"] == "99"
    assert int(database["max_background_jobs"]) >= 2
    assert int(database["max_log_file_size"]) == 4 << 20
    assert int(database["max_manifest_file_size"]) == 16 << 20


BUDGET = 8 << 20
CACHE = 4 << 20


@pytest.fixture
def memory() -> RocksMemory:
    return RocksMemory(RocksConfig(memtable_bytes=BUDGET, block_cache_bytes=CACHE))


@pytest.fixture
def databases(memory: RocksMemory, tmp_path: Path) -> Iterator[list[RocksStore]]:
    with ExitStack() as stack:
        yield [
            stack.enter_context(closing(RocksStore(tmp_path / str(number), memory)))
            for number in range(8)
        ]


def put(store: RocksStore, number: int, count: int = 100) -> None:
    batch = Batch()
    generator = random.Random(number)
    for index in range(count):
        batch.put(Family.USERS, b"user%07d" % (number * count + index), generator.randbytes(1_000))
    batch.put(Family.SYSTEM, b"position", b"%d" % number)
    store.write(batch)
    store.flush()


def wait_for_flushes(memory: RocksMemory) -> None:
    """They run beside the writes: on a busy machine what is over the budget may stay for a moment, and not for longer."""
    give_up_at = time.monotonic() + 20.0
    while memory.write_buffers.get_usage() > BUDGET * 1.25:
        assert time.monotonic() < give_up_at
        time.sleep(0.005)  # between two looks


def test_all_memtables_stay_within_one_budget(
    memory: RocksMemory, databases: list[RocksStore], tmp_path: Path
) -> None:
    idle = memory.write_buffers.get_usage()
    put(databases[0], 0)
    first = memory.write_buffers.get_usage()
    put(databases[1], 0)
    assert idle < first < memory.write_buffers.get_usage()
    peak = 0
    for number in range(50):  # 40 MB
        for store in databases:
            put(store, number)
            peak = max(peak, memory.write_buffers.get_usage())
            wait_for_flushes(memory)
    assert peak > BUDGET / 2
    # Old log files leave, though of one family hardly anything is written.
    assert sum(log.stat().st_size for log in tmp_path.glob("*/*.log")) < 2 * BUDGET


def test_idle_memtables_are_small(memory: RocksMemory, tmp_path: Path) -> None:
    with ExitStack() as stack:
        for number in range(64):
            store = stack.enter_context(closing(RocksStore(tmp_path / str(number), memory)))
            batch = Batch()
            batch.put(Family.USERS, b"user", b"x" * 3_000)
            batch.put(Family.SYSTEM, b"position", b"x" * 3_000)
            store.write(batch)
        assert memory.write_buffers.get_usage() <= 64 * 3 * (64 << 10)
        assert not list(tmp_path.glob("*/*.sst"))


def test_reading_more_than_fits_keeps_to_the_cache(
    memory: RocksMemory, databases: list[RocksStore]
) -> None:
    peak = 0
    for number in range(20):
        for store in databases:
            put(store, number)
    for store in databases:
        store.erase(Family.USERS, [])  # flushes
        before = memory.cache.get_usage()
        for _ in store.scan(Family.USERS, b"user", b"usez"):
            peak = max(peak, memory.cache.get_usage())
        assert memory.cache.get_usage() >= min(before, CACHE // 2)
    assert CACHE / 2 < peak <= CACHE * 1.25
