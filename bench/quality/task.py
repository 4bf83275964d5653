"""What is ranked, for whom, what may be learned from, and what a ranker is: the seam of every data set and rival."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from model.catalogue import ItemTable
from model.training.histories import Histories, Index, build_histories
from state.event_log import EventLog
from state.segments import HistoryConfig

NUM_RANKED = 50
ItemIds = npt.NDArray[np.uint64]


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """Where a data set is from, and what is done with it."""

    source: str
    licence: str
    protocol: str
    """In words: what trains, what validates, what tests, what is ranked."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """A data set under its protocol.

    A cut is the position in `histories` of the first interaction of a basket (of one event time): the history asked
    about is everything of the user before it, the targets are items of the basket.
    """

    name: str
    training: EventLog
    """All that may be learned from, besides choosing by `validation_cuts`."""
    histories: Histories
    """All interactions, those of validation and test among them; its targets are those of the protocol."""
    cuts: Index
    """Of the test."""
    validation_cuts: Index
    """To tune and to stop by; the test's cuts are not for that."""
    items: ItemTable
    """All that is ranked; counts are those of `training`."""
    items_path: Path
    """The items' file, as `gemstream train` reads it."""
    segments: HistoryConfig
    """Where recent, mid-term and lifecycle begin for our own network."""
    repeats: bool
    """Whether a target can be an item that the user had; if not, the harness drops those from every ranking."""
    provenance: Provenance
    target_kinds: tuple[str, ...] = ()
    """Kinds of interactions that are targets, as `histories` was built with; none: all."""

    length_bounds: tuple[int, ...] = (200, 500, 1_000)
    """Where buckets of history length end."""
    strata: Mapping[str, npt.NDArray[np.bool_]] = field(default_factory=dict)
    """Kinds of cuts that figures are told of one by one: per interaction, whether a cut there is of the kind."""

    @property
    def asks_for_baskets(self) -> bool:
        """Whether a typical cut has several targets."""
        sizes = self.histories.num_targets[self.validation_cuts]
        return len(sizes) > 0 and float(np.median(sizes)) > 1

    def lengths(self, cuts: Index) -> Index:
        """Interactions before each cut."""
        return cuts - self.histories.user_start[cuts]

    def seen(self, cut: int) -> ItemIds:
        """Distinct items before the cut, ascending."""
        start = self.histories.user_start[cut]
        return np.unique(self.histories.rows["item_id"][start:cut])

    def targets(self, cut: int) -> ItemIds:
        """Distinct ranked items of the cut's basket, ascending."""
        return np.intersect1d(self.histories.targets_at(cut), self.items.item_ids)

    def training_histories(self) -> Histories:
        """Of `training`, with the same kinds as targets."""
        return build_histories(self.training, target_kinds=self.target_kinds)


@dataclass(frozen=True)
class Budget:
    """What a ranker may spend on `fit`."""

    minutes: float
    seed: int = 0
    num_threads: int = 1
    scale: Literal["small", "full"] = "small"
    """full: sizes for a GPU, or for hours."""


class Ranker(Protocol):
    """Learns from a task's training interactions and ranks its items."""

    @property
    def name(self) -> str:
        """As figures call it."""

    def fit(self, task: Task, budget: Budget) -> None:
        """Learn from `task.training`; `task.validation_cuts` may choose settings and when to stop."""

    def rank(self, task: Task, cuts: Index) -> Iterator[ItemIds]:
        """Ids of items for each cut in turn, best first; of the cut itself the time alone may be known, and nothing behind it.

        NUM_RANKED or more; where `task.repeats` is false, so many besides `task.seen`. Missing ones count as misses.
        """


@runtime_checkable
class Detailed(Protocol):
    """A ranker that can tell more of itself."""

    def details(self) -> dict[str, Any]:
        """After `rank`, for the report: steps, settings chosen, `level_hit_rate` (per code level, the share of targets
        whose prefix is in the beam), `kept_attention_mass`; JSON types alone.
        """
