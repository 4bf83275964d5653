"""The directory of one training run: its checkpoint, metrics and picture, and what the run is of.

checkpoint.safetensors   while the run goes on
run.lock                 held by the process whose run it is
metrics.csv, learning_curve.png, tensorboard/
"""

import dataclasses
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import xxhash
from filelock import FileLock, Timeout
from torch import Tensor

from model.catalogue import Catalogue
from model.errors import TrainingRunError
from model.training.checkpoint import load_checkpoint, save_checkpoint
from model.training.config import TrainConfig
from model.training.histories import Histories

_MAY_CHANGE = ("checkpoint_every_s",)


class RunDirectory:
    """Where a run keeps what it needs to be resumed, and what it tells."""

    def __init__(self, path: Path) -> None:
        """Made when it does not exist. Raises TrainingRunError."""
        self.checkpoint = path / "checkpoint.safetensors"
        self.metrics = path / "metrics.csv"
        self.plot = path / "learning_curve.png"
        self.tensorboard = path / "tensorboard"
        self._path, self._lock = path, path / "run.lock"
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise TrainingRunError(f"{path} cannot be made: {error.strerror}") from error

    @contextmanager
    def claim(self) -> Iterator[None]:
        """Keep other runs out; a process that dies lets go. Raises TrainingRunError when one is in it."""
        lock = FileLock(self._lock, timeout=0)
        try:
            lock.acquire()
        except Timeout as error:
            raise TrainingRunError(
                f"{self._path}: another run is going on in it; wait for its end, stop it, or give another --run"
            ) from error
        except OSError as error:
            raise TrainingRunError(f"{self._lock} cannot be locked: {error.strerror}") from error
        try:
            yield
        finally:
            lock.release()

    def save(
        self, identity: dict[str, Any], tensors: dict[str, Tensor], progress: dict[str, Any]
    ) -> None:
        """Replace the checkpoint. Raises TrainingRunError."""
        save_checkpoint(self.checkpoint, tensors, {"identity": identity, **progress})

    def load(self, identity: dict[str, Any]) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """The checkpoint of this very run; None when there is none.

        Raises TrainingRunError for a damaged one, and for one of other settings or data.
        """
        found = load_checkpoint(self.checkpoint)
        if found is None:
            return None
        stored = found[1].pop("identity")
        differing = _differences(stored, identity)
        if differing:
            raise TrainingRunError(
                f"{self.checkpoint} is of another run ({'; '.join(differing)}); "
                "give the same settings and event log, another --run, or --restart"
            )
        return found

    def forget_checkpoint(self) -> None:
        """The run is done, or begins again."""
        self.checkpoint.unlink(missing_ok=True)


def run_identity(config: TrainConfig, histories: Histories, catalogue: Catalogue) -> dict[str, Any]:
    """What must be alike for one run to be the continuation of another."""
    settings = dataclasses.asdict(config)
    for name in _MAY_CHANGE:
        del settings[name]
    log = xxhash.xxh3_64(histories.rows.tobytes())
    log.update(histories.users.tobytes())
    identity = {"settings": settings, "log": log.hexdigest(), "catalogue": catalogue.fingerprint}
    document: dict[str, Any] = json.loads(json.dumps(identity, default=str))
    return document


def _differences(stored: Any, wanted: Any, name: str = "") -> list[str]:
    if isinstance(stored, dict) and isinstance(wanted, dict):
        found = []
        for key in sorted(stored.keys() | wanted.keys()):
            found += _differences(stored.get(key), wanted.get(key), f"{name}.{key}".strip("."))
        return found
    if stored == wanted:
        return []
    return [f"{name.removeprefix('settings.')}: then {stored}, now {wanted}"]
