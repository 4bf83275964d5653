"""Two bundles on one inference node: real gRPC, real bundles, real Kafka for the catalogue."""

import asyncio
import contextlib
import gc
import weakref
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import grpc.aio
import pytest
from rich.progress import Progress

from model.bundle import Bundle, load_bundle
from model.engine_config import EngineConfig
from model.training.train import train
from protos import recommender_pb2, recommender_pb2_grpc
from protos.item_pb2 import CatalogueEntry, Item
from services.candidate_config import CandidateConfig
from services.catalogue_config import CatalogueConfig
from services.local_kafka import RunningKafka
from services.settings import InferenceNodeConfig, Settings
from services.traffic_split import Role, role_of
from stream.topics import TopicsConfig
from tests.end_to_end.processes import free_address
from tests.model.worlds import SMALL, make_event_log
from tests.services.calls import Done, call
from tests.services.exposed_samples import parse
from tests.services.nodes import FakeOwner
from tests.services.test_http_server import get
from tests.services.test_live_catalogue_node import NEW, Node, entry

pytestmark = pytest.mark.broker

USERS = [f"user-{number}" for number in range(12)]


@pytest.fixture(scope="session")
def next_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another bundle, of the same segments."""
    path = tmp_path_factory.mktemp("bundles") / "next"
    train(make_event_log(), None, replace(SMALL, max_steps=3, seed=5), path, Progress(disable=True))
    return path


@pytest.fixture(scope="session")
def wide_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of other segments."""
    history = replace(SMALL.history, recent_len=12)
    config = replace(SMALL, max_steps=3, history=history)
    path = tmp_path_factory.mktemp("bundles") / "wide"
    train(make_event_log(), None, config, path, Progress(disable=True))
    return path


@pytest.fixture
async def node(
    kafka: RunningKafka, topics: TopicsConfig, bundle_path: Path, tmp_path: Path
) -> AsyncIterator["Node"]:
    owner = FakeOwner()
    for user in USERS:
        owner.add(user, 30)
    async with owner.serving() as state_address:
        settings = Settings(
            bootstrap=kafka.bootstrap,
            topics=topics,
            bundle=bundle_path,
            history=load_bundle(bundle_path).history,
            catalogue=CatalogueConfig(refresh_interval_s=0.1),
            inference_node=InferenceNodeConfig(
                listen=free_address(),
                state_address=state_address,
                metrics_listen=free_address(),
                num_threads=1,
                state_timeout_s=5.0,
                engine=EngineConfig(name="torch", precision="fp32"),
            ),
        )
        yield Node(settings, tmp_path)


async def bundle(node: Node, *arguments: str) -> Done:
    """`gemstream bundle ARGUMENTS --json`."""
    command = ["bundle", *arguments, "--config", str(node.config), "--json"]
    return await asyncio.to_thread(call, *command)


async def served(node: Node, *arguments: str) -> Any:
    """What is served after a command."""
    done = await bundle(node, *arguments)
    assert done.code == 0, done.stderr
    return done.document()[node.address]


@contextlib.asynccontextmanager
async def asking(node: Node) -> AsyncIterator[Any]:
    async with grpc.aio.insecure_channel(node.address) as channel:
        yield recommender_pb2_grpc.RecommenderServiceStub(channel).Recommend


def request(user: str) -> recommender_pb2.RecommendRequest:
    return recommender_pb2.RecommendRequest(user_id=user, k=5)


async def versions(node: Node) -> dict[str, str]:
    """Which version answers each user."""
    async with asking(node) as ask:
        replies = [await ask(request(user), timeout=10) for user in USERS]
    return {user: reply.bundle_version for user, reply in zip(USERS, replies, strict=True)}


def expected(share: float, primary: str, candidate: str) -> dict[str, str]:
    of_role = {Role.PRIMARY: primary, Role.CANDIDATE: candidate}
    return {user: of_role[role_of(user, share)] for user in USERS}


async def test_bundles_change_under_load_without_a_failed_request(
    node: Node, bundle_path: Path, next_path: Path
) -> None:
    old, new = load_bundle(bundle_path).version, load_bundle(next_path).version
    done, answers = asyncio.Event(), dict.fromkeys((old, new), 0)

    async def ask_on(user: str) -> None:
        async with asking(node) as ask:
            while not done.is_set():
                reply = await ask(request(user), timeout=10)
                assert len(reply.items) == 5
                assert reply.source == recommender_pb2.SOURCE_PERSONAL
                answers[reply.bundle_version] += 1

    async with node.running():
        async with asyncio.TaskGroup() as group:
            for user in USERS[:6]:
                group.create_task(ask_on(user))
            for path in (next_path, bundle_path):
                await served(node, "load", str(path), "--share", "0.5")
                before = sum(answers.values())
                while sum(answers.values()) < before + 20:
                    await asyncio.sleep(0.01)  # between two looks
                await served(node, "promote")
            done.set()
        now = await served(node, "status")
    assert min(answers.values()) > 10
    assert now["primary"]["bundle_version"] == old
    assert "candidate" not in now
    assert now["as_configured"]


async def test_users_are_split_and_the_share_grows_until_the_candidate_is_promoted(
    node: Node, bundle_path: Path, next_path: Path
) -> None:
    old, new = load_bundle(bundle_path).version, load_bundle(next_path).version
    async with node.running():
        now = await served(node, "load", str(next_path))
        assert (now["candidate"]["bundle_version"], now["candidate"]["share"]) == (new, 0.0)
        assert not now["as_configured"]
        assert await versions(node) == dict.fromkeys(USERS, old)
        for share in (0.3, 0.7):
            await served(node, "share", str(share))
            assert await versions(node) == expected(share, old, new)
        again = await served(node, "load", str(next_path), "--share", "0.3")
        assert again["candidate"]["share"] == 0.3
        assert await versions(node) == expected(0.3, old, new)
        text = (
            await asyncio.to_thread(get, node.settings.inference_node.metrics_listen, "/metrics")
        )[1]
        samples = parse(text)
        assert samples["gemstream_bundle_info", "candidate", new] == 1
        asked = [expected(share, old, new) for share in (0.0, 0.3, 0.7, 0.3)]
        of_new = sum(list(each.values()).count(new) for each in asked)
        assert samples["gemstream_bundle_answers_total", "candidate", "OK"] == of_new
        assert (
            samples["gemstream_bundle_degraded_answers_total", "candidate", "summary_missing"]
            == of_new
        )
        assert (
            samples["gemstream_bundle_answer_seconds_count", "primary"] == 4 * len(USERS) - of_new
        )
        assert samples["gemstream_generation_requests_total", "candidate"] == of_new
        assert (await served(node, "promote", "--version", new))["primary"]["share"] == 1.0
        assert await versions(node) == dict.fromkeys(USERS, new)


async def test_what_cannot_be_served_is_refused_and_changes_nothing(
    node: Node, bundle_path: Path, next_path: Path, wide_path: Path, tmp_path: Path
) -> None:
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    for file in next_path.iterdir():
        (damaged / file.name).write_bytes(file.read_bytes())
    with (damaged / "network.safetensors").open("r+b") as weights:
        weights.seek(200)
        weights.write(b"rubbish")
    async with node.running():
        before = await served(node, "status")
        for arguments, reason in [
            (["load", str(tmp_path / "nowhere")], "not a bundle"),
            (["load", str(damaged)], "sha256"),
            (["load", str(wide_path)], "history.recent_len = 12"),
            (["load", str(bundle_path)], "the primary already"),
            (["promote"], "no candidate"),
            (["unload"], "no candidate"),
            (["share", "0.5"], "no candidate"),
        ]:
            done = await bundle(node, *arguments)
            assert done.code == 1
            assert reason in done.stderr
        assert await served(node, "status") == before
        await served(node, "load", str(next_path), "--share", "1")
        done = await bundle(node, "promote", "--version", "another")
        assert (done.code, "not another" in done.stderr) == (1, True)
        await node.send(entry(NEW))
        await node.until(lambda items: NEW in items)
        await served(node, "share", "0")
        await node.until(lambda items: NEW in items)
        await node.cli("rollback")
        done = await bundle(node, "promote")
        assert (done.code, "held after a rollback" in done.stderr) == (1, True)


async def test_the_catalogue_is_live_for_both_and_whole_before_a_candidate_answers(
    node: Node, next_path: Path
) -> None:
    async with node.running():
        await node.send(entry(NEW))
        await node.remove(1)
        await node.until(lambda items: NEW in items and 1 not in items)
        await served(node, "load", str(next_path), "--share", "1")
        items = await node.recommended()
        assert NEW in items
        assert 1 not in items
        await node.send(CatalogueEntry(item=Item(item_id=NEW + 1), seen_with=[2, 3]))
        await node.until(lambda items: NEW + 1 in items)
        await served(node, "share", "0")
        await node.until(lambda items: {NEW, NEW + 1} <= items)


async def test_a_restart_serves_the_candidate_of_the_settings(
    node: Node, bundle_path: Path, next_path: Path
) -> None:
    old, new = load_bundle(bundle_path).version, load_bundle(next_path).version
    candidate = CandidateConfig(bundle=next_path, share=0.4)
    config = replace(node.settings.inference_node, candidate=candidate)
    node.settings = replace(node.settings, inference_node=config)
    async with node.running():
        now = await served(node, "status")
        assert now["as_configured"]
        assert await versions(node) == expected(0.4, old, new)
        await served(node, "unload")
        assert await versions(node) == dict.fromkeys(USERS, old)


@pytest.fixture
def loaded() -> Iterator[list["weakref.ref[Bundle]"]]:
    """Every bundle that is loaded from now on."""
    bundles: list[weakref.ref[Bundle]] = []

    def load_and_note(path: Path) -> Bundle:
        loaded = load_bundle(path)
        bundles.append(weakref.ref(loaded))
        return loaded

    with mock.patch("services.wiring.bundles.load_bundle", load_and_note):
        yield bundles


async def test_a_bundle_that_nobody_uses_leaves_memory(
    node: Node, next_path: Path, loaded: list["weakref.ref[Bundle]"]
) -> None:
    async with node.running():
        await served(node, "load", str(next_path), "--share", "0.5")
        await versions(node)
        await served(node, "promote")
        await versions(node)
        primary, candidate = loaded
        async with asyncio.timeout(10):
            while primary() is not None:
                gc.collect()
                await asyncio.sleep(0.05)  # between two looks
        assert candidate() is not None
