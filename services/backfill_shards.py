"""Interactions of some users to a sorted part of a partition: folded as ingest does, compressed as a worker does."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import xxhash

from services.compression_worker import Compressor
from state import keys
from state.arrivals import Applied, Arrivals, Position
from state.chunk_codec import decode_rows
from state.event_log import EventLog, LogPart, read_event_log_part
from state.interaction import Rows, join_rows
from state.key_value_store import Family, KeyValueStore, MemoryStore
from state.segments import HistoryConfig
from state.sorted_files import write_sorted_file
from state.user_store import UserStore
from stream.topics import partition_of

_ROWS_AT_ONCE = 1 << 23
"""Below what one poll may bring."""
_ALL_CHUNKS = 1 << 30


@dataclass(frozen=True)
class Interactions:
    """Rows of several users, each user's in the order of the file."""

    user_ids: list[str]
    user_index: npt.NDArray[np.int64]
    """Per row, its user."""
    rows: Rows


@dataclass(frozen=True)
class Sharding:
    """Which users come together: those of a partition, and of these a bucket that fits into memory."""

    num_partitions: int
    num_buckets: int

    @property
    def num_shards(self) -> int:
        """Buckets of all partitions."""
        return self.num_partitions * self.num_buckets

    def shards(self, partition: int) -> range:
        """The shards of one partition."""
        first = partition * self.num_buckets
        return range(first, first + self.num_buckets)

    def shard_of(self, user_id: str) -> int:
        """Where a user belongs."""
        bucket = xxhash.xxh3_64_intdigest(user_id.encode()) % self.num_buckets
        return partition_of(user_id, self.num_partitions) * self.num_buckets + bucket


def split_parts(
    log_parts: Sequence[LogPart], sharding: Sharding, wanted: Sequence[int]
) -> list[Interactions]:
    """The interactions of these parts by shard, for the `wanted` shards. Raises InvalidInteraction."""
    shards: dict[int, list[Interactions]] = {shard: [] for shard in wanted}
    for log in map(read_event_log_part, log_parts):
        of_user = np.array([sharding.shard_of(user_id) for user_id in log.user_ids], np.int64)
        of_row = of_user[log.user_index]
        order = np.argsort(of_row, kind="stable")
        starts = np.searchsorted(of_row[order], np.arange(sharding.num_shards + 1))
        for shard in wanted:
            chosen = order[starts[shard] : starts[shard + 1]]
            if len(chosen):
                shards[shard].append(_chosen(log, chosen))
    return [join_interactions(shards[shard]) for shard in wanted]


def _chosen(log: EventLog, chosen: npt.NDArray[np.int64]) -> Interactions:
    users, user_index = np.unique(log.user_index[chosen], return_inverse=True)
    user_ids = [log.user_ids[user] for user in users.tolist()]
    return Interactions(user_ids, user_index.astype(np.int64), log.rows[chosen])


def join_interactions(parts: Sequence[Interactions]) -> Interactions:
    """One of all parts, in their order."""
    numbers: dict[str, int] = {}
    indices = [np.empty(0, np.int64)]
    for part in parts:
        known = [numbers.setdefault(user_id, len(numbers)) for user_id in part.user_ids]
        indices.append(np.array(known, np.int64)[part.user_index])
    rows = join_rows([part.rows for part in parts])
    return Interactions(list(numbers), np.concatenate(indices), rows)


def fold_shard(
    interactions: Interactions, history: HistoryConfig, partition: int
) -> tuple[UserStore, Applied]:
    """The states that ingest would have made of these interactions in event-time order; ties keep their order."""
    store = UserStore(MemoryStore(), history, partition, len(interactions.user_ids))
    user_keys = [user_id.encode() for user_id in interactions.user_ids]
    order = np.argsort(interactions.rows["event_time_ms"], kind="stable")
    applied = Applied()
    for start in range(0, len(order), _ROWS_AT_ONCE):
        some = order[start : start + _ROWS_AT_ONCE]
        end = start + len(some)
        arrivals = Arrivals(
            partition,
            Position(end, 0),
            [user_keys[user] for user in interactions.user_index[some].tolist()],
            np.arange(start, end),
            interactions.rows[some],
        )
        applied.add(store.apply(arrivals))
    return store, applied


def compress_users(store: UserStore, compressor: Compressor, user_ids: Sequence[str]) -> int:
    """Bring the summaries of `user_ids` up to their boundaries; returns how many were made."""
    num_made = 0
    for user_id in user_ids:
        rolled = store.read_rolled(user_id, compressor.bundle_version, _ALL_CHUNKS)
        if rolled is None or not rolled.chunks:
            continue
        chunks = [decode_rows(chunk) for chunk in rolled.chunks]
        now_ms = time.time_ns() // 1_000_000
        summary = compressor.roll(rolled.summary, chunks, rolled.end_boundary, now_ms)
        store.put_summary(user_id, summary, rolled.base_boundary, rolled.epoch)
        num_made += 1
    return num_made


def write_shard(database: KeyValueStore, directory: Path, number: int) -> dict[Family, list[Path]]:
    """Users and dirty marks of a shard as sorted files in `directory`. Raises StoreError."""
    ranges = {Family.USERS: keys.all_users(), Family.SYSTEM: keys.dirty_range()}
    written: dict[Family, list[Path]] = {}
    for family, (start, end) in ranges.items():
        path = directory / f"{family}-{number:04d}.sst"
        is_there = write_sorted_file(path, database.scan(family, start, end))
        written[family] = [path] if is_there else []
    return written
