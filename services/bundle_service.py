"""BundleService over gRPC: which bundles an inference node serves, and to whom."""

from pathlib import Path
from typing import Any

import grpc.aio

from protos import bundle_pb2, bundle_pb2_grpc
from services.bundle_router import BundleRouter
from services.served_bundle import ServedBundle
from services.traffic_split import Role

Context = grpc.aio.ServicerContext[Any, Any]


class BundleService(bundle_pb2_grpc.BundleServiceServicer):
    """Nothing is kept between calls."""

    def __init__(self, router: BundleRouter) -> None:
        """`router` is alive as long as the server is."""
        self._router = router

    async def DescribeBundles(
        self, request: bundle_pb2.DescribeBundlesRequest, context: Context
    ) -> bundle_pb2.ServedBundles:
        """See protos/bundle.proto."""
        return self._describe()

    async def LoadBundle(
        self, request: bundle_pb2.LoadBundleRequest, context: Context
    ) -> bundle_pb2.ServedBundles:
        """See protos/bundle.proto."""
        await self._router.load(Path(request.path), request.share)
        return self._describe()

    async def ShareBundle(
        self, request: bundle_pb2.ShareBundleRequest, context: Context
    ) -> bundle_pb2.ServedBundles:
        """See protos/bundle.proto."""
        await self._router.set_share(request.share)
        return self._describe()

    async def PromoteBundle(
        self, request: bundle_pb2.PromoteBundleRequest, context: Context
    ) -> bundle_pb2.ServedBundles:
        """See protos/bundle.proto."""
        await self._router.promote(request.bundle_version)
        return self._describe()

    async def UnloadBundle(
        self, request: bundle_pb2.UnloadBundleRequest, context: Context
    ) -> bundle_pb2.ServedBundles:
        """See protos/bundle.proto."""
        await self._router.unload(request.bundle_version)
        return self._describe()

    def _describe(self) -> bundle_pb2.ServedBundles:
        served = {
            role: self._describe_one(role, each)
            for role, each in self._router.bundles.by_role().items()
        }
        return bundle_pb2.ServedBundles(
            primary=served[Role.PRIMARY],
            candidate=served.get(Role.CANDIDATE),
            as_configured=self._router.is_as_configured,
        )

    def _describe_one(self, role: Role, served: ServedBundle) -> bundle_pb2.ServedBundle:
        stats, contexts = self._router.stats, served.generator.contexts
        degraded = {kind: n for (whose, kind), n in stats.degraded.items() if whose is role}
        return bundle_pb2.ServedBundle(
            bundle_version=served.version,
            path=str(served.path),
            share=self._router.bundles.share_of(role),
            engine=served.engine_name,
            loaded_at_ms=served.loaded_at_ms,
            answers=stats.answers[role, "OK"],
            degraded=degraded,
            cached_users=len(contexts),
            cached_bytes=contexts.num_bytes,
            catalogue_items=served.catalogue.version.num_items,
        )
