"""Our engine beside a T5 of the same sizes: search with an encoded history, and from the interactions on."""

from collections.abc import Callable
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from bench.recommend.alternate import alternate
from bench.recommend.engines import ENGINES, served
from bench.recommend.hf_t5 import T5Rival, require_transformers
from bench.recommend.python_trie import make_python_trie
from bench.recommend.world import Sizes, User, histories_of, make_catalogue

Run = Callable[[], object]

PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16}


def measure(sizes: Sizes) -> dict[str, Any]:
    """`search_ratio_to_hf_t5` (context ready) and `..._with_encoder`, and milliseconds of every case."""
    require_transformers()
    found: dict[str, dict[str, Any]] = {}
    for threads, num_sids, beam in sizes.cases(sizes.rival_threads):
        by_beam = found.setdefault(f"threads{threads}_sids{num_sids}", {})
        by_beam[f"beam{beam}"] = _of_case(sizes, threads, num_sids, beam)
    _print(found)
    headline = next(iter(found.values()))
    figures = {
        f"search_{name}" + (f"_beam{beam}" if beam != sizes.beams[0] else ""): ratio
        for beam in sizes.beams
        for name, ratio in headline[f"beam{beam}"].items()
        if name.startswith("ratio_")
    }
    return {**figures, "search_rivals": found}


def _of_case(sizes: Sizes, threads: int, num_sids: int, beam: int) -> dict[str, Any]:
    torch.set_num_threads(threads)
    runs = {**_ours(sizes, num_sids, beam), **_t5(sizes, num_sids, beam)}
    title = f"rivals, {threads} threads, {num_sids:,} SIDs, beam {beam}"
    times = alternate(runs, sizes.rival_rounds, title, sizes.case_s)
    measured = {name: of_run.figures() for name, of_run in times.items()}
    return {**measured, **_ratios(measured)}


def _ours(sizes: Sizes, num_sids: int, beam: int) -> dict[str, Run]:
    """The shortest history, as the T5 has it, and beside it the longest with a summary, which it never has."""
    trie = make_catalogue(num_sids, sizes.num_levels, sizes.codebook_size).trie
    engine = ENGINES[served(sizes, beam, torch.get_num_threads())](sizes, trie, beam)
    shortest, *_, longest = histories_of(sizes)
    user, long_user = User(sizes, shortest).encoded(), User(sizes, longest).encoded()
    return {
        "ours_search": lambda: engine(user),
        "ours_encode_and_search": lambda: engine(User(sizes, shortest)),
        "ours_search_longest": lambda: engine(long_user),
    }


def _t5(sizes: Sizes, num_sids: int, beam: int) -> dict[str, Run]:
    """In both precisions; the history as TIGER has it, a token per code, and with a single token per item."""
    catalogue = make_catalogue(num_sids, sizes.num_levels, sizes.codebook_size)
    trie, length = make_python_trie(catalogue), sizes.histories[0]
    runs: dict[str, Run] = {}
    for precision, dtype in PRECISIONS.items():
        flattened = T5Rival(sizes, trie, dtype, length * sizes.num_levels, beam)
        runs[f"t5_search_{precision}"] = flattened.search
        runs[f"t5_encode_and_search_{precision}"] = flattened.encode_and_search
        per_item = T5Rival(sizes, trie, dtype, length, beam)
        runs[f"t5_token_per_item_search_{precision}"] = per_item.search
    return runs


def _ratios(measured: dict[str, dict[str, float]]) -> dict[str, float]:
    """The rival's better precision over ours, undisturbed medians."""

    def p50_ms(prefix: str) -> float:
        precisions = [f"{prefix}_{precision}" for precision in PRECISIONS]
        return min(measured[name]["undisturbed_p50_ms"] for name in precisions)

    pairs = {
        "ratio_to_hf_t5": ("t5_search", "ours_search"),
        "ratio_to_hf_t5_with_encoder": ("t5_encode_and_search", "ours_encode_and_search"),
        "ratio_to_hf_t5_token_per_item": ("t5_token_per_item_search", "ours_search"),
        "ratio_to_hf_t5_from_longest": ("t5_search", "ours_search_longest"),
    }
    return {
        name: round(p50_ms(rival) / measured[ours]["undisturbed_p50_ms"], 2)
        for name, (rival, ours) in pairs.items()
    }


def _print(found: dict[str, Any]) -> None:
    for case, by_beam in found.items():
        table = Table("", *by_beam, title=f"p50 wall (undisturbed), ms, {case}")
        for name in next(iter(by_beam.values())):
            table.add_row(name, *(_cell(of_beam[name]) for of_beam in by_beam.values()))
        Console().print(table)


def _cell(value: float | dict[str, float]) -> str:
    if isinstance(value, dict):
        return f"{value['p50_ms']:.1f} ({value['undisturbed_p50_ms']:.1f})"
    return f"{value:.2f}"
