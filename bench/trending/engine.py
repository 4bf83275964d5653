"""The role that counts what trends, in the process of a bench."""

import asyncio
from typing import Any

from bench.ingest.job import Job
from bench.ingest.log import START_MS
from bench.ingest.stopwatch import Stopwatch
from stream.decode import DecoderConfig
from stream.trending_app import TrendingApp, TrendingAppConfig
from stream.trending_counts import TrendingConfig

_LOOK_EVERY_S = 0.01


def count(job: Job) -> dict[str, Any]:
    """From the first event until all are counted and in the changelog; the clock stands where the log ends."""

    async def run() -> dict[str, Any]:
        config = TrendingAppConfig(
            bootstrap=job.bootstrap,
            data_dir=job.directory,
            interactions=job.topics.interactions,
            counts=job.topics.trending_counts,
            trending=job.topics.trending,
        )
        end_ms = START_MS + job.num_events
        app = TrendingApp(config, TrendingConfig(group=job.group), DecoderConfig(), lambda: end_ms)
        await app.start()
        while not app.counters["events"]:
            await asyncio.sleep(_LOOK_EVERY_S)
        watch, first = Stopwatch(), app.counters["events"]
        while app.counters["events"] < job.num_events:
            await asyncio.sleep(_LOOK_EVERY_S)
        outcome = watch.read()
        await app.stop()
        return {**outcome, "counted": job.num_events - first}

    return asyncio.run(run())
