"""Items scored beside their codes while the catalogue changes: what a request finds ready."""

import weakref
from collections.abc import Iterator
from unittest import mock

import pytest

from model.bundle import Bundle
from model.catalogue import CatalogueItem
from model.compiled_search import compiled_beam_search
from model.item_knowledge import NewItem
from model.item_placement import Offer, Removal
from model.item_scorer import ItemScorer
from model.live_catalogue import Batch, LiveCatalogue
from model.query import ItemFilter, Query
from model.recommender import Recommender
from state.user_state import UserMeta, UserState
from tests.model.worlds import make_rows

EVERYTHING = Query(k=100, beam_width=100)
STATE = UserState("someone", UserMeta(length=9), make_rows(9), None)


@pytest.fixture
def made() -> Iterator[list[ItemScorer]]:
    """Scorers as they are made."""
    scorers: list[ItemScorer] = []

    def make(*given: object) -> ItemScorer:
        scorers.append(ItemScorer(*given))  # type: ignore[arg-type]
        return scorers[-1]

    with mock.patch("model.searched.ItemScorer", make):
        yield scorers


def taken(live: LiveCatalogue, *item_ids: int) -> Batch:
    """What is to be built for new items."""
    offers = [Offer(new=NewItem(item=CatalogueItem(i), seen_with=[1, 2])) for i in item_ids]
    live.hear(zip(item_ids, offers, strict=True), 1)
    batch = live.take()
    assert batch is not None
    return batch


def test_a_build_prepares_what_a_request_needs(scoring: Bundle, made: list[ItemScorer]) -> None:
    recommender = Recommender(scoring)
    live = LiveCatalogue(scoring, prepare=recommender.prepare)
    recommender.swap(live.view)
    assert len(made) == 1, "at the start"
    before = recommender.recommend(STATE, EVERYTHING)
    built = live.build(taken(live, 999))
    assert [one.catalogue for one in made[1:]] == [built.view.catalogue]
    assert recommender.recommend(STATE, EVERYTHING) == before, "until the swap"
    live.publish(built)
    recommender.swap(live.view)
    found = recommender.recommend(STATE, EVERYTHING)
    recommender.explain(recommender.encode_state(STATE), EVERYTHING, found[:1])
    assert len(made) == 2


def test_removals_swap_while_a_view_is_prepared(scoring: Bundle, made: list[ItemScorer]) -> None:
    recommender = Recommender(scoring)
    live = LiveCatalogue(scoring, prepare=recommender.prepare)
    built = live.build(taken(live, 999))
    live.hear([(5, Removal())], 2)
    recommender.swap(live.view)
    assert 5 not in {one.item.item_id for one in recommender.recommend(STATE, EVERYTHING)}
    live.publish(built)
    recommender.swap(live.view)
    found = {one.item.item_id for one in recommender.recommend(STATE, EVERYTHING)}
    assert 5 not in found
    assert 999 in found
    assert len(made) == 2


def test_the_next_build_lets_go_of_what_a_swap_left(scoring: Bundle) -> None:
    """Not the swap, on the event loop: to free the vectors of 250,000 items takes 10 ms."""
    recommender = Recommender(scoring)
    live = LiveCatalogue(scoring, prepare=recommender.prepare)
    assert recommender._catalogue.now.scorer.vectors_NH is not None
    left = weakref.ref(recommender._catalogue.now.scorer.vectors_NH)
    live.publish(live.build(taken(live, 999)))
    recommender.swap(live.view)
    assert left() is not None
    live.build(taken(live, 1000))
    assert left() is None


def test_a_view_that_nobody_prepared_is_swapped_to(scoring: Bundle) -> None:
    prepared, other = Recommender(scoring), Recommender(scoring)
    live = LiveCatalogue(scoring, prepare=prepared.prepare)
    live.publish(live.build(taken(live, 999)))
    for recommender in (prepared, other):
        recommender.swap(live.view)
    assert prepared.recommend(STATE, EVERYTHING) == other.recommend(STATE, EVERYTHING)


def test_items_are_scored_once_however_wide_a_search_gets(scoring: Bundle) -> None:
    """Requests of one batch whose searches widen differently, against each alone."""
    recommender = Recommender(scoring, beam_width=1, exact=True)
    states = [UserState(f"user-{n}", UserMeta(length=n), make_rows(n, n), None) for n in (3, 9, 7)]
    contexts = [recommender.encode_state(state) for state in states]
    hidden = frozenset(scoring.catalogue.item_ids[:40].tolist())
    queries = [Query(k=1), Query(k=9, filter=ItemFilter(exclude=hidden)), Query(k=3, beam_width=60)]
    alone = [recommender.recommend(*each) for each in zip(states, queries, strict=True)]
    with mock.patch.object(
        ItemScorer, "score", autospec=True, side_effect=ItemScorer.score
    ) as score:
        with mock.patch(
            "model.recommender.compiled_beam_search", wraps=compiled_beam_search
        ) as search:
            together = recommender.answer(contexts, queries)
    assert score.call_count == 1
    assert search.call_count > 2
    for found, expected in zip(together, alone, strict=True):
        assert [one.item for one in found] == [one.item for one in expected]
        assert [one.score for one in found] == pytest.approx([one.score for one in expected])
    assert recommender.answer([], []) == []
