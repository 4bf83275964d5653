"""Our own engines by length of history: encoding apart, search with a ready context apart."""

from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from bench.recommend.alternate import alternate
from bench.recommend.engines import EAGER, ENGINES, SERVED
from bench.recommend.world import Encoder, Sizes, histories_of, make_catalogue, make_network


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
    network = make_network(sizes)
    encoders = {history.name: Encoder(network, history) for history in histories_of(sizes)}
    times = alternate(encoders, max(3, sizes.rounds // 20), "encoding", sizes.case_s)
    return {name: of_history.figures() for name, of_history in times.items()}


def _searching(sizes: Sizes, beam_width: int) -> dict[str, dict[str, Any]]:
    """Engines and histories take turns; by engine, then by history."""
    network = make_network(sizes)
    trie = make_catalogue(sizes.catalogues[0], sizes.num_levels, sizes.codebook_size).trie
    contexts = {history.name: Encoder(network, history)() for history in histories_of(sizes)}
    engines = {name: make(network, trie, beam_width) for name, make in ENGINES.items()}
    runs = {
        (name, history): lambda engine=engine, context=context: engine(context)
        for history, context in contexts.items()
        for name, engine in engines.items()
    }
    times = alternate(runs, sizes.rounds, f"searching, beam {beam_width}", sizes.case_s)
    return {
        name: {history: times[name, history].figures() for history in contexts} for name in engines
    }


def _headline(measured: dict[str, Any], sizes: Sizes) -> dict[str, float]:
    """Of all streams, which is what any longer history makes; flatness is that over the history without a summary."""
    *_, longest, with_all_streams = histories_of(sizes)
    figures = {}
    for beam in sizes.beams:
        served = measured[f"beam{beam}"][SERVED][with_all_streams.name]
        for quantile in ("p50_ms", "p99_ms", "undisturbed_p50_ms"):
            figures[f"search_{quantile}_beam{beam}"] = served[quantile]
    by_engine = measured[f"beam{sizes.beams[0]}"]
    ours_ms, without_summary_ms, eager_ms = (
        by_engine[engine][history.name]["undisturbed_p50_ms"]
        for engine, history in (
            (SERVED, with_all_streams),
            (SERVED, longest),
            (EAGER, with_all_streams),
        )
    )
    figures["search_flatness"] = round(ours_ms / without_summary_ms, 3)
    figures["search_ratio_to_eager"] = round(eager_ms / ours_ms, 3)
    return figures


def share_of_eager_sids(sizes: Sizes) -> float:
    """How many SIDs of the first engine the last one finds, too, for a context of all streams."""
    network, beam_width = make_network(sizes), sizes.beams[-1]
    trie = make_catalogue(sizes.catalogues[0], sizes.num_levels, sizes.codebook_size).trie
    context = Encoder(network, histories_of(sizes)[-1])()
    eager, served = (
        set(ENGINES[name](network, trie, beam_width)(context).sids[0].tolist())
        for name in (EAGER, SERVED)
    )
    return len(eager & served) / len(eager)


def _print(measured: dict[str, Any], threads: int) -> None:
    beams = [name for name in measured if name != "encode"]
    columns = [f"{beam}, {engine}" for beam in beams for engine in ENGINES]
    table = Table(
        "history",
        "encode, ms",
        *columns,
        title=f"p50 wall (p99 wall; p50 undisturbed) of a search, ms, {threads} threads",
    )
    for history, encoding in measured["encode"].items():
        cells = [measured[beam][engine][history] for beam in beams for engine in ENGINES]
        table.add_row(history, *map(_cell, (encoding, *cells)))
    Console().print(table)


def _cell(case: dict[str, float]) -> str:
    return f"{case['p50_ms']:.1f} ({case['p99_ms']:.1f}; {case['undisturbed_p50_ms']:.1f})"
