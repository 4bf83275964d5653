"""`--minutes M` is about M minutes, whatever evaluation costs."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from rich.progress import Progress

from model.bundle import Bundle
from model.errors import TrainingError
from model.training import evaluate, repeat_stage, steps
from model.training.batches import BatchBuilder
from model.training.budget import Budget
from model.training.config import StageRules, TrainConfig
from model.training.evaluate import network_recall
from model.training.histories import build_histories
from model.training.time_limits import RESERVED_SHARE, check_trained
from model.training.train import RunPlace, train
from state.event_log import EventLog
from tests.model.worlds import NUM_USERS, SMALL

CONFIG = replace(
    SMALL,
    minutes=10.0,
    max_steps=None,
    precision="fp32",
    repeat_share=0.02,
    batch_size=2,
    evaluation_users=NUM_USERS,
    stages=StageRules(evaluate_every=10, patience=1_000),
)


class Clock:
    """Time passes where the test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self._monkeypatch = monkeypatch
        monkeypatch.setattr(time, "monotonic", lambda: self.now)

    def costs(self, module: Any, name: str, seconds: float) -> None:
        """Calls of a module's function take `seconds`."""
        real = getattr(module, name)

        def slow(*args: Any, **kwargs: Any) -> Any:
            self.now += seconds
            return real(*args, **kwargs)

        self._monkeypatch.setattr(module, name, slow)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    monkeypatch.setattr(evaluate, "_CONTEXTS_AT_ONCE", 1)
    return Clock(monkeypatch)


def trained(
    events: EventLog, out: Path, config: TrainConfig = CONFIG, began_s: float | None = None
) -> Any:
    place = RunPlace(began_s=began_s)
    return train(events, None, config, out, Progress(disable=True), place)


@pytest.mark.parametrize("recall_s", [1.0, 40.0])
@pytest.mark.parametrize("forward_s", [4.0, 10.0])
def test_a_run_takes_the_minutes_it_was_given(
    event_log: EventLog, tmp_path: Path, clock: Clock, recall_s: float, forward_s: float
) -> None:
    """Were all held-out users taken, the slowest run here would take eight minutes more."""
    clock.costs(steps, "batch_losses", forward_s)
    clock.costs(steps, "encode_batch", forward_s)
    clock.costs(evaluate, "beam_search", recall_s)
    clock.costs(repeat_stage, "listwise_loss", 0.5)
    report = trained(event_log, tmp_path / "bundle")
    assert 0.9 * 600 < clock.now < 1.1 * 600
    assert all(stage["steps"] > 0 for stage in report["stages"])
    recall = report["recall_at_20"]
    assert recall["asked_baskets"] == NUM_USERS // 2
    assert recall["baskets"] == (recall["asked_baskets"] if recall_s == 1.0 else 1)


def test_reading_the_log_counts(event_log: EventLog, tmp_path: Path, clock: Clock) -> None:
    clock.costs(steps, "batch_losses", 10.0)
    clock.costs(repeat_stage, "listwise_loss", 0.5)
    report = trained(event_log, tmp_path / "bundle", began_s=-400.0)
    assert clock.now < 1.1 * (600 - 400)
    assert report["seconds"] == clock.now + 400


def test_recall_is_of_what_there_was_time_for(
    event_log: EventLog, bundle: Bundle, clock: Clock
) -> None:
    builder = BatchBuilder(
        build_histories(event_log), bundle.catalogue, SMALL.network, SMALL.history, 100
    )
    cuts = builder.histories.held_out_cuts
    clock.costs(evaluate, "beam_search", 10.0)
    recalls = []
    for limit_s, expected in ((0.0, 1), (25.0, 3), (1e9, len(cuts))):
        recall, taken = network_recall(bundle.network, bundle.trie, builder, cuts, 20, limit_s)
        assert len(np.unique(taken)) == len(taken) == expected
        assert np.isin(taken, cuts).all()
        alone = [
            network_recall(bundle.network, bundle.trie, builder, np.array([cut]), 20)[0]
            for cut in taken
        ]
        assert recall == pytest.approx(np.mean(alone))
        recalls.append(taken[0])
    assert len(set(recalls)) == 1


def test_a_step_budget_evaluates_everything(
    event_log: EventLog, tmp_path: Path, clock: Clock
) -> None:
    """Such a run is repeatable: the clock has no say."""
    clock.costs(evaluate, "beam_search", 1e6)
    clock.costs(steps, "batch_losses", 1e6)
    report = trained(event_log, tmp_path / "bundle", replace(CONFIG, max_steps=6))
    assert report["recall_at_20"]["baskets"] == NUM_USERS // 2


@pytest.mark.parametrize(
    ("minutes", "preparing_s", "suggested"), [(2.0, 8.0, "4"), (0.1, 60.0, "2.4")]
)
def test_the_minutes_suggested_are_more_than_were_too_few(
    minutes: float, preparing_s: float, suggested: str
) -> None:
    left_s = 60 * minutes * (1 - RESERVED_SHARE) - preparing_s
    dense = Mock(steps=0)
    dense.name = "dense"
    with pytest.raises(TrainingError, match=f"took {preparing_s:.0f} s.*--minutes {suggested} or"):
        check_trained([dense], Budget(left_s, None), replace(CONFIG, minutes=minutes))
