"""Blocking calls of a state node's RolloutService, for the command line."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import grpc

from protos import rollout_pb2, rollout_pb2_grpc
from services.channels import Target, open_channel
from services.status_codes import from_rpc_error

Rollouts = rollout_pb2.Rollouts


class RolloutClient(AbstractContextManager["RolloutClient"]):
    """One node's; every call answers with how it stands then, and raises Unreachable, NotFound or InvalidRequest."""

    def __init__(self, target: Target, timeout_s: float) -> None:
        """Nothing is connected before the first call."""
        self._target = target
        self._timeout_s = timeout_s
        self._channel = open_channel(target)
        self._stub = rollout_pb2_grpc.RolloutServiceStub(self._channel)

    def __exit__(self, *error: object) -> None:
        """Close the channel."""
        self._channel.close()

    def describe(self) -> Rollouts:
        """How it stands."""
        return self._call(self._stub.DescribeRollouts, rollout_pb2.DescribeRolloutsRequest())

    def start(self, bundle_version: str, users_per_s: float) -> Rollouts:
        """Owe all users a summary."""
        request = rollout_pb2.StartRolloutRequest(
            bundle_version=bundle_version, users_per_s=users_per_s
        )
        return self._call(self._stub.StartRollout, request)

    def pause(self, bundle_version: str) -> Rollouts:
        """Mark nobody until `resume`."""
        return self._change(self._stub.PauseRollout, bundle_version)

    def resume(self, bundle_version: str) -> Rollouts:
        """Go on."""
        return self._change(self._stub.ResumeRollout, bundle_version)

    def stop(self, bundle_version: str) -> Rollouts:
        """Owe no more of it."""
        return self._change(self._stub.StopRollout, bundle_version)

    def retire(self, bundle_version: str, users_per_s: float) -> Rollouts:
        """Remove its summaries."""
        request = rollout_pb2.RetireBundleRequest(
            bundle_version=bundle_version, users_per_s=users_per_s
        )
        return self._call(self._stub.RetireBundle, request)

    def _change(self, method: Callable[..., Rollouts], bundle_version: str) -> Rollouts:
        return self._call(method, rollout_pb2.ChangeRolloutRequest(bundle_version=bundle_version))

    def _call(self, method: Callable[..., Rollouts], request: Any) -> Rollouts:
        try:
            metadata = self._target.credentials.metadata
            return method(request, timeout=self._timeout_s, metadata=metadata)
        except grpc.RpcError as error:
            raise from_rpc_error(error, self._target.address) from error
