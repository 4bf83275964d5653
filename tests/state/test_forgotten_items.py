"""The list of forgotten items: what it refuses, and how it is bounded."""

from collections.abc import Sequence

import numpy as np
from hypothesis import given, strategies as st

from state.forgotten_items import MAX_FORGOTTEN, ForgottenItems
from state.interaction import INTERACTION
from tests.state.builders import START_MS, make_rows

requests = st.lists(st.tuples(st.integers(1, 2**64 - 1) | st.integers(1, 5), st.integers(1, 40)))


def listed(asked: Sequence[tuple[int, int]]) -> ForgottenItems:
    forgotten = ForgottenItems()
    for item, until in asked:
        forgotten = forgotten.having(item, START_MS + until)
    return forgotten


@given(requests, st.lists(st.tuples(st.integers(0, 6), st.integers(0, 42)), max_size=30))
def test_the_list_refuses_what_a_loop_would(
    asked: list[tuple[int, int]], happened: list[tuple[int, int]]
) -> None:
    rows = make_rows([time for _, time in happened])
    rows["item_id"] = [item for item, _ in happened]
    expected = [
        any(item == other and time <= until for other, until in asked) for item, time in happened
    ]
    assert listed(asked).refuse(rows).tolist() == expected


@given(requests, st.randoms())
def test_neither_order_nor_repetition_of_requests_matters(
    asked: list[tuple[int, int]], random: object
) -> None:
    again = [*asked, *asked]
    random.shuffle(again)  # type: ignore[attr-defined]
    assert listed(again).entries.tobytes() == listed(asked).entries.tobytes()


def test_the_list_keeps_the_newest_requests() -> None:
    forgotten = listed([(n, n) for n in range(1, MAX_FORGOTTEN + 11)])
    assert len(forgotten.entries) == MAX_FORGOTTEN
    rows = np.zeros(2, INTERACTION)
    rows["item_id"] = [10, 11]
    assert forgotten.refuse(rows).tolist() == [False, True]
    assert forgotten.until_ms == START_MS + MAX_FORGOTTEN + 10
    assert forgotten.having(11, START_MS) is forgotten
