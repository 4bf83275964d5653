"""What followed an item in training: counted as plain loops count it, gained as served and offline, stored with the bundle."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import torch
from hypothesis import given, settings, strategies as st

from model.bundle import Bundle, load_bundle
from model.bundle_manifest import MANIFEST
from model.catalogue import Catalogue
from model.errors import BundleError, ModelConfigError
from model.item_scorer import ItemScorer
from model.next_item import NextItemConfig
from model.query import Query
from model.recommender import Recommender
from model.training import transition_counts
from model.training.batches import BatchBuilder
from model.training.histories import build_histories
from model.training.losses import encode_batch
from model.training.transition_counts import count_transitions
from model.transitions import Followers, Transitions
from state.event_log import EventLog
from state.interaction import INTERACTION
from state.user_state import UserMeta, UserState
from tests.model.worlds import SCORING, make_rows

_DISLIKE = 1 << 9


def plain_counts(log: EventLog, num_held_out: int, known: set[int]) -> dict[int, dict[int, float]]:
    """n(i, j) / n(i), of all pairs."""
    histories = build_histories(log, num_held_out)
    pairs: dict[int, dict[int, float]] = {}
    counts: dict[int, int] = {}
    ends = histories.train_end
    rows = [row for row in range(len(histories.rows)) if row < ends[row]]
    for a in rows:
        source = int(histories.rows["item_id"][a])
        if source not in known:
            continue
        counts[source] = counts.get(source, 0) + 1
        for b in rows:
            target, distance = int(histories.rows["item_id"][b]), abs(a - b)
            alike = histories.users[a] == histories.users[b] and 1 <= distance <= 10
            if not alike or target == source or target not in known or not histories.are_targets[b]:
                continue
            counted = (1.0 if b > a else 0.5) * 0.8 ** (distance - 1)
            of_source = pairs.setdefault(source, {})
            of_source[target] = of_source.get(target, 0.0) + counted
    return {i: {j: count / counts[i] for j, count in found.items()} for i, found in pairs.items()}


def as_mapping(transitions: Transitions) -> dict[int, dict[int, float]]:
    found = {}
    for place, item_id in enumerate(transitions.item_ids.tolist()):
        part = slice(transitions.starts[place], transitions.starts[place + 1])
        followers = transitions.item_ids[transitions.followers[part]].tolist()
        if followers:
            found[item_id] = dict(zip(followers, transitions.shares[part].tolist(), strict=True))
    return found


def catalogue_of(item_ids: list[int]) -> Catalogue:
    num, zeros = len(item_ids), np.zeros(len(item_ids))
    sids = np.stack([np.arange(num) % 3, np.arange(num) % 2], 1)
    columns = {"item_ids": np.array(item_ids, np.uint64), "author_ids": zeros, "tags": zeros,
               "durations_ms": zeros, "counts": zeros + 1, "sids": sids}  # fmt: skip
    return Catalogue(columns, [""] * num)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([7, 1 << 25]), st.integers(1, 64))
def test_counts_are_those_of_a_loop(seed: int, max_pairs: int, most: int) -> None:
    """However many are counted at a time; of each item the strongest stay."""
    random = np.random.default_rng(seed)
    num = int(random.integers(20, 120))
    rows = np.zeros(num, INTERACTION)
    rows["item_id"] = random.integers(1, 12, num)
    rows["event_time_ms"] = np.arange(num) // 2
    rows["kinds"] = np.where(random.random(num) < 0.1, _DISLIKE, 1)
    users = random.integers(0, 3, num).astype(np.int64)
    log = EventLog(["a", "b", "c"], users, [str(i) for i in range(num)], rows)
    known = set(range(2, 12))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transition_counts, "_MAX_PAIRS", max_pairs)
        patch.setattr(transition_counts, "_MAX_FOLLOWERS", most)
        found = as_mapping(count_transitions(build_histories(log, 1), catalogue_of([*known])))
    expected = plain_counts(log, 1, known)
    assert found.keys() == expected.keys()
    for source, shares in expected.items():
        strongest = sorted(shares.items(), key=lambda one: -one[1])[:most]
        assert sorted(found[source].values()) == pytest.approx(
            sorted(share for _, share in strongest), rel=1e-5
        )
        for target, share in found[source].items():
            assert share == pytest.approx(shares[target], rel=1e-5)


def test_gains_are_those_of_the_formula(scoring: Bundle) -> None:
    """Of several contexts at once, in a catalogue that lacks some items and has others."""
    assert scoring.transitions is not None
    shares = as_mapping(scoring.transitions)
    known = scoring.catalogue.item_ids[5:].tolist()
    catalogue = catalogue_of([*known, 999])
    newest = [np.array(ids, np.uint64) for ids in ([], known[:1], [*known[:20], 999, 77777], [999])]
    gains = Followers(scoring.transitions, catalogue).gains(newest)
    dense = torch.zeros(len(newest), len(catalogue))
    gains.add_to(dense, 2.0)
    for row, ids in enumerate(newest):
        for index, item in enumerate(catalogue.item_ids.tolist()):
            reached = sum(
                0.6**back * shares.get(source, {}).get(item, 0.0)
                for back, source in enumerate(ids[::-1][:16].tolist())
                if source in known and item not in ids[-16:].tolist()
            )
            assert float(dense[row, index]) == pytest.approx(
                2 * np.log1p(reached / 0.003), rel=1e-4
            )
    assert Followers(scoring.transitions, catalogue).gains([]).items.shape == (0,)


def test_what_followed_the_newest_item_comes_up(scoring: Bundle) -> None:
    """Against the same network that does not count it; an item that nobody took gains nothing."""
    assert scoring.transitions is not None
    state = UserState("someone", UserMeta(length=9), make_rows(9), None)
    item = int(state.rows["item_id"][-1])
    shares = as_mapping(scoring.transitions)[item]
    strongest = max(shares, key=lambda one: shares[one])
    scores = []
    for bundle in (scoring, replace(scoring, transitions=None)):
        found = Recommender(bundle).recommend(state, Query(k=100, beam_width=100))
        scores.append({one.item.item_id: one.score for one in found})
    assert scores[0][strongest] > scores[1][strongest]
    assert sum(np.exp(list(scores[0].values()))) == pytest.approx(1, abs=1e-3)


def test_a_bundle_holds_them(scoring: Bundle, tmp_path: Path) -> None:
    assert scoring.transitions is not None
    again = load_bundle(scoring.path).transitions
    assert again is not None
    for name, array in scoring.transitions.arrays().items():
        np.testing.assert_array_equal(again.arrays()[name], array)
    shutil.copytree(scoring.path, tmp_path / "bundle")
    (tmp_path / "bundle" / "transitions.safetensors").unlink()
    with pytest.raises(BundleError, match=r"transitions\.safetensors"):
        load_bundle(tmp_path / "bundle")


@pytest.mark.parametrize(
    "changes",
    [
        {"starts": np.array([0, 2], np.int64)},
        {"starts": np.array([0, 2, 1, 3], np.int64)},
        {"followers": np.array([0, 1, 3], np.int32)},
        {"followers": np.array([0, -1, 2], np.int32)},
        {"shares": np.array([0.1, np.nan, 0.2], np.float32)},
        {"shares": np.array([0.1, 0.2], np.float32)},
        {"shares": np.array([0.1, 0.2, 0.3], np.float64)},
    ],
)
def test_tables_that_do_not_fit_together_are_refused(changes: dict[str, np.ndarray]) -> None:
    arrays: dict[str, np.ndarray] = {
        "item_ids": np.array([5, 3, 9], np.uint64),
        "starts": np.array([0, 1, 1, 3], np.int64),
        "followers": np.array([1, 0, 2], np.int32),
        "shares": np.array([0.1, 0.2, 0.3], np.float32),
    }
    assert as_mapping(Transitions.of_arrays(arrays)).keys() == {5, 9}
    with pytest.raises(BundleError, match="transitions"):
        Transitions.of_arrays(arrays | changes)


def test_who_counts_nothing_stores_nothing(scoring: Bundle, bundle: Bundle) -> None:
    assert bundle.transitions is None
    assert not (bundle.path / "transitions.safetensors").exists()
    assert "transitions.safetensors" in (scoring.path / MANIFEST).read_text()
    names = set(safetensors.numpy.load_file(scoring.path / "transitions.safetensors"))
    assert names == {"item_ids", "starts", "followers", "shares"}
    assert not NextItemConfig(transition_weight=0.5).counts_transitions
    with pytest.raises(ModelConfigError, match="transition_weight is -1"):
        NextItemConfig(transition_weight=-1)


def test_they_count_in_serving_as_offline(scoring: Bundle, event_log: EventLog) -> None:
    histories = build_histories(event_log)
    builder = BatchBuilder(histories, scoring.catalogue, SCORING.network, scoring.history, 100)
    assert scoring.transitions is not None
    builder.followers = Followers(scoring.transitions, scoring.catalogue)
    starts = torch.from_numpy(scoring.catalogue.bucket_starts)
    recommender = Recommender(scoring)
    scorer = ItemScorer(scoring.network, scoring.catalogue, scoring.transitions)
    for length in (1, 5, 13):
        cut = int(histories.user_start[histories.held_out_cuts[3]]) + length
        batch = builder.build(np.array([cut]), 1, 1, None)
        context, _ = encode_batch(scoring.network, batch)
        offline = scoring.network.next_items(
            context.recent, batch.catalogue_rows, starts, builder.gains(np.array([cut]))
        )
        rows = histories.rows[cut - length : cut]
        state = UserState("someone", UserMeta(length=length), rows, None)
        served = scorer.score([recommender.encode_state(state)])
        assert offline is not None
        assert served is not None
        torch.testing.assert_close(served.log_probs, offline.log_probs, atol=1e-4, rtol=1e-4)
