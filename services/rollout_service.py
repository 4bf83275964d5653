"""RolloutService over gRPC: how the bundles of a state node's summaries come and go."""

import asyncio
from typing import Any

import grpc.aio

from protos import rollout_pb2, rollout_pb2_grpc
from services.rollout import Rollouts
from state.bundle_rollout import Walk, WalkState
from state.inspection import count_owed_next
from state.partition_stores import PartitionStores
from state.user_store import UserStore

Context = grpc.aio.ServicerContext[Any, Any]


class RolloutService(rollout_pb2_grpc.RolloutServiceServicer):
    """Nothing is kept between calls."""

    def __init__(self, rollouts: Rollouts, stores: PartitionStores) -> None:
        """Both are alive as long as the server is."""
        self._rollouts = rollouts
        self._stores = stores

    async def DescribeRollouts(
        self, request: rollout_pb2.DescribeRolloutsRequest, context: Context
    ) -> rollout_pb2.Rollouts:
        """See protos/rollout.proto."""
        return await asyncio.to_thread(self._describe)

    async def StartRollout(
        self, request: rollout_pb2.StartRolloutRequest, context: Context
    ) -> rollout_pb2.Rollouts:
        """See protos/rollout.proto."""
        await self._rollouts.start(request.bundle_version, request.users_per_s)
        return await asyncio.to_thread(self._describe)

    async def PauseRollout(
        self, request: rollout_pb2.ChangeRolloutRequest, context: Context
    ) -> rollout_pb2.Rollouts:
        """See protos/rollout.proto."""
        await self._rollouts.set_state(request.bundle_version, WalkState.PAUSED)
        return await asyncio.to_thread(self._describe)

    async def ResumeRollout(
        self, request: rollout_pb2.ChangeRolloutRequest, context: Context
    ) -> rollout_pb2.Rollouts:
        """See protos/rollout.proto."""
        await self._rollouts.set_state(request.bundle_version, WalkState.RUNNING)
        return await asyncio.to_thread(self._describe)

    async def StopRollout(
        self, request: rollout_pb2.ChangeRolloutRequest, context: Context
    ) -> rollout_pb2.Rollouts:
        """See protos/rollout.proto."""
        await self._rollouts.stop(request.bundle_version)
        return await asyncio.to_thread(self._describe)

    async def RetireBundle(
        self, request: rollout_pb2.RetireBundleRequest, context: Context
    ) -> rollout_pb2.Rollouts:
        """See protos/rollout.proto."""
        await self._rollouts.retire(request.bundle_version, request.users_per_s)
        return await asyncio.to_thread(self._describe)

    def _describe(self) -> rollout_pb2.Rollouts:
        stores = [self._stores.get(partition) for partition in self._stores.partitions()]
        return rollout_pb2.Rollouts(partitions=map(_describe_partition, stores))


def _describe_partition(store: UserStore) -> rollout_pb2.PartitionRollouts:
    bundles = store.bundles
    return rollout_pb2.PartitionRollouts(
        partition=store.partition,
        users=store.num_users(),
        rollout=None if bundles.rollout is None else _describe_walk(bundles.rollout),
        owed=count_owed_next(store.database),
        retired=map(_describe_walk, bundles.retirements),
    )


def _describe_walk(walk: Walk) -> rollout_pb2.BundleWalk:
    return rollout_pb2.BundleWalk(
        bundle_version=walk.bundle_version,
        state=walk.state.value,
        users_per_s=walk.users_per_s,
        walked=walk.walked,
        changed=walk.changed,
        started_at_ms=walk.started_at_ms,
    )
