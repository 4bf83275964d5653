"""The catalogue as it changes while it serves: the bundle's own items, and what was said of items since.

What is served follows from the bundle and the newest word on each item alone, in whatever batches it came.
"""

import time
from collections import ChainMap, Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from model.bundle import Bundle
from model.catalogue_view import CatalogueView, PlacedItem
from model.errors import CatalogueError
from model.item_placement import Change, Changes, Offer, Placement, Removal, State, States
from model.query import ItemIds


@dataclass(frozen=True, kw_only=True)
class CatalogueVersion:
    """One state of the catalogue on this node; number 0 is the bundle's own."""

    number: int
    next_offset: int
    """It covers every record before this one."""
    num_items: int
    num_sids: int
    num_changes: int
    """Items that differ from the version before in what was said of them."""
    created_at_ms: int
    rebuild_s: float
    newest_record_ms: int
    """Timestamp of the newest record in it; 0: none."""


@dataclass(frozen=True)
class Batch:
    """Changes to be built in."""

    changes: Changes
    next_offset: int
    newest_record_ms: int
    expired: ItemIds


@dataclass(frozen=True)
class Built:
    """What became of a batch."""

    batch: Batch
    states: States
    view: CatalogueView
    seconds: float


@dataclass(frozen=True)
class _Kept:
    version: CatalogueVersion
    undo: States
    """What was there before, of the items that this version changed."""


class LiveCatalogue:
    """One thread calls everything but `build`, which may run in another, one at a time, between `take` and `publish`."""

    def __init__(
        self,
        bundle: Bundle,
        keep_versions: int = 32,
        prepare: Callable[[CatalogueView], None] | None = None,
    ) -> None:
        """Serves the bundle's own catalogue; keeps what it needs to go back by `keep_versions` - 1 versions.

        `prepare`, part of every build, makes ready what requests need of the view to come.
        """
        self.placement = Placement(bundle)
        self._prepare = prepare
        self._states: dict[int, State] = {}
        self._pending: dict[int, Change | None] = {}
        self._taken: dict[int, Change | None] = {}
        self._next_offset = 0
        self._newest_record_ms = 0
        self.counts: Counter[type[State]] = Counter()
        """Of `states`, by their kind."""
        self.view = CatalogueView.of(bundle.catalogue, bundle.trie)
        """What requests take; replaced whole."""
        self.is_held = False
        """After a rollback: changes are only remembered."""
        self._numbers_given = 1
        own = Batch({}, 0, 0, self.view.hidden_ids)
        version = _version(0, Built(own, {}, self.view, 0.0))
        self._kept = deque([_Kept(version, {})], maxlen=keep_versions)

    @property
    def states(self) -> Mapping[int, State]:
        """What is served, of every item that something was said of."""
        return self._states

    @property
    def pending(self) -> Changes:
        """Changes that are not served yet, though removals hold unless a rollback does."""
        return ChainMap(self._pending, self._taken)

    @property
    def next_offset(self) -> int:
        """Behind the last record that was heard."""
        return self._next_offset

    @property
    def versions(self) -> Sequence[CatalogueVersion]:
        """Oldest first; the last one is served."""
        return [kept.version for kept in self._kept]

    def hear(
        self, changes: Iterable[tuple[int, Change]], next_offset: int, newest_record_ms: int = 0
    ) -> None:
        """Remember changes; what is removed or over is hidden at once, the rest waits for the next build."""
        latest = dict(changes)
        self._pending.update(latest)
        self._next_offset = next_offset
        self._newest_record_ms = max(self._newest_record_ms, newest_record_ms)
        if not self.is_held:
            self._hide(latest)

    def _hide(self, changes: Changes) -> None:
        now_ms = _now_ms()
        gone = [item_id for item_id, change in changes.items() if _is_gone(change, now_ms)]
        ids = np.array(gone, np.uint64)
        if len(ids) and (known := self.view.catalogue.find(ids) >= 0).any():
            self.view = self.view.hiding(ids[known])

    def take(self, *, sweep: bool = False) -> Batch | None:
        """What there is to build; None while held or when nothing changed. `sweep`: expired items leave, too."""
        expired = self.view.expired_ids(_now_ms())
        if self.is_held or not (self._pending or (sweep and len(expired))):
            return None
        batch = Batch(self._pending, self._next_offset, self._newest_record_ms, expired)
        self._pending, self._taken = {}, self._pending
        return batch

    def give_back(self, batch: Batch) -> None:
        """A batch could not be built: its changes wait again, but for newer ones."""
        self._pending, self._taken = {**batch.changes, **self._pending}, {}

    def build(self, batch: Batch) -> Built:
        """SIDs for what is new, and a view with all of it. Takes its time; changes nothing."""
        started_s = time.perf_counter()
        states = self.placement.states(batch.changes)
        view = self._view_with(states, batch.expired)
        if self._prepare is not None:
            self._prepare(view)
        return Built(batch, states, view, time.perf_counter() - started_s)

    def publish(self, built: Built) -> CatalogueVersion:
        """Serve what was built. A batch without changes makes no version of its own."""
        undo = {item_id: self._states.get(item_id) for item_id in built.states}
        self._set(built.states)
        self.view, self._taken = built.view, {}
        self._hide(self._pending)  # heard while it was built
        if not built.states:
            return self._kept[-1].version
        number, self._numbers_given = self._numbers_given, self._numbers_given + 1
        version = _version(number, built)
        self._kept.append(_Kept(version, undo))
        return version

    def undone(self) -> Batch:
        """A batch that leads back to the version before the one that is served; `roll_back` publishes it.

        Raises CatalogueError when no earlier version is kept.
        """
        if len(self._kept) < 2:
            raise CatalogueError(
                f"version {self._kept[-1].version.number} is the oldest that is kept (catalogue.keep_versions)"
            )
        expired = self.view.expired_ids(_now_ms())
        before = self._kept[-2].version
        return Batch(self._kept[-1].undo, before.next_offset, before.newest_record_ms, expired)

    def roll_back(self, built: Built) -> CatalogueVersion:
        """Serve the version before, and hold there: what it undoes and what is heard from now on waits for `resume`."""
        left = self._kept.pop()
        redo: dict[int, Change | None] = {
            item_id: self._states.get(item_id) for item_id in left.undo
        }
        self._pending = {**redo, **self._pending}
        self._set(built.states)
        self.view = built.view
        self.is_held = True
        return self._kept[-1].version

    def resume(self) -> None:
        """Serve what was held back with the next build; removals at once."""
        self.is_held = False
        self._hide(self._pending)

    def _set(self, states: States) -> None:
        for item_id, state in states.items():
            if (before := self._states.pop(item_id, None)) is not None:
                self.counts[type(before)] -= 1
            if state is not None:
                self.counts[type(state)] += 1
                self._states[item_id] = state

    def _view_with(self, states: States, expired: ItemIds) -> CatalogueView:
        touched = {*states, *expired.tolist(), *self.view.hidden_ids.tolist()}
        without = np.array(sorted(touched), np.uint64)
        now_ms, placed = _now_ms(), []
        own = self.placement.own(without)
        for item_id, as_the_bundle_has_it in zip(without.tolist(), own, strict=True):
            state = states[item_id] if item_id in states else self._states.get(item_id)
            one = state if isinstance(state, PlacedItem) else as_the_bundle_has_it
            if one and not isinstance(state, Removal) and not one.is_expired(now_ms):
                placed.append(one)
        catalogue = self.view.catalogue
        if not placed and (catalogue.find(without) >= 0).sum() == len(catalogue):
            return self.view.hiding(catalogue.item_ids)  # a catalogue has at least one item
        return self.view.rebuilt(without, placed)


def _is_gone(change: Change | None, now_ms: int) -> bool:
    if isinstance(change, Offer | PlacedItem):
        return 0 < change.expires_at_ms <= now_ms
    return isinstance(change, Removal)


def _version(number: int, built: Built) -> CatalogueVersion:
    return CatalogueVersion(
        number=number,
        next_offset=built.batch.next_offset,
        num_items=len(built.view.catalogue),
        num_sids=built.view.trie.num_sids,
        num_changes=len(built.states),
        created_at_ms=_now_ms(),
        rebuild_s=built.seconds,
        newest_record_ms=built.batch.newest_record_ms,
    )


def _now_ms() -> int:
    return round(time.time() * 1_000)
