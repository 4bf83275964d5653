"""Metrics of every step: a CSV file, and TensorBoard where tensorboardX is installed."""

import csv
import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from model.errors import TrainingRunError


@dataclass(frozen=True, kw_only=True)
class StepMetrics:
    """One row. None (an empty field) where there is no such figure; NaN where one is not a number."""

    stage: str
    step: int
    """Of all stages together, from 1."""
    next_token_loss: float | None = None
    reconstruction_loss: float | None = None
    repeat_loss: float | None = None
    """Listwise, of the repeats' scores; all that stage "repeats" has."""
    next_item_loss: float | None = None
    """None where the network scores no items."""
    indexer_loss: float | None = None
    kept_attention_mass: float | None = None
    """Of the dense attention, what the indexers' top-k keeps."""
    kept_64: float | None = None
    """The same for other k, as in KEPT_AT; None where no mid-term segment of the batch is longer."""
    kept_128: float | None = None
    kept_256: float | None = None
    kept_512: float | None = None
    kept_1024: float | None = None
    learning_rate: float
    gradient_norm: float
    """Before clipping."""
    tokens_per_s: float
    """Interactions encoded and codes predicted, of all processes."""
    validation_loss: float | None = None
    """What the stage's convergence is judged by, where it was evaluated: in "repeats" and "indexer" their own loss."""
    smoothed_validation_loss: float | None = None

    def evaluated(self, loss: float, smoothed: float | None) -> "StepMetrics":
        """The same with an evaluation."""
        return dataclasses.replace(self, validation_loss=loss, smoothed_validation_loss=smoothed)

    def not_finite(self) -> list[str]:
        """Figures that are no numbers, as "name is value"."""
        figures = {name: getattr(self, name) for name in _COLUMNS[2:]}
        return [
            f"{name} is {value}"
            for name, value in figures.items()
            if value is not None and not math.isfinite(value)
        ]


_COLUMNS = tuple(field.name for field in dataclasses.fields(StepMetrics))


class MetricsWriter:
    """Writes rows as they come; a resumed run first drops what was written after its checkpoint."""

    def __init__(self, csv_path: Path, tensorboard_path: Path, last_step: int) -> None:
        """Keep the rows up to `last_step`. Raises TrainingRunError when the file cannot be written."""
        kept = [row for row in read_metrics(csv_path) if row.step <= last_step]
        try:
            self._file: TextIO = csv_path.open("w", encoding="utf-8", newline="", buffering=1)
        except OSError as error:
            raise TrainingRunError(f"{csv_path} cannot be written: {error.strerror}") from error
        self._rows = csv.writer(self._file, lineterminator="\n")
        self._rows.writerow(_COLUMNS)
        for row in kept:
            self._rows.writerow(_cells(row))
        self._board = _tensorboard(tensorboard_path, last_step)

    def write(self, row: StepMetrics) -> None:
        """Add a step."""
        self._rows.writerow(_cells(row))
        if self._board is None:
            return
        for name in _COLUMNS[2:]:
            value = getattr(row, name)
            if value is not None and math.isfinite(value):
                self._board.add_scalar(f"{name}/{row.stage}", value, row.step)

    def close(self) -> None:
        """Everything is on its way to the disk."""
        self._file.close()
        if self._board is not None:
            self._board.close()


def read_metrics(csv_path: Path) -> Iterator[StepMetrics]:
    """The rows of a file that may be missing, or may end within a row."""
    if not csv_path.exists():
        return
    with csv_path.open(encoding="utf-8", newline="") as file:
        for cells in csv.DictReader(file):
            if tuple(cells) != _COLUMNS or None in cells.values():
                return
            numbers: dict[str, Any] = {name: _number(cells[name]) for name in _COLUMNS[2:]}
            yield StepMetrics(stage=cells["stage"], step=int(cells["step"]), **numbers)


def _cells(row: StepMetrics) -> list[Any]:
    """`repr` of a float reads back as the same float; None is an empty field."""
    return list(dataclasses.astuple(row))


def _number(text: str) -> float | None:
    return float(text) if text else None


def _tensorboard(path: Path, last_step: int) -> Any:
    try:
        from tensorboardX import SummaryWriter
    except ImportError:
        return None
    if not last_step:
        for older in path.glob("events.out.tfevents.*"):
            older.unlink()
    return SummaryWriter(str(path), purge_step=last_step + 1)
