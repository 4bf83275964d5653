"""The users of a partition a value of whom is damaged: neither folded nor read before they are deleted or whole again."""

import json
import logging
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from state import keys
from state.errors import CorruptValue, DamagedUsers, StoreDamaged
from state.key_value_store import Batch, Family, KeyValueStore
from state.segments import HistoryConfig
from state.store_check import check_user
from state.user_records import user_records

log = logging.getLogger(__name__)

MAX_USERS = 1_000
"""More in one partition is no accident of single users."""


class Quarantine:
    """Whoever meets a damaged value marks its user in the store; the mark goes with the checkpoints of the store."""

    def __init__(
        self,
        store: KeyValueStore,
        history: HistoryConfig,
        partition: int,
        write_lock: threading.Lock,
    ) -> None:
        """Those who are marked, without who is whole again. `write_lock` is the store's writers'. Raises StoreError."""
        self._store = store
        self._history = history
        self._partition = partition
        self._write_lock = write_lock
        self._lock = threading.Lock()
        self.users: Mapping[str, str] = dict(read_damaged_users(store))
        """Why, by user id; replaced whole."""
        self.num_released = 0
        """Who was marked and found whole when the store was opened."""
        if self.users:
            self._release_whole()

    def check(self, user_id: str) -> None:
        """Raises DamagedUsers for a user who is in it."""
        if (reason := self.users.get(user_id)) is not None:
            raise DamagedUsers(self._partition, {user_id: reason})

    @contextmanager
    def finding(self, user_id: str) -> Iterator[None]:
        """Around what reads values of one user alone, and leaves without the writers' lock: marks the user where one is damaged.

        Raises DamagedUsers; CorruptValue where the damage left meanwhile, with a deletion, and marks nobody then.
        """
        self.check(user_id)
        try:
            yield
        except StoreDamaged:
            raise
        except CorruptValue as error:
            reasons = {user_id: str(error)}
            with self._write_lock:
                if not self._is_damaged(user_id):
                    raise
                self.add(reasons)
            raise DamagedUsers(self._partition, reasons) from error

    def add(self, reasons: Mapping[str, str]) -> None:
        """Mark users; durable when it returns. Raises CorruptValue where there are too many, and marks nobody then."""
        with self._lock:
            new = {user_id: why for user_id, why in reasons.items() if user_id not in self.users}
            if not new:
                return
            if len(self.users) + len(new) > MAX_USERS:
                raise CorruptValue(
                    f"{len(self.users) + len(new):,} users are damaged, more than {MAX_USERS:,}: the "
                    f"store is ({DamagedUsers(self._partition, reasons)}); stop the node and keep a copy; `gemstream store verify "
                    f"--deep` finds the newest good checkpoint, `gemstream store restore --partition {self._partition} "
                    "--checkpoint NAME --discard-newer` brings it"
                )
            batch, since_ms = Batch(), time.time_ns() // 1_000_000
            for user_id, why in new.items():
                mark = json.dumps({"reason": why, "since_ms": since_ms}).encode()
                batch.put(Family.SYSTEM, keys.damaged_key(user_id.encode()), mark)
            self._store.write(batch)
            self._store.flush()
            self.users = {**self.users, **new}
        for user_id, why in new.items():
            log.error(
                "partition %d: user %r is quarantined, and the events that come are kept as dead letters: %s; docs/damage.md says "
                "what can be done",
                self._partition,
                user_id,
                why,
            )

    def release(self, batch: Batch, user_id: str) -> None:
        """Put it into `batch` that a user is out of it; `released` is to be called once that is written."""
        batch.delete(Family.SYSTEM, keys.damaged_key(user_id.encode()))

    def released(self, user_ids: set[str]) -> None:
        """What was put into a batch holds."""
        with self._lock:
            self.users = {each: why for each, why in self.users.items() if each not in user_ids}

    def _release_whole(self) -> None:
        """A value may have been damaged in memory alone, or unreadable to another release alone."""
        batch = Batch()
        whole = {each for each in self.users if not self._is_damaged(each)}
        for user_id in whole:
            self.release(batch, user_id)
        if whole:
            self._store.write(batch)
            self.released(whole)
            self.num_released = len(whole)
        for user_id in sorted(whole):
            log.error(
                "partition %d: user %r is whole again, and left the quarantine; the events that came meanwhile are dead letters "
                "until `gemstream dlq replay` brings them",
                self._partition,
                user_id,
            )
        if self.users:
            log.error(
                "partition %d: %d users are quarantined, one is %r; docs/damage.md says what can be done",
                self._partition,
                len(self.users),
                min(self.users),
            )

    def _is_damaged(self, user_id: str) -> bool:
        records = user_records(self._store, user_id.encode())
        return bool(records and check_user(user_id, records, self._history))


def read_damaged_users(store: KeyValueStore) -> Iterator[tuple[str, str]]:
    """Who is marked in a store, and why."""
    start, end = keys.damaged_range()
    for key, value in store.scan(Family.SYSTEM, start, end):
        user_id = key[len(start) :].decode(errors="backslashreplace")
        try:
            yield user_id, str(json.loads(value)["reason"])
        except (ValueError, KeyError, TypeError):
            yield user_id, "damaged; the mark that says why is damaged, too"
