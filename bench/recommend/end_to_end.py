"""gRPC in, gRPC out: real nodes asked for users of several lengths of life, beside a T5 and the plain decoder alone."""

import asyncio
import re
import statistics
from collections import defaultdict
from collections.abc import Sequence
from typing import Any
from urllib.request import urlopen

import numpy as np
import torch

from bench.ingest.arena import console, open_arena
from bench.ingest.log import START_MS, random_rows
from bench.ingest.records import encode, pace, send
from bench.recommend import beside
from bench.recommend.alternate import alternate
from bench.recommend.client import Answers, Caller, ProcessorClock, ask_at_once
from bench.recommend.nodes import Nodes, make_event_log, open_nodes
from bench.recommend.tables import print_end_to_end
from bench.recommend.world import Sizes
from model.bundle import Bundle
from stream.producer import Producer, wait_for_delivery

_BLOCK = 5
"""Requests whose processor time is taken together."""
_OTHERS = 5_000


def measure(sizes: Sizes) -> dict[str, Any]:
    """`p50_ms_beam32` and its like, `flatness`, ratios, `share_of_floor`, and everything by length of life."""
    torch.set_num_threads(sizes.threads[0])
    found: dict[str, Any] = {}
    with open_arena() as arena, open_nodes(arena, sizes) as nodes:
        traffic, first = Traffic(nodes), sizes.beams[0]
        found["engines"] = {f"beam{beam}": engine_of(nodes, beam) for beam in sizes.beams}
        for state, ask in (("cold", _cold), ("warm", _warm)):
            found[state] = {f"beam{beam}": ask(nodes, sizes, beam) for beam in sizes.beams}
        found["beside"] = {
            f"beam{beam}": beside.measure(nodes, sizes, beam) for beam in sizes.beams
        }
        found["moved"] = {f"beam{first}": traffic.moved(sizes, first)}
        found["at_once"] = _at_once(nodes, sizes)
        found["beside_ingest"] = traffic.beside_ingest(sizes, nodes.users[max(sizes.lives)])
        found["cache"] = _cache(nodes, first)
        found["catalogue_mib_per_million_items"] = _catalogue_mib_per_million(nodes.bundle)
    print_end_to_end(found, sizes)
    return {**_headline(found, sizes), "end_to_end": found}


def engine_of(nodes: Nodes, beam: int) -> str:
    """What a node said that it chose, and why."""
    said = re.search(r"decoder runs on (.*)", nodes.inference[beam].log_text)
    return said[1].rstrip('"}') if said else "unknown"


def clock_of(nodes: Nodes, beam: int) -> ProcessorClock:
    """Of one inference node, the state node and the caller."""
    return ProcessorClock([nodes.inference[beam].watched.pid, nodes.state.watched.pid])


def _cold(nodes: Nodes, sizes: Sizes, beam: int) -> dict[str, Any]:
    """The first request ever of every user; those of several lengths in turns."""
    answers: dict[int, Answers] = defaultdict(Answers)
    with Caller(nodes.inference[beam].address) as caller:
        for users in zip(*nodes.users.values(), strict=True):
            for life, user in zip(nodes.users, users, strict=True):
                caller.ask(user, answers[life])
    return {str(life): of_life.figures() for life, of_life in answers.items()}


def _warm(nodes: Nodes, sizes: Sizes, beam: int) -> dict[str, Any]:
    """Nothing changed since the request before; lengths of life take turns, in blocks of requests."""
    answers: dict[int, Answers] = defaultdict(Answers)
    with Caller(nodes.inference[beam].address) as caller:

        def ask(life: int) -> None:
            for number in range(_BLOCK):
                users = nodes.users[life]
                caller.ask(users[number % len(users)], answers[life])

        blocks = {life: lambda life=life: ask(life) for life in nodes.users}
        times = alternate(
            blocks,
            max(2, sizes.rounds // _BLOCK),
            f"warm, beam {beam}",
            sizes.case_s,
            dict.fromkeys(blocks, clock_of(nodes, beam)),
        )
    return {
        str(life): {
            **answers[life].figures(),
            "undisturbed_p50_ms": round(of_life.undisturbed_p50_ms / _BLOCK, 3),
        }
        for life, of_life in times.items()
    }


def _at_once(nodes: Nodes, sizes: Sizes) -> dict[str, Any]:
    """By length of life and number of callers."""
    address = nodes.inference[sizes.beams[0]].address
    found: dict[str, Any] = {}
    with console.status("several at once"):
        for life, users in nodes.users.items():
            found[str(life)] = {
                str(callers): asyncio.run(ask_at_once(address, users, callers, sizes.load_s))
                for callers in sizes.concurrencies
            }
    return found


class Traffic:
    """Events into the topic, counted."""

    def __init__(self, nodes: Nodes) -> None:
        """Histories are in it."""
        self._nodes = nodes
        self._sent = sum(life * len(users) for life, users in nodes.users.items())
        self._number = 0

    def moved(self, sizes: Sizes, beam: int) -> dict[str, Any]:
        """Of every user one event is applied, then everybody asks; again and again."""
        users = [user for pairs in zip(*self._nodes.users.values(), strict=True) for user in pairs]
        life_of = {user: life for life, of_life in self._nodes.users.items() for user in of_life}
        answers: dict[int, Answers] = defaultdict(Answers)
        spent_ms: dict[int, list[float]] = defaultdict(list)
        clock = clock_of(self._nodes, beam)
        with Caller(self._nodes.inference[beam].address) as caller, console.status("moved"):
            for _ in range(sizes.moves):
                asyncio.run(self._apply(users))
                for user in users:
                    start_s = clock()
                    caller.ask(user, answers[life_of[user]])
                    spent_ms[life_of[user]].append(1e3 * (clock() - start_s))
        return {
            str(life): {
                **of_life.figures(),
                "undisturbed_p50_ms": round(statistics.median(spent_ms[life]), 3),
            }
            for life, of_life in answers.items()
        }

    def beside_ingest(self, sizes: Sizes, users: Sequence[str]) -> dict[str, Any]:
        """Warm requests by number of callers, while events of others come in at a steady rate."""
        address = self._nodes.inference[sizes.beams[0]].address
        found = {}
        with console.status("beside ingest"):
            for callers in sizes.concurrencies:
                asked = self._while_ingesting(
                    ask_at_once(address, users, callers, sizes.load_s), sizes
                )
                found[str(callers)] = asyncio.run(asked)
        return found

    async def _while_ingesting(self, asking: Any, sizes: Sizes) -> dict[str, Any]:
        others = [f"other-{number}" for number in range(_OTHERS)]
        index = np.random.default_rng(0).integers(
            0, _OTHERS, int(sizes.ingest_per_s * sizes.load_s)
        )
        records = self._events(others, index)
        topic = self._nodes.topics.interactions
        async with Producer(self._nodes.arena.bootstrap) as producer:
            feeding = asyncio.create_task(pace(producer, topic, records, sizes.ingest_per_s))
            found: dict[str, Any] = await asking
            await feeding
        return found

    async def _apply(self, users: list[str]) -> None:
        records = self._events(users, np.arange(len(users)))
        async with Producer(self._nodes.arena.bootstrap) as producer:
            topic = self._nodes.topics.interactions
            await wait_for_delivery(await send(producer, topic, records))
        await self._nodes.wait_until_applied(self._sent)

    def _events(self, users: list[str], index: Any) -> list[Any]:
        """New events of these users, later than all before."""
        self._number += 1
        times_ms = START_MS + 10_000_000 * self._number + np.arange(len(index))
        rows = random_rows(times_ms, np.random.default_rng(self._number))
        rows["item_id"] = 1 + rows["item_id"] % len(self._nodes.bundle.catalogue)
        self._sent += len(index)
        log = make_event_log(users, index, rows, f"traffic-{self._number}")
        return encode(log, self._nodes.topics.num_partitions)


def _cache(nodes: Nodes, beam: int) -> dict[str, float]:
    """What the node itself says of the users that it keeps."""
    with urlopen(f"http://{nodes.inference[beam].metrics}/metrics") as reply:
        text = reply.read().decode()
    values = dict(re.findall(r"^gemstream_(context_cache_\w+)\{.*\} (\S+)$", text, re.MULTILINE))
    num_users, num_bytes = (float(values[f"context_cache_{name}"]) for name in ("users", "bytes"))
    rss = nodes.inference[beam].watched.memory_info().rss
    return {
        "users": num_users,
        "mib_per_user": round(num_bytes / num_users / 2**20, 2),
        "node_rss_mib": round(rss / 2**20),
    }


def _catalogue_mib_per_million(bundle: Bundle) -> float:
    """Columns, titles and trie of a catalogue of this size, scaled; bench/catalogue has a million really."""
    catalogue, trie = bundle.catalogue, bundle.trie
    arrays = [*catalogue.columns.values(), catalogue.titles_packed]
    tensors = [
        tensor
        for value in vars(trie).values()
        for tensor in (value if isinstance(value, list) else [value])
        if isinstance(tensor, torch.Tensor)
    ]
    num_bytes = int(sum(array.nbytes for array in arrays) + sum(t.nbytes for t in tensors))
    return round(num_bytes / len(catalogue) * 1e6 / 2**20, 1)


def _headline(found: dict[str, Any], sizes: Sizes) -> dict[str, Any]:
    """Warm, one caller, the longest life."""
    longest, first = str(max(sizes.lives)), f"beam{sizes.beams[0]}"
    compared = str(5_000 if 5_000 in sizes.lives else sorted(sizes.lives)[1])
    figures: dict[str, Any] = {}
    for beam in sizes.beams:
        warm = found["warm"][f"beam{beam}"][longest]
        for quantile in ("p50_ms", "p99_ms", "undisturbed_p50_ms"):
            figures[f"{quantile}_beam{beam}"] = warm[quantile]
    warm = found["warm"][first]
    figures["flatness"] = round(
        warm[longest]["undisturbed_p50_ms"] / warm[compared]["undisturbed_p50_ms"], 3
    )
    for beam in sizes.beams:
        suffix = "" if beam == sizes.beams[0] else f"_beam{beam}"
        for name, value in found["beside"][f"beam{beam}"].items():
            if name.startswith(("ratio_", "share_")):
                figures[f"{name}{suffix}"] = value
    fast_enough = [
        case["requests_per_s"]
        for case in found["at_once"][longest].values()
        if case["p99_ms"] <= sizes.p99_bound_ms
    ]
    figures[f"requests_per_s_at_p99_{sizes.p99_bound_ms:.0f}ms"] = max(fast_enough, default=0.0)
    figures["mib_per_cached_user"] = found["cache"]["mib_per_user"]
    figures["mib_per_million_items"] = found["catalogue_mib_per_million_items"]
    return figures
