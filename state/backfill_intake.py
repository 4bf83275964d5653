"""Takes backfills into a partition's store: an empty one takes the files, another one is merged user by user.

A record in the store says how far each backfill was taken, so that it is taken once, and goes on after a crash.
"""

import json
import logging
import threading
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Literal

from state import keys
from state.backfill_batch import BackfillBatch, Records, Taken
from state.backfill_manifest import BackfillManifest
from state.backfill_repository import BackfillRepository
from state.bundle_rollout import walk_again
from state.errors import (
    ConfigError,
    CorruptValue,
    DamagedCheckpoint,
    RepositoryUnavailable,
    UnknownFormat,
)
from state.head_codec import stored_length
from state.key_value_store import Batch, Family, KeyValueStore
from state.poll_batch import read_num_users
from state.segments import HistoryConfig
from state.store_directory import StoreDirectory
from state.user_records import by_user
from state.user_store import UserStore

log = logging.getLogger(__name__)

_USERS_AT_ONCE = 64
"""Live events wait for one batch."""


@dataclass(frozen=True)
class Progress:
    """How far one backfill was taken."""

    phase: Literal["files", "users", "done"]
    """`files`: the files are on their way into the store; `users`: users below `next_key` are merged."""
    next_key: bytes = b""

    def encode(self) -> bytes:
        """As JSON."""
        return json.dumps({"phase": self.phase, "next_key": self.next_key.hex()}).encode()


def decode_progress(data: bytes) -> Progress:
    """Inverse of Progress.encode. Raises CorruptValue."""
    try:
        document = json.loads(data)
        return Progress(document["phase"], bytes.fromhex(document["next_key"]))
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptValue(f"the record of a backfill cannot be read: {error!r}") from error


class BackfillIntake:
    """Takes what the repository has for the partitions of one node. Thread-safe."""

    def __init__(
        self,
        repository: BackfillRepository,
        directory: StoreDirectory,
        history: HistoryConfig,
        num_partitions: int,
        open_database: Callable[[Path], KeyValueStore],
    ) -> None:
        """`open_database` opens one for the files of a backfill, beside the store."""
        self._repository = repository
        self._directory = directory
        self._history = history
        self._num_partitions = num_partitions
        self._open_database = open_database
        self.taken = Taken()
        """Since the start, of all partitions."""
        self._taken_lock = threading.Lock()
        self._unusable: set[tuple[str, int]] = set()
        # A partition that left and came back meanwhile waits here until the first taking sees its store closed.
        self._taking = defaultdict[int, threading.Lock](threading.Lock)

    def take_new(self, store: UserStore) -> list[BackfillManifest]:
        """Take every backfill of the store's partition that was not taken yet, oldest first; returns them.

        One that cannot be used, or a repository that cannot be reached, is logged: it stops nobody. Raises StoreError, StoreClosed.
        """
        with self._taking[store.partition]:
            try:
                manifests = self._new_manifests(store)
            except RepositoryUnavailable as error:
                log.warning("partition %d: no backfill was looked for: %s", store.partition, error)
                return []
            taken = [each for each in manifests if self._take_or_log(store, each)]
            if taken:
                store.change_bundles(walk_again)
            return taken

    def _new_manifests(self, store: UserStore) -> list[BackfillManifest]:
        done = {
            name for name, each in read_progress(store.database).items() if each.phase == "done"
        }
        manifests = []
        for name in self._repository.names(store.partition, done):
            if (name, store.partition) in self._unusable:
                continue
            try:
                manifest = self._repository.read(name, store.partition)
                manifest.check(self._history, self._num_partitions)
            except (ConfigError, DamagedCheckpoint, UnknownFormat) as error:
                self._leave_out(name, store, error)
            else:
                manifests.append(manifest)
        return sorted(manifests, key=lambda each: (each.created_at_ms, each.backfill))

    def _leave_out(self, name: str, store: UserStore, error: Exception) -> None:
        log.error("partition %d: backfill %s is left out: %s", store.partition, name, error)
        self._unusable.add((name, store.partition))

    def _take_or_log(self, store: UserStore, manifest: BackfillManifest) -> bool:
        log.info(
            "partition %d: taking backfill %s: %d users, %d bytes",
            store.partition,
            manifest.backfill,
            manifest.users,
            manifest.num_bytes,
        )
        try:
            with self._directory.scratch("backfill", store.partition) as scratch:
                self._repository.download(manifest, scratch)
                taken = self._take(store, manifest, scratch)
        except RepositoryUnavailable as error:
            log.warning(
                "partition %d: backfill %s waits: %s", store.partition, manifest.backfill, error
            )
            return False
        except (DamagedCheckpoint, UnknownFormat) as error:
            self._leave_out(manifest.backfill, store, error)
            return False
        log.info(
            "partition %d: backfill %s is taken: %d users changed, %d interactions are new, %d took the place of live ones",
            store.partition,
            manifest.backfill,
            taken.users,
            taken.interactions,
            taken.repetitions,
        )
        return True

    def _take(self, store: UserStore, manifest: BackfillManifest, scratch: Path) -> Taken:
        progress = read_progress(store.database).get(manifest.backfill)
        if manifest.content == "histories" and progress is None:
            users = [scratch / file.name for file in manifest.user_files]
            system = [scratch / file.name for file in manifest.system_files]
            files = {Family.USERS: users, Family.SYSTEM: system}
            begun, done = _record(manifest, Progress("files")), _record(manifest, Progress("done"))
            done.put(Family.SYSTEM, keys.USERS_KEY, manifest.users.to_bytes(8, "big"))
            if store.ingest_if_empty(files, begun, done):
                return self._count(Taken(manifest.users, manifest.interactions))
        database = self._open_database(scratch / "database")
        try:
            database.ingest(Family.USERS, [scratch / file.name for file in manifest.user_files])
            return self._merge(store, manifest, database, progress or Progress("users"))
        finally:
            database.close()

    def _merge(
        self,
        store: UserStore,
        manifest: BackfillManifest,
        database: KeyValueStore,
        progress: Progress,
    ) -> Taken:
        """Users in key order, some in each write, with the key to go on from."""
        taken = Taken()
        users = by_user(database, progress.next_key)
        while some := list(islice(users, _USERS_AT_ONCE)):
            after = keys.after(keys.user_prefix(some[-1][0]))
            taken.add(self._merge_some(store, manifest, some, Progress(progress.phase, after)))
        recount = progress.phase == "files"
        store.rewrite(lambda live: _done(live, manifest, recount=recount))
        store.flush()
        return taken

    def _merge_some(
        self,
        store: UserStore,
        manifest: BackfillManifest,
        some: list[tuple[bytes, Records]],
        progress: Progress,
    ) -> Taken:
        """One write of users, with how far it comes."""
        taken, damaged = Taken(), dict[str, str]()

        def make_batch(live: KeyValueStore) -> Batch:
            building = BackfillBatch(live, self._history)
            if manifest.content == "histories":
                building.add_histories(some)
            else:
                building.add_summaries(some)
            # Before the progress is stored: where too many are damaged, the next taking begins here again.
            store.quarantine.add(building.damaged)
            building.batch.puts += _record(manifest, progress).puts
            taken.add(building.taken)
            damaged.update(building.damaged)
            return building.batch

        store.rewrite(make_batch)
        if damaged:
            log.error(
                "partition %d: backfill %s leaves out %d damaged users, one is %r",
                store.partition,
                manifest.backfill,
                len(damaged),
                min(damaged),
            )
        return self._count(taken)

    def _count(self, taken: Taken) -> Taken:
        with self._taken_lock:
            self.taken.add(taken)
        return taken


def read_progress(store: KeyValueStore) -> dict[str, Progress]:
    """How far each backfill was taken, by name. Raises CorruptValue."""
    start, end = keys.backfill_range()
    pairs = store.scan(Family.SYSTEM, start, end)
    return {key[len(start) :].decode(): decode_progress(value) for key, value in pairs}


def _record(manifest: BackfillManifest, progress: Progress) -> Batch:
    batch = Batch()
    batch.put(Family.SYSTEM, keys.backfill_key(manifest.backfill), progress.encode())
    return batch


def _done(store: KeyValueStore, manifest: BackfillManifest, *, recount: bool) -> Batch:
    """The end; `recount` where a crash left the files in the store, and their users uncounted."""
    batch = _record(manifest, Progress("done"))
    num_users = read_num_users(store)
    if recount:
        num_users = sum(stored_length(records[0][1]) > 0 for _, records in by_user(store))
    batch.put(Family.SYSTEM, keys.USERS_KEY, num_users.to_bytes(8, "big"))
    return batch
