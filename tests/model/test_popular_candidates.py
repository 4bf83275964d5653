"""Popular candidates through filters, catalogue changes and batches: as one fresh request, and as the slow twin says."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from model.bundle import Bundle, load_bundle
from model.item_placement import Removal
from model.live_catalogue import LiveCatalogue
from model.query import ItemFilter, Query, Recommended
from model.recommender import Recommender
from model.repeats import RepeatConfig
from model.user_context import UserContext
from state.interaction import empty_rows
from state.user_state import UserState
from tests.model.plain_context import plain_answer
from tests.model.test_live_catalogue import NEW, apply, offer
from tests.model.test_recommender import state_of
from tests.model.worlds import NUM_ITEMS, make_rows

STATES = [state_of(make_rows(num, seed=num) if num else empty_rows()) for num in (0, 1, 9, 19)]


@pytest.fixture(scope="module")
def popular(bundle_path: Path) -> Bundle:
    """Its network has popular candidates beside the history's, and discounts all but a few of these."""
    bundle = load_bundle(bundle_path)
    repeats = RepeatConfig(max_popular=20, max_favoured=4)
    bundle.network.config = replace(bundle.network.config, repeats=repeats)
    return bundle


def filters(bundle: Bundle, state: UserState) -> dict[str, ItemFilter]:
    popular = bundle.catalogue.item_ids[bundle.catalogue.by_popularity()]
    everything = np.append(bundle.catalogue.item_ids, np.uint64(NEW))
    return {
        "open": ItemFilter(),
        "deny tags": ItemFilter(deny_tags={1, 3}),
        "allow authors": ItemFilter(allow_authors={2, 5}),
        "exclude popular": ItemFilter(exclude=frozenset(popular[:7].tolist())),
        "exclude history": ItemFilter(exclude_ids=np.unique(state.rows["item_id"])),
        "all but two": ItemFilter(exclude_ids=popular[2:]),
        "exclude everything": ItemFilter(exclude_ids=everything),
    }


def requests(bundle: Bundle, beam_width: int) -> list[tuple[UserState, Query]]:
    """Every user with every filter, with and without repeats."""
    return [
        (state, Query(k=12, beam_width=beam_width, filter=one, repeats=repeats))
        for state in STATES
        for one in filters(bundle, state).values()
        for repeats in (True, False)
    ]


def assert_alike(found: Sequence[Recommended], expected: dict[int, float]) -> None:
    assert [one.item.item_id for one in found] == list(expected)
    scores = [one.score for one in found]
    np.testing.assert_allclose(scores, list(expected.values()), atol=2e-4)


def check(recommender: Recommender, contexts: Sequence[UserContext], beam_width: int) -> None:
    """All requests in one batch, of users that are cached, against each alone, of a user that is not."""
    asked = requests(recommender.bundle, beam_width)
    of_state = {id(state): context for state, context in zip(STATES, contexts, strict=True)}
    batch = recommender.answer([of_state[id(state)] for state, _ in asked], [q for _, q in asked])
    fresh = Recommender(recommender.bundle)
    fresh.swap(recommender.view)
    for (state, query), found in zip(asked, batch, strict=True):
        alone = fresh.recommend(state, query)
        assert_alike(found, {one.item.item_id: one.score for one in alone})
        blocked = recommender.view.blocked(query.filter)
        allowed = len(recommender.view.catalogue) - (0 if blocked is None else int(blocked.sum()))
        assert len(found) == min(query.k, allowed)


@pytest.mark.parametrize("beam_width", [6, 1_000])
def test_a_batch_answers_as_single_requests_do(popular: Bundle, beam_width: int) -> None:
    recommender = Recommender(popular)
    check(recommender, [recommender.encode_state(state) for state in STATES], beam_width)


def test_filters_are_the_slow_twins(popular: Bundle) -> None:
    recommender = Recommender(popular)
    for state, query in requests(popular, 1_000):
        expected = plain_answer(popular, state, query, 1_000)
        assert_alike(recommender.recommend(state, query), expected)


def test_cached_users_follow_a_catalogue_that_changes(popular: Bundle) -> None:
    """A popular item goes, at first hidden and then for good; another comes, and then the first catalogue again."""
    live, recommender = LiveCatalogue(popular), Recommender(popular)
    contexts = [recommender.encode_state(state) for state in STATES]
    first, gone = (
        recommender.view,
        int(popular.catalogue.item_ids[popular.catalogue.by_popularity()[0]]),
    )
    check(recommender, contexts, 1_000)
    live.hear([(gone, Removal())], 1)
    hidden = live.view
    apply(live, (NEW, offer(NEW)), offset=2)
    assert NEW in live.view.catalogue.item_ids
    assert gone not in live.view.catalogue.item_ids
    for view in (hidden, live.view, first):
        recommender.swap(view)
        check(recommender, contexts, 1_000)
        answers = recommender.answer(contexts, [Query(k=NUM_ITEMS + 1)] * len(contexts))
        for answer in answers:
            ids = {one.item.item_id for one in answer}
            assert (gone in ids) == (view is first)
            assert (NEW in ids) == (view is not hidden and view is not first)
