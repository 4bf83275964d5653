"""CatalogueService over gRPC: what the served catalogue is made of, and the way back to an earlier version."""

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc.aio
import numpy as np

from model.catalogue import CatalogueItem
from model.catalogue_view import CatalogueView, PlacedItem
from model.item_placement import Change, Offer, Refusal, Removal
from protos import catalogue_pb2, catalogue_pb2_grpc
from services.catalogue_follower import CatalogueFollower
from services.errors import InvalidRequest, NotFound
from services.item_messages import version_to_wire
from services.item_wire import item_to_wire
from services.served_bundle import ServedBundle

Context = grpc.aio.ServicerContext[Any, Any]
ItemState, ItemSource = catalogue_pb2.ItemState, catalogue_pb2.ItemSource

_DEFAULT_LIMIT = 100
_MAX_LIMIT = 1_000


class CatalogueService(catalogue_pb2_grpc.CatalogueServiceServicer):
    """Answers from the node's live catalogue; nothing is kept between calls."""

    def __init__(self, primary: Callable[[], ServedBundle]) -> None:
        """`primary` names the bundle whose catalogue is meant."""
        self._primary = primary

    @property
    def _follower(self) -> CatalogueFollower:
        return self._primary().catalogue

    async def DescribeCatalogue(
        self, request: catalogue_pb2.DescribeCatalogueRequest, context: Context
    ) -> catalogue_pb2.CatalogueDescription:
        """See protos/catalogue.proto."""
        return self._describe()

    async def RollbackCatalogue(
        self, request: catalogue_pb2.RollbackCatalogueRequest, context: Context
    ) -> catalogue_pb2.CatalogueDescription:
        """See protos/catalogue.proto."""
        await self._follower.roll_back()
        return self._describe()

    async def ResumeCatalogue(
        self, request: catalogue_pb2.ResumeCatalogueRequest, context: Context
    ) -> catalogue_pb2.CatalogueDescription:
        """See protos/catalogue.proto."""
        await self._follower.resume()
        return self._describe()

    async def DescribeItem(
        self, request: catalogue_pb2.DescribeItemRequest, context: Context
    ) -> catalogue_pb2.ItemDescription:
        """See protos/catalogue.proto."""
        if request.item_id == 0:
            raise InvalidRequest("item_id is 0 or missing; it must name the item to describe")
        description = self._item(request.item_id, self._follower.live.view)
        if description is None:
            raise NotFound(
                f"neither the bundle nor the topic of the catalogue knows item {request.item_id}"
            )
        return description

    async def ListItems(
        self, request: catalogue_pb2.ListItemsRequest, context: Context
    ) -> catalogue_pb2.ListItemsResponse:
        """See protos/catalogue.proto."""
        if request.limit > _MAX_LIMIT:
            raise InvalidRequest(
                f"limit is {request.limit}; it must be 1 to {_MAX_LIMIT}, or 0 for {_DEFAULT_LIMIT}"
            )
        return await asyncio.to_thread(self._list, request)

    def _list(self, request: catalogue_pb2.ListItemsRequest) -> catalogue_pb2.ListItemsResponse:
        response, view = catalogue_pb2.ListItemsResponse(), self._follower.live.view
        for item_id in self._known_ids(request, view):
            one = self._item(item_id, view)
            if one is None or request.state not in (0, one.state):
                continue
            if request.source in (0, one.source):
                response.items.append(one)
                if len(response.items) == (request.limit or _DEFAULT_LIMIT):
                    break
        if request.state in (0, ItemState.ITEM_STATE_REFUSED):
            response.refused.extend(
                catalogue_pb2.RefusedRecord(key=one.key, offset=one.offset, reason=one.fault or "")
                for one in list(self._follower.unreadable.values())
            )
        return response

    def _known_ids(
        self, request: catalogue_pb2.ListItemsRequest, view: CatalogueView
    ) -> Iterator[int]:
        """Ids after the asked one that the filters may let through, ascending."""
        live = self._follower.live
        ids = np.array([*live.states, *live.pending], np.uint64)
        bundle_counts = request.source != ItemSource.ITEM_SOURCE_TOPIC
        if bundle_counts and request.state in (0, ItemState.ITEM_STATE_SERVED):
            ids = np.concatenate([ids, view.catalogue.item_ids])
        return iter(np.unique(ids[ids > request.after_item_id]).tolist())

    def _item(self, item_id: int, view: CatalogueView) -> catalogue_pb2.ItemDescription | None:
        """None for an item of which nobody knows."""
        live = self._follower.live
        said = live.states.get(item_id)
        pending, is_pending = live.pending.get(item_id), item_id in live.pending
        (own,) = live.placement.own(np.array([item_id], np.uint64))
        if said is None and own is None and not is_pending:
            return None
        placed = said if isinstance(said, PlacedItem) else own
        by_topic = said is not None or is_pending
        description = catalogue_pb2.ItemDescription(
            item=item_to_wire(placed.item if placed else _as_sent(item_id, said, pending)),
            source=ItemSource.ITEM_SOURCE_TOPIC if by_topic else ItemSource.ITEM_SOURCE_BUNDLE,
            state=_state_of(said, placed),
        )
        if is_pending:
            at_once = isinstance(pending, Removal) and not live.is_held
            description.state = (
                ItemState.ITEM_STATE_REMOVED if at_once else ItemState.ITEM_STATE_PENDING
            )
        if isinstance(said, Refusal):
            description.reason = said.reason
        if placed is not None:
            description.sid.extend(placed.sid)
            description.expires_at_ms = placed.expires_at_ms
            description.events = placed.count
            description.bucket = _bucket_size(item_id, view)
        return description

    def _describe(self) -> catalogue_pb2.CatalogueDescription:
        follower, live = self._follower, self._follower.live
        now_ms = round(time.time() * 1_000)
        return catalogue_pb2.CatalogueDescription(
            bundle_version=self._primary().version,
            versions=[version_to_wire(version) for version in live.versions],
            held=live.is_held,
            caught_up=follower.is_caught_up,
            following=follower.is_following,
            pending_items=len(live.pending),
            hidden_items=len(live.view.hidden_ids) + len(live.view.expired_ids(now_ms)),
            offered_items=live.counts[PlacedItem],
            removed_items=live.counts[Removal],
            refused_items=follower.num_refused,
        )


def _as_sent(item_id: int, said: Change | None, pending: Change | None) -> CatalogueItem:
    """What the topic says of an item that is not served."""
    if isinstance(pending, Offer):
        return pending.new.item
    return (said.item if isinstance(said, Refusal) else None) or CatalogueItem(item_id)


def _state_of(said: Change | None, placed: PlacedItem | None) -> catalogue_pb2.ItemState:
    if isinstance(said, Removal):
        return ItemState.ITEM_STATE_REMOVED
    if isinstance(said, Refusal):
        return ItemState.ITEM_STATE_REFUSED
    if placed is not None and placed.is_expired(round(time.time() * 1_000)):
        return ItemState.ITEM_STATE_EXPIRED
    return ItemState.ITEM_STATE_SERVED


def _bucket_size(item_id: int, view: CatalogueView) -> int:
    (index,) = view.catalogue.find(np.array([item_id], np.uint64)).tolist()
    if index < 0:
        return 0
    return len(view.catalogue.bucket(int(view.catalogue.bucket_of_item[index])))
