"""Rollouts in one store: who is marked, what clears a mark, what is left of a bundle that is retired."""

import numpy as np
import pytest

from state import keys
from state.arrivals import Arrivals, Deletion, Position
from state.bundle_rollout import (
    Walk,
    WalkState,
    mark_some,
    read_bundles,
    remove_some,
    retire,
    set_rollout_state,
    start_rollout,
    stop_rollout,
    walk_again,
)
from state.errors import CorruptValue, RolloutRefused
from state.key_value_store import Batch, Family, MemoryStore
from state.store_check import check_store
from state.summary import Summary
from state.user_store import UserStore
from tests.state.builders import SMALL, arrive, make_rows

USERS = [f"user-{number}" for number in range(5)]
"""Each with a lifecycle boundary at 6, and one more without."""


def a_store() -> UserStore:
    store = UserStore(MemoryStore(), SMALL, 0)
    for number, user in enumerate(USERS):
        store.apply(arrive(make_rows(list(range(20))), user, first_offset=20 * number))
    store.apply(arrive(make_rows([0]), "newcomer", first_offset=1_000))
    return store


def put(store: UserStore, user: str, version: str, boundary: int = 6) -> bool:
    """Whether it was stored."""
    stored = store.read_user(user, version)
    base = stored.summary.boundary if stored and stored.summary else 0
    summary = Summary(
        bundle_version=version, boundary=boundary, count=boundary, accumulators=b"a",
        tokens=np.ones((1, 2), np.float32), built_at_ms=1,
    )  # fmt: skip
    assert stored is not None
    return store.put_summary(user, summary, base, stored.meta.epoch)[0]


def start(store: UserStore, version: str = "v2", rate: float = 10) -> None:
    store.change_bundles(lambda live: start_rollout(live, version, rate, 1))


def walk(store: UserStore, max_changed: int = 100, max_users: int = 100) -> Walk:
    store.change_bundles(lambda live: mark_some(live, max_changed, max_users).batch)
    assert store.bundles.rollout is not None
    return store.bundles.rollout


def owed(store: UserStore, version: str) -> set[str]:
    return {mark.user_id for mark in store.dirty_marks() if mark.bundle_version == version}


def all_done(store: UserStore, version: str) -> None:
    for user in USERS:
        assert put(store, user, version)


def test_a_walk_marks_who_lacks_a_summary_and_goes_on_where_it_stood() -> None:
    store = a_store()
    all_done(store, "v1")
    assert owed(store, "") == set()
    put(store, "user-1", "v2")
    start(store)
    assert walk(store, max_changed=2).changed == 2
    assert owed(store, "v2") == {"user-0", "user-2"}
    again = UserStore(store.database, SMALL, 0)  # another process
    assert walk(again, max_users=1).state is WalkState.RUNNING
    done = walk(again)
    assert (done.state, done.changed, done.walked) == (WalkState.DONE, 4, 6)
    assert owed(again, "v2") == {"user-0", "user-2", "user-3", "user-4"}
    assert check_store(again.database, SMALL, 0).damage == []
    again.change_bundles(walk_again)
    assert walk(again).changed == 4, "who is marked is not marked twice"


def test_a_pause_marks_nobody_and_a_rate_can_be_changed() -> None:
    store = a_store()
    start(store)
    store.change_bundles(lambda live: set_rollout_state(live, "v2", WalkState.PAUSED))
    start(store, rate=7)
    assert walk(store).state is WalkState.PAUSED
    assert owed(store, "v2") == set()
    store.change_bundles(lambda live: set_rollout_state(live, "v2", WalkState.RUNNING))
    assert (walk(store).state, walk(store).users_per_s) == (WalkState.DONE, 7)


def test_a_mark_speaks_of_its_bundle_alone() -> None:
    store = a_store()
    start(store)
    walk(store)
    assert owed(store, "") == owed(store, "v2") == set(USERS)
    all_done(store, "v2")
    assert owed(store, "v2") == set()
    assert owed(store, "") == set(USERS), "the bundle in use is owed all the same"
    store.apply(arrive(make_rows(list(range(20, 23))), "user-0", first_offset=2_000))
    assert owed(store, "v2") == {"user-0"}, "its boundary moved"
    assert put(store, "user-0", "v1", 9)
    store.clear_if_complete("user-0", "v1")
    assert owed(store, "v2") == {"user-0"}
    store.clear_if_complete("user-1", "v2")
    assert "user-1" in owed(store, "")
    assert not store.mark_dirty("user-0", "v2")
    assert store.mark_dirty("user-2", "v2")
    assert owed(store, "v2") == {"user-0", "user-2"}
    deletion = Deletion("user-0", 2_003, 2**60)
    nothing, end = make_rows([]), Position(2_004, 7)
    store.apply(Arrivals(0, end, [], np.zeros(0, np.int64), nothing, [deletion]))
    assert owed(store, "v2") == {"user-2"}


def test_a_rollout_that_is_stopped_leaves_no_mark() -> None:
    store = a_store()
    start(store)
    walk(store)
    store.change_bundles(lambda live: stop_rollout(live, "v2"))
    assert owed(store, "v2") == set()
    assert owed(store, "") == set(USERS)
    start(store, "v3")
    assert walk(store).changed == 5


def test_a_retired_bundle_leaves_the_disk_and_its_successor_takes_its_place() -> None:
    store = a_store()
    all_done(store, "v1")
    start(store)
    walk(store)
    for user in USERS[:3]:
        put(store, user, "v2")
    store.change_bundles(lambda live: retire(live, "v1", 10, 1))
    assert store.bundles.rollout is None
    assert owed(store, "") == {"user-3", "user-4"}
    store.change_bundles(lambda live: remove_some(live, "v1", 2, 100).batch)
    again = UserStore(store.database, SMALL, 0)
    again.change_bundles(lambda live: remove_some(live, "v1", 100, 100).batch)
    (record,) = again.bundles.retirements
    assert (record.state, record.changed) == (WalkState.DONE, 5)
    summaries = [key for key, _ in again.database.scan(Family.USERS, b"", b"\xff") if b"v1" in key]
    assert summaries == []
    assert not put(again, "user-3", "v1"), "nothing comes back"
    assert not again.mark_dirty("user-1", "v1")
    again.clear_if_complete("user-3", "v1")
    for user in USERS[3:]:
        assert put(again, user, "v2")
    assert again.dirty_marks() == []
    start(again, "v1")  # back again
    assert again.bundles.retirements == ()
    assert put(again, "user-3", "v1")


@pytest.mark.parametrize("step", ["other", "pause", "retire it", "retire early", "name", "rate"])
def test_what_is_not_its_turn_is_refused_and_changes_nothing(step: str) -> None:
    store = a_store()
    start(store)
    before = read_bundles(store.database)
    steps = {
        "other": lambda live: start_rollout(live, "v3", 1, 1),
        "pause": lambda live: set_rollout_state(live, "v3", WalkState.PAUSED),
        "retire it": lambda live: retire(live, "v2", 1, 1),
        "retire early": lambda live: retire(live, "v1", 1, 1),
        "name": lambda live: start_rollout(live, "", 1, 1),
        "rate": lambda live: start_rollout(live, "v2", 0, 1),
    }
    with pytest.raises(RolloutRefused):
        store.change_bundles(steps[step])
    assert store.bundles == before == read_bundles(store.database)


def test_a_damaged_record_is_found() -> None:
    store = a_store()
    start(store)
    batch = Batch()
    batch.put(Family.SYSTEM, keys.ROLLOUT_KEY, b'{"state": "running"}')
    store.database.write(batch)
    with pytest.raises(CorruptValue, match="rollout cannot be read"):
        UserStore(store.database, SMALL, 0)
