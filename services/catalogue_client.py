"""Blocking calls of an inference node's CatalogueService, for the command line."""

import time
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import grpc

from protos import catalogue_pb2, catalogue_pb2_grpc
from services.channels import Target, open_channel
from services.errors import Unreachable
from services.status_codes import from_rpc_error

_Reply = TypeVar("_Reply")
_LOOK_EVERY_S = 0.1
_PAGE = 1_000


class CatalogueClient(AbstractContextManager["CatalogueClient"]):
    """One node's; every call raises Unreachable, NotFound or InvalidRequest. Use as a context manager."""

    def __init__(self, target: Target, timeout_s: float) -> None:
        """Nothing is connected before the first call."""
        self._target = target
        self._timeout_s = timeout_s
        self._channel = open_channel(target)
        self._stub = catalogue_pb2_grpc.CatalogueServiceStub(self._channel)

    def __exit__(self, *error: object) -> None:
        """Close the channel."""
        self._channel.close()

    def describe(self) -> catalogue_pb2.CatalogueDescription:
        """Versions and figures."""
        return self._call(self._stub.DescribeCatalogue, catalogue_pb2.DescribeCatalogueRequest())

    def list_items(
        self, request: catalogue_pb2.ListItemsRequest
    ) -> catalogue_pb2.ListItemsResponse:
        """One page."""
        return self._call(self._stub.ListItems, request)

    def describe_item(self, item_id: int) -> catalogue_pb2.ItemDescription:
        """One item."""
        request = catalogue_pb2.DescribeItemRequest(item_id=item_id)
        return self._call(self._stub.DescribeItem, request)

    def roll_back(self) -> catalogue_pb2.CatalogueDescription:
        """To the version before, and hold there."""
        return self._call(self._stub.RollbackCatalogue, catalogue_pb2.RollbackCatalogueRequest())

    def resume(self) -> catalogue_pb2.CatalogueDescription:
        """Follow the topic again."""
        return self._call(self._stub.ResumeCatalogue, catalogue_pb2.ResumeCatalogueRequest())

    def wait_for_offset(self, next_offset: int) -> catalogue_pb2.CatalogueVersion:
        """The first version that covers all before `next_offset`. Raises Unreachable when there is none in time."""
        give_up_at = time.monotonic() + self._timeout_s
        while True:
            served = self.describe().versions[-1]
            if served.next_offset >= next_offset:
                return served
            if time.monotonic() > give_up_at:
                raise Unreachable(
                    f"{self._target.address} serves the catalogue up to offset {served.next_offset} after "
                    f"{self._timeout_s:.0f} s, not {next_offset}; `gemstream catalogue stats` says what it does"
                )
            time.sleep(_LOOK_EVERY_S)

    def refused(self, item_ids: Collection[int]) -> list[catalogue_pb2.ItemDescription]:
        """Those of the items that the node refuses, by id, with reasons."""
        wanted, after, found = set(item_ids), 0, []
        while True:
            request = catalogue_pb2.ListItemsRequest(
                state=catalogue_pb2.ITEM_STATE_REFUSED, limit=_PAGE, after_item_id=after
            )
            page = self.list_items(request).items
            found += [one for one in page if one.item.item_id in wanted]
            if len(page) < _PAGE:
                return found
            after = page[-1].item.item_id

    def _call(self, method: Callable[..., _Reply], request: Any) -> _Reply:
        try:
            metadata = self._target.credentials.metadata
            return method(request, timeout=self._timeout_s, metadata=metadata)
        except grpc.RpcError as error:
            raise from_rpc_error(error, self._target.address) from error
