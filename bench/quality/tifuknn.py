"""TIFUKNN (Hu et al., SIGIR 2020, arXiv 2006.00556): a user's decayed baskets, and those of the users nearest to them."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_matrix

from bench.quality.counts import best_on_validation, popularity_shares
from bench.quality.targets import places_of
from bench.quality.task import NUM_RANKED, Budget, ItemIds, Task
from bench.quality.ties import best_places
from model.training.histories import Histories, Index

_CUTS_AT_ONCE = 128
_TIE_BREAK = 1e-6


@dataclass(frozen=True)
class TifuKnnConfig:
    """The paper's hyperparameters."""

    group_size: int = 3
    """Baskets per group, the newest group full."""
    within_decay: float = 0.9
    """r_b: weight of a basket against the next newer one of its group."""
    between_decay: float = 0.6
    """r_g: weight of a group against the next newer one."""
    num_neighbours: int = 300
    own_share: float = 0.7
    """alpha: the user's own vector against the mean of the neighbours'."""


class TifuKnn:
    """Chooses its hyperparameters on the validation cuts."""

    name = "tifuknn"

    def __init__(self, config: TifuKnnConfig | None = None) -> None:
        """With `config`, nothing is chosen."""
        self._config = config
        self._seed = 0

    def fit(self, task: Task, budget: Budget) -> None:
        """Nothing but the choice is learned."""
        self._seed = budget.seed
        if self._config is None:
            self._config = _chosen(task)

    def rank(self, task: Task, cuts: Index) -> Iterator[ItemIds]:
        """Items by own_share * own vector + (1 - own_share) * mean of the nearest users' vectors as of the training's end."""
        config = self._config or TifuKnnConfig()
        vectors, neighbours, users = user_vectors(task, config)
        squares = np.asarray(neighbours.multiply(neighbours).sum(1)).ravel()
        popularity = popularity_shares(task) * _TIE_BREAK
        ids, places, _ = task.items.item_ids, *places_of(task, task.histories.rows["item_id"])
        for i in range(0, len(cuts), _CUTS_AT_ONCE):
            some = cuts[i : i + _CUTS_AT_ONCE]
            own = vectors.at(some)
            distances = squares - 2 * (own @ neighbours.T).toarray()
            distances[task.histories.users[some][:, None] == users] = np.inf
            weights = _nearest(distances, config.num_neighbours)
            scores = config.own_share * own.toarray()
            scores += (1 - config.own_share) * (weights @ neighbours).toarray()
            scores += popularity
            for cut, row in zip(some.tolist(), scores, strict=True):
                if not task.repeats:
                    row[places[task.histories.user_start[cut] : cut]] = -np.inf
                yield ids[best_places(row, NUM_RANKED, self._seed, cut)]

    def details(self) -> dict[str, Any]:
        """What was chosen."""
        return asdict(self._config or TifuKnnConfig())


class BasketVectors:
    """Decayed vectors of users' baskets before any cut."""

    def __init__(self, histories: Histories, task: Task, config: TifuKnnConfig) -> None:
        """An item counts once per basket."""
        self._config = config
        self._shape = len(task.items.item_ids)
        self._start, self._histories = histories.user_start, histories
        self._places, known = places_of(task, histories.rows["item_id"])
        starts = histories.basket_end - histories.basket_size
        self._basket = np.unique(starts, return_inverse=True)[1].astype(np.int64)
        keys = self._basket * self._shape + self._places
        first = np.zeros(len(keys), bool)
        first[np.unique(keys, return_index=True)[1]] = True
        self._counted = known & first

    def at(self, cuts: Index) -> csr_matrix:
        """[cuts, items]: from everything of the user before each cut."""
        return self.between(self._start[cuts], cuts)

    def between(self, starts: Index, ends: Index) -> csr_matrix:
        """[stretches, items]: from the interactions of each stretch of whole baskets of one user."""
        config = self._config
        lengths = ends - starts
        row = np.repeat(np.arange(len(starts)), lengths)
        positions = np.arange(len(row)) + np.repeat(starts - np.cumsum(lengths) + lengths, lengths)
        kept = self._counted[positions]
        row, positions = row[kept], positions[kept]
        last = self._basket[(ends - 1).clip(0)]
        num_baskets = np.where(lengths > 0, last - self._basket[starts] + 1, 0)
        age = last[row] - self._basket[positions]
        group, place = age // config.group_size, age % config.group_size
        num_groups = -(-num_baskets // config.group_size)
        oldest = num_baskets - (num_groups - 1) * config.group_size
        size = np.where(group == num_groups[row] - 1, oldest[row], config.group_size)
        weights = config.within_decay**place * config.between_decay**group
        weights = weights / (size * num_groups[row])
        return csr_matrix(
            (weights.astype(np.float32), (row, self._places[positions])),
            shape=(len(starts), self._shape),
        )


def user_vectors(task: Task, config: TifuKnnConfig) -> tuple[BasketVectors, csr_matrix, Index]:
    """Vectors of any cut, those of all users as of the training's end, and whose they are."""
    histories = task.histories
    vectors = BasketVectors(histories, task, config)
    starts, users = np.unique(histories.user_start), np.unique(histories.users)
    trained = np.bincount(task.training.user_index, minlength=int(users.max()) + 1)[users]
    kept = trained > 0
    starts, users = starts[kept], users[kept]
    return vectors, vectors.between(starts, starts + trained[kept]), users


def _nearest(distances: npt.NDArray[np.floating], num_neighbours: int) -> csr_matrix:
    """[cuts, users]: one over k at each cut's k nearest."""
    k = min(num_neighbours, distances.shape[1] - 1)
    nearest = np.argpartition(distances, k - 1, axis=1)[:, :k]
    rows = np.repeat(np.arange(len(distances)), k)
    values = np.full(len(rows), 1 / k, np.float32)
    return csr_matrix((values, (rows, nearest.ravel())), shape=distances.shape)


def _chosen(task: Task) -> TifuKnnConfig:
    """How baskets fade first, in all combinations, as these depend on each other; then the others in turn."""
    grid = [
        TifuKnnConfig(group_size=size, within_decay=1, between_decay=decay)
        for size, decay in product((3, 7, 14), (0.6, 0.7, 0.8, 0.9))
    ]
    chosen: TifuKnnConfig = best_on_validation(task, grid, TifuKnn)
    others: dict[str, tuple[Any, ...]] = {
        "within_decay": (0.9, 1),
        "num_neighbours": (100, 300, 900),
        "own_share": (0.2, 0.5, 0.7, 0.9),
    }
    for name, values in others.items():
        grid = [replace(chosen, **{name: value}) for value in values]
        chosen = best_on_validation(task, grid, TifuKnn)
    return chosen
