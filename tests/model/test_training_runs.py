"""Runs of `train`: stopped after any step and resumed, repeated, refused where they do not fit."""

import json
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.progress import Progress
from safetensors.torch import load_file, save_file

from model.errors import TrainingError, TrainingRunError, TrainingStopped
from model.repeats import RepeatConfig
from model.training import repeat_stage
from model.training.checkpoint import load_checkpoint, save_checkpoint
from model.training.config import StageRules, TrainConfig
from model.training.divergence import check_weights
from model.training.metrics import StepMetrics, read_metrics
from model.training.train import RunPlace, train
from state.event_log import EventLog
from tests.model.worlds import SMALL

NUM_STEPS = 18  # half of them in stage "repeats"
CONFIG = replace(
    SMALL, max_steps=NUM_STEPS // 2, stages=StageRules(shares=(0.4, 0.3, 0.3), evaluate_every=2)
)


class SignalAt(Progress):
    """Sends this process a signal once some step is shown."""

    def __init__(self, step: int, signal_number: int = signal.SIGTERM) -> None:
        super().__init__(disable=True)
        self.left, self.signal_number, self.shown = step, signal_number, ""

    def update(self, *args: Any, **kwargs: Any) -> None:
        step = kwargs.get("description", "").partition(", loss")[0]
        if "step" in step and step != self.shown:
            self.left, self.shown = self.left - 1, step
            if self.left == 0:
                os.kill(os.getpid(), self.signal_number)
        super().update(*args, **kwargs)


def run(events: EventLog, where: Path, config: TrainConfig = CONFIG, stop_after: int = 0) -> Any:
    place = RunPlace(where / "run")
    return train(events, None, config, where / "bundle", SignalAt(stop_after), place)


def weights(where: Path) -> dict[str, torch.Tensor]:
    return load_file(where / "bundle" / "network.safetensors")


def rows(where: Path) -> list[tuple[object, ...]]:
    """All metrics but the clock's, NaN as text so that it equals itself."""
    found: list[StepMetrics] = list(read_metrics(where / "run" / "metrics.csv"))
    return [
        tuple(repr(v) for name, v in vars(row).items() if name != "tokens_per_s") for row in found
    ]


def losses(report: dict[str, Any]) -> list[dict[str, Any]]:
    clocks = ("seconds", "tokens_per_s", "peak_memory_bytes")
    return [{k: v for k, v in stage.items() if k not in clocks} for stage in report["stages"]]


@pytest.fixture(scope="module")
def whole(event_log: EventLog, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A run that nobody stopped."""
    where = tmp_path_factory.mktemp("whole")
    return where, run(event_log, where)


@pytest.mark.parametrize("stopped_after", [1, 4, 8, *range(9, NUM_STEPS)])
def test_a_run_stopped_after_any_step_goes_on_as_if_it_had_not(
    event_log: EventLog, whole: tuple[Path, Any], tmp_path: Path, stopped_after: int
) -> None:
    with pytest.raises(TrainingStopped, match=f"after step {stopped_after}"):
        run(event_log, tmp_path, stop_after=stopped_after)
    assert len(rows(tmp_path)) == stopped_after
    report = run(event_log, tmp_path)
    where, expected = whole
    resumed = weights(tmp_path)
    assert all(torch.equal(tensor, resumed[name]) for name, tensor in weights(where).items())
    assert rows(tmp_path) == rows(where)
    assert losses(report) == losses(expected)
    assert report["recall_at_20"] == expected["recall_at_20"]


def test_stages_change_within_the_tested_steps(whole: tuple[Path, Any]) -> None:
    where, report = whole
    assert [stage["steps"] for stage in report["stages"]] == [9, 4, 3, 2]
    assert len(rows(where)) == NUM_STEPS
    assert not (where / "run" / "checkpoint.safetensors").exists()


def test_a_killed_run_loses_what_came_after_its_checkpoint(
    event_log: EventLog, whole: tuple[Path, Any], tmp_path: Path
) -> None:
    """Metrics are ahead of the checkpoint, and end within a row."""
    with pytest.raises(TrainingStopped):
        run(event_log, tmp_path, stop_after=3)
    csv = tmp_path / "run" / "metrics.csv"
    lines = csv.read_text().splitlines()
    csv.write_text("\n".join([*lines, lines[-1].replace(",3,", ",4,"), "repeats,5,0.2"]))
    (tmp_path / "run" / "checkpoint.partial").write_bytes(b"half a checkpoint")
    run(event_log, tmp_path)
    assert rows(tmp_path) == rows(whole[0])


def test_ctrl_c_writes_a_checkpoint_too(event_log: EventLog, tmp_path: Path) -> None:
    place, before = RunPlace(tmp_path / "run"), signal.getsignal(signal.SIGINT)
    with pytest.raises(TrainingStopped) as stopped:
        train(event_log, None, CONFIG, tmp_path / "b", SignalAt(2, signal.SIGINT), place)
    assert stopped.value.signal_number == signal.SIGINT
    found = load_checkpoint(tmp_path / "run" / "checkpoint.safetensors")
    assert found is not None
    assert found[1]["state"]["repeats"]["steps"] == 2
    assert signal.getsignal(signal.SIGINT) is before


def test_another_seed_gives_other_weights(
    event_log: EventLog, whole: tuple[Path, Any], tmp_path: Path
) -> None:
    run(event_log, tmp_path, replace(CONFIG, seed=1))
    name = "decoder.blocks.0.recent.ffn.inner.weight"
    assert not torch.equal(weights(tmp_path)[name], weights(whole[0])[name])


def test_a_checkpoint_of_other_settings_is_refused(event_log: EventLog, tmp_path: Path) -> None:
    with pytest.raises(TrainingStopped):
        run(event_log, tmp_path, stop_after=1)
    with pytest.raises(TrainingRunError, match="batch_size: then 16, now 8.*--restart"):
        run(event_log, tmp_path, replace(CONFIG, batch_size=8))


@pytest.mark.parametrize("fault", ["loss", "gradient"])
def test_a_run_that_diverges_stops_at_once_and_writes_no_bundle(
    event_log: EventLog, whole: tuple[Path, Any], tmp_path: Path, fault: str
) -> None:
    before = (whole[0] / "bundle").stat().st_ino
    place, config = RunPlace(tmp_path / "run"), replace(CONFIG, learning_rate=1e30)
    if fault == "gradient":
        config = replace(config, learning_rate=1e9, reconstruction_weight=1e38)
    message = "diverged at step .* in stage 'dense'.*(nan|inf).* learning rate .*lower train.learning_rate"
    with pytest.raises(TrainingError, match=message):
        train(event_log, None, config, whole[0] / "bundle", SignalAt(0), place)
    assert (whole[0] / "bundle").stat().st_ino == before
    *_, last = (tmp_path / "run" / "metrics.csv").read_text().splitlines()
    assert "nan" in last or "inf" in last


def test_a_run_without_repeats_goes_on_like_any(event_log: EventLog, tmp_path: Path) -> None:
    """It begins with stage "dense"."""
    network = replace(CONFIG.network, repeats=RepeatConfig(enabled=False))
    config = replace(CONFIG, network=network)
    report = run(event_log, tmp_path / "whole", config)
    assert [stage["name"] for stage in report["stages"]] == ["dense", "indexer", "selection"]
    with pytest.raises(TrainingStopped):
        run(event_log, tmp_path / "stopped", config, stop_after=2)
    again = run(event_log, tmp_path / "stopped", config)
    assert losses(again) == losses(report)
    assert rows(tmp_path / "stopped") == rows(tmp_path / "whole")
    first, second = weights(tmp_path / "whole"), weights(tmp_path / "stopped")
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_repeats_that_diverge_say_how_to_do_without(
    event_log: EventLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        repeat_stage, "listwise_loss", lambda *_: torch.tensor(torch.nan).requires_grad_()
    )
    with pytest.raises(
        TrainingError, match="step 1 in stage 'repeats': repeat_loss is nan.*repeat_share = 0"
    ):
        run(event_log, tmp_path)


def test_weights_that_are_not_finite_are_not_saved() -> None:
    layer = torch.nn.Linear(2, 2)
    check_weights(layer)
    torch.nn.init.constant_(layer.bias, torch.inf)
    with pytest.raises(TrainingError, match="bias"):
        check_weights(layer)


def test_a_damaged_checkpoint_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.safetensors"
    assert load_checkpoint(path) is None
    save_checkpoint(path, {"a": torch.arange(4.0)}, {"step": 3})
    tensors, progress = load_checkpoint(path) or ({}, {})
    assert torch.equal(tensors["a"], torch.arange(4.0))
    assert progress["step"] == 3
    data = bytearray(path.read_bytes())
    for damaged in (data[:-1], data[:-1] + bytes([data[-1] ^ 1]), b""):
        path.write_bytes(damaged)
        with pytest.raises(TrainingRunError, match="damaged"):
            load_checkpoint(path)
    save_file({}, path, {"progress": json.dumps({"format_version": 9})})
    with pytest.raises(TrainingRunError, match="format 9"):
        load_checkpoint(path)


@pytest.mark.parametrize(
    ("rules", "ended", "steps"),
    [
        (StageRules(evaluate_every=1, patience=1, min_improvement=100.0), "plateau", 2),
        (
            StageRules(evaluate_every=1, patience=1, min_improvement=100.0, min_steps=3),
            "plateau",
            3,
        ),
        (StageRules(max_steps=3), "max_steps", 3),
    ],
)
def test_each_stage_ends_by_its_rule_and_says_which(
    event_log: EventLog, tmp_path: Path, rules: StageRules, ended: str, steps: int
) -> None:
    report = run(event_log, tmp_path, replace(CONFIG, max_steps=100, stages=rules))
    stages = report["stages"]
    assert [stage["ended"] for stage in stages] == [ended] * 4
    assert [stage["steps"] for stage in stages] == [steps] * 4
    assert "validation indexer loss" in stages[2]["rule"]
