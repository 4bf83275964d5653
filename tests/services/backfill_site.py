"""A store and the place that backfills come from."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from services.backfill_shards import Interactions, fold_shard, write_shard
from state import keys
from state.arrivals import Arrivals, Deletion, Position
from state.backfill_intake import BackfillIntake
from state.backfill_manifest import BackfillManifest
from state.backfill_repository import BackfillRepository, stored_file
from state.chunk_codec import decode_rows
from state.interaction import Rows, join_rows
from state.key_value_store import Family, KeyValueStore
from state.object_storage import ObjectStorage
from state.store_check import check_store
from state.store_directory import StoreDirectory
from state.store_format import history_lengths
from state.user_state import UserMeta
from state.user_store import UserStore
from tests.state.builders import SMALL, make_rows
from tests.state.checkpointing import open_rocks

PARTITION = 3


def interactions(rows_of: dict[str, Rows]) -> Interactions:
    users = np.repeat(np.arange(len(rows_of)), [len(rows) for rows in rows_of.values()])
    return Interactions(list(rows_of), users, join_rows(rows_of.values()))


def as_it_is(shard: UserStore) -> None:
    """Nothing happens to a backfill on its way."""


class Site:
    """A node's store, and a place for backfills."""

    def __init__(self, path: Path) -> None:
        (path / "backfills").mkdir(parents=True)
        self.path = path
        self.directory = StoreDirectory(path / "state")
        self.repository = BackfillRepository(ObjectStorage(str(path / "backfills")), "interactions")
        self.store = self.open()

    def open(self) -> UserStore:
        return UserStore(open_rocks(self.directory.path(PARTITION)), SMALL, PARTITION)

    def publish(
        self,
        rows_of: dict[str, Rows],
        name: str = "histories-1",
        change: Callable[[UserStore], None] = as_it_is,
    ) -> None:
        shard, applied = fold_shard(interactions(rows_of), SMALL, PARTITION)
        change(shard)
        place = self.path / name
        place.mkdir()
        files = write_shard(shard.database, place, 0)
        self.repository.publish(
            BackfillManifest(
                backfill=name,
                content="histories",
                topic="interactions",
                partition=PARTITION,
                num_partitions=8,
                history=history_lengths(SMALL),
                bundle_version=None,
                created_at_ms=1,
                users=shard.num_users(),
                interactions=applied.interactions,
                summaries=0,
                user_files=tuple(map(stored_file, files[Family.USERS])),
                system_files=tuple(map(stored_file, files[Family.SYSTEM])),
            ),
            place,
        )

    def intake(self) -> BackfillIntake:
        return BackfillIntake(self.repository, self.directory, SMALL, 8, open_rocks)

    def take(self) -> list[str]:
        return [each.backfill for each in self.intake().take_new(self.store)]

    def apply(self, rows_of: dict[str, Rows], deletions: Sequence[Deletion] = ()) -> None:
        live = interactions(rows_of)
        position = self.store.position()
        start = position.next_offset if position else 0
        end = start + len(live.rows)
        names = [live.user_ids[user].encode() for user in live.user_index.tolist()]
        deletions = [replace(each, offset=end + n) for n, each in enumerate(deletions)]
        offsets = np.arange(start, end)
        end += len(deletions)
        self.store.apply(
            Arrivals(PARTITION, Position(end, 1), names, offsets, live.rows, deletions)
        )

    def check(self) -> None:
        assert check_store(self.store.database, SMALL, PARTITION).damage == []


def all_pairs(database: KeyValueStore, family: Family = Family.USERS) -> dict[bytes, bytes]:
    return dict(database.scan(family, *keys.all_users()))


def of_user(database: KeyValueStore, user: str) -> dict[bytes, bytes]:
    prefix = keys.user_prefix(user.encode())
    return dict(database.scan(Family.USERS, prefix, keys.after(prefix)))


ANN, BOB, EVE = (
    make_rows([*range(50)]),
    make_rows([*range(7)], first_item=500),
    make_rows([3, 1, 2]),
)
HISTORIES = {"ann": ANN, "bob": BOB, "eve": EVE}


def meta_of(store: UserStore, user: str) -> UserMeta:
    stored = store.read_user(user, "v1")
    assert stored is not None
    return stored.meta


def rows_of(store: UserStore, user: str) -> Rows:
    """All that is stored of a user, oldest first."""
    stored = store.read_user(user, "v1")
    rolled = store.read_rolled(user, "v1", 1_000)
    assert stored is not None
    assert rolled is not None
    return join_rows(map(decode_rows, [*rolled.chunks, *stored.chunks, *stored.tail]))
