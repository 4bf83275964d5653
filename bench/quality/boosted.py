"""Gradient boosting (LightGBM, lambdarank) over personal statistics of the candidates: what a practitioner would pick."""

import time
from collections.abc import Iterator
from typing import Any

import lightgbm
import numpy as np
import numpy.typing as npt

from bench.quality.candidates import FEATURES, Candidates, CandidateTable
from bench.quality.protocols import cuts_between
from bench.quality.targets import find_targets
from bench.quality.task import NUM_RANKED, Budget, ItemIds, Task
from bench.quality.ties import best_places
from model.training.histories import Index
from state.item_statistics import DAY_MS

_LABEL_DAYS = 56
"""The end of the training: baskets to learn from; item statistics are as of its beginning."""
_MAX_TRAINING_CUTS, _MAX_VALIDATION_CUTS = 24_000, 3_000
_CUTS_AT_ONCE = 256
_PATIENCE = 40
_MAX_ROUNDS = 1_000
_SHARE_TO_LEARN = 0.85
PARAMETERS = {
    "objective": "lambdarank",
    "metric": "ndcg",
    "eval_at": [10],
    "lambdarank_truncation_level": 30,
    "learning_rate": 0.08,
    "num_leaves": 15,
    "min_data_in_leaf": 500,
    "feature_fraction": 0.8,
    "bagging_fraction": 0.8,
    "bagging_freq": 1,
    "verbosity": -1,
    "deterministic": True,
}


class Boosted:
    """Candidates are the history's items and the most popular ones; each basket weighs one, whatever its size."""

    name = "boosted"

    def __init__(self) -> None:
        """Nothing is learned yet."""
        self._model: lightgbm.Booster | None = None
        self._seed = 0

    def fit(self, task: Task, budget: Budget) -> None:
        """Learn on the last weeks of training, stop by the validation's NDCG or at the budget's end."""
        ends = time.monotonic() + budget.minutes * 60 * _SHARE_TO_LEARN
        self._seed = budget.seed
        random = np.random.default_rng(budget.seed)
        training_ends = int(task.training.rows["event_time_ms"].max()) + 1
        labels_begin = training_ends - int(_LABEL_DAYS * DAY_MS)
        cuts = cuts_between(task.histories, task.items, labels_begin, training_ends)
        training = self._pool(task, _drawn(random, cuts, _MAX_TRAINING_CUTS), labels_begin)
        steering = _drawn(random, task.validation_cuts, _MAX_VALIDATION_CUTS)
        validation = self._pool(task, steering, training_ends, training)
        self._model = lightgbm.train(
            {**PARAMETERS, "seed": budget.seed, "num_threads": budget.num_threads},
            training,
            _MAX_ROUNDS,
            [validation],
            callbacks=[lightgbm.early_stopping(_PATIENCE, verbose=False), _until(ends)],
        )

    def rank(self, task: Task, cuts: Index) -> Iterator[ItemIds]:
        """Candidates by the trees' score."""
        if self._model is None:
            raise RuntimeError("fit comes before rank")
        training_ends = int(task.training.rows["event_time_ms"].max()) + 1
        table = CandidateTable(task, training_ends)
        for i in range(0, len(cuts), _CUTS_AT_ONCE):
            some = cuts[i : i + _CUTS_AT_ONCE]
            candidates = table.at(some)
            scores = np.asarray(self._model.predict(candidates.features))
            for row, cut in enumerate(some.tolist()):
                these = slice(*np.searchsorted(candidates.row, (row, row + 1)))
                best = best_places(scores[these], NUM_RANKED, self._seed, cut)
                yield task.items.item_ids[candidates.item[these][best]]

    def details(self) -> dict[str, Any]:
        """Trees and what they split by."""
        if self._model is None:
            return {}
        gains = self._model.feature_importance("gain")
        shares = (gains / max(gains.sum(), 1)).round(3).tolist()
        trees = self._model.best_iteration or self._model.num_trees()
        return {"trees": trees, "gain": dict(zip(FEATURES, shares, strict=True))}

    def _pool(
        self, task: Task, cuts: Index, known_until_ms: int, like: lightgbm.Dataset | None = None
    ) -> lightgbm.Dataset:
        """Candidates of these cuts with labels; in training, those of one cut weigh one over the number of its targets."""
        table = CandidateTable(task, known_until_ms)
        parts = [table.at(cuts[i : i + _CUTS_AT_ONCE]) for i in range(0, len(cuts), _CUTS_AT_ONCE)]
        groups = [np.bincount(part.row) for part in parts]
        found = [_labels(task, part) for part in parts]
        weights = np.concatenate([weights for _, weights in found])
        return lightgbm.Dataset(
            np.concatenate([part.features for part in parts]),
            np.concatenate([labels for labels, _ in found]),
            group=np.concatenate(groups),
            # Of a validation, LightGBM takes the mean over baskets: there each weighs one already.
            weight=weights if like is None else None,
            feature_name=list(FEATURES),
            reference=like,
        )


def _labels(
    task: Task, candidates: Candidates
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Per candidate, whether it is a target, and one over the number of its cut's targets."""
    targets, num_items = find_targets(task, candidates.cuts), len(task.items.item_ids)
    wanted = targets.row * num_items + targets.item
    labels = np.isin(candidates.row * num_items + candidates.item, wanted)
    sizes = np.bincount(targets.row, minlength=len(candidates.cuts))
    return labels.astype(np.float32), (1 / sizes[candidates.row]).astype(np.float32)


def _drawn(random: np.random.Generator, cuts: Index, num_cuts: int) -> Index:
    return cuts if len(cuts) <= num_cuts else random.choice(cuts, num_cuts, replace=False)


def _until(ends: float) -> Any:
    """Stops the training at a time; the trees so far are kept."""

    def check(env: lightgbm.callback.CallbackEnv) -> None:
        if time.monotonic() >= ends:
            raise lightgbm.callback.EarlyStopException(
                env.iteration, env.evaluation_result_list or []
            )

    check.order = 40  # type: ignore[attr-defined]  # behind early_stopping's
    return check
