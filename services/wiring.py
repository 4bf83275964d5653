"""The only place that picks concrete classes: settings in, ready-made processes out."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

from protos.admin_pb2_grpc import add_AdminServiceServicer_to_server
from protos.recommender_pb2_grpc import add_RecommenderServiceServicer_to_server
from protos.state_pb2_grpc import add_StateServiceServicer_to_server
from services.admin_service import AdminService, NodeView
from services.checkpointer import Checkpointer, CheckpointLog
from services.clients import RoutedStateClient, StateClient
from services.compression_worker import CompressionWorker
from services.errors import SettingsError
from services.generation import Generator
from services.grpc_server import GrpcServer
from services.inference_node import InferenceNode
from services.metrics import CompressionCollector, Metrics, RequestCollector, StateNodeCollector
from services.node_identity import claim, node_identity
from services.recommender_service import RecommenderService
from services.settings import Settings
from services.state_node import Eraser, StateNode
from services.state_service import StateService
from services.stopping import unless_stopped
from services.store_verification import StoreVerification
from services.watch_endpoints import always_alive, watch_endpoints
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

log = logging.getLogger(__name__)

STATE_SERVICE = "gemstream.v1.StateService"
ADMIN_SERVICE = "gemstream.v1.AdminService"
RECOMMENDER_SERVICE = "gemstream.v1.RecommenderService"


async def run_state_node(settings: Settings, stop: asyncio.Event) -> None:
    """Role 1 of 3, until `stop`."""
    bootstrap = _bootstrap(settings)
    await unless_stopped(ensure_topics(bootstrap, settings.topics), stop)
    with claim(settings.data_dir):
        await _state_node(settings, bootstrap).run(stop)


async def run_compression_worker(settings: Settings, stop: asyncio.Event) -> None:
    """Role 2 of 3, until `stop`."""
    from model.bundle import load_bundle
    from model.compression import Compressor
    from stream.compression_app import CompressionApp, CompressionAppConfig

    bootstrap, config = _bootstrap(settings), settings.compression_worker
    _limit_threads(config.num_threads)
    bundle = load_bundle(settings.bundle)
    _check_history(bundle.history, settings)
    await unless_stopped(ensure_topics(bootstrap, settings.topics), stop)
    executor = ThreadPoolExecutor(1, thread_name_prefix="compressor")
    worker = CompressionWorker(Compressor(bundle), executor, config.concurrency, config.max_chunks)
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
        crashed, stopping = asyncio.create_task(app.wait()), asyncio.create_task(stop.wait())
        await asyncio.wait([crashed, stopping], return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        await app.stop()
        await worker.close()
        await crashed


async def run_inference_node(settings: Settings, stop: asyncio.Event) -> None:
    """Role 3 of 3, until `stop`."""
    from model.bundle import load_bundle
    from model.recommender import Recommender

    config = settings.inference_node
    _limit_threads(config.num_threads)
    bundle = load_bundle(settings.bundle)
    _check_history(bundle.history, settings)
    users, follow_owners = _users(settings)
    server = GrpcServer(config.listen, [RECOMMENDER_SERVICE])
    recommender = Recommender(
        bundle,
        config.beam_width,
        max_per_first_code=config.max_per_first_code,
        exact=config.exact_search,
    )
    generator = Generator(recommender, users, ThreadPoolExecutor(1, thread_name_prefix="network"))
    add_RecommenderServiceServicer_to_server(RecommenderService(generator), server.server)
    log.info("recommending with bundle %s", bundle.version)
    endpoints = watch_endpoints(
        config.metrics_listen,
        "inference_node.metrics_listen",
        Metrics(RequestCollector(server.requests)),
        always_alive,
        lambda: server.serving,
    )
    await InferenceNode(server, users, endpoints, follow_owners).run(stop)


ROLES = {
    "state-node": run_state_node,
    "compression-worker": run_compression_worker,
    "inference-node": run_inference_node,
}


def _state_node(settings: Settings, bootstrap: str) -> StateNode:
    topics, config = settings.topics, settings.state_node
    restorer = checkpoint_restorer(settings) if settings.checkpoints.uri else None
    store_directory(settings).clean()
    stores = _stores(settings, restorer)
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
    server = GrpcServer(config.listen, [STATE_SERVICE, ADMIN_SERVICE])
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
        dispatcher.backlog,
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


def _stores(settings: Settings, restorer: CheckpointRestorer | None) -> PartitionStores:
    """One database per partition, restored from a checkpoint first where that is newer."""
    directory, open_database = store_directory(settings), database_opener(settings)
    hooks = {} if restorer is None else {"before_open": restorer.before_open}
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
    if config.state_address is not None:
        return StateClient(config.state_address, config.state_timeout_s), None
    owners = Owners(_bootstrap(settings), topics)
    users = RoutedStateClient(owners.find, topics.num_partitions, config.state_timeout_s)
    return users, owners.run


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
