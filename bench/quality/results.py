"""Finished rankings on disk: a run that was killed goes on behind them."""

import hashlib
import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

from bench.quality.code_version import code_version
from bench.quality.sources import CACHE
from bench.quality.task import Budget, Task
from model.training.histories import Index


@dataclass(frozen=True)
class Result:
    """One ranker under one seed."""

    table: npt.NDArray[np.uint64]
    """[cuts, NUM_RANKED], as `as_table` gives it."""
    fit_minutes: float
    rank_minutes: float
    details: dict[str, Any]


@dataclass(frozen=True)
class Question:
    """What a result is the answer to; another task, budget, list of cuts or code is another question."""

    task: Task
    cuts: Index
    ranker: str
    """The name that it has itself."""
    module: str
    """Where the ranker is made."""
    budget: Budget

    @property
    def path(self) -> Path:
        """Of its answer."""
        asked = [
            fingerprint(self.task),
            self.ranker,
            hashlib.sha256(self.cuts.tobytes()).hexdigest(),
            asdict(self.budget),
            code_version(self.module),
        ]
        key = hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:12]
        ranker = re.sub(r"[^\w.-]", "_", self.ranker)
        name = f"{self.task.name}-{ranker}-{self.budget.seed}-{key}.npz"
        return CACHE / "results" / name


def load_result(question: Question) -> Result | None:
    """What was kept; None where there is nothing whole."""
    try:
        with question.path.open("rb") as raw, np.load(raw) as file:
            return Result(table=file["table"], **json.loads(str(file["rest"])))
    except (OSError, ValueError, KeyError, BadZipFile):
        return None


def save_result(question: Question, result: Result) -> None:
    """Keep it; a kill leaves the whole file or none."""
    rest = asdict(result)
    table = rest.pop("table")
    path = question.path
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    with partial.open("wb") as file:
        np.savez_compressed(file, table=table, rest=json.dumps(rest))
    partial.replace(path)


def fingerprint(task: Task) -> str:
    """Of what is ranked, for whom and from what; segments count, too."""
    digest = hashlib.sha256()
    parts = (
        task.histories.rows,
        task.histories.users,
        task.histories.are_targets,
        task.cuts,
        task.validation_cuts,
        task.items.item_ids,
        task.items.counts,
        task.items.tags,
    )
    for part in parts:
        digest.update(part.tobytes())
    digest.update(f"{len(task.training.rows)} {task.segments} {task.repeats}".encode())
    return digest.hexdigest()
