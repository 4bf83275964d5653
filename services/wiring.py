"""The only place that picks concrete classes: settings in, ready-made processes out."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from protos.admin_pb2_grpc import add_AdminServiceServicer_to_server
from protos.catalogue_pb2_grpc import add_CatalogueServiceServicer_to_server
from protos.recommender_pb2_grpc import add_RecommenderServiceServicer_to_server
from protos.state_pb2_grpc import add_StateServiceServicer_to_server
from services.admin_service import AdminService, NodeView
from services.backfill_taker import BackfillTaker
from services.checkpointer import Checkpointer, CheckpointLog
from services.clients import RoutedStateClient, StateClient
from services.cold_start import ColdStart
from services.compression_worker import CompressionWorker, Compressor
from services.credentials import TOKEN_VARIABLE, client_credentials, server_credentials
from services.errors import SettingsError
from services.generation import Generator
from services.grpc_server import PROTECTED_SERVICES, GrpcServer, is_loopback
from services.inference_node import InferenceNode
from services.metrics import (
    CatalogueCollector,
    CompressionCollector,
    GenerationCollector,
    Metrics,
    RequestCollector,
    SourceCollector,
    StateNodeCollector,
    TrendingCollector,
)
from services.node_identity import claim, node_identity
from services.recommender_service import RecommenderService
from services.request_log import RequestLog
from services.settings import Settings
from services.state_node import Eraser, StateNode
from services.state_service import StateService
from services.stopping import unless_stopped
from services.store_verification import StoreVerification
from services.tracing import start_tracing
from services.trending import Trending
from services.watch_endpoints import always_alive, watch_endpoints
from state.backfill_intake import BackfillIntake
from state.backfill_repository import BackfillRepository
from state.checkpoint_repository import CheckpointRepository
from state.checkpoints import CheckpointWriter
from state.object_storage import ObjectStorage
from state.partition_stores import PartitionStores
from state.restore import CheckpointRestorer, OpenDatabase
from state.rocks_store import RocksMemory, RocksStore
from state.segments import HistoryConfig
from state.store_directory import StoreDirectory
from stream.compression_jobs import JobDispatcher
from stream.consumer import InteractionConsumer
from stream.dead_letters import DeadLetters
from stream.decode import Decoder
from stream.deletions import send_deletion, send_forget
from stream.ingest import Ingest
from stream.ownership import Owners, OwnershipAnnouncer
from stream.producer import Producer
from stream.topics import ensure_topics
from stream.watchdog import Watchdog

if TYPE_CHECKING:  # torch is imported by those roles that need it
    from model.bundle import Bundle
    from model.recommender import Recommender
    from services.catalogue_follower import CatalogueFollower

log = logging.getLogger(__name__)

STATE_SERVICE = "gemstream.v1.StateService"
ADMIN_SERVICE = "gemstream.v1.AdminService"
RECOMMENDER_SERVICE = "gemstream.v1.RecommenderService"
CATALOGUE_SERVICE = "gemstream.v1.CatalogueService"


async def run_state_node(settings: Settings, stop: asyncio.Event) -> None:
    """Role 1 of 4, until `stop`."""
    bootstrap = _bootstrap(settings)
    await unless_stopped(ensure_topics(bootstrap, settings.topics), stop)
    with claim(settings.data_dir):
        await _state_node(settings, bootstrap).run(stop)


async def run_compression_worker(settings: Settings, stop: asyncio.Event) -> None:
    """Role 2 of 4, until `stop`."""
    from model.bundle import load_bundle
    from model.compression import Compressor
    from stream.compression_app import CompressionApp, CompressionAppConfig

    bootstrap, config = _bootstrap(settings), settings.compression_worker
    _limit_threads(config.num_threads)
    bundle = load_bundle(settings.bundle)
    _check_history(bundle.history, settings)
    await unless_stopped(ensure_topics(bootstrap, settings.topics), stop)
    executor = ThreadPoolExecutor(1, thread_name_prefix="compressor")
    worker = CompressionWorker(
        Compressor(bundle),
        executor,
        config.concurrency,
        config.max_chunks,
        credentials=client_credentials(settings.tls),
    )
    app = CompressionApp(
        CompressionAppConfig(
            bootstrap=bootstrap,
            data_dir=settings.data_dir / "compression-worker",
            group=config.group,
            topic=settings.topics.compression_jobs,
            max_batch=config.max_batch,
            batch_within_s=config.batch_within_s,
        ),
        worker.compress,
    )
    metrics = Metrics(CompressionCollector(worker.counters, lambda: worker.jobs_in_hand))
    endpoints = watch_endpoints(
        config.metrics_listen,
        "compression_worker.metrics_listen",
        metrics,
        always_alive,
        lambda: app.is_running,
    )
    with endpoints:
        await unless_stopped(app.start(), stop)
        log.info("compressing with bundle %s", bundle.version)
        try:
            await _until_stopped_or_crashed(app, stop)
        finally:
            await worker.close()


async def run_inference_node(settings: Settings, stop: asyncio.Event) -> None:
    """Role 3 of 4, until `stop`."""
    from model.bundle import load_bundle
    from model.engine_choice import EngineChoice
    from model.recommender import Recommender
    from services.catalogue_service import CatalogueService

    config = settings.inference_node
    _limit_threads(config.num_threads)
    bundle = load_bundle(settings.bundle)
    _check_history(bundle.history, settings)
    users, follow_owners = _users(settings)
    server = _server(
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


async def run_trending(settings: Settings, stop: asyncio.Event) -> None:
    """Role 4 of 4, until `stop`."""
    from stream.trending_app import TrendingApp, TrendingAppConfig

    bootstrap, config, topics = _bootstrap(settings), settings.trending, settings.topics
    await unless_stopped(ensure_topics(bootstrap, topics), stop)
    app_config = TrendingAppConfig(
        bootstrap=bootstrap,
        data_dir=settings.data_dir / "trending",
        interactions=topics.interactions,
        counts=topics.trending_counts,
        trending=topics.trending,
    )
    app = TrendingApp(app_config, config, settings.decoder)
    endpoints = watch_endpoints(
        config.metrics_listen,
        "trending.metrics_listen",
        Metrics(TrendingCollector(app.counters, app.lag_records)),
        always_alive,
        lambda: app.is_running,
    )
    with endpoints:
        await unless_stopped(app.start(), stop)
        log.info("counting what trends")
        await _until_stopped_or_crashed(app, stop)


class _App(Protocol):
    """A Faust app of ours."""

    async def stop(self) -> None: ...
    async def wait(self) -> None: ...


async def _until_stopped_or_crashed(app: _App, stop: asyncio.Event) -> None:
    """Raises WorkerCrashed."""
    crashed, stopping = asyncio.create_task(app.wait()), asyncio.create_task(stop.wait())
    await asyncio.wait([crashed, stopping], return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    await app.stop()
    await crashed


ROLES = {
    "state-node": run_state_node,
    "compression-worker": run_compression_worker,
    "inference-node": run_inference_node,
    "trending": run_trending,
}


def _state_node(settings: Settings, bootstrap: str) -> StateNode:
    topics, config = settings.topics, settings.state_node
    restorer = checkpoint_restorer(settings) if settings.checkpoints.uri else None
    store_directory(settings).clean()
    intake = _backfill_intake(settings) if settings.backfills.uri else None
    stores = _stores(settings, restorer, intake)
    producer = Producer(bootstrap)
    consumer = _consumer(settings, bootstrap, stores)
    dispatcher = JobDispatcher(
        stores,
        producer,
        topics.compression_jobs,
        config.address,
        DeadLetters(producer, topics.compression_jobs, topics.dead_letters),
        settings.dispatch,
    )
    ingest = Ingest(
        consumer,
        Decoder(settings.decoder, topics.num_partitions),
        DeadLetters(producer, topics.interactions, topics.dead_letters),
        stores,
        dispatcher.wake,
    )
    server = _server(settings, "state-node", config.listen, [STATE_SERVICE, ADMIN_SERVICE])
    eraser = Eraser(stores, config.erase_interval_s)
    checkpoints = _checkpointer(settings, stores, consumer, restorer) if restorer else None
    checkpoint_log = checkpoints.log if checkpoints else CheckpointLog()
    watchdog = Watchdog(consumer.progress, consumer.ask_end_offsets, settings.liveness)
    collector = StateNodeCollector(
        counters=ingest.counters,
        polls=ingest.polls,
        phases=consumer.phases.all,
        progress=consumer.progress,
        verdict=watchdog.verdict,
        stores=stores,
        backlog=dispatcher.backlog,
        jobs=dispatcher.counters,
        checkpoint_created_at_ms=checkpoint_log.created_at_ms,
        checkpoint_failures=checkpoint_log.num_failures,
    )
    endpoints = watch_endpoints(
        config.metrics_listen,
        "state_node.metrics_listen",
        Metrics(collector, RequestCollector(server.requests)),
        watchdog.verdict,
        lambda: server.serving,
    )
    announcer = OwnershipAnnouncer(producer, topics.owners, config.address)
    node = StateNode(
        server=server,
        producer=producer,
        consumer=consumer,
        ingest=ingest,
        dispatcher=dispatcher,
        announcer=announcer,
        eraser=eraser,
        stores=stores,
        watchdog=watchdog,
        endpoints=endpoints,
        checkpoints=checkpoints,
        backfills=BackfillTaker(stores, intake, settings.backfills.interval_s, dispatcher.wake)
        if intake
        else None,
    )
    view = NodeView(
        stores,
        topics.num_partitions,
        consumer.phases.all,
        consumer.progress.of,
        ingest.counters,
        partial(send_deletion, producer, topics.interactions),
        partial(send_forget, producer, topics.interactions),
        checkpoints,
    )
    service = StateService(stores, topics.num_partitions, consumer.served, dispatcher)
    add_StateServiceServicer_to_server(service, server.server)
    add_AdminServiceServicer_to_server(AdminService(view), server.server)
    return node


def store_directory(settings: Settings) -> StoreDirectory:
    """Where a state node's databases lie."""
    return StoreDirectory(settings.data_dir / "state")


def database_opener(settings: Settings) -> OpenDatabase:
    """Opens databases that share one budget of memory."""
    memory = RocksMemory(settings.rocks)
    return lambda path: RocksStore(path, memory)


def checkpoint_repository(settings: Settings) -> CheckpointRepository:
    """Where checkpoints are kept. Raises SettingsError when none are, ConfigError for an address of no use."""
    if settings.checkpoints.uri is None:
        raise SettingsError(
            "no checkpoints are kept: set `uri` in [checkpoints] to a directory or to s3://bucket/prefix"
        )
    storage = ObjectStorage(settings.checkpoints.uri)
    return CheckpointRepository(storage, settings.topics.interactions)


def checkpoint_restorer(settings: Settings) -> CheckpointRestorer:
    """Brings checkpoints into a state node's directory. Raises as `checkpoint_repository` does."""
    return CheckpointRestorer(
        checkpoint_repository(settings),
        store_directory(settings),
        settings.history,
        database_opener(settings),
    )


def store_verification(settings: Settings, tell: Callable[[str], None]) -> StoreVerification:
    """Checks a stopped node's stores, and the checkpoints where some are kept."""
    return StoreVerification(
        checkpoint_restorer(settings) if settings.checkpoints.uri else None,
        store_directory(settings),
        settings.history,
        database_opener(settings),
        tell,
    )


def _checkpointer(
    settings: Settings,
    stores: PartitionStores,
    consumer: InteractionConsumer,
    restorer: CheckpointRestorer,
) -> Checkpointer:
    writer = CheckpointWriter(
        restorer.repository, restorer.directory, settings.history, settings.checkpoints
    )
    return Checkpointer(
        stores, writer, restorer, consumer.served, consumer.check_served, settings.checkpoints
    )


def backfill_repository(settings: Settings) -> BackfillRepository:
    """Where backfills lie. Raises SettingsError when nowhere, ConfigError for an address of no use."""
    if settings.backfills.uri is None:
        raise SettingsError(
            "there is no place for backfills: set `uri` in [backfills] to a directory or to s3://bucket/prefix that "
            "state nodes reach, too"
        )
    storage = ObjectStorage(settings.backfills.uri, "backfills")
    return BackfillRepository(storage, settings.topics.interactions)


def bundle_compressor(settings: Settings) -> Compressor:
    """What makes summaries of the bundle, one thread each. Raises SettingsError where its segments are others."""
    from model.bundle import load_bundle
    from model.compression import Compressor as BundleCompressor

    _limit_threads(1)
    bundle = load_bundle(settings.bundle)
    _check_history(bundle.history, settings)
    return BundleCompressor(bundle)


def _backfill_intake(settings: Settings) -> BackfillIntake:
    return BackfillIntake(
        backfill_repository(settings),
        store_directory(settings),
        settings.history,
        settings.topics.num_partitions,
        database_opener(settings),
    )


def _stores(
    settings: Settings, restorer: CheckpointRestorer | None, intake: BackfillIntake | None
) -> PartitionStores:
    """One database per partition, restored from a checkpoint first where that is newer; then come backfills."""
    directory, open_database = store_directory(settings), database_opener(settings)
    hooks: dict[str, Any] = {}
    if restorer is not None:
        hooks["before_open"] = restorer.before_open
    if intake is not None:
        hooks["after_open"] = intake.take_new
    return PartitionStores(
        lambda partition: open_database(directory.path(partition)),
        settings.history,
        settings.state_node.max_cached_users // settings.topics.num_partitions,
        **hooks,
    )


def _consumer(settings: Settings, bootstrap: str, stores: PartitionStores) -> InteractionConsumer:
    member_id = settings.consumer.member_id or node_identity(settings.data_dir)
    config = replace(settings.consumer, member_id=member_id)
    return InteractionConsumer(bootstrap, settings.topics.interactions, config, stores)


def _users(
    settings: Settings,
) -> tuple[StateClient | RoutedStateClient, Callable[[], Coroutine[None, None, None]] | None]:
    """Whom an inference node asks for states, and what keeps it informed: one node, or whoever owns the user."""
    config, topics = settings.inference_node, settings.topics
    credentials = client_credentials(settings.tls)
    if config.state_address is not None:
        return StateClient(config.state_address, config.state_timeout_s, credentials), None
    owners = Owners(_bootstrap(settings), topics)
    users = RoutedStateClient(
        owners.find, topics.num_partitions, config.state_timeout_s, credentials
    )
    return users, owners.run


def _server(settings: Settings, role: str, listen: str, names: Sequence[str]) -> GrpcServer:
    credentials = server_credentials(settings.tls, settings.admin)
    if credentials.token is None and PROTECTED_SERVICES & set(names) and not is_loopback(listen):
        log.warning(
            "whoever reaches %s may delete users: set `token_file` in [admin], or %s",
            listen,
            TOKEN_VARIABLE,
        )
    return GrpcServer(listen, names, credentials, start_tracing(settings.tracing, role))


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
        lambda start_offset: follow_items(_bootstrap(settings), settings.topics, start_offset),
        recommender.swap,
        settings.catalogue,
    )


def _bootstrap(settings: Settings) -> str:
    if settings.bootstrap is None:
        raise SettingsError(
            "no Kafka address: give --bootstrap or GEMSTREAM_KAFKA, or set `bootstrap` in the configuration"
        )
    return settings.bootstrap


def _limit_threads(num_threads: int) -> None:
    """Each role keeps to its share of the cores."""
    import torch

    torch.set_num_threads(num_threads)


def _check_history(trained: HistoryConfig, settings: Settings) -> None:
    """Segments must be cut in serving as they were in training."""
    served = settings.history
    for name in ("recent_len", "mid_term_len", "chunk_len"):
        if getattr(trained, name) != getattr(served, name):
            raise SettingsError(
                f"the bundle {settings.bundle} was trained with history.{name} = {getattr(trained, name)}, the "
                f"configuration says {getattr(served, name)}; set it to the bundle's, or train another bundle"
            )
