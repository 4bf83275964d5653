"""`gemstream recommend` with everything it can ask for."""

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

import pytest

from model.query import Query, Recommended
from services.clients import StateClient
from state.user_state import UserState
from tests.services.calls import Done, call
from tests.services.nodes import FakeOwner, FakeRecommender, recommending


class Recorder(FakeRecommender):
    """Keeps the last query; titles want escaping."""

    def __init__(self) -> None:
        self.query: Query | None = None

    def recommend(self, state: UserState, query: Query) -> Sequence[Recommended]:
        self.query = query
        return [
            replace(found, item=replace(found.item, title="a\x1b[2J[red]b"))
            for found in super().recommend(state, query)
        ]


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
async def address(recorder: Recorder) -> AsyncIterator[str]:
    owner = FakeOwner()
    owner.add("ann", 20)
    owner.add("bob", 5)
    async with owner.serving() as state, StateClient(state, 5.0) as users:
        async with recommending(users, recorder) as where:
            yield where


async def recommend(address: str, *arguments: str) -> Done:
    return await asyncio.to_thread(call, "recommend", *arguments, "--address", address)


async def test_options_reach_the_query(address: str, recorder: Recorder) -> None:
    tags = ["--allow-tag", "1", "--allow-tag", "2", "--deny-tag", "3"]
    authors = ["--allow-author", "4", "--deny-author", "5"]
    switches = [
        "--no-repeats",
        "--exclude-seen",
        "--beam-width",
        "9",
        "--at",
        "2026-12-01 08:30:00",
    ]
    done = await recommend(address, "ann", *tags, *authors, *switches)
    assert done.code == 0, done.stderr
    query = recorder.query
    assert query is not None
    assert query.time_ms == 1_796_113_800_000
    chosen = query.filter
    assert (chosen.allow_tags, chosen.deny_tags) == ({1, 2}, {3})
    assert (chosen.allow_authors, chosen.deny_authors) == ({4}, {5})
    assert (query.repeats, query.beam_width) == (False, 9)
    assert set(range(1, 21)) <= set(chosen.exclude_ids.tolist())


async def test_a_time_that_would_read_as_now_is_refused(address: str, recorder: Recorder) -> None:
    for at in ("1970-01-01", "1969-12-31 23:59:59"):
        done = await recommend(address, "ann", "--at", at)
        assert done.code == 2
        assert "is not after 1970-01-01" in done.stderr
    assert recorder.query is None


async def test_a_page_names_the_next_one(address: str) -> None:
    first = await recommend(address, "ann", "-k", "6")
    (token,) = re.findall(r"more: --page-token (\S+)", first.stdout)
    second = await recommend(address, "ann", "-k", "6", "--page-token", token, "--json")
    assert [entry["item"]["item_id"] for entry in second.document()["items"]] == [
        str(item) for item in range(14, 8, -1)
    ]
    damaged = await recommend(address, "ann", "--page-token", token[:-2])
    assert damaged.code == 1
    assert "page_token is damaged" in damaged.stderr
    shared = await recommend(address, "ann", "bob", "--page-token", token)
    assert shared.code == 2


async def test_reasons_are_printed(address: str) -> None:
    done = await recommend(address, "ann", "-k", "2", "--explain")
    assert "recent 50%, mid-term 25%, repeats 25%; saw 7 (50%)" in done.stdout
    assert "because of" not in (await recommend(address, "ann", "-k", "2")).stdout


async def test_several_users_are_one_batch(address: str) -> None:
    tables = await recommend(address, "ann", "bob", "-k", "2")
    document = (await recommend(address, "ann", "bob", "-k", "2", "--json")).document()
    assert tables.stdout.index("Recommended to user ann") < tables.stdout.index("user bob")
    assert r"a\x1b[2J[red]b" in tables.stdout
    items = [
        [entry["item"]["item_id"] for entry in one["response"]["items"]]
        for one in document["entries"]
    ]
    assert items == [["20", "19"], ["5", "4"]]


async def test_a_user_of_a_batch_that_fails_does_not_hide_the_others(address: str) -> None:
    done = await recommend(address, "ann", "x" * 300, "-k", "2")
    assert done.code == 1
    assert "Recommended to user ann" in done.stdout
    assert "no answer for 1 of 2 users" in done.stderr
    assert "user_id has 300 bytes" in done.stderr


@pytest.mark.parametrize(
    "arguments", [["--allow-tag", "-1"], ["--deny-author", str(2**64)], ["--exclude", "-1"]]
)
async def test_numbers_out_of_range_are_wrong_usage(arguments: list[str]) -> None:
    assert (await recommend("127.0.0.1:1", "ann", *arguments)).code == 2
