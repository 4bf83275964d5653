"""Our own engines by length of history: encoding apart, search with a ready context apart."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from bench.recommend.alternate import alternate
from bench.recommend.engines import EAGER, ENGINES, served
from bench.recommend.world import History, Sizes, User, histories_of, make_catalogue


def measure(sizes: Sizes) -> dict[str, Any]:
    """`search_p50_ms_beam32` and its like, `search_flatness`, and everything by threads, beams and history."""
    found: dict[str, Any] = {}
    for threads in sizes.threads:
        torch.set_num_threads(threads)
        measured = {"encode": _encoding(sizes)}
        measured |= {f"beam{beam}": _searching(sizes, beam) for beam in sizes.beams}
        found[f"threads{threads}"] = measured
        _print(measured, threads)
    return {
        **_headline(found[f"threads{sizes.threads[0]}"], sizes),
        "search_share_of_eager_sids": share_of_eager_sids(sizes),
        "search_histories": found,
    }


def _encoding(sizes: Sizes) -> dict[str, Any]:
    """In the form that is served, nothing taken over; and the longest in that of the plain modules."""
    histories = histories_of(sizes)
    runs: dict[str, Callable[[], object]] = {
        history.name: partial(_encode, sizes, history) for history in histories
    }
    runs[f"{histories[-1].name}_plain"] = lambda: User(sizes, histories[-1]).context
    times = alternate(runs, max(3, sizes.rounds // 20), "encoding", sizes.case_s)
    return {name: of_history.figures() for name, of_history in times.items()}


def _encode(sizes: Sizes, history: History) -> object:
    return User(sizes, history).user_context


def _searching(sizes: Sizes, beam_width: int) -> dict[str, dict[str, Any]]:
    """Engines and histories take turns; by engine, then by history."""
    trie = make_catalogue(sizes.catalogues[0], sizes.num_levels, sizes.codebook_size).trie
    users = {history.name: User(sizes, history).encoded() for history in histories_of(sizes)}
    engines = {name: make(sizes, trie, beam_width) for name, make in ENGINES.items()}
    runs = {
        (name, history): lambda engine=engine, user=user: engine(user)
        for history, user in users.items()
        for name, engine in engines.items()
    }
    times = alternate(runs, sizes.rounds, f"searching, beam {beam_width}", sizes.case_s)
    found: dict[str, Any] = {
        name: {history: times[name, history].figures() for history in users} for name in engines
    }
    return {"served": served(sizes, beam_width, torch.get_num_threads()), **found}


def _headline(measured: dict[str, Any], sizes: Sizes) -> dict[str, float]:
    """Of all streams, which is what any longer history makes; flatness is that over the history without a summary."""
    *_, longest, with_all_streams = histories_of(sizes)
    figures = {}
    for beam in sizes.beams:
        by_engine = measured[f"beam{beam}"]
        ours = by_engine[by_engine["served"]]
        for quantile in ("p50_ms", "p99_ms", "undisturbed_p50_ms"):
            figures[f"search_{quantile}_beam{beam}"] = ours[with_all_streams.name][quantile]
    by_engine = measured[f"beam{sizes.beams[0]}"]
    ours_ms, without_summary_ms, eager_ms = (
        by_engine[engine][history.name]["undisturbed_p50_ms"]
        for engine, history in (
            (by_engine["served"], with_all_streams),
            (by_engine["served"], longest),
            (EAGER, with_all_streams),
        )
    )
    figures["search_flatness"] = round(ours_ms / without_summary_ms, 3)
    figures["search_ratio_to_eager"] = round(eager_ms / ours_ms, 3)
    return figures


def share_of_eager_sids(sizes: Sizes) -> float:
    """How many SIDs of the plain modules the served engine finds, too, for a user with all streams."""
    beam_width = sizes.beams[-1]
    trie = make_catalogue(sizes.catalogues[0], sizes.num_levels, sizes.codebook_size).trie
    user = User(sizes, histories_of(sizes)[-1])
    names = (EAGER, served(sizes, beam_width, torch.get_num_threads()))
    plain, ours = (
        set(ENGINES[name](sizes, trie, beam_width)(user).sids[0].tolist()) for name in names
    )
    return len(plain & ours) / len(plain)


def _print(measured: dict[str, Any], threads: int) -> None:
    beams = [name for name in measured if name != "encode"]
    columns = [f"{beam[4:]}, {engine}" for beam in beams for engine in ENGINES]
    table = Table(
        "history",
        "encode, ms",
        *columns,
        title=f"p50 wall (p99 wall; p50 undisturbed) of a search, ms, {threads} threads",
    )
    for history, encoding in measured["encode"].items():
        cells = [measured[beam][engine].get(history) for beam in beams for engine in ENGINES]
        table.add_row(history, *map(_cell, (encoding, *cells)))
    Console().print(table)


def _cell(case: dict[str, float] | None) -> str:
    if case is None:
        return ""
    return f"{case['p50_ms']:.1f} ({case['p99_ms']:.1f}; {case['undisturbed_p50_ms']:.1f})"
