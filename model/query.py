"""What is asked of a recommender, how many items and which are out of the question; and what it answers."""

from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from enum import Enum, auto

import numpy as np
import numpy.typing as npt

from model.catalogue import Catalogue, CatalogueItem
from model.errors import ModelConfigError

Mask = npt.NDArray[np.bool_]
ItemIds = npt.NDArray[np.uint64]

_NO_IDS: ItemIds = np.zeros(0, np.uint64)


@dataclass(frozen=True, kw_only=True)
class ItemFilter:
    """Which items may be recommended. An empty `allow` set allows everything; `deny` wins over `allow`."""

    exclude: AbstractSet[int] = frozenset()
    """Item ids."""
    exclude_ids: ItemIds = field(default_factory=lambda: _NO_IDS)
    """More item ids, such as those of a whole history."""
    allow_tags: AbstractSet[int] = frozenset()
    deny_tags: AbstractSet[int] = frozenset()
    allow_authors: AbstractSet[int] = frozenset()
    deny_authors: AbstractSet[int] = frozenset()

    @property
    def is_open(self) -> bool:
        """Whether everything may be recommended."""
        sets = (self.allow_tags, self.deny_tags, self.allow_authors, self.deny_authors)
        return not (self.exclude or len(self.exclude_ids) or any(sets))

    def blocked(self, catalogue: Catalogue) -> Mask | None:
        """[N]: true for the catalogue's items that may not be recommended; None when all may."""
        if self.is_open:
            return None
        blocked = np.zeros(len(catalogue), np.bool_)
        for ids in (np.fromiter(self.exclude, np.uint64, len(self.exclude)), self.exclude_ids):
            found = catalogue.find(ids)
            blocked[found[found >= 0]] = True
        columns = catalogue.columns
        for column, allow, deny in (
            (columns["tags"], self.allow_tags, self.deny_tags),
            (columns["author_ids"], self.allow_authors, self.deny_authors),
        ):
            if allow:
                blocked |= ~np.isin(column, _array(allow, column))
            if deny:
                blocked |= np.isin(column, _array(deny, column))
        return blocked


@dataclass(frozen=True, kw_only=True)
class Query:
    """One request. Raises ModelConfigError for sizes below one."""

    k: int
    beam_width: int | None = None
    """SIDs that the search keeps; None: the recommender's own."""
    filter: ItemFilter = field(default_factory=ItemFilter)
    repeats: bool = True
    """Whether what the user had before may win by having been had; off, the generator and what is popular decide."""
    time_ms: int | None = None
    """When it is asked, since the epoch: repeats go by the quarter of an hour, and by how long the user was away. None: with the user's newest
    interaction."""

    def __post_init__(self) -> None:
        """Check the sizes."""
        if self.k < 1 or (self.beam_width is not None and self.beam_width < 1):
            raise ModelConfigError(
                f"k is {self.k} and beam_width {self.beam_width}; both must be at least 1"
            )


class Source(Enum):
    """Why an item is in an answer."""

    PERSONAL = auto()
    """Generated from the user's state."""
    TRENDING = auto()
    """What many take now."""
    POPULAR = auto()
    """What many took when the bundle was trained."""


@dataclass(frozen=True)
class Recommended:
    """One recommended item."""

    item: CatalogueItem
    score: float
    """Log-probability of the item: of its SID, and within a bucket of its share; otherwise log share of events."""
    sid: tuple[int, ...]
    source: Source = Source.PERSONAL


@dataclass(frozen=True)
class AttendedInteraction:
    """A mid-term interaction that an item was generated from."""

    item: CatalogueItem
    """As the catalogue knows it; without a title where it does not."""
    event_time_ms: int
    attention: float
    """Of all mid-term interactions' sum of one."""


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """What one item came from: shares that sum to one, or are all 0 where there is no history."""

    recent: float
    mid_term: float
    lifecycle: float
    repeats: float
    """Of the item's probability, that it owes to having been taken before; 0 where it was not."""
    attended: tuple[AttendedInteraction, ...] = ()
    """Most attended first."""


def _array(values: AbstractSet[int], like: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
    return np.fromiter(values, like.dtype, len(values))
