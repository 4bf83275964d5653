"""Every engine on the same log: repeats alternate, and the median of each counts."""

from dataclasses import dataclass
from statistics import median
from typing import Any

from rich.table import Table

from bench.ingest.arena import Arena, Outcome, output
from bench.ingest.records import Record, num_bytes
from bench.ingest.shares import BACKGROUND, POLL, REST

ENGINES = ("bare", "gemstream", "quix")


@dataclass
class Comparison:
    """What came of one log."""

    log: str
    event_bytes: float
    """Mean bytes of a record, key and value."""
    runs: dict[str, list[Outcome]]
    shares: Outcome

    def rate(self, engine: str) -> float:
        """Events a second: the median of the runs."""
        return float(median(run["events"] / run["seconds"] for run in self.runs[engine]))

    def figures(self) -> dict[str, Any]:
        """By the names that every report has."""
        ours, rate = self.runs["gemstream"][-1], self.rate("gemstream")
        return {
            "events_per_s": round(rate),
            "ratio_to_faust": round(rate / self.rate("faust"), 2),
            "ratio_to_quix": round(rate / self.rate("quix"), 2),
            "share_of_bare_consume": round(rate / self.rate("bare"), 3),
            "bytes_per_interaction": round(ours["disk_bytes"] / ours["events"], 1),
            "write_amplification": round(self.written_per_byte(ours), 2),
            "peak_memory_mib": round(ours["peak_memory_bytes"] / 2**20),
            "cpu_us_per_event": round(median(map(_cpu_us, self.runs["gemstream"])), 2),
            "event_bytes": round(self.event_bytes, 1),
            "engines": {engine: self.engine_figures(engine) for engine in self.runs},
            "cpu_us": self.shares["cpu_us"],
            "wall_us": self.shares["wall_us"],
        }

    def engine_figures(self, engine: str) -> dict[str, Any]:
        """Of one engine."""
        runs = self.runs[engine]
        last = runs[-1]
        return {
            "events_per_s": round(self.rate(engine)),
            "events_per_s_of_runs": [round(run["events"] / run["seconds"]) for run in runs],
            "load_average_of_runs": [round(run["load_average"], 1) for run in runs],
            "cores": round(last["cpu_seconds"] / last["seconds"], 2),
            "cpu_us_per_event": round(median(map(_cpu_us, runs)), 2),
            "bytes_per_interaction": round(last["disk_bytes"] / last["events"], 1),
            "written_per_event_byte": round(self.written_per_byte(last), 2),
            "peak_memory_mib": round(last["peak_memory_bytes"] / 2**20),
        }

    def written_per_byte(self, run: Outcome) -> float:
        """Bytes sent to the disk, compaction and logs included, per byte of the events."""
        return float(run["written_bytes"] / (run["events"] * self.event_bytes))


def _cpu_us(run: Outcome) -> float:
    """Processor time of the process, all threads, per event: what a loaded machine changes least."""
    return float(1e6 * run["cpu_seconds"] / run["events"])


def compare(
    arena: Arena, log: str, records: list[Record], repeats: int, faust_part: int
) -> Comparison:
    """All engines on `records`; Faust on one in `faust_part` of them."""
    few = records[: len(records) // faust_part]
    topics = arena.filled(log, records)
    runs: dict[str, list[Outcome]] = {engine: [] for engine in (*ENGINES, "faust")}
    for _ in range(repeats):
        for engine in ENGINES:
            runs[engine].append(arena.run(engine, topics, len(records)))
    runs["faust"].append(arena.run("faust", arena.filled(f"{log}-part", few), len(few)))
    shares = arena.run("gemstream-shares", topics, len(records))
    outcome = Comparison(log, num_bytes(records) / len(records), runs, shares)
    _print_engines(outcome)
    print_shares(log, shares)
    return outcome


def _print_engines(outcome: Comparison) -> None:
    table = Table(
        "engine",
        "events",
        "events/s (runs)",
        "median",
        "cores",
        "CPU us/event",
        "B/interaction",
        "written B/B",
        "peak MiB",
        "load",
        title=f"{outcome.log}: {outcome.event_bytes:.0f} bytes an event",
    )
    for engine, runs in outcome.runs.items():
        figures = outcome.engine_figures(engine)
        table.add_row(
            engine,
            f"{runs[-1]['events']:,}",
            " ".join(f"{rate / 1_000:,.0f}k" for rate in figures["events_per_s_of_runs"]),
            f"{figures['events_per_s']:,}",
            f"{figures['cores']:.2f}",
            f"{figures['cpu_us_per_event']:.2f}",
            f"{figures['bytes_per_interaction']:.1f}",
            f"{figures['written_per_event_byte']:.2f}",
            f"{figures['peak_memory_mib']:,}",
            " ".join(f"{load:.1f}" for load in figures["load_average_of_runs"]),
        )
    output.print(table)


def print_shares(log: str, run: Outcome) -> None:
    """Where one event's time goes."""
    total = sum(run["cpu_us"].values())
    table = Table(
        "part", "CPU us/event", "share", "wall us/event", title=f"{log}: one event of ours"
    )
    for part, cpu_us in sorted(run["cpu_us"].items(), key=lambda pair: -pair[1]):
        wall = run["wall_us"].get(part)
        table.add_row(
            part,
            f"{cpu_us:.2f}",
            f"{cpu_us / total:.0%}",
            "" if wall is None else f"{wall:.2f}",
        )
    table.caption = (
        f"{run['events'] / run['seconds']:,.0f} events/s with clocks; {POLL} is what runs in the consumer, {REST} the "
        f"event loop, network and threads' hand-over, {BACKGROUND} RocksDB's own threads"
    )
    output.print(table)
