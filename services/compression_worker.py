"""The compression worker's job: pull what the boundary left behind, compress it, hand the summary back."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Executor
from typing import Protocol

from model.errors import ModelError
from protos.compression_pb2 import CompressionJob
from services.clients import StateClients
from services.credentials import ClientCredentials
from services.errors import NotFound, ServiceError, TimedOut, Unreachable
from state.chunk_codec import decode_rows
from state.errors import StateError
from state.interaction import Rows
from state.summary import Summary

log = logging.getLogger(__name__)


class Compressor(Protocol):
    """What compresses; model.compression.Compressor is one."""

    bundle_version: str

    def roll(
        self, base: Summary | None, chunks: Sequence[Rows], end_boundary: int, now_ms: int
    ) -> Summary:
        """`base` and the chunks that follow it, as one summary up to `end_boundary`."""
        ...


class CompressionWorker:
    """Works through batches of jobs, several users at a time."""

    def __init__(
        self,
        compressor: Compressor,
        executor: Executor,
        concurrency: int,
        max_chunks: int,
        call_timeout_s: float = 10.0,
        credentials: ClientCredentials | None = None,
    ) -> None:
        """`executor` runs the network; `max_chunks` bounds what one pull brings, `call_timeout_s` a call's time."""
        self._compressor = compressor
        self._executor = executor
        self._max_chunks = max_chunks
        self._slots = asyncio.Semaphore(concurrency)
        self._owners = StateClients(call_timeout_s, credentials or ClientCredentials())
        self.counters: Counter[str] = Counter()
        self.jobs_in_hand = 0

    async def close(self) -> None:
        """Close the connections to owners."""
        await self._owners.close()

    async def compress(self, jobs: Sequence[CompressionJob]) -> None:
        """Bring every job's user up to its boundary. Of one that fails its owner is told; the others go on."""
        self.jobs_in_hand += len(jobs)
        silent: set[str] = set()
        try:
            await asyncio.gather(*(self._compress_or_report(job, silent) for job in jobs))
        finally:
            self.jobs_in_hand -= len(jobs)

    async def _compress_or_report(self, job: CompressionJob, silent: set[str]) -> None:
        """`silent` collects the owners that let a call of this batch time out: one wait for each is enough."""
        async with self._slots:
            if job.owner_address in silent:
                self.counters["unreachable"] += 1
                return
            try:
                await self._compress_user(job)
            except NotFound:
                log.info("user %r is gone; nothing to compress", job.user_id)
            except Unreachable as error:
                if isinstance(error, TimedOut):
                    silent.add(job.owner_address)
                self.counters["unreachable"] += 1
                log.warning("user %r not compressed, its owner asks again: %s", job.user_id, error)
            except Exception as error:
                await self._report(job, error)

    async def _report(self, job: CompressionJob, error: Exception) -> None:
        """A fault of ours is no reason to lose the other users, nor to try this one for ever."""
        self.counters["failed"] += 1
        ours = isinstance(error, (ModelError, ServiceError, StateError))
        log.warning("user %r not compressed: %s", job.user_id, error, exc_info=not ours)
        try:
            owner = self._owners.at(job.owner_address)
            reason = f"{type(error).__name__}: {error}"
            await owner.report_failure(job.user_id, self._compressor.bundle_version, reason)
        except ServiceError as unheard:
            log.warning("its owner has not heard of it: %s", unheard)

    async def _compress_user(self, job: CompressionJob) -> None:
        owner = self._owners.at(job.owner_address)
        version = self._compressor.bundle_version
        complete = False
        while not complete:
            rolled = await owner.read_rolled(job.user_id, version, self._max_chunks)
            if not rolled.chunks:
                return
            chunks = [decode_rows(chunk) for chunk in rolled.chunks]
            summary = await asyncio.get_running_loop().run_in_executor(
                self._executor,
                self._compressor.roll,
                rolled.summary,
                chunks,
                rolled.end_boundary,
                time.time_ns() // 1_000_000,
            )
            stored, complete = await owner.put_summary(
                job.user_id, summary, rolled.base_boundary, rolled.epoch
            )
            self.counters["stored" if stored else "stale"] += 1
            self.counters["chunks"] += len(chunks)
            if not stored:
                return
