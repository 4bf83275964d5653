"""Where what is said of items puts them: SIDs for new items, the bundle's own keep theirs, or a reason why not."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from model.bundle import Bundle
from model.catalogue import CatalogueItem
from model.catalogue_view import PlacedItem
from model.errors import ModelError
from model.item_knowledge import ItemKnowledge, NewItem
from model.new_items import assign_where_known
from model.query import ItemIds

_AT_ONCE = 4_096


@dataclass(frozen=True, kw_only=True)
class Offer:
    """An item to be recommended until `expires_at_ms` (0: for good)."""

    new: NewItem
    expires_at_ms: int = 0


@dataclass(frozen=True)
class Refusal:
    """What was said of an item cannot be used: it stands as if nothing had been said."""

    reason: str
    item: CatalogueItem | None = None
    """As it was sent, where that can be read."""


@dataclass(frozen=True)
class Removal:
    """The item is not to be recommended, whether it is the bundle's own or not."""


State = PlacedItem | Refusal | Removal
Change = Offer | State
Changes = Mapping[int, Change | None]
"""By item id; None: as the bundle has it."""
States = Mapping[int, State | None]
"""By item id; None: as the bundle has it."""


class Placement:
    """Places items by a bundle's tokenizer and its own catalogue alone, so that every node comes to the same."""

    def __init__(self, bundle: Bundle) -> None:
        """Nothing is computed yet."""
        self._bundle = bundle
        self._knowledge = ItemKnowledge(bundle.item_vectors.blocks)

    def own(self, item_ids: ItemIds) -> list[PlacedItem | None]:
        """Items as the bundle has them; None for those that it has not."""
        catalogue = self._bundle.catalogue
        return [
            PlacedItem(
                item=catalogue.item(index),
                sid=catalogue.sid_of_item(index),
                count=int(catalogue.counts[index]),
            )
            if index >= 0
            else None
            for index in catalogue.find(item_ids).tolist()
        ]

    def states(self, changes: Changes) -> dict[int, State | None]:
        """What becomes of every change; one that cannot be used does no harm to the others."""
        states: dict[int, State | None] = {}
        offers: list[Offer] = []
        for item_id, change in changes.items():
            if isinstance(change, Offer):
                offers.append(change)
            else:
                states[item_id] = change
        ids = np.array([offer.new.item.item_id for offer in offers], np.uint64)
        new: list[Offer] = []
        for offer, own in zip(offers, self.own(ids), strict=True):
            if own is None:
                new.append(offer)
            else:
                states[own.item.item_id] = replace(
                    own, item=offer.new.item, expires_at_ms=offer.expires_at_ms
                )
        for start in range(0, len(new), _AT_ONCE):
            states.update(self._new(new[start : start + _AT_ONCE]))
        return states

    def _new(self, offers: Sequence[Offer]) -> dict[int, State]:
        states: dict[int, State] = {}
        usable: list[Offer] = []
        for offer in offers:
            if fault := self._knowledge.content_fault(offer.new):
                states[offer.new.item.item_id] = Refusal(fault, offer.new.item)
            else:
                usable.append(offer)
        return {**states, **self._assigned(usable)}

    def _assigned(self, offers: Sequence[Offer]) -> dict[int, State]:
        if not offers:
            return {}
        try:
            sids_ND, known_N = assign_where_known(self._bundle, [self._usable(o) for o in offers])
        except (ModelError, RuntimeError, ValueError) as error:
            if len(offers) == 1:
                item = offers[0].new.item
                return {item.item_id: Refusal(f"it gets no SID: {error}", item)}
            return {
                item_id: state
                for offer in offers
                for item_id, state in self._assigned([offer]).items()
            }
        return {
            offer.new.item.item_id: PlacedItem(
                item=offer.new.item, sid=tuple(sid), expires_at_ms=offer.expires_at_ms
            )
            if is_known
            else Refusal(self._knowledge.why_nothing(offer.new), offer.new.item)
            for offer, sid, is_known in zip(offers, sids_ND.tolist(), known_N.tolist(), strict=True)
        }

    def _usable(self, offer: Offer) -> NewItem:
        """Without content where that does not count."""
        if self._knowledge.content_width is None:
            return replace(offer.new, content=None)
        return offer.new
