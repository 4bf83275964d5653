"""Catalogues that are merged are what they would be if they were sorted anew."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings, strategies as st

from model.catalogue import COLUMN_TYPES, Catalogue
from model.catalogue_merge import merge_catalogues
from model.errors import CatalogueError
from model.trie import Trie

ITEMS = st.dictionaries(  # id: (count, codes)
    st.integers(1, 40),
    st.tuples(st.integers(0, 3), st.tuples(st.integers(0, 2), st.integers(0, 2))),
    min_size=1,
    max_size=30,
)
Items = dict[int, tuple[int, tuple[int, int]]]


def catalogue_of(items: Items, scale: int = 1) -> Catalogue:
    ids = sorted(items)
    columns: dict[str, npt.NDArray[Any]] = {
        "item_ids": np.array(ids, np.uint64),
        "author_ids": np.array(ids, np.uint64) * 3,
        "tags": np.array(ids, np.uint32) % 5,
        "durations_ms": np.array(ids, np.uint32),
        "counts": np.array([items[i][0] for i in ids]),
        "sids": np.array([items[i][1] for i in ids]) * scale,
    }
    return Catalogue(columns, [f"item {i}" for i in ids])


def assert_equal(one: Catalogue, other: Catalogue) -> None:
    for name in COLUMN_TYPES:
        np.testing.assert_array_equal(one.columns[name], other.columns[name], name)
    assert one.titles == other.titles
    assert one.fingerprint == other.fingerprint
    np.testing.assert_array_equal(one.by_popularity(), other.by_popularity())
    np.testing.assert_array_equal(one.bucket_of_item, other.bucket_of_item)
    trie, expected = (Trie(each.sids_SD, each.sid_counts_S) for each in (one, other))
    assert trie.paths_SD.equal(expected.paths_SD)


@settings(max_examples=200, deadline=None)
@given(ITEMS, st.sets(st.integers(1, 45)), ITEMS, st.sampled_from([1, 2**31]))
def test_a_merge_equals_a_sort(base: Items, without: set[int], more: Items, scale: int) -> None:
    """With a large scale a SID does not fit into one 64-bit number."""
    rest = {item: said for item, said in base.items() if item not in without}
    added = {item: said for item, said in more.items() if item not in rest}
    if not {**rest, **added}:
        return
    merged = merge_catalogues(
        catalogue_of(base, scale),
        np.array(sorted(without), np.uint64),
        catalogue_of(added, scale) if added else None,
    )
    assert_equal(merged, catalogue_of({**rest, **added}, scale))


def test_nothing_left_and_items_twice_are_refused() -> None:
    base = catalogue_of({1: (1, (0, 0)), 2: (1, (0, 1))})
    with pytest.raises(CatalogueError, match="above 0 is needed"):
        merge_catalogues(base, np.array([1, 2], np.uint64), None)
    with pytest.raises(CatalogueError, match="item 2 is in the catalogue twice"):
        merge_catalogues(base, np.array([1], np.uint64), catalogue_of({2: (0, (1, 1))}))
