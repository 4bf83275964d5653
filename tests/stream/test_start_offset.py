"""Where the reading of a partition begins, and what is refused."""

import pytest

from state.arrivals import Hole
from state.key_value_store import MemoryStore
from state.user_store import UserStore
from stream.errors import OffsetUnreachable
from stream.start_offset import find_start
from tests.state.builders import SMALL, arrive, make_rows


def store_at(offset: int) -> UserStore:
    store = UserStore(MemoryStore(), SMALL, 3)
    if offset:
        store.apply(arrive(make_rows(list(range(offset)))))
    return store


def test_one_before_the_stored_offset() -> None:
    assert find_start(store_at(5), "t", range(10), 5, accept_hole=False) == 4
    assert find_start(store_at(5), "t", range(5, 10), 5, accept_hole=False) == 5
    assert find_start(store_at(0), "t", range(10), None, accept_hole=False) == 0


def test_nothing_here_though_the_group_was_further_is_refused_or_accepted() -> None:
    with pytest.raises(OffsetUnreachable, match="had applied it up to offset 8.*begins at 6"):
        find_start(store_at(0), "t", range(6, 10), 8, accept_hole=False)
    store = store_at(0)
    assert find_start(store, "t", range(6, 10), 8, accept_hole=True) == 6
    assert [(hole.start_offset, hole.end_offset) for hole in store.holes()] == [(0, 6)]


def test_a_first_start_behind_retention_records_the_hole() -> None:
    store = store_at(0)
    assert find_start(store, "t", range(6, 10), None, accept_hole=False) == 6
    (hole,) = store.holes()
    assert isinstance(hole, Hole)
    assert find_start(store, "t", range(6, 10), None, accept_hole=False) == 6


def test_a_rebuilt_partition_needs_nothing_where_the_log_is_whole() -> None:
    store = store_at(0)
    assert find_start(store, "t", range(10), 8, accept_hole=False) == 0
    assert store.holes() == []


@pytest.mark.parametrize(
    ("span", "message"),
    [(range(7, 10), "needs offset 5, but the topic now begins at 7"), (range(4), "ends at 3")],
)
def test_an_offset_outside_the_topic_is_refused(span: range, message: str) -> None:
    with pytest.raises(OffsetUnreachable, match=message):
        find_start(store_at(5), "t", span, 5, accept_hole=False)
