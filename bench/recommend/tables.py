"""Tables of the end-to-end section, for people."""

from typing import Any

from rich.console import Console
from rich.table import Table

from bench.recommend.world import Sizes


def print_end_to_end(found: dict[str, Any], sizes: Sizes) -> None:
    """By length of life; several at once; where the time goes; beside the rivals."""
    for table in (
        _lives(found, sizes),
        _at_once(found, sizes),
        _stages(found, sizes),
        _beside(found),
    ):
        Console().print(table)


def _lives(found: dict[str, Any], sizes: Sizes) -> Table:
    table = Table("history", title="one caller: p50 wall (p99; p50 processor of all processes), ms")
    cases = [(state, beam) for state in ("warm", "moved", "cold") for beam in found[state]]
    for state, beam in cases:
        table.add_column(f"{state}, {beam}")
    for life in map(str, sizes.lives):
        table.add_row(life, *(_cell(found[state][beam][life]) for state, beam in cases))
    table.caption = f"engines: {found['engines']}, {found['cache']}"
    return table


def _at_once(found: dict[str, Any], sizes: Sizes) -> Table:
    table = Table("history", title="several callers, warm: p50 (p99) ms, requests/s")
    for callers in sizes.concurrencies:
        table.add_column(f"{callers} callers")
    rows = {**found["at_once"], f"{max(sizes.lives)}, beside ingest": found["beside_ingest"]}
    for name, by_callers in rows.items():
        table.add_row(
            name,
            *(
                f"{case['p50_ms']:.1f} ({case['p99_ms']:.1f}), {case['requests_per_s']:.0f}/s"
                for case in by_callers.values()
            ),
        )
    return table


def _stages(found: dict[str, Any], sizes: Sizes) -> Table:
    """What the inference node says of the longest life."""
    longest = str(max(sizes.lives))
    cases = {
        f"{state}, {beam}": of_lives[longest]["stages_p50_ms"]
        for state in ("warm", "moved", "cold")
        for beam, of_lives in found[state].items()
    }
    stages = sorted({stage for of_case in cases.values() for stage in of_case})
    table = Table("", *stages, title=f"p50 wall by stage, ms, history {longest}")
    for name, of_case in cases.items():
        table.add_row(name, *(f"{of_case.get(stage, 0):.2f}" for stage in stages))
    return table


def _beside(found: dict[str, Any]) -> Table:
    by_beam = found["beside"]
    table = Table("", *by_beam, title="in turns: p50 wall (p99; p50 processor), ms")
    for name, value in next(iter(by_beam.values())).items():
        if isinstance(value, dict) and "p50_ms" not in value:
            continue
        table.add_row(name, *(_cell(of_beam[name]) for of_beam in by_beam.values()))
    return table


def _cell(value: Any) -> str:
    if not isinstance(value, dict):
        return f"{value:.2f}"
    undisturbed_ms = value.get("undisturbed_p50_ms")
    processor = "" if undisturbed_ms is None else f"; {undisturbed_ms:.1f}"
    return f"{value['p50_ms']:.1f} ({value['p99_ms']:.1f}{processor})"
