"""Backfills into stores: byte-equal to ingest, taken once, before live events, after crashes, past deletions."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from services.backfill_shards import Interactions, fold_shard, write_shard
from state import keys
from state.arrivals import Arrivals, Deletion, Position
from state.backfill_batch import BackfillBatch, Taken
from state.backfill_intake import BackfillIntake, read_progress
from state.backfill_manifest import BackfillManifest
from state.backfill_repository import BackfillRepository, stored_file
from state.chunk_codec import decode_rows
from state.errors import CorruptValue, DamagedCheckpoint, StoreError
from state.interaction import Rows, join_rows
from state.key_value_store import Batch, Family, KeyValueStore, MemoryStore
from state.object_storage import ObjectStorage
from state.store_check import check_store
from state.store_directory import StoreDirectory
from state.store_format import history_lengths
from state.user_records import user_records
from state.user_state import UserMeta
from state.user_store import UserStore
from tests.state.builders import SMALL, START_MS, make_rows, summary_at
from tests.state.checkpointing import open_rocks
from tests.state.test_fold import History

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


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


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


def test_an_empty_store_holds_the_bytes_that_ingest_writes(site: Site, tmp_path: Path) -> None:
    other = Site(tmp_path / "other")
    order = np.argsort(join_rows(HISTORIES.values())["event_time_ms"], kind="stable")
    live = interactions(HISTORIES)
    names = [live.user_ids[user].encode() for user in live.user_index[order].tolist()]
    other.store.apply(
        Arrivals(PARTITION, Position(len(order), 1), names, np.arange(len(order)), live.rows[order])
    )
    site.publish(HISTORIES)
    assert site.take() == ["histories-1"]
    assert all_pairs(site.store.database) == all_pairs(other.store.database)
    assert site.store.dirty_marks() == other.store.dirty_marks() != []
    assert site.store.num_users() == 3
    assert site.store.position() is None
    site.check()


def test_it_is_taken_once_and_survives_reopening(site: Site) -> None:
    site.publish(HISTORIES)
    site.take()
    before = all_pairs(site.store.database)
    site.store.close()
    site.store = site.open()
    assert site.take() == []
    assert all_pairs(site.store.database) == before
    site.publish(HISTORIES, "histories-2")  # the same under another name
    assert site.take() == ["histories-2"]
    assert all_pairs(site.store.database) == before
    assert site.store.num_users() == 3


def test_live_users_keep_what_is_theirs_and_others_come_as_they_are(site: Site) -> None:
    newer = make_rows([*range(100, 120)], first_item=900)
    site.apply({"ann": newer, "zoe": newer})
    zoe = of_user(site.store.database, "zoe")
    site.publish(HISTORIES)
    assert site.take() == ["histories-1"]
    assert of_user(site.store.database, "zoe") == zoe
    shard, _ = fold_shard(interactions(HISTORIES), SMALL, PARTITION)
    assert of_user(site.store.database, "bob") == of_user(shard.database, "bob")
    assert site.store.num_users() == 4
    assert site.store.position() == Position(40, 1)
    whole = History(SMALL)
    whole.add(join_rows([ANN, newer]))
    site.check()
    assert _rows(site.store, "ann")["item_id"].tolist() == whole.all_rows()["item_id"].tolist()
    meta = _meta(site.store, "ann")
    assert (meta.length, meta.epoch, meta.version) == (70, 1, 70)
    assert meta.lifecycle_boundary == SMALL.lifecycle_boundary(70)
    assert {each.user_id for each in site.store.dirty_marks()} >= {"ann"}
    # What comes later is folded as ever, from the store and not from what was cached of it.
    site.apply({"ann": make_rows([200], first_item=2_000)})
    assert _meta(site.store, "ann").length == 71
    site.check()


def test_what_is_there_already_is_not_doubled(site: Site) -> None:
    site.apply({"ann": ANN})
    before = all_pairs(site.store.database)
    site.publish({"ann": ANN})
    site.take()
    assert all_pairs(site.store.database) == before


def test_an_overlap_is_counted_once(site: Site) -> None:
    site.apply({"bob": make_rows([*range(10, 30)], first_item=11)})
    site.publish({"bob": make_rows([*range(25)])})
    site.take()
    assert _rows(site.store, "bob")["item_id"].tolist() == list(range(1, 31))
    site.check()


def test_deleted_users_stay_deleted(site: Site) -> None:
    site.apply({"ann": ANN[:5]}, [Deletion("ann", 0, START_MS + 30)])
    site.publish({"ann": ANN})
    site.take()
    meta = _meta(site.store, "ann")
    assert meta.deleted_until_ms == START_MS + 30
    assert (
        _rows(site.store, "ann")["event_time_ms"].tolist()
        == (START_MS + np.arange(31, 50)).tolist()
    )
    assert site.store.num_users() == 1
    site.check()
    gone = {"bob": BOB}
    site.apply(gone, [Deletion("bob", 0, START_MS + 1_000)])
    before = all_pairs(site.store.database)
    site.publish(gone, "histories-2")
    site.take()
    assert all_pairs(site.store.database) == before
    assert site.store.num_users() == 1


def test_forgotten_items_stay_forgotten(site: Site) -> None:
    site.apply({"ann": ANN[45:]}, [Deletion("ann", 0, START_MS + 1_000, item_id=25)])
    site.publish({"ann": ANN})
    site.take()
    assert 25 not in _rows(site.store, "ann")["item_id"]
    assert 26 in _rows(site.store, "ann")["item_id"]
    site.apply({"ann": make_rows([24], first_item=25)})  # still refused
    assert 25 not in _rows(site.store, "ann")["item_id"]
    site.check()


def equal_rows(num: int, first_id: int, time: int = 0) -> Rows:
    """Distinct events that are equal in every field."""
    rows = make_rows([time] * num, [*range(first_id, first_id + num)])
    rows["item_id"], rows["author_id"] = 7, 0
    return rows


@pytest.mark.parametrize("poll_len", [1, 5, 24])
def test_equal_live_interactions_are_not_judged_by_one_another(site: Site, poll_len: int) -> None:
    """Two equal ones at each of twelve times, most of them sealed, so that their event ids are gone."""
    live = join_rows([equal_rows(2, 1 + 2 * n, 10 * n) for n in range(12)])
    for start in range(0, len(live), poll_len):
        site.apply({"ann": live[start : start + poll_len]})
    assert len(_rows(site.store, "ann")) == 24
    site.publish({"ann": join_rows([equal_rows(1, 901, 30), equal_rows(3, 902, 40)])})
    intake = site.intake()
    intake.take_new(site.store)
    # One of the two at 30, both of those at 40; the third of the backfill at 40 is new.
    assert len(_rows(site.store, "ann")) == 24 + 4 - 3
    assert intake.taken == Taken(users=1, interactions=1, repetitions=3)
    site.check()
    before = all_pairs(site.store.database)
    site.publish(
        {"ann": join_rows([equal_rows(1, 901, 30), equal_rows(3, 902, 40)])}, "histories-2"
    )
    intake.take_new(site.store)
    assert all_pairs(site.store.database) == before
    assert intake.taken == Taken(users=1, interactions=1, repetitions=3)


def test_equal_live_interactions_within_the_times_of_a_backfill_all_stay(site: Site) -> None:
    live = join_rows([equal_rows(2, 1 + 2 * n, n) for n in range(12)])
    site.apply({"ann": live})
    site.publish({"ann": make_rows([*range(5, 10)], first_item=100)})
    site.take()
    items = _rows(site.store, "ann")["item_id"].tolist()
    assert Counter(items) == {7: 24, **dict.fromkeys(range(100, 105), 1)}
    site.apply({"ann": equal_rows(2, 801, 50)})
    assert _meta(site.store, "ann").length == 31
    site.check()


class _Crash(Exception):
    pass


@pytest.mark.parametrize("has_users", [False, True])
@pytest.mark.parametrize("nth_write", range(4))
def test_a_crash_at_any_write_is_continued(
    site: Site, monkeypatch: pytest.MonkeyPatch, nth_write: int, has_users: bool
) -> None:
    histories = {f"user-{n}": make_rows([*range(n + 1)]) for n in range(40)}
    if has_users:
        site.apply({"user-7": make_rows([*range(100, 120)], first_item=900)})
    site.publish(histories)
    database, writes = site.store.database, 0
    monkeypatch.setattr("state.backfill_intake._USERS_AT_ONCE", 16)
    for name in ("write", "ingest"):
        whole = getattr(database, name)

        def failing(*arguments: object, whole: object = whole) -> None:
            nonlocal writes
            writes += 1
            if writes > nth_write:
                raise _Crash
            whole(*arguments)  # type: ignore[operator]

        monkeypatch.setattr(database, name, failing)
    with pytest.raises(_Crash):
        site.take()
    site.store.close()
    site.store = site.open()
    site.take()
    assert read_progress(site.store.database)["histories-1"].phase == "done"
    assert site.store.num_users() == 40
    assert all(_meta(site.store, user).length >= len(rows) for user, rows in histories.items())
    site.check()
    marks = {each.user_id for each in site.store.dirty_marks()}
    assert marks == {user for user in histories if _meta(site.store, user).lifecycle_boundary}


def test_damage_and_other_lengths_stop_nobody(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    site.publish(HISTORIES)
    (file,) = (site.path / "backfills").rglob("users-0000.sst")
    file.write_bytes(file.read_bytes()[:-1] + b"!")
    assert site.take() == []
    assert "is not what was written" in caplog.text
    other = BackfillIntake(
        site.repository, site.directory, replace(SMALL, chunk_len=4), 8, open_rocks
    )
    assert other.take_new(site.store) == []
    assert "make it again with this configuration" in caplog.text
    missing = BackfillRepository(ObjectStorage(str(site.path / "nowhere"), "backfills"), "x")
    assert BackfillIntake(missing, site.directory, SMALL, 8, open_rocks).take_new(site.store) == []
    assert "backfills.uri" in caplog.text


def test_a_store_in_memory_takes_no_files() -> None:
    with pytest.raises(StoreError):
        MemoryStore().ingest(Family.USERS, [])


def _meta(store: UserStore, user: str) -> UserMeta:
    stored = store.read_user(user, "v1")
    assert stored is not None
    return stored.meta


def _rows(store: UserStore, user: str) -> Rows:
    """All that is stored of a user, oldest first."""
    stored = store.read_user(user, "v1")
    rolled = store.read_rolled(user, "v1", 1_000)
    assert stored is not None
    assert rolled is not None
    return join_rows(map(decode_rows, [*rolled.chunks, *stored.chunks, *stored.tail]))


def damage(database: KeyValueStore, user: str, kind: bytes = b"") -> None:
    """One bit of the first record of a kind."""
    prefix = keys.user_prefix(user.encode()) + kind
    key, value = next(database.scan(Family.USERS, prefix, keys.after(prefix)))
    batch = Batch()
    batch.put(Family.USERS, key, value[:-1] + bytes([value[-1] ^ 1]))
    database.write(batch)


def test_a_damaged_live_user_is_left_out_and_stops_nobody(site: Site) -> None:
    site.apply({"ann": make_rows([*range(100, 120)]), "bob": make_rows([*range(100, 120)])})
    damage(site.store.database, "ann")
    site.store.close()
    site.store = site.open()
    before = of_user(site.store.database, "ann")
    site.publish(HISTORIES)
    assert site.take() == ["histories-1"]
    assert list(site.store.quarantine.users) == ["ann"]
    assert of_user(site.store.database, "ann") == before
    assert _meta(site.store, "bob").length == 20 + len(BOB)
    assert _meta(site.store, "eve").length == len(EVE)
    assert {each.user for each in check_store(site.store.database, SMALL, PARTITION).damage} == {
        "ann"
    }


@pytest.mark.parametrize("kind", [keys.HEAD, keys.CHUNK, keys.SUMMARY])
@pytest.mark.parametrize("live", ["ann", "zoe"])
def test_a_damaged_backfill_marks_nobody(
    site: Site, live: str, kind: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    site.apply({live: make_rows([*range(100, 120)], first_item=900)})
    before = all_pairs(site.store.database)

    def compress_and_damage(shard: UserStore) -> None:
        assert shard.put_summary("ann", summary_at(6), 0, 0)[0]
        damage(shard.database, "ann", kind)

    is_read = live == "ann" or kind != keys.CHUNK
    site.publish(HISTORIES, change=compress_and_damage)
    assert site.take() == ([] if is_read else ["histories-1"])
    assert not site.store.quarantine.users
    if is_read:
        assert all_pairs(site.store.database) == before
        assert read_progress(site.store.database) == {}
        assert "backfill histories-1 is left out: user 'ann' of the backfill: " in caplog.text


@pytest.mark.parametrize("kind", [keys.HEAD, keys.SUMMARY])
def test_damaged_summaries_mark_nobody(kind: bytes) -> None:
    shard, _ = fold_shard(interactions({"ann": ANN}), SMALL, PARTITION)
    assert shard.put_summary("ann", summary_at(6), 0, 0)[0]
    live, _ = fold_shard(interactions({"ann": ANN}), SMALL, PARTITION)
    damage(shard.database, "ann", kind)
    building = BackfillBatch(live.database, SMALL)
    with pytest.raises(DamagedCheckpoint, match="user 'ann' of the backfill"):
        building.add_summaries([(b"ann", user_records(shard.database, b"ann"))])
    assert building.damaged == {}


@pytest.mark.parametrize("kind", [keys.HEAD, keys.CHUNK, keys.SUMMARY])
def test_nothing_of_a_damaged_live_user_is_in_the_batch(kind: bytes) -> None:
    live, _ = fold_shard(interactions({"ann": ANN}), SMALL, PARTITION)
    assert live.put_summary("ann", summary_at(6), 0, 0)[0]
    records = user_records(live.database, b"ann")
    damage(live.database, "ann", kind)
    building = BackfillBatch(live.database, SMALL)
    building.add_histories([(b"ann", records)])
    assert list(building.damaged) == ["ann"]
    assert [family for family, _, _ in building.batch.puts] == [Family.SYSTEM], "how many there are"
    assert not building.batch.removed_ranges
    assert not building.batch.deletes
    assert building.taken == Taken()


def test_too_many_damaged_users_end_the_taking_before_its_progress_is_stored(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.apply({user: make_rows([*range(100, 120)]) for user in ("ann", "bob")})
    for user in ("ann", "bob"):
        damage(site.store.database, user)
    site.store.close()
    site.store = site.open()
    monkeypatch.setattr("state.quarantine.MAX_USERS", 1)
    site.publish(HISTORIES)
    for _ in range(2):
        with pytest.raises(CorruptValue, match="2 users are damaged"):
            site.take()
        assert read_progress(site.store.database) == {}
        assert not of_user(site.store.database, "eve")
