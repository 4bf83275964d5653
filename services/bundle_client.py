"""Blocking calls of an inference node's BundleService, for the command line."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import grpc

from protos import bundle_pb2, bundle_pb2_grpc
from services.channels import Target, open_channel
from services.status_codes import from_rpc_error

Served = bundle_pb2.ServedBundles


class BundleClient(AbstractContextManager["BundleClient"]):
    """One node's; every call answers with what is served then, and raises Unreachable or InvalidRequest."""

    def __init__(self, target: Target, timeout_s: float) -> None:
        """Nothing is connected before the first call."""
        self._target = target
        self._timeout_s = timeout_s
        self._channel = open_channel(target)
        self._stub = bundle_pb2_grpc.BundleServiceStub(self._channel)

    def __exit__(self, *error: object) -> None:
        """Close the channel."""
        self._channel.close()

    def describe(self) -> Served:
        """What is served."""
        return self._call(self._stub.DescribeBundles, bundle_pb2.DescribeBundlesRequest())

    def load(self, path: str, share: float) -> Served:
        """As the candidate, with its share of users."""
        request = bundle_pb2.LoadBundleRequest(path=path, share=share)
        return self._call(self._stub.LoadBundle, request)

    def set_share(self, share: float) -> Served:
        """Of users, that the candidate answers."""
        return self._call(self._stub.ShareBundle, bundle_pb2.ShareBundleRequest(share=share))

    def promote(self, bundle_version: str) -> Served:
        """The candidate becomes the primary; "" where it may be any."""
        request = bundle_pb2.PromoteBundleRequest(bundle_version=bundle_version)
        return self._call(self._stub.PromoteBundle, request)

    def unload(self, bundle_version: str) -> Served:
        """The candidate goes; "" where it may be any."""
        request = bundle_pb2.UnloadBundleRequest(bundle_version=bundle_version)
        return self._call(self._stub.UnloadBundle, request)

    def _call(self, method: Callable[..., Served], request: Any) -> Served:
        try:
            metadata = self._target.credentials.metadata
            return method(request, timeout=self._timeout_s, metadata=metadata)
        except grpc.RpcError as error:
            raise from_rpc_error(error, self._target.address) from error
