"""Which contexts are drawn, and what of their lifecycle: cuts before what the nearer segments lack, and a sample."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.progress import Progress

from model.bundle import Bundle
from model.errors import ModelConfigError
from model.features import ItemTensors
from model.repeats import RepeatConfig
from model.training.arrivals import arrival_cuts
from model.training.batches import BatchBuilder
from model.training.draws import StepDraws
from model.training.histories import Histories, Index, build_histories
from model.training.train import train
from state.event_log import EventLog
from tests.model.worlds import SMALL

HISTORY = SMALL.history
Favoured = Sequence[tuple[Index, float]]


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


def test_lifecycle_interactions_are_drawn_one_from_each_part(
    histories: Histories, bundle: Bundle
) -> None:
    builder = BatchBuilder(histories, bundle.catalogue, SMALL.network, HISTORY, 5)
    positions = torch.arange(len(histories.rows))[:, None]
    builder.items = ItemTensors(positions, positions.float())
    cuts = histories.by_length(histories.train_cuts)[-2:]
    boundaries = [HISTORY.lifecycle_boundary(int(n)) for n in cuts - histories.user_start[cuts]]
    starts = histories.user_start[cuts]
    parts = np.array([np.arange(6) * boundary // 5 for boundary in boundaries]) + starts[:, None]

    def sampled(random: np.random.Generator | None) -> np.ndarray:
        batch = builder.build(cuts, 4, 8, random)
        assert batch.lengths[0] == 5
        return batch.items.ids[:, :5, 0].numpy()

    assert sampled(None).tolist() == parts[:, :-1].tolist()
    drawn = np.stack([sampled(np.random.default_rng(seed)) for seed in range(200)])
    assert np.all((drawn >= parts[:, :-1]) & (drawn < parts[:, 1:]))
    for row, boundary in enumerate(boundaries):
        everything = starts[row] + np.arange(boundary)
        assert np.unique(drawn[:, row]).tolist() == everything.tolist()
    halves = [
        builder.build(cuts, 4, 8, np.random.default_rng(0), slice(i, None, 2)).items.ids[:, :5, 0]
        for i in range(2)
    ]
    assert torch.equal(torch.cat(halves), torch.from_numpy(sampled(np.random.default_rng(0))))


def test_the_last_stage_draws_cuts_as_they_come(
    event_log: EventLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[float]] = []
    cuts = StepDraws.cuts

    def spy(draws: StepDraws, step: int, favoured: Favoured = ()) -> Index:
        asked.append([share for _, share in favoured])
        return cuts(draws, step, favoured)

    monkeypatch.setattr(StepDraws, "cuts", spy)
    rows = event_log.rows.copy()
    rows["item_id"] = np.random.default_rng(0).permutation(rows["item_id"])
    network = replace(SMALL.network, repeats=RepeatConfig(enabled=False))
    config = replace(
        SMALL, network=network, max_steps=12, arrival_cuts=0.5, newest_cuts=0.25, precision="fp32"
    )
    with Progress(disable=True) as progress:
        report = train(replace(event_log, rows=rows), None, config, tmp_path / "bundle", progress)
    last = report["stages"][-1]["steps"]
    assert asked == [[0.25, 0.5]] * (12 - last) + [[0.25]] * last
    assert 0 < last < 12
