"""Roles 2 and 4 of 4: the compression worker, and the process that counts what trends."""

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor

from services.compression_worker import CompressionWorker, Compressor
from services.credentials import client_credentials
from services.metrics.exposition import Metrics
from services.metrics.workers import CompressionCollector, TrendingCollector
from services.settings import Settings
from services.stopping import unless_stopped
from services.watch_endpoints import always_alive, watch_endpoints
from services.wiring.parts import (
    bootstrap_of,
    check_history,
    limit_threads,
    until_stopped_or_crashed,
)
from stream.topics import ensure_topics

log = logging.getLogger(__name__)


async def run_compression_worker(settings: Settings, stop: asyncio.Event) -> None:
    """Role 2 of 4, until `stop`."""
    from model.bundle import load_bundle
    from model.compression import Compressor
    from stream.compression_app import CompressionApp, CompressionAppConfig

    bootstrap, config = bootstrap_of(settings), settings.compression_worker
    limit_threads(config.num_threads)
    bundle = load_bundle(settings.bundle)
    check_history(bundle, settings)
    await unless_stopped(ensure_topics(bootstrap, settings.topics), stop)
    executor = ThreadPoolExecutor(1, thread_name_prefix="compressor")
    worker = CompressionWorker(
        Compressor(bundle),
        executor,
        config.concurrency,
        config.max_chunks,
        credentials=client_credentials(settings.tls),
    )
    name = "compression-worker-candidate" if config.only_rollout else "compression-worker"
    app = CompressionApp(
        CompressionAppConfig(
            bootstrap=bootstrap,
            data_dir=settings.data_dir / name,
            group=config.group,
            topic=settings.topics.compression_jobs,
            max_batch=config.max_batch,
            batch_within_s=config.batch_within_s,
            bundle_version=bundle.version,
            only_rollout=config.only_rollout,
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
            await until_stopped_or_crashed(app, stop)
        finally:
            await worker.close()


async def run_trending(settings: Settings, stop: asyncio.Event) -> None:
    """Role 4 of 4, until `stop`."""
    from stream.trending_app import TrendingApp, TrendingAppConfig

    bootstrap, config, topics = bootstrap_of(settings), settings.trending, settings.topics
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
        await until_stopped_or_crashed(app, stop)


def bundle_compressor(settings: Settings) -> Compressor:
    """What makes summaries of the bundle, one thread each. Raises SettingsError where its segments are others."""
    from model.bundle import load_bundle
    from model.compression import Compressor as BundleCompressor

    limit_threads(1)
    bundle = load_bundle(settings.bundle)
    check_history(bundle, settings)
    return BundleCompressor(bundle)
