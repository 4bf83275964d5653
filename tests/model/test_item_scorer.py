"""Items scored beside their codes while the catalogue changes: what a request finds ready."""

from collections.abc import Iterator
from unittest.mock import patch

import pytest

from model.bundle import Bundle
from model.catalogue import CatalogueItem
from model.item_knowledge import NewItem
from model.item_placement import Offer, Removal
from model.item_scorer import ItemScorer
from model.live_catalogue import Batch, LiveCatalogue
from model.query import Query
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

    with patch("model.recommender.ItemScorer", make):
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


def test_a_view_that_nobody_prepared_is_swapped_to(scoring: Bundle) -> None:
    prepared, other = Recommender(scoring), Recommender(scoring)
    live = LiveCatalogue(scoring, prepare=prepared.prepare)
    live.publish(live.build(taken(live, 999)))
    for recommender in (prepared, other):
        recommender.swap(live.view)
    assert prepared.recommend(STATE, EVERYTHING) == other.recommend(STATE, EVERYTHING)
