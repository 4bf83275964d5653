"""Role 3 of 4: the inference node."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

from protos.catalogue_pb2_grpc import add_CatalogueServiceServicer_to_server
from protos.recommender_pb2_grpc import add_RecommenderServiceServicer_to_server
from services.clients import RoutedStateClient, StateClient
from services.cold_start import ColdStart
from services.credentials import client_credentials
from services.generation import Generator
from services.inference_node import InferenceNode
from services.metrics.exposition import Metrics
from services.metrics.serving import (
    CatalogueCollector,
    GenerationCollector,
    RequestCollector,
    SourceCollector,
)
from services.recommender_service import RecommenderService
from services.request_log import RequestLog
from services.settings import Settings
from services.trending import Trending
from services.watch_endpoints import always_alive, watch_endpoints
from stream.ownership import Owners

if TYPE_CHECKING:  # torch is imported by those roles that need it
    from model.bundle import Bundle
    from model.recommender import Recommender
    from services.catalogue_follower import CatalogueFollower
from services.wiring.parts import bootstrap_of, check_history, limit_threads, make_server

log = logging.getLogger(__name__)

RECOMMENDER_SERVICE = "gemstream.v1.RecommenderService"
CATALOGUE_SERVICE = "gemstream.v1.CatalogueService"


async def run_inference_node(settings: Settings, stop: asyncio.Event) -> None:
    """Role 3 of 4, until `stop`."""
    from model.bundle import load_bundle
    from model.engine_choice import EngineChoice
    from model.recommender import Recommender
    from services.catalogue_service import CatalogueService

    config = settings.inference_node
    limit_threads(config.num_threads)
    bundle = load_bundle(settings.bundle)
    check_history(bundle.history, settings)
    users, follow_owners = _users(settings)
    server = make_server(
        settings, "inference-node", config.listen, [RECOMMENDER_SERVICE, CATALOGUE_SERVICE]
    )
    recommender = Recommender(
        bundle,
        config.beam_width,
        max_per_first_code=config.max_per_first_code,
        exact=config.exact_search,
        engine=EngineChoice(
            config.engine, config.beam_width, config.batching.max_batch, config.num_threads
        ),
    )
    executor = ThreadPoolExecutor(1, thread_name_prefix="network")
    trending = Trending(settings.trending)
    cold_start = ColdStart(recommender, trending.items, config.little_history)
    generator = Generator(recommender, users, executor, cold_start, config.batching, config.caches)
    service = RecommenderService(generator, RequestLog(enabled=config.log_requests))
    add_RecommenderServiceServicer_to_server(service, server.server)
    catalogue = _catalogue(settings, bundle, recommender)
    add_CatalogueServiceServicer_to_server(
        CatalogueService(bundle.version, catalogue), server.server
    )
    log.info("recommending with bundle %s", bundle.version)
    endpoints = watch_endpoints(
        config.metrics_listen,
        "inference_node.metrics_listen",
        Metrics(
            RequestCollector(server.requests),
            GenerationCollector(generator.batcher, generator.contexts),
            CatalogueCollector(catalogue),
            SourceCollector(cold_start.served, trending),
        ),
        always_alive,
        lambda: server.serving,
    )
    background = [generator.run, *([follow_owners] if follow_owners else [])]
    until_ready = []
    if settings.bootstrap:
        background.append(catalogue.run)
        background.append(partial(trending.run, settings.bootstrap, settings.topics))
        until_ready.append(catalogue.wait_until_caught_up)
    await InferenceNode(server, users, endpoints, background, until_ready).run(stop)


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


def _catalogue(
    settings: Settings, bundle: "Bundle", recommender: "Recommender"
) -> "CatalogueFollower":
    """The catalogue of an inference node; without Kafka it stays the bundle's own."""
    from model.live_catalogue import LiveCatalogue
    from services.catalogue_follower import CatalogueFollower
    from stream.item_records import follow_items

    live = LiveCatalogue(bundle, settings.catalogue.keep_versions)
    recommender.swap(live.view)
    return CatalogueFollower(
        live,
        lambda start_offset: follow_items(bootstrap_of(settings), settings.topics, start_offset),
        recommender.swap,
        settings.catalogue,
    )
