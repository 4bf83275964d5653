"""The follower without a broker: what it does when the topic cannot be read, and when a build fails."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from model.bundle import load_bundle
from model.catalogue_view import CatalogueView
from model.live_catalogue import Batch, Built, LiveCatalogue
from protos.item_pb2 import CatalogueEntry, Item
from services.catalogue_config import CatalogueConfig
from services.catalogue_follower import CatalogueFollower
from stream.errors import BrokerUnavailable
from stream.item_records import ItemBatch, item_key, parse_item_record

NEW = 1_000_000


class Topic:
    """What a broker would say; `is_away` makes it raise."""

    def __init__(self) -> None:
        self.records: list[tuple[bytes, bytes | None]] = []
        self.is_away = False
        self.starts: list[int] = []

    def offer(self, item_id: int) -> None:
        entry = CatalogueEntry(item=Item(item_id=item_id), seen_with=[1, 2])
        self.records.append((item_key(item_id), entry.SerializeToString()))

    async def read(self, start_offset: int) -> AsyncIterator[ItemBatch]:
        self.starts.append(start_offset)
        offset = start_offset
        while True:
            if self.is_away:
                raise BrokerUnavailable("gone")
            new = [
                parse_item_record(key, value, offset + n, 5)
                for n, (key, value) in enumerate(self.records[offset:])
            ]
            offset += len(new)
            yield ItemBatch(new, offset, True)
            await asyncio.sleep(0.01)


@pytest.fixture
def live(bundle_path: Path) -> LiveCatalogue:
    return LiveCatalogue(load_bundle(bundle_path))


@contextlib.asynccontextmanager
async def following(
    live: LiveCatalogue, topic: Topic, start_timeout_s: float = 30.0
) -> AsyncIterator[tuple[CatalogueFollower, list[CatalogueView]]]:
    views: list[CatalogueView] = []
    config = CatalogueConfig(refresh_interval_s=0.01, start_timeout_s=start_timeout_s)
    follower = CatalogueFollower(live, topic.read, views.append, config)
    running = asyncio.create_task(follower.run())
    try:
        yield follower, views
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.01)  # between two looks


async def test_a_broker_that_is_away_holds_a_start_up_for_so_long_and_is_followed_on_from_there(
    live: LiveCatalogue, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.catalogue_follower._FOLLOW_AGAIN_AFTER_S", 0.01)
    topic = Topic()
    topic.is_away = True
    topic.offer(NEW)
    async with following(live, topic, start_timeout_s=0.2) as (follower, views):
        await follower.wait_until_caught_up()
        assert not follower.is_caught_up
        assert "not read to its end" in caplog.text
        topic.is_away = False
        await until(lambda: follower.is_caught_up)
        assert follower.is_following
        assert follower.version.next_offset == 1
        topic.is_away = True
        await until(lambda: not follower.is_following)
        topic.offer(NEW + 1)
        topic.is_away = False
        await until(lambda: follower.version.next_offset == 2)
    assert topic.starts[-1] == 1
    assert NEW + 1 in views[-1].catalogue.item_ids


async def test_a_build_that_fails_is_tried_again(
    live: LiveCatalogue, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.CRITICAL)
    build, failures = live.build, iter([True, True])

    def sometimes(batch: Batch) -> Built:
        if next(failures, False):
            raise RuntimeError("no memory")
        return build(batch)

    monkeypatch.setattr(live, "build", sometimes)
    topic = Topic()
    topic.offer(NEW)
    async with following(live, topic) as (follower, _):
        await follower.wait_until_caught_up()
        topic.offer(NEW + 1)
        await until(lambda: follower.version.next_offset == 2)
        assert not live.pending
    assert {NEW, NEW + 1} <= set(live.view.catalogue.item_ids.tolist())
