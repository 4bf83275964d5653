"""What a run writes while it goes on, and whether it was asked to stop: nothing without a directory."""

import time
from typing import Any

from torch import Tensor

from model.training.metrics import MetricsWriter, StepMetrics
from model.training.run_directory import RunDirectory
from model.training.stop_signals import StopRequest


class RunLog:
    """Metrics and checkpoints of one run; the first process alone writes, all read."""

    def __init__(
        self,
        directory: RunDirectory | None,
        identity: dict[str, Any],
        every_s: float,
        writes: bool,
        stop: StopRequest,
    ) -> None:
        """`every_s`: time between checkpoints."""
        self._directory, self._identity, self._every_s = directory, identity, every_s
        self._writes, self._stop = writes and directory is not None, stop
        self._writer: MetricsWriter | None = None
        self._saved_at = time.monotonic()

    @property
    def stop_signal(self) -> int:
        """The signal that asked to stop, or 0."""
        return self._stop.signal_number

    @property
    def is_due(self) -> bool:
        """Whether the last checkpoint is old enough for another."""
        return self._writes and time.monotonic() - self._saved_at >= self._every_s

    def load(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """The run's checkpoint, if there is one. Raises TrainingRunError."""
        return None if self._directory is None else self._directory.load(self._identity)

    def begin(self, last_step: int) -> None:
        """Metrics go on behind `last_step`. Raises TrainingRunError."""
        if self._writes and self._directory is not None:
            paths = self._directory
            self._writer = MetricsWriter(paths.metrics, paths.tensorboard, last_step)

    def record(self, row: StepMetrics) -> None:
        """Add a step's metrics."""
        if self._writer is not None:
            self._writer.write(row)

    def save(self, tensors: dict[str, Tensor], progress: dict[str, Any]) -> None:
        """Write a checkpoint. Raises TrainingRunError."""
        if self._writes and self._directory is not None:
            self._directory.save(self._identity, tensors, progress)
            self._saved_at = time.monotonic()

    def close(self) -> None:
        """No more metrics come."""
        if self._writer is not None:
            self._writer.close()
