"""Recommendations from user state, against scoring every SID of the catalogue."""

from collections.abc import Set as AbstractSet
from dataclasses import replace

import numpy as np
import pytest
import torch

from model.bundle import Bundle
from model.compression import Compressor
from model.errors import ModelConfigError
from model.query import ItemFilter, Query
from model.recommender import Recommender
from state.interaction import DISLIKE_MASK, Rows, empty_rows
from state.summary import Summary
from state.user_state import UserMeta, UserState
from tests.model.plain_context import plain_mixture
from tests.model.whole_context import whole_context
from tests.model.worlds import HOUR_MS, START_MS, make_rows


def ask(k: int, exclude: AbstractSet[int] = frozenset(), beam_width: int | None = None) -> Query:
    return Query(k=k, beam_width=beam_width, filter=ItemFilter(exclude=exclude))


def state_of(rows: Rows, summary: Summary | None = None) -> UserState:
    return UserState("someone", UserMeta(length=len(rows)), rows, summary)


@pytest.fixture(scope="module")
def recommender(bundle: Bundle) -> Recommender:
    return Recommender(bundle, beam_width=4)


@pytest.fixture(scope="module")
def summary(bundle: Bundle) -> Summary:
    return Compressor(bundle).roll(None, [make_rows(8, seed=3)], 8, now_ms=START_MS)


def score_every_item(bundle: Bundle, state: UserState) -> dict[int, float]:
    """The slow twin: one forward pass per item, probabilities by loops over the definitions."""
    network, trie, catalogue = bundle.network, bundle.trie, bundle.catalogue
    context, mixture = whole_context(bundle, state), plain_mixture(bundle, state)
    gate = float(mixture.log_repeat.exp())
    history, shares = mixture.items[0].tolist(), mixture.shares[0].tolist()
    scores = {}
    for index, item in enumerate(catalogue):
        number = int(catalogue.bucket_of_item[index])
        states = network.decode(
            context, torch.tensor(catalogue.sid_of_item(index))[None, None, :-1]
        )
        total, parent = 0.0, torch.zeros(1, 1, dtype=torch.int64)
        for level in range(trie.num_levels):
            target = trie.paths_SD[number, level].view(1, 1)
            logits = network.logits(states[:, :, level], level)
            total, parent = (
                total + float(trie.child_log_prob(level, parent, target, logits)),
                target,
            )
        in_bucket = catalogue.counts[index] / sum(
            catalogue.counts[i] for i in catalogue.bucket(number)
        )
        repeat = sum(s for s, j in zip(shares, history, strict=True) if j == index)
        scores[item.item_id] = float(np.log((1 - gate) * np.exp(total) * in_bucket + gate * repeat))
    return scores


@pytest.mark.parametrize("num_rows", [1, 5, 19])
def test_a_full_beam_ranks_like_brute_force(
    bundle: Bundle, summary: Summary, num_rows: int
) -> None:
    state = state_of(make_rows(num_rows), summary)
    expected = score_every_item(bundle, state)
    assert np.exp(list(expected.values())).sum() == pytest.approx(1, abs=1e-4)
    found = Recommender(bundle).recommend(state, ask(len(bundle.catalogue), beam_width=1000))
    assert {one.item.item_id for one in found} == set(bundle.catalogue.item_ids.tolist())
    for one in found:
        assert one.score == pytest.approx(expected[one.item.item_id], abs=1e-4)
    scores = [one.score for one in found]
    assert scores == sorted(scores, reverse=True)


def test_sids_are_those_of_the_items(bundle: Bundle, recommender: Recommender) -> None:
    by_id = {
        item.item_id: bundle.catalogue.sid_of_item(i) for i, item in enumerate(bundle.catalogue)
    }
    for one in recommender.recommend(state_of(make_rows(12)), ask(10)):
        assert one.sid == by_id[one.item.item_id]


def test_exclusions_widen_the_search_to_the_whole_catalogue(
    bundle: Bundle, recommender: Recommender
) -> None:
    state = state_of(make_rows(12))
    everything = set(bundle.catalogue.item_ids.tolist())
    kept = {int(i) for i in bundle.catalogue.item_ids[[2, 17, 30]]}
    found = recommender.recommend(state, ask(3, everything - kept, beam_width=1))
    assert {one.item.item_id for one in found} == kept
    assert len(recommender.recommend(state, ask(10, everything - kept))) == 3
    assert recommender.recommend(state, ask(3, everything)) == []


def test_excluded_repeats_leave_the_field_to_the_generator(
    bundle: Bundle, recommender: Recommender
) -> None:
    """With the whole history excluded, the order is that of the generator alone."""
    rows = make_rows(12)
    had = set(rows["item_id"].tolist())
    state = state_of(rows)
    mixture = plain_mixture(bundle, state, ask(1, had).filter.blocked(bundle.catalogue))
    assert float(mixture.log_generator) == 0
    assert float(mixture.shares.sum()) == 0
    found = recommender.recommend(state, ask(40, had, beam_width=1000))
    assert not had & {one.item.item_id for one in found}
    assert sum(np.exp(one.score) for one in found) < 1


def test_an_item_last_taken_in_the_lifecycle_segment_can_be_a_repeat(
    bundle: Bundle, recommender: Recommender
) -> None:
    """What the mid-term segment no longer holds is known from the summary's statistics."""
    older, newer = make_rows(8), make_rows(6)
    older["item_id"], newer["item_id"] = 33, 5
    older["kinds"] = newer["kinds"] = 2
    newer["event_time_ms"] += 100 * HOUR_MS
    rolled = Compressor(bundle).roll(None, [older[:4], older[4:]], 8, now_ms=START_MS)
    (index,) = bundle.catalogue.find(np.array([33], np.uint64)).tolist()

    def share(summary: Summary) -> float:
        state = state_of(newer, summary)
        mixture = plain_mixture(bundle, state)
        return float(mixture.shares[0][mixture.items[0] == index].sum())

    assert share(rolled) > 0.1
    assert share(replace(rolled, item_statistics=b"")) == 0
    assert share(replace(rolled, bundle_version="other")) == 0
    plain = recommender.recommend(state_of(newer), ask(60, beam_width=1000))
    better = recommender.recommend(state_of(newer, rolled), ask(60, beam_width=1000))
    score = {one.item.item_id: one.score for one in plain}[33]
    assert {one.item.item_id: one.score for one in better}[33] > score + 1
    places = [[one.item.item_id for one in found].index(33) for found in (plain, better)]
    assert places[1] < places[0]


@pytest.mark.parametrize("disliked_at", ["lifecycle", "mid_term", "never", "taken_again"])
def test_a_disliked_item_is_no_repeat_until_it_is_taken_again(
    bundle: Bundle, recommender: Recommender, disliked_at: str
) -> None:
    older, newer = make_rows(8), make_rows(6)
    older["item_id"], newer["item_id"] = 33, 5
    older["kinds"] = newer["kinds"] = 2
    newer["event_time_ms"] += 100 * HOUR_MS
    if disliked_at in ("lifecycle", "taken_again"):
        older["kinds"][-1] = DISLIKE_MASK
    if disliked_at in ("mid_term", "taken_again"):
        newer["item_id"][2] = 33
        newer["kinds"][2] = DISLIKE_MASK if disliked_at == "mid_term" else 2
    rolled = Compressor(bundle).roll(None, [older[:4], older[4:]], 8, now_ms=START_MS)
    state = state_of(newer, rolled)
    mixture = plain_mixture(bundle, state)
    (index,) = bundle.catalogue.find(np.array([33], np.uint64)).tolist()
    assert (index in mixture.items[0]) == (disliked_at in ("never", "taken_again"))


def test_a_beam_of_one_still_fills_k(recommender: Recommender) -> None:
    found = recommender.recommend(state_of(make_rows(12)), ask(20, beam_width=1))
    assert len({one.item.item_id for one in found}) == 20


def test_calls_are_repeatable(recommender: Recommender, summary: Summary) -> None:
    state = state_of(make_rows(14), summary)
    assert recommender.recommend(state, ask(8)) == recommender.recommend(state, ask(8))


def test_a_summary_counts_only_under_its_own_bundle(
    recommender: Recommender, summary: Summary
) -> None:
    rows = make_rows(12)
    plain = recommender.recommend(state_of(rows), ask(5))
    other = replace(summary, bundle_version="other")
    assert recommender.recommend(state_of(rows, other), ask(5)) == plain
    assert recommender.recommend(state_of(rows, summary), ask(5)) != plain


def test_an_empty_history_is_legal(recommender: Recommender) -> None:
    assert len(recommender.recommend(state_of(empty_rows()), ask(5))) == 5


def test_items_the_catalogue_does_not_know_are_legal(recommender: Recommender) -> None:
    rows = make_rows(12)
    rows["item_id"] += np.uint64(10_000)
    assert len(recommender.recommend(state_of(rows), ask(5))) == 5


def test_popular_is_by_share_of_events(bundle: Bundle, recommender: Recommender) -> None:
    counts = bundle.catalogue.counts
    found = recommender.popular(ask(4))
    assert [one.score for one in found] == pytest.approx(
        np.log(np.sort(counts)[::-1][:4] / counts.sum()).tolist()
    )
    first = found[0].item.item_id
    assert [one.item for one in recommender.popular(ask(3, {first}))] == [
        one.item for one in found[1:]
    ]


def test_nonsense_is_refused(bundle: Bundle, recommender: Recommender) -> None:
    with pytest.raises(ModelConfigError, match="k is 0"):
        recommender.recommend(state_of(make_rows(3)), ask(0))
    with pytest.raises(ModelConfigError, match="beam_width is 0"):
        Recommender(bundle, beam_width=0)


@pytest.mark.parametrize("k", [1, 5, 30])
def test_exact_search_finds_the_best_items_from_any_beam(bundle: Bundle, k: int) -> None:
    state = state_of(make_rows(12))
    best = sorted(score_every_item(bundle, state).values(), reverse=True)[:k]
    found = Recommender(bundle, beam_width=1, exact=True).recommend(state, ask(k))
    assert [one.score for one in found] == pytest.approx(best, abs=1e-4)


def test_diversity_spreads_over_first_codes_and_still_fills_k(bundle: Bundle) -> None:
    state, everything = state_of(make_rows(12)), len(bundle.catalogue)
    sids = bundle.catalogue.sids_SD.tolist()
    plain = Recommender(bundle, beam_width=8).recommend(state, ask(6))
    diverse = Recommender(bundle, beam_width=8, max_per_first_code=1).recommend(state, ask(6))
    num_first_codes = min(6, len({sid[0] for sid in sids}))
    assert len({one.sid[0] for one in plain}) < num_first_codes
    assert len({one.sid[0] for one in diverse}) == num_first_codes
    narrow = Recommender(bundle, beam_width=1, max_per_first_code=1).recommend(state, ask(3))
    assert len({one.sid[0] for one in narrow}) == 3  # the beam was short, not the cap
    filled = Recommender(bundle, max_per_first_code=1).recommend(state, ask(everything))
    assert len({one.item.item_id for one in filled}) == everything
    best = {one.item.item_id for one in filled[: everything // 2]}
    rest = Recommender(bundle, max_per_first_code=1).recommend(state, ask(everything, best))
    assert len(rest) == everything - len(best)


def test_fewer_items_than_asked_for_are_all_there_is(bundle: Bundle) -> None:
    everything = len(bundle.catalogue)
    for recommender in (
        Recommender(bundle, beam_width=1000),
        Recommender(bundle, exact=True),
        Recommender(bundle, max_per_first_code=2),
    ):
        found = recommender.recommend(state_of(make_rows(5)), ask(everything + 100))
        assert len({one.item.item_id for one in found}) == len(found) == everything


def test_search_options_out_of_their_limits_are_refused(bundle: Bundle) -> None:
    with pytest.raises(ModelConfigError, match="max_per_first_code 0"):
        Recommender(bundle, max_per_first_code=0)
    with pytest.raises(ModelConfigError, match="exclude one another"):
        Recommender(bundle, max_per_first_code=1, exact=True)
