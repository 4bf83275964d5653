"""A backfill as tasks without a scheduler: read files into shards, make a partition of its shards, or compress one anew."""

import logging
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

from services.backfill_shards import (
    Interactions,
    Sharding,
    compress_users,
    fold_shard,
    join_interactions,
    write_shard,
)
from services.compression_worker import Compressor
from services.errors import NotFound
from services.settings import Settings
from services.wiring.stores import backfill_repository, checkpoint_restorer
from services.wiring.workers import bundle_compressor
from state import keys
from state.backfill_manifest import BackfillManifest, Content
from state.backfill_repository import stored_file
from state.errors import DamagedUsers, InvalidInteraction
from state.event_log import LogPart, event_log_parts
from state.head_codec import decode_head
from state.key_value_store import Family, KeyValueStore
from state.sorted_files import write_sorted_file
from state.store_format import history_lengths
from state.user_records import by_user
from state.user_store import UserStore

log = logging.getLogger(__name__)

ROWS_PER_SHARD = 1_000_000
"""What a task that folds holds in memory at a time, on average; some 300 bytes each."""
ROWS_PER_READING_TASK = 4_000_000
"""Of which it holds 56 bytes each, and 500 of those in the part at hand."""
_READ_ROWS = 500_000
_READING_TASKS = 64


@dataclass(frozen=True, kw_only=True)
class BackfillPlan:
    """What is to be made, and of what. The same plan made again goes on where it ended."""

    name: str
    content: Content
    settings: Settings
    bundle_version: str | None
    """None: no summaries."""
    created_at_ms: int
    reading: tuple[tuple[LogPart, ...], ...] = ()
    """What each reading task reads, in the order of the files."""
    num_buckets: int = 1
    partitions: tuple[int, ...] = ()
    """Those that are not there yet."""
    num_there: int = 0
    """How many are."""
    checkpoints: dict[int, str] = field(default_factory=dict)
    """Of each partition the checkpoint that is compressed anew."""

    @property
    def sharding(self) -> Sharding:
        """Of the users."""
        return Sharding(self.settings.topics.num_partitions, self.num_buckets)

    def wanted_shards(self) -> list[int]:
        """Those of the partitions to be made."""
        return [shard for each in self.partitions for shard in self.sharding.shards(each)]


@dataclass
class Made:
    """What was made of one or more partitions."""

    users: int = 0
    interactions: int = 0
    duplicates: int = 0
    summaries: int = 0
    bytes: int = 0

    def add(self, other: "Made") -> None:
        """Add the counts of another."""
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)


def plan_histories(
    settings: Settings, directory: Path, *, bundle_version: str | None
) -> BackfillPlan:
    """A backfill of all event logs in `directory`. Raises InvalidInteraction when there are none, SettingsError."""
    files = tuple(
        sorted(path for kind in ("parquet", "csv") for path in directory.rglob(f"*.{kind}"))
    )
    if not files:
        raise InvalidInteraction(f"{directory}: there is no .parquet or .csv file in it")
    stats = [(str(path.relative_to(directory)), path.stat()) for path in files]
    made_of = [(name, stat.st_size, stat.st_mtime_ns) for name, stat in stats]
    name = _name("histories", settings, bundle_version, made_of)
    wanted = range(settings.topics.num_partitions)
    there = _there(settings, name)
    parts = [part for path in files for part in event_log_parts(path, _READ_ROWS)]
    rows_per_partition = sum(part.num_rows for part in parts) / settings.topics.num_partitions
    return BackfillPlan(
        name=name,
        content="histories",
        settings=settings,
        bundle_version=bundle_version,
        created_at_ms=time.time_ns() // 1_000_000,
        reading=_reading_tasks(parts),
        num_buckets=1 + int(rows_per_partition / ROWS_PER_SHARD),
        partitions=tuple(each for each in wanted if each not in there),
        num_there=len(there),
    )


def plan_summaries(settings: Settings, *, bundle_version: str, again: bool) -> BackfillPlan:
    """Summaries of all users in the newest checkpoints. Raises NotFound when there are none, SettingsError.

    Once there is one of this bundle, it goes on; `again` begins another one.
    """
    repository = checkpoint_restorer(settings).repository
    newest = {
        partition: names[0]
        for partition in repository.partitions()
        if (names := repository.names(partition))
    }
    if not newest:
        raise NotFound(f"there are no checkpoints of {repository.topic} at {repository.shown_uri}")
    now_ms = time.time_ns() // 1_000_000
    name = _name("summaries", settings, bundle_version, [now_ms] if again else [])
    there = _there(settings, name)
    return BackfillPlan(
        name=name,
        content="summaries",
        settings=settings,
        bundle_version=bundle_version,
        created_at_ms=now_ms,
        partitions=tuple(each for each in newest if each not in there),
        num_there=len(there),
        checkpoints=newest,
    )


def make_histories(
    plan: BackfillPlan, partition: int, shards: Iterable[Sequence[Interactions]]
) -> Made:
    """Fold, compress and publish one partition; `shards` holds of each the parts from all files, in their order."""
    compressor = _compressor(plan)
    made = Made()
    with _scratch() as directory:
        files: dict[Family, list[Path]] = {Family.USERS: [], Family.SYSTEM: []}
        for number, parts in enumerate(shards):
            interactions = join_interactions(parts)
            if not interactions.user_ids:
                continue
            store, applied = fold_shard(interactions, plan.settings.history, partition)
            del interactions, parts
            if compressor is not None:
                owed = [mark.user_id for mark in store.dirty_marks()]
                made.summaries += compress_users(store, compressor, owed)
            for family, paths in write_shard(store.database, directory, number).items():
                files[family] += paths
            made.users += store.num_users()
            made.interactions += applied.interactions
            made.duplicates += applied.duplicates
        _publish(plan, partition, directory, files, made)
    return made


def make_summaries(plan: BackfillPlan, partition: int) -> Made:
    """Compress all users of a partition's checkpoint, and publish their summaries."""
    compressor = _compressor(plan)
    assert compressor is not None  # noqa: S101  # a plan of summaries has a bundle
    restorer = checkpoint_restorer(plan.settings)
    manifest = restorer.repository.read(partition, plan.checkpoints[partition])
    made = Made()
    with _scratch() as directory:
        database = restorer.fetch(manifest, directory / "checkpoint")
        try:
            path = directory / "users-0000.sst"
            pairs = _compressed(database, plan, partition, compressor, made)
            files = [path] if write_sorted_file(path, pairs) else []
        finally:
            database.close()
        _publish(plan, partition, directory, {Family.USERS: files, Family.SYSTEM: []}, made)
    return made


def _compressed(
    database: KeyValueStore,
    plan: BackfillPlan,
    partition: int,
    compressor: Compressor,
    made: Made,
) -> Iterator[tuple[bytes, bytes]]:
    """Head and summary of every user with a lifecycle segment. The checkpoint's copy takes the summaries first.

    Damaged users are left out.
    """
    store = UserStore(database, plan.settings.history, partition)
    version = compressor.bundle_version
    for user, ((kind, head), *_) in by_user(database):
        if kind != keys.HEAD:
            continue
        try:
            with store.quarantine.finding(user.decode()):
                meta, _ = decode_head(head)
            if meta.lifecycle_boundary:
                compress_users(store, compressor, [user.decode()])
        except DamagedUsers as error:
            log.warning("left out: %s", error)
            continue
        made.users += 1
        made.interactions += meta.length - meta.first_position
        if not meta.lifecycle_boundary:
            continue
        prefix = keys.user_prefix(user)
        key = keys.summary_key(prefix, version)
        (summary,) = database.get(Family.USERS, [key])
        if summary is not None:
            made.summaries += 1
            yield prefix + keys.HEAD, head
            yield key, summary


def _publish(
    plan: BackfillPlan,
    partition: int,
    directory: Path,
    files: dict[Family, list[Path]],
    made: Made,
) -> None:
    settings = plan.settings
    manifest = BackfillManifest(
        backfill=plan.name,
        content=plan.content,
        topic=settings.topics.interactions,
        partition=partition,
        num_partitions=settings.topics.num_partitions,
        history=history_lengths(settings.history),
        bundle_version=plan.bundle_version,
        created_at_ms=plan.created_at_ms,
        users=made.users,
        interactions=made.interactions,
        summaries=made.summaries,
        user_files=tuple(map(stored_file, files[Family.USERS])),
        system_files=tuple(map(stored_file, files[Family.SYSTEM])),
    )
    backfill_repository(settings).publish(manifest, directory)
    made.bytes += manifest.num_bytes


def _compressor(plan: BackfillPlan) -> Compressor | None:
    return None if plan.bundle_version is None else bundle_compressor(plan.settings)


def _there(settings: Settings, name: str) -> list[int]:
    """The partitions of a backfill that were made before."""
    repository = backfill_repository(settings)
    repository.check_there()
    return repository.partitions(name)


def _name(content: Content, settings: Settings, bundle_version: str | None, made_of: object) -> str:
    topics = settings.topics
    about = (settings.history, topics.interactions, topics.num_partitions, bundle_version, made_of)
    return f"{content}-{sha256(repr(about).encode()).hexdigest()[:16]}"


def _reading_tasks(parts: Sequence[LogPart]) -> tuple[tuple[LogPart, ...], ...]:
    """Neighbours together: enough tasks for many processors, and few enough that shards are no crumbs."""
    total = sum(part.num_rows for part in parts)
    rows_per_task = min(ROWS_PER_READING_TASK, 1 + total // _READING_TASKS)
    tasks: list[list[LogPart]] = []
    num_rows = rows_per_task
    for part in parts:
        if num_rows >= rows_per_task:
            tasks.append([])
            num_rows = 0
        tasks[-1].append(part)
        num_rows += part.num_rows
    return tuple(map(tuple, tasks))


@contextmanager
def _scratch() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="gemstream-backfill-"))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
