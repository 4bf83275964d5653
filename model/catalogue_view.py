"""What can be recommended at one moment: catalogue, trie and what is hidden. A request takes one view and keeps it.

Shapes: N items.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from model.catalogue import Catalogue, CatalogueItem
from model.catalogue_merge import merge_catalogues
from model.query import ItemFilter, ItemIds, Mask
from model.trie import Trie

_NO_IDS: ItemIds = np.zeros(0, np.uint64)
_NO_TIMES: npt.NDArray[np.int64] = np.zeros(0, np.int64)


@dataclass(frozen=True, kw_only=True)
class PlacedItem:
    """An item with its SID."""

    item: CatalogueItem
    sid: tuple[int, ...]
    count: int = 0
    """Events that were counted in training."""
    expires_at_ms: int = 0
    """From when on it is not recommended; 0: never."""

    def is_expired(self, now_ms: int) -> bool:
        """Whether its time is over."""
        return 0 < self.expires_at_ms <= now_ms


@dataclass(frozen=True, eq=False)
class CatalogueView:
    """Immutable; changes make another view."""

    catalogue: Catalogue
    trie: Trie
    by_popularity: npt.NDArray[np.int64]
    """Indices of items, most events first."""
    num_events: int
    hidden_ids: ItemIds = field(default_factory=lambda: _NO_IDS)
    """Removed since the catalogue was built."""
    expiring_ids: ItemIds = field(default_factory=lambda: _NO_IDS)
    """In the order of `expiry_times_ms`."""
    expiry_times_ms: npt.NDArray[np.int64] = field(default_factory=lambda: _NO_TIMES)

    @classmethod
    def of(cls, catalogue: Catalogue, trie: Trie | None = None) -> "CatalogueView":
        """Everything in a catalogue; `trie` where it is made already."""
        trie = trie or Trie(catalogue.sids_SD, catalogue.sid_counts_S)
        return cls(catalogue, trie, catalogue.by_popularity(), int(catalogue.counts.sum()))

    def hiding(self, item_ids: ItemIds) -> "CatalogueView":
        """The same without some items, at once: the catalogue stays."""
        return replace(self, hidden_ids=np.union1d(self.hidden_ids, item_ids))

    def expired_ids(self, now_ms: int) -> ItemIds:
        """Items of the catalogue whose time is over."""
        return self.expiring_ids[: np.searchsorted(self.expiry_times_ms, now_ms, "right")]

    def blocked(self, item_filter: ItemFilter, now_ms: int | None = None) -> Mask | None:
        """[N]: true for items that may not be recommended now; None when all may."""
        blocked = item_filter.blocked(self.catalogue)
        now_ms = round(time.time() * 1_000) if now_ms is None else now_ms
        for ids in (self.hidden_ids, self.expired_ids(now_ms)):
            if len(ids):
                blocked = np.zeros(len(self.catalogue), np.bool_) if blocked is None else blocked
                found = self.catalogue.find(ids)
                blocked[found[found >= 0]] = True
        return blocked

    def popular(self, k: int, blocked: Mask | None) -> list[tuple[int, float]]:
        """The `k` most frequent items that are not `blocked`: catalogue index and log share of all events."""
        best, taken = self.by_popularity[:k], k
        if blocked is not None:
            best = best[~blocked[best]]
            while len(best) < k and taken < len(self.by_popularity):
                taken *= 8
                best = self.by_popularity[:taken]
                best = best[~blocked[best]][:k]
        counts = np.maximum(self.catalogue.counts[best], 1)
        log_shares = np.log(counts / max(self.num_events, 1))
        return list(zip(best.tolist(), log_shares.tolist(), strict=True))

    def rebuilt(self, without: ItemIds, placed: Sequence[PlacedItem]) -> "CatalogueView":
        """A view of a new catalogue: less `without`, with `placed`; what was hidden is in neither or must be hidden again.

        Raises CatalogueError when nothing is left, or `placed` holds an item that stays.
        """
        catalogue = merge_catalogues(self.catalogue, without, _catalogue_of(placed))
        stay = ~np.isin(self.expiring_ids, without)
        more = [one for one in placed if one.expires_at_ms]
        ids = np.concatenate(
            [self.expiring_ids[stay], np.array([one.item.item_id for one in more], np.uint64)]
        )
        times_ms = np.concatenate(
            [self.expiry_times_ms[stay], np.array([one.expires_at_ms for one in more], np.int64)]
        )
        order = np.argsort(times_ms, kind="stable")
        return replace(
            CatalogueView.of(catalogue), expiring_ids=ids[order], expiry_times_ms=times_ms[order]
        )


def _catalogue_of(placed: Sequence[PlacedItem]) -> Catalogue | None:
    if not placed:
        return None
    items = [one.item for one in placed]
    columns: dict[str, npt.NDArray[Any]] = {
        "item_ids": np.array([item.item_id for item in items], np.uint64),
        "author_ids": np.array([item.author_id for item in items], np.uint64),
        "tags": np.array([item.tag for item in items], np.uint32),
        "durations_ms": np.array([item.duration_ms for item in items], np.uint32),
        "counts": np.array([one.count for one in placed], np.int64),
        "sids": np.array([one.sid for one in placed], np.int64),
    }
    return Catalogue(columns, [item.title for item in items])
