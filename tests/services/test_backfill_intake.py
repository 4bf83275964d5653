"""Backfills into stores: byte-equal to ingest, taken once, before live events, after crashes, past deletions."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from services.backfill_shards import fold_shard
from state.arrivals import Arrivals, Deletion, Position
from state.backfill_batch import Taken
from state.backfill_intake import read_progress
from state.errors import StoreError
from state.interaction import Rows, join_rows
from state.key_value_store import Family, MemoryStore
from tests.services.backfill_site import (
    ANN,
    BOB,
    HISTORIES,
    PARTITION,
    Site,
    all_pairs,
    interactions,
    meta_of,
    of_user,
    rows_of,
)
from tests.state.builders import SMALL, START_MS, make_rows
from tests.state.test_fold import History


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


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
    assert rows_of(site.store, "ann")["item_id"].tolist() == whole.all_rows()["item_id"].tolist()
    meta = meta_of(site.store, "ann")
    assert (meta.length, meta.epoch, meta.version) == (70, 1, 70)
    assert meta.lifecycle_boundary == SMALL.lifecycle_boundary(70)
    assert {each.user_id for each in site.store.dirty_marks()} >= {"ann"}
    # What comes later is folded as ever, from the store and not from what was cached of it.
    site.apply({"ann": make_rows([200], first_item=2_000)})
    assert meta_of(site.store, "ann").length == 71
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
    assert rows_of(site.store, "bob")["item_id"].tolist() == list(range(1, 31))
    site.check()


def test_deleted_users_stay_deleted(site: Site) -> None:
    site.apply({"ann": ANN[:5]}, [Deletion("ann", 0, START_MS + 30)])
    site.publish({"ann": ANN})
    site.take()
    meta = meta_of(site.store, "ann")
    assert meta.deleted_until_ms == START_MS + 30
    assert (
        rows_of(site.store, "ann")["event_time_ms"].tolist()
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
    assert 25 not in rows_of(site.store, "ann")["item_id"]
    assert 26 in rows_of(site.store, "ann")["item_id"]
    site.apply({"ann": make_rows([24], first_item=25)})  # still refused
    assert 25 not in rows_of(site.store, "ann")["item_id"]
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
    assert len(rows_of(site.store, "ann")) == 24
    site.publish({"ann": join_rows([equal_rows(1, 901, 30), equal_rows(3, 902, 40)])})
    intake = site.intake()
    intake.take_new(site.store)
    # One of the two at 30, both of those at 40; the third of the backfill at 40 is new.
    assert len(rows_of(site.store, "ann")) == 24 + 4 - 3
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
    items = rows_of(site.store, "ann")["item_id"].tolist()
    assert Counter(items) == {7: 24, **dict.fromkeys(range(100, 105), 1)}
    site.apply({"ann": equal_rows(2, 801, 50)})
    assert meta_of(site.store, "ann").length == 31
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
    assert all(meta_of(site.store, user).length >= len(rows) for user, rows in histories.items())
    site.check()
    marks = {each.user_id for each in site.store.dirty_marks()}
    assert marks == {user for user in histories if meta_of(site.store, user).lifecycle_boundary}


def test_a_store_in_memory_takes_no_files() -> None:
    with pytest.raises(StoreError):
        MemoryStore().ingest(Family.USERS, [])
