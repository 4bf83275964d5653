"""The compression app on a real broker: rubbish, duplicates, failing work and restarts."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient

from protos.compression_pb2 import CompressionJob
from services.local_kafka import RunningKafka
from state.errors import ConfigError
from stream.compression_app import Compress, CompressionApp, CompressionAppConfig
from stream.errors import BrokerUnavailable, StreamError, WorkerCrashed
from stream.topics import TopicsConfig, ensure_topics

pytestmark = pytest.mark.broker
WITHIN_S = 30.0


@pytest.fixture
def config(kafka: RunningKafka, topics: TopicsConfig, tmp_path: Path) -> CompressionAppConfig:
    return CompressionAppConfig(
        bootstrap=kafka.bootstrap,
        data_dir=tmp_path / "not" / "there" / "yet",
        group=f"group-{topics.compression_jobs}",
        topic=topics.compression_jobs,
        batch_within_s=0.05,
    )


class Seen:
    """What the coroutine was given; `until` waits for a condition on it."""

    def __init__(self, fail: Callable[[Sequence[CompressionJob]], bool] = lambda _: False) -> None:
        self.batches: list[list[CompressionJob]] = []
        self._fail = fail
        self._changed = asyncio.Condition()

    async def compress(self, jobs: Sequence[CompressionJob]) -> None:
        async with self._changed:
            self.batches.append(list(jobs))
            self._changed.notify_all()
        if self._fail(jobs):
            raise RuntimeError("compressor on fire")

    @property
    def boundaries(self) -> dict[str, int]:
        return {job.user_id: job.lifecycle_boundary for batch in self.batches for job in batch}

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(WITHIN_S), self._changed:
            await self._changed.wait_for(condition)


@asynccontextmanager
async def running(config: CompressionAppConfig, compress: Compress) -> AsyncIterator[None]:
    app = CompressionApp(config, compress)
    await app.start()
    try:
        yield
    finally:
        await app.stop()
        await app.wait()


def job(user: int, boundary: int) -> tuple[bytes, bytes]:
    user_id = f"user-{user}"
    message = CompressionJob(user_id=user_id, lifecycle_boundary=boundary, owner_address="o:1")
    return user_id.encode(), message.SerializeToString()


async def produce(
    config: CompressionAppConfig, records: Sequence[tuple[bytes | None, bytes | None]]
) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=config.bootstrap)
    await producer.start()
    try:
        for key, value in records:
            await producer.send(config.topic, value, key=key)
        await producer.flush()
    finally:
        await producer.stop()


async def test_rubbish_is_skipped_and_duplicates_become_the_newest(
    config: CompressionAppConfig, caplog: pytest.LogCaptureFixture
) -> None:
    records: list[tuple[bytes | None, bytes | None]] = []
    for n in range(100):
        records.append(job(n % 40, n))
        if n % 10 == 0:
            records += [(b"user-1", None), (b"user-2", b"\xff rubbish"), (None, b"")]
    await produce(config, records)
    newest = {f"user-{n % 40}": n for n in range(100)}
    seen = Seen()
    with caplog.at_level(logging.WARNING, "stream.compression_app"):
        async with running(config, seen.compress):
            await seen.until(lambda: seen.boundaries == newest)
    for batch in seen.batches:
        users = [each.user_id for each in batch]
        assert len(users) == len(set(users)) <= config.max_batch
    assert sum(map(len, seen.batches)) < 100
    skipped = [line for line in caplog.messages if line.startswith("skipped the record at")]
    assert len(skipped) == 30
    assert f"{config.topic}, partition " in skipped[0]


async def test_failing_work_stops_nothing(
    config: CompressionAppConfig, caplog: pytest.LogCaptureFixture
) -> None:
    seen = Seen(fail=lambda jobs: any(each.user_id == "user-0" for each in jobs))
    async with running(config, seen.compress):
        await produce(config, [job(0, 1)])
        await seen.until(lambda: "user-0" in seen.boundaries)
        await produce(config, [job(1, 1)])
        await seen.until(lambda: "user-1" in seen.boundaries)
    assert "compressor on fire" in caplog.text


async def test_a_restart_goes_on_where_it_stopped(config: CompressionAppConfig) -> None:
    before, after = Seen(), Seen()
    async with running(config, before.compress):
        await produce(config, [job(n, 1) for n in range(20)])
        await before.until(lambda: len(before.boundaries) == 20)
    await produce(config, [job(n, 2) for n in range(20, 40)])
    async with running(config, after.compress):
        await after.until(lambda: len(after.boundaries) == 20)
    assert set(after.boundaries) == {f"user-{n}" for n in range(20, 40)}


async def test_stop_lets_the_batch_at_hand_finish(config: CompressionAppConfig) -> None:
    began, may_finish, finished = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def compress(jobs: Sequence[CompressionJob]) -> None:
        began.set()
        await may_finish.wait()
        finished.set()

    async with running(config, compress):
        await produce(config, [job(0, 1)])
        await asyncio.wait_for(began.wait(), WITHIN_S)
        asyncio.get_running_loop().call_later(0.2, may_finish.set)
    assert finished.is_set()


async def test_a_crash_of_faust_is_told(config: CompressionAppConfig) -> None:
    app = CompressionApp(config, Seen().compress)
    await app.start()
    try:
        waiting = asyncio.create_task(app.wait())
        assert app._app is not None
        await app._app.crash(ValueError("boom"))
        with pytest.raises(WorkerCrashed, match="boom"):
            await asyncio.wait_for(waiting, WITHIN_S)
    finally:
        await app.stop()


async def test_a_missing_topic_is_named(config: CompressionAppConfig, tmp_path: Path) -> None:
    absent = CompressionAppConfig(bootstrap=config.bootstrap, data_dir=tmp_path, topic="absent")
    with pytest.raises(StreamError, match="'absent' does not exist"):
        await CompressionApp(absent, Seen().compress).start()


async def test_a_topic_that_the_groups_leader_did_not_see_is_found(
    config: CompressionAppConfig, topics: TopicsConfig
) -> None:
    """As after a restart of the broker, which names its topics a moment too late."""
    seen = Seen()
    app = CompressionApp(config, seen.compress)
    await app.start()
    try:
        await produce(config, [job(0, 1)])
        await seen.until(lambda: "user-0" in seen.boundaries)
        admin = AIOKafkaAdminClient(bootstrap_servers=config.bootstrap)
        await admin.start()
        await admin.delete_topics([config.topic])
        await admin.close()
        assert app._app is not None
        async with asyncio.timeout(WITHIN_S):
            while app._app.consumer.assignment():
                await asyncio.sleep(0.05)  # between two looks
        await ensure_topics(config.bootstrap, topics)
        await produce(config, [job(1, 1)])
        await seen.until(lambda: "user-1" in seen.boundaries)
    finally:
        await app.stop()


async def test_nobody_answers(tmp_path: Path, unused_tcp_port: int) -> None:
    nobody = CompressionAppConfig(bootstrap=f"127.0.0.1:{unused_tcp_port}", data_dir=tmp_path)
    app = CompressionApp(nobody, Seen().compress)
    with pytest.raises(BrokerUnavailable):
        await app.start()
    await app.stop()


@pytest.mark.parametrize("wrong", [{"group": ""}, {"max_batch": 0}, {"batch_within_s": 0.0}])
def test_settings_out_of_range(wrong: dict[str, object], tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        CompressionAppConfig(bootstrap="b:1", data_dir=tmp_path, **wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("named", "only_rollout", "taken"),
    [
        ("", False, True),
        ("", True, False),
        ("v2", True, True),
        ("v2", False, True),
        ("v3", False, False),
    ],
)
def test_jobs_go_to_the_workers_of_their_bundle(
    named: str, only_rollout: bool, taken: bool, tmp_path: Path
) -> None:
    config = CompressionAppConfig(
        bootstrap="b:1", data_dir=tmp_path, bundle_version="v2", only_rollout=only_rollout
    )
    assert config.takes(CompressionJob(user_id="ann", bundle_version=named)) is taken
