"""Which items complete an answer when little is known of a user, or the filters leave too few: what trends, then what is popular."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np
import numpy.typing as npt

from model.query import ItemIds, Query, Recommended, Source
from services.trending import TrendingItems


class Picker(Protocol):
    """Who knows the catalogue; model.recommender.Recommender is one."""

    def pick(
        self, item_ids: ItemIds, scores: npt.NDArray[np.float64], query: Query
    ) -> Sequence[Recommended]:
        """At most `query.k` of the items named, in their order: those that are known and may be recommended."""
        ...

    def popular(self, query: Query) -> Sequence[Recommended]:
        """At most `query.k` items that everybody takes."""
        ...


class ColdStart:
    """The rule: of a short history as many personal items as it vouches for, then what trends; popular items come last."""

    def __init__(
        self,
        picker: Picker,
        trending: Callable[[], TrendingItems] | None = None,
        little_history: int = 0,
    ) -> None:
        """A user with fewer than `little_history` interactions gets a part of the answer from what trends."""
        self._picker = picker
        self._trending = trending
        self._little_history = little_history
        self.served: Counter[str] = Counter()
        """Items of answers, by the name of their source."""

    def fill(
        self, query: Query, found: Sequence[Recommended], num_interactions: int
    ) -> list[Recommended]:
        """At most `query.k` items, each once: of `found`, which is personal, and of others where these are missing."""
        personal = self._num_personal(query.k, num_interactions)
        chosen = _Chosen(query.k)
        chosen.add(found[:personal])
        if chosen.missing:
            chosen.add(self._trending_items(query, chosen))
            chosen.add(found[personal:])
        if chosen.missing:
            popular = self._picker.popular(replace(query, k=query.k + len(chosen.items)))
            chosen.add(replace(item, source=Source.POPULAR) for item in popular)
        self.served.update(item.source.name.lower() for item in chosen.items)
        return chosen.items

    def _num_personal(self, k: int, num_interactions: int) -> int:
        """Of `k` items, rounded up."""
        if num_interactions >= self._little_history:
            return k
        return -(-k * num_interactions // self._little_history)

    def _trending_items(self, query: Query, chosen: "_Chosen") -> Iterable[Recommended]:
        if self._trending is None:
            return []
        items = self._trending()
        if not len(items.item_ids):
            return []
        wanted = replace(query, k=query.k + len(chosen.items))
        picked = self._picker.pick(items.item_ids, items.log_shares, wanted)
        return [replace(item, source=Source.TRENDING) for item in picked]


class _Chosen:
    """Items in the order they were chosen, each once."""

    def __init__(self, k: int) -> None:
        self._k = k
        self.items: list[Recommended] = []
        self._ids: set[int] = set()

    @property
    def missing(self) -> int:
        return self._k - len(self.items)

    def add(self, items: Iterable[Recommended]) -> None:
        for each in items:
            if self.missing and each.item.item_id not in self._ids:
                self.items.append(each)
                self._ids.add(each.item.item_id)
