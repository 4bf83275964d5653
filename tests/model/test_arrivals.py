"""Cuts before what the nearer segments lack: found as a slow reader finds them, and drawn as often as asked for."""

from dataclasses import replace

import numpy as np
import pytest

from model.errors import ModelConfigError
from model.training.arrivals import arrival_cuts
from model.training.draws import StepDraws
from model.training.histories import Histories, build_histories
from state.event_log import EventLog
from tests.model.worlds import SMALL

HISTORY = SMALL.history


@pytest.fixture(scope="module")
def histories(event_log: EventLog) -> Histories:
    return build_histories(event_log, num_held_out=5)


@pytest.fixture(scope="module")
def codes(histories: Histories) -> np.ndarray:
    """Twelve codes, each common for a while, so that they come back; some interactions have none."""
    random = np.random.default_rng(1)
    slow = np.arange(len(histories.rows)) // 10
    return (slow * 7 + random.integers(0, 4, len(slow))) % 13 - 1


def test_arrivals_are_what_the_nearer_segments_lack(
    histories: Histories, codes: np.ndarray
) -> None:
    expected = []
    for cut in histories.train_cuts.tolist():
        start = int(histories.user_start[cut])
        boundary = start + HISTORY.lifecycle_boundary(cut - start)
        near = set(codes[boundary:cut].tolist()) | {-1}
        basket = set(codes[cut : histories.basket_end[cut]].tolist())
        if boundary > start and basket - near:
            expected.append(cut)
    found = arrival_cuts(histories, codes, HISTORY)
    assert found.tolist() == expected
    assert 0 < len(expected) < len(histories.train_cuts) / 2


def test_nothing_arrives_without_a_lifecycle_segment(
    histories: Histories, codes: np.ndarray
) -> None:
    longer = replace(HISTORY, mid_term_len=500)
    assert not len(arrival_cuts(histories, codes, longer))


def test_favoured_cuts_have_their_share_of_the_contexts(
    histories: Histories, codes: np.ndarray
) -> None:
    arrivals = arrival_cuts(histories, codes, HISTORY)
    draws = StepDraws(histories, seed=0, batch_size=64)
    favoured = [(histories.newest_train_cuts, 0.25), (arrivals, 0.5)]
    plain, drawn = (
        np.concatenate([draws.cuts(step, some) for step in range(64)]) for some in ((), favoured)
    )
    assert set(drawn.tolist()) <= set(histories.train_cuts.tolist())
    for (some, share), other in zip(favoured, favoured[::-1], strict=True):
        anyway = np.isin(plain, some).mean()
        by_the_other = other[1] * np.isin(other[0], some).mean()
        rest = 1 - sum(each for _, each in favoured)
        expected = share + rest * anyway + by_the_other
        assert np.isin(drawn, some).mean() == pytest.approx(expected, abs=0.03)
    assert np.array_equal(draws.cuts(3), StepDraws(histories, 0, 64).cuts(3))


def test_shares_must_fit_together() -> None:
    with pytest.raises(ModelConfigError, match="arrival_cuts"):
        replace(SMALL, newest_cuts=0.6, arrival_cuts=0.6)
