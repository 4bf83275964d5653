"""One user sends as much as all others together: what that costs, and how long the others wait for their events."""

import asyncio
from typing import Any

from rich.table import Table

from bench.ingest.arena import Arena, EngineProcess, Outcome, console, output
from bench.ingest.compare import print_shares
from bench.ingest.log import HOT_USER, make_hot_log
from bench.ingest.records import Record, encode, pace
from stream.producer import Producer
from stream.topics import TopicsConfig


def measure(arena: Arena, num_ordinary: int, num_hot: int, seconds: float) -> dict[str, Any]:
    """The same ordinary events alone, with a hot user in order, and with one whose events come in random order."""
    kinds = {
        "no_hot_user": (0, True),
        "hot_user": (num_hot, True),
        "hot_user_shuffled": (num_hot, False),
    }
    outcomes = {}
    for kind, (hot, in_order) in kinds.items():
        log = make_hot_log(num_ordinary, hot, in_order=in_order)
        name = kind.replace("_", "-")
        topics = arena.topics(name)
        records = encode(log, topics.num_partitions)
        paced = _paced(arena, topics, records, len(records) / seconds)
        full = arena.run("gemstream", topics, len(records))
        outcomes[kind] = {"paced": paced, "full": full}
        if not in_order:
            shares = arena.run("gemstream-shares", topics, len(records))
            outcomes[kind]["shares"] = shares
            print_shares(kind, shares)
    _print(outcomes)
    return {kind: _figures(outcome) for kind, outcome in outcomes.items()}


def _paced(arena: Arena, topics: TopicsConfig, records: list[Record], rate: float) -> Outcome:
    """Events arrive steadily, well below what a node takes; it is ready before the first."""
    job = arena.job("gemstream-delays", topics, len(records), held=True, hot_user=HOT_USER)
    with (
        console.status(f"{topics.interactions}: {rate:,.0f} events/s as they come"),
        EngineProcess(job) as engine,
    ):
        engine.wait_for("ready")
        engine.release()
        asyncio.run(_produce(arena.bootstrap, topics.interactions, records, rate))
        return {"rate": rate, **engine.outcome()}


async def _produce(bootstrap: str, topic: str, records: list[Record], rate: float) -> None:
    async with Producer(bootstrap) as producer:
        await pace(producer, topic, records, rate)


def _figures(outcome: dict[str, Outcome]) -> dict[str, Any]:
    paced, full = outcome["paced"], outcome["full"]
    figures = {
        "events_per_s": round(full["events"] / full["seconds"]),
        "late": full["counters"].get("late", 0),
        "paced_events_per_s": round(paced["rate"]),
        "paced_cores": round(paced["cpu_seconds"] / paced["seconds"], 2),
        "delays": paced["delays"],
        "poll": paced["apply"],
        "poll_parts_ms": paced["poll_parts_ms"],
        "peak_memory_mib": round(full["peak_memory_bytes"] / 2**20),
    }
    if "shares" in outcome:
        figures |= {name: outcome["shares"][name] for name in ("cpu_us", "calls")}
    return figures


def _print(outcomes: dict[str, dict[str, Outcome]]) -> None:
    table = Table(
        "log",
        "full speed",
        "paced",
        "cores",
        "whose events",
        "wait p50 ms",
        "p99",
        "max",
        "poll p50",
        "p99",
        "load",
        title="A hot user among 20,000: events/s, and what events wait",
    )
    for kind, outcome in outcomes.items():
        full, paced = outcome["full"], outcome["paced"]
        for number, (whose, delay) in enumerate(sorted(paced["delays"].items())):
            if not delay:
                continue
            first = (
                kind,
                f"{full['events'] / full['seconds']:,.0f}",
                f"{paced['rate']:,.0f}",
                f"{paced['cpu_seconds'] / paced['seconds']:.2f}",
            )
            last = (
                f"{paced['apply']['p50_ms']:.0f}",
                f"{paced['apply']['p99_ms']:.0f}",
                f"{full['load_average']:.1f}",
            )
            waits = (f"{delay[name]:,.0f}" for name in ("p50_ms", "p99_ms", "max_ms"))
            blank = number > 0
            table.add_row(
                *("" for _ in first) if blank else first, whose, *waits, *(() if blank else last)
            )
    output.print(table)
    for kind, outcome in outcomes.items():
        parts = outcome["paced"]["poll_parts_ms"].items()
        output.print(f"{kind}: mean ms of a poll:", ", ".join(f"{part} {ms}" for part, ms in parts))
