"""The picture of a run: learning curve and kept attention mass, from its CSV."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from model.errors import TrainingRunError
from model.mid_term import KEPT_AT
from model.training.metrics import StepMetrics, read_metrics

_SMOOTHED_STEPS = 25


def draw_run(csv_path: Path, png_path: Path) -> bool:
    """Draw the steps in `csv_path` to `png_path`; false when matplotlib is not installed. Raises TrainingRunError."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return False
    rows = list(read_metrics(csv_path))
    figure = Figure(figsize=(9, 7), layout="constrained")
    losses, mass = figure.subplots(2, 1, sharex=True)
    _draw_losses(losses, rows)
    _draw_mass(mass, rows)
    for axes in (losses, mass):
        for step, stage in _stage_starts(rows):
            axes.axvline(step, color="grey", linewidth=0.8, linestyle=":")
            axes.text(
                step, 1, f" {stage}", transform=axes.get_xaxis_transform(), va="top", color="grey"
            )
    mass.set_xlabel("step")
    try:
        figure.savefig(png_path, dpi=120)
    except OSError as error:
        raise TrainingRunError(f"{png_path} cannot be written: {error.strerror}") from error
    return True


def _draw_losses(axes: Any, rows: list[StepMetrics]) -> None:
    for name, colour, label in (
        ("next_token_loss", "C0", "next token, training"),
        ("repeat_loss", "C3", "repeats, training"),
    ):
        steps, losses = _column(rows, name)
        axes.plot(steps, losses, alpha=0.25, color=colour)
        axes.plot(steps, _smoothed(losses), color=colour, label=label)
    for stage, colour, watched in (
        ("repeats", "C4", "repeats, validation"),
        ("dense", "C1", "next token, validation"),
        ("indexer", "C2", "indexer, validation"),
        ("selection", "C1", None),
    ):
        steps, found = _column([row for row in rows if row.stage == stage], "validation_loss")
        axes.plot(steps, found, "o-", markersize=3, color=colour, label=watched)
    axes.set_ylabel("loss")
    axes.legend()


def _draw_mass(axes: Any, rows: list[StepMetrics]) -> None:
    steps, mass = _column(rows, "kept_attention_mass")
    axes.plot(steps, mass, alpha=0.25, color="C2")
    axes.plot(steps, _smoothed(mass), color="C2", label="top_k")
    for i, k in enumerate(KEPT_AT):
        steps, mass = _column(rows, f"kept_{k}")
        if len(steps):
            shade = str(0.2 + 0.13 * i)
            axes.plot(steps, _smoothed(mass), color=shade, linewidth=0.8, label=f"k = {k}")
    axes.set_ylim(0, 1.02)
    axes.set_ylabel("attention mass that top-k keeps")
    axes.legend()


def _column(
    rows: list[StepMetrics], name: str
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """Steps and values where there is a value."""
    steps = np.array([row.step for row in rows], np.int64)
    values = np.array([getattr(row, name) for row in rows], np.float64)
    real = ~np.isnan(values)
    return steps[real], values[real]


def _smoothed(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Mean of each value and those before it."""
    sums = np.cumsum(np.append(0.0, values))
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(0, ends - _SMOOTHED_STEPS)
    smoothed: npt.NDArray[np.float64] = (sums[ends] - sums[starts]) / (ends - starts)
    return smoothed


def _stage_starts(rows: list[StepMetrics]) -> list[tuple[int, str]]:
    stages = [""] + [row.stage for row in rows]
    return [
        (row.step, row.stage)
        for row, before in zip(rows, stages, strict=False)
        if row.stage != before
    ]
