"""Role 3 of 4: the inference node."""

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from protos.bundle_pb2_grpc import add_BundleServiceServicer_to_server
from protos.catalogue_pb2_grpc import add_CatalogueServiceServicer_to_server
from protos.recommender_pb2_grpc import add_RecommenderServiceServicer_to_server
from services.bundle_router import BundleRouter
from services.bundle_service import BundleService
from services.clients import RoutedStateClient, StateClient
from services.credentials import client_credentials
from services.inference_node import InferenceNode
from services.metrics.exposition import Metrics
from services.metrics.serving import (
    AnswerCollector,
    CatalogueCollector,
    GenerationCollector,
    RequestCollector,
    SourceCollector,
)
from services.recommender_service import RecommenderService
from services.request_log import RequestLog
from services.served_bundle import ServedBundle
from services.serving_watchdog import ServingWatchdog
from services.settings import Settings
from services.traffic_split import Role
from services.trending import Trending
from services.watch_endpoints import watch_endpoints
from services.wiring.parts import bootstrap_of, limit_threads, make_server
from stream.ownership import Owners

_Part = TypeVar("_Part")

SERVICES = [
    f"gemstream.v1.{name}" for name in ("RecommenderService", "CatalogueService", "BundleService")
]


async def run_inference_node(settings: Settings, stop: asyncio.Event) -> None:
    """Role 3 of 4, until `stop`."""
    # torch is imported by those roles that need it
    from services.catalogue_service import CatalogueService
    from services.wiring.bundles import BundleLoader

    config = settings.inference_node
    limit_threads(config.num_threads)
    users, follow_owners = _users(settings)
    server = make_server(settings, "inference-node", config.listen, SERVICES)
    trending = Trending(settings.trending)
    executor = ThreadPoolExecutor(1, thread_name_prefix="network")
    loader = BundleLoader(settings, users, trending, executor)
    router = BundleRouter(loader, loader.configured())
    service = RecommenderService(router.answering, RequestLog(enabled=config.log_requests))
    add_RecommenderServiceServicer_to_server(service, server.server)
    add_CatalogueServiceServicer_to_server(
        CatalogueService(lambda: router.bundles.primary), server.server
    )
    add_BundleServiceServicer_to_server(BundleService(router), server.server)
    watchdog = ServingWatchdog(lambda: _longest_batch_s(router), settings.liveness.stall_after_s)
    endpoints = watch_endpoints(
        config.metrics_listen,
        "inference_node.metrics_listen",
        Metrics(
            RequestCollector(server.requests),
            AnswerCollector(router.stats, lambda: _shares(router), service.users),
            GenerationCollector(lambda: _each(router, lambda served: served.generator)),
            CatalogueCollector(lambda: router.bundles.primary.catalogue),
            SourceCollector(lambda: _each(router, lambda served: served.sources), trending),
        ),
        watchdog.verdict,
        lambda: server.serving and watchdog.verdict().alive,
    )
    background = [watchdog.run, router.run, *([follow_owners] if follow_owners else [])]
    until_ready = []
    if settings.bootstrap:
        background.append(partial(trending.run, settings.bootstrap, settings.topics))
        until_ready.append(router.wait_until_caught_up)
    node = InferenceNode(server, users, endpoints, background, until_ready, watchdog.verdict)
    await node.run(stop)


def _each(router: BundleRouter, part: Callable[[ServedBundle], _Part]) -> dict[Role, _Part]:
    """A part of every bundle, by its role."""
    return {role: part(served) for role, served in router.bundles.by_role().items()}


def _longest_batch_s(router: BundleRouter) -> float:
    """They share a thread: where one is stuck, so is what waits for it."""
    return max(served.generator.batcher.batch_s for served in router.bundles.by_role().values())


def _shares(router: BundleRouter) -> dict[Role, tuple[str, float]]:
    """Version and share of users, by role."""
    bundles = router.bundles
    return {
        role: (served.version, bundles.share_of(role)) for role, served in bundles.by_role().items()
    }


def _users(
    settings: Settings,
) -> tuple[StateClient | RoutedStateClient, Callable[[], Coroutine[None, None, None]] | None]:
    """Whom an inference node asks for states, and what keeps it informed: one node, or whoever owns the user."""
    config, topics = settings.inference_node, settings.topics
    credentials = client_credentials(settings.tls)
    if config.state_address is not None:
        return StateClient(config.state_address, config.state_timeout_s, credentials), None
    owners = Owners(bootstrap_of(settings), topics)
    users = RoutedStateClient(
        owners.find, topics.num_partitions, config.state_timeout_s, credentials
    )
    return users, owners.run
