"""The catalogue while it changes: what is served follows from the newest word on each item; removals hold at once."""

import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings, strategies as st

from model.bundle import Bundle
from model.catalogue import CatalogueItem
from model.catalogue_view import CatalogueView
from model.errors import CatalogueError
from model.item_knowledge import NewItem
from model.item_placement import Change, Offer, Refusal, Removal
from model.live_catalogue import LiveCatalogue
from model.new_items import assign_where_known, with_new_items
from model.query import ItemFilter, Query
from model.recommender import Recommender
from model.tokenizer.item_vectors import CONTENT, COOCCURRENCE, ItemVectors
from model.tokenizer.residual_kmeans import ResidualKMeans
from tests.model.test_catalogue_merge import assert_equal

NEW = 1_000_000
FAR_MS = 4_000_000_000_000


def offer(
    item_id: int, *, title: str = "", seen_with: Sequence[int] = (1, 2), expires_at_ms: int = 0
) -> Offer:
    item = CatalogueItem(item_id, tag=1, title=title)
    return Offer(new=NewItem(item=item, seen_with=seen_with), expires_at_ms=expires_at_ms)


def apply(live: LiveCatalogue, *changes: tuple[int, Change], offset: int = 0) -> None:
    live.hear(changes, offset)
    batch = live.take()
    assert batch is not None
    live.publish(live.build(batch))


def ids(view: CatalogueView, now_ms: int | None = None) -> set[int]:
    """What may be recommended."""
    blocked = view.blocked(ItemFilter(), now_ms)
    found = view.catalogue.item_ids
    return set((found if blocked is None else found[~blocked]).tolist())


def test_new_items_come_as_the_offline_path_makes_them(bundle: Bundle) -> None:
    live = LiveCatalogue(bundle)
    apply(
        live,
        (NEW, offer(NEW, title="new")),
        (NEW + 1, offer(NEW + 1, seen_with=[40, 41])),
        offset=2,
    )
    expected = with_new_items(
        bundle, [offer(NEW, title="new").new, offer(NEW + 1, seen_with=[40, 41]).new]
    )
    assert_equal(live.view.catalogue, expected.catalogue)
    assert (live.versions[-1].number, live.versions[-1].next_offset) == (1, 2)
    assert live.take() is None


def test_known_items_change_their_title_and_keep_their_sid(bundle: Bundle) -> None:
    live, old = LiveCatalogue(bundle), bundle.catalogue.item(0)
    sid, count = bundle.catalogue.sid_of_item(0), bundle.catalogue.counts[0]
    apply(live, (old.item_id, offer(old.item_id, title="better", seen_with=())))
    (index,) = live.view.catalogue.find(np.array([old.item_id], np.uint64))
    assert live.view.catalogue.item(int(index)).title == "better"
    assert live.view.catalogue.sid_of_item(int(index)) == sid
    assert live.view.catalogue.counts[index] == count


def test_a_removal_holds_before_anything_is_built(bundle: Bundle) -> None:
    live, recommender = LiveCatalogue(bundle), Recommender(bundle)
    gone = int(bundle.catalogue.item_ids[0])
    live.hear([(gone, Removal())], 1)
    recommender.swap(live.view)
    everything = Query(k=len(bundle.catalogue))
    assert gone not in {one.item.item_id for one in recommender.popular(everything)}
    assert len(recommender.popular(everything)) == len(bundle.catalogue) - 1
    batch = live.take()
    assert batch is not None
    live.publish(live.build(batch))
    assert len(live.view.catalogue) == len(bundle.catalogue) - 1
    assert not len(live.view.hidden_ids)


def test_what_is_removed_while_a_build_runs_does_not_come_back(bundle: Bundle) -> None:
    live = LiveCatalogue(bundle)
    live.hear([(NEW, offer(NEW))], 1)
    batch = live.take()
    assert batch is not None
    built = live.build(batch)
    live.hear([(NEW, Removal()), (1, Removal())], 3)
    live.publish(built)
    assert not {NEW, 1} & ids(live.view)


def test_expiry_is_by_the_clock(bundle: Bundle) -> None:
    live, soon_ms = LiveCatalogue(bundle), FAR_MS
    apply(live, (NEW, offer(NEW, expires_at_ms=soon_ms)), (1, offer(1, expires_at_ms=soon_ms + 5)))
    assert {NEW, 1} <= ids(live.view)
    assert {NEW, 1} & ids(live.view, soon_ms) == {1}
    assert not {NEW, 1} & ids(live.view, soon_ms + 5)
    live.hear([(NEW, offer(NEW, expires_at_ms=1))], 2)
    assert NEW not in ids(live.view)  # over already: at once


def test_a_sweep_takes_expired_items_out_and_makes_no_version(bundle: Bundle) -> None:
    live = LiveCatalogue(bundle)
    apply(live, (NEW, offer(NEW, expires_at_ms=round(time.time() * 1_000) + 200)))
    while NEW in ids(live.view):
        pass
    assert live.take() is None
    batch = live.take(sweep=True)
    assert batch is not None
    assert live.publish(live.build(batch)).number == 1
    assert_equal(live.view.catalogue, bundle.catalogue)
    apply(live, (NEW, offer(NEW)))
    assert NEW in ids(live.view)


def test_what_cannot_be_used_is_refused_and_does_no_harm(bundle: Bundle) -> None:
    live = LiveCatalogue(bundle)
    apply(
        live,
        (NEW, offer(NEW, seen_with=())),
        (NEW + 1, Refusal("unreadable")),
        (NEW + 2, offer(NEW + 2)),
        (1, Refusal("unreadable")),
    )
    assert ids(live.view) == {*bundle.catalogue.item_ids.tolist(), NEW + 2}
    refused = live.states[NEW]
    assert isinstance(refused, Refusal)
    assert "nothing is known of it" in refused.reason
    apply(live, (NEW, offer(NEW)))
    assert NEW in ids(live.view)


def test_content_that_this_bundle_has_no_place_for_is_not_looked_at(bundle: Bundle) -> None:
    live, content = LiveCatalogue(bundle), np.ones(3, np.float32)
    item = CatalogueItem(NEW)
    apply(live, (NEW, Offer(new=NewItem(item=item, content=content, seen_with=[1]))))
    assert NEW in ids(live.view)
    titled = CatalogueItem(NEW + 1, title="new", author_id=7)
    apply(live, (NEW + 1, Offer(new=NewItem(item=titled, content=content, seen_with=[10**9]))))
    refused = live.states[NEW + 1]
    assert isinstance(refused, Refusal)
    assert refused.item == titled
    assert refused.reason == (
        "nothing is known of it that the bundle can use: give items of the bundle that it was seen with; "
        "its content does not count: the bundle was trained without content vectors; "
        "its title does not count: the bundle was trained with text_weight 0; "
        "the bundle has none of the items that it was seen with"
    )


def test_content_of_another_width_is_refused_alone(bundle: Bundle) -> None:
    torch.manual_seed(0)
    behaviour = bundle.item_vectors.vectors_RV
    parts = [(COOCCURRENCE, 1.0, behaviour), (CONTENT, 1.0, torch.randn(len(behaviour), 3))]
    vectors = ItemVectors.join(parts)
    tokenizer = ResidualKMeans([torch.randn(6, vectors.vectors_RV.shape[1]) for _ in range(3)])
    live = LiveCatalogue(replace(bundle, item_vectors=vectors, tokenizer=tokenizer))
    contents = [np.ones(3), np.ones(4), np.array([0, np.nan, 0]), np.zeros(3)]
    apply(
        live,
        *(
            (
                NEW + n,
                Offer(new=NewItem(item=CatalogueItem(NEW + n), content=content.astype(np.float32))),
            )
            for n, content in enumerate(contents)
        ),
    )
    reasons = [getattr(live.states[NEW + n], "reason", None) for n in range(4)]
    assert reasons[0] is None
    assert "4 wide; the bundle's is 3" in str(reasons[1])
    assert "not finite" in str(reasons[2])
    assert "nothing is known of it that the bundle can use: give content 3 wide or items" in str(
        reasons[3]
    )
    assert ids(live.view) == {*bundle.catalogue.item_ids.tolist(), NEW}


def test_an_item_that_makes_the_assignment_fail_is_refused_alone(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    def assign(_: Bundle, new: Sequence[NewItem]) -> object:
        if any(one.item.item_id == NEW for one in new):
            raise RuntimeError("too odd")
        return assign_where_known(bundle, new)

    monkeypatch.setattr("model.item_placement.assign_where_known", assign)
    live = LiveCatalogue(bundle)
    apply(live, *((NEW + n, offer(NEW + n)) for n in range(3)))
    assert live.states[NEW] == Refusal("it gets no SID: too odd", CatalogueItem(NEW, tag=1))
    assert ids(live.view) >= {NEW + 1, NEW + 2}


def test_everything_can_be_removed_and_come_back(bundle: Bundle) -> None:
    live, recommender = LiveCatalogue(bundle), Recommender(bundle)
    apply(live, *((int(item), Removal()) for item in bundle.catalogue.item_ids))
    recommender.swap(live.view)
    assert list(recommender.popular(Query(k=5))) == []
    apply(live, (NEW, offer(NEW)))
    assert ids(live.view) == {NEW}


def test_a_rollback_undoes_a_version_and_holds_until_resumed(bundle: Bundle) -> None:
    live, own = LiveCatalogue(bundle), set(bundle.catalogue.item_ids.tolist())
    apply(live, (NEW, offer(NEW)), offset=1)
    apply(live, (NEW, offer(NEW, title="changed")), (1, Removal()), offset=3)
    assert live.roll_back(live.build(live.undone())).number == 1
    assert ids(live.view) == {*own, NEW}
    live.hear([(2, Removal())], 4)
    assert live.take() is None
    assert ids(live.view) == {*own, NEW}
    assert live.roll_back(live.build(live.undone())).number == 0
    assert_equal(live.view.catalogue, bundle.catalogue)
    with pytest.raises(CatalogueError, match="version 0 is the oldest"):
        live.undone()
    live.resume()
    assert not {1, 2} & ids(live.view)
    batch = live.take()
    assert batch is not None
    assert live.publish(live.build(batch)).number == 3
    assert ids(live.view) == {*own, NEW} - {1, 2}
    assert live.versions[-1].next_offset == 4


def test_no_more_versions_are_kept_than_asked_for(bundle: Bundle) -> None:
    live = LiveCatalogue(bundle, keep_versions=2)
    for offset in range(1, 4):
        apply(live, (NEW + offset, offer(NEW + offset)), offset=offset)
    assert [version.number for version in live.versions] == [2, 3]


CHANGES = st.lists(
    st.tuples(
        st.sampled_from([1, 2, 3, 4, NEW, NEW + 1, NEW + 2]),
        st.sampled_from(
            [
                "offer",
                "retitled",
                "elsewhere",
                "unknown",
                "expired",
                "later",
                "removed",
                "unreadable",
            ]
        ),
    ),
    max_size=12,
)


def change(item_id: int, kind: str) -> Change:
    match kind:
        case "offer":
            return offer(item_id)
        case "retitled":
            return offer(item_id, title="another")
        case "elsewhere":
            return offer(item_id, seen_with=[40, 41, 42])
        case "unknown":
            return offer(item_id, seen_with=())
        case "expired":
            return offer(item_id, expires_at_ms=5)
        case "later":
            return offer(item_id, expires_at_ms=FAR_MS)
        case "removed":
            return Removal()
        case _:
            return Refusal("unreadable")


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(batches=st.lists(CHANGES, max_size=5), rollbacks=st.integers(0, 3))
def test_changes_in_any_batches_serve_what_a_fresh_node_serves(
    bundle: Bundle, batches: list[list[tuple[int, str]]], rollbacks: int
) -> None:
    live, fresh = LiveCatalogue(bundle), LiveCatalogue(bundle)
    for batch in batches:
        live.hear([(item_id, change(item_id, kind)) for item_id, kind in batch], 1)
        if taken := live.take():
            live.publish(live.build(taken))
    for _ in range(min(rollbacks, len(live.versions) - 1)):
        live.roll_back(live.build(live.undone()))
    live.resume()
    if taken := live.take():
        live.publish(live.build(taken))
    newest = {item_id: change(item_id, kind) for batch in batches for item_id, kind in batch}
    fresh.hear(newest.items(), 1)
    if taken := fresh.take():
        fresh.publish(fresh.build(taken))
    assert_equal(live.view.catalogue, fresh.view.catalogue)
    assert live.states == fresh.states
    assert ids(live.view, FAR_MS) == ids(fresh.view, FAR_MS)
