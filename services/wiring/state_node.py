"""Role 1 of 4: the state node."""

import asyncio
import logging
from dataclasses import replace
from functools import partial
from typing import Any

from protos.admin_pb2_grpc import add_AdminServiceServicer_to_server
from protos.rollout_pb2_grpc import add_RolloutServiceServicer_to_server
from protos.state_pb2_grpc import add_StateServiceServicer_to_server
from services.admin_service import AdminService, NodeView
from services.backfill_taker import BackfillTaker
from services.checkpointer import Checkpointer, CheckpointLog
from services.metrics.exposition import Metrics
from services.metrics.rollouts import RolloutCollector
from services.metrics.serving import RequestCollector
from services.metrics.state_node import StateNodeCollector
from services.node_identity import claim, node_identity
from services.rollout import Rollouts
from services.rollout_service import RolloutService
from services.settings import Settings
from services.state_node import Eraser, StateNode
from services.state_service import StateService
from services.stopping import unless_stopped
from services.watch_endpoints import watch_endpoints
from services.wiring.parts import bootstrap_of, make_server
from services.wiring.stores import (
    backfill_intake,
    checkpoint_restorer,
    database_opener,
    store_directory,
)
from state.backfill_batch import Taken
from state.backfill_intake import BackfillIntake
from state.checkpoints import CheckpointWriter
from state.partition_stores import PartitionStores
from state.restore import CheckpointRestorer
from stream.compression_jobs import JobDispatcher
from stream.consumer import InteractionConsumer
from stream.dead_letters import DeadLetters
from stream.decode import Decoder
from stream.deletions import send_deletion, send_forget
from stream.ingest import Ingest
from stream.ownership import OwnershipAnnouncer
from stream.producer import Producer
from stream.topics import ensure_topics
from stream.watchdog import Watchdog

log = logging.getLogger(__name__)

STATE_SERVICE = "gemstream.v1.StateService"
ADMIN_SERVICE = "gemstream.v1.AdminService"
ROLLOUT_SERVICE = "gemstream.v1.RolloutService"


async def run_state_node(settings: Settings, stop: asyncio.Event) -> None:
    """Role 1 of 4, until `stop`."""
    bootstrap = bootstrap_of(settings)
    await unless_stopped(ensure_topics(bootstrap, settings.topics), stop)
    with claim(settings.data_dir):
        await _state_node(settings, bootstrap).run(stop)


def _state_node(settings: Settings, bootstrap: str) -> StateNode:
    topics, config = settings.topics, settings.state_node
    restorer = checkpoint_restorer(settings) if settings.checkpoints.uri else None
    store_directory(settings).clean()
    intake = backfill_intake(settings) if settings.backfills.uri else None
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
    names = [STATE_SERVICE, ADMIN_SERVICE, ROLLOUT_SERVICE]
    server = make_server(settings, "state-node", config.listen, names)
    eraser = Eraser(stores, config.erase_interval_s)
    checkpoints = _checkpointer(settings, stores, consumer, restorer) if restorer else None
    copying = [checkpoints.hasten] if checkpoints else []
    rollouts = Rollouts(stores, consumer.served, dispatcher.wake, *copying)
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
        backfills=intake.taken if intake else Taken(),
    )
    endpoints = watch_endpoints(
        config.metrics_listen,
        "state_node.metrics_listen",
        Metrics(collector, RolloutCollector(stores), RequestCollector(server.requests)),
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
        rollouts=rollouts,
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
        dispatcher.backlog,
    )
    service = StateService(stores, topics.num_partitions, consumer.served, dispatcher)
    add_StateServiceServicer_to_server(service, server.server)
    add_AdminServiceServicer_to_server(AdminService(view), server.server)
    add_RolloutServiceServicer_to_server(RolloutService(rollouts, stores), server.server)
    return node


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
