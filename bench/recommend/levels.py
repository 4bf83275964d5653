"""Level by level: what the network costs, what the search over the trie, and what it would cost over a Python trie."""

import statistics
from collections.abc import Callable, Mapping
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from bench.recommend.alternate import alternate, undisturbed_clock
from bench.recommend.engines import EveryCode, eager_scores
from bench.recommend.python_trie import make_python_trie, python_beam_search
from bench.recommend.world import Sizes, User, histories_of, make_catalogue, make_network
from model.beam_search import ScoreNext, beam_search


class Clocked:
    """Scores as another does, and notes when it was asked and when it answered."""

    def __init__(self, score_next: ScoreNext, num_levels: int) -> None:
        """Nothing is noted yet."""
        self._score_next, self._num_levels = score_next, num_levels
        self._clock = undisturbed_clock()
        self._marks: list[float] = []
        self.network_ms: list[list[float]] = [[] for _ in range(num_levels)]
        self.search_ms: list[list[float]] = [[] for _ in range(num_levels)]

    def __call__(self, codes_1WP: Tensor, parents_1W: Tensor) -> Tensor:
        """The other's logits."""
        self._marks.append(self._clock())
        logits = self._score_next(codes_1WP, parents_1W)
        self._marks.append(self._clock())
        return logits

    def end(self) -> None:
        """A search is over."""
        marks = [*self._marks, self._clock()]
        self._marks.clear()
        for level in range(self._num_levels):
            asked, answered, next_asked = marks[2 * level : 2 * level + 3]
            self.network_ms[level].append(1e3 * (answered - asked))
            self.search_ms[level].append(1e3 * (next_asked - answered))


class Recorded:
    """The logits of one search, given again."""

    def __init__(self, score_next: ScoreNext) -> None:
        """Nothing is recorded yet."""
        self._score_next = score_next
        self._logits: dict[int, Tensor] = {}

    def __call__(self, codes_1WP: Tensor, parents_1W: Tensor) -> Tensor:
        """The other's logits the first time, then those."""
        level = codes_1WP.shape[-1]
        if level not in self._logits:
            self._logits[level] = self._score_next(codes_1WP, parents_1W)
        return self._logits[level]


def measure(sizes: Sizes) -> dict[str, Any]:
    """`search_ratio_to_python_trie`, and milliseconds by threads, catalogue, beams and level."""
    found: dict[str, dict[str, Any]] = {}
    for threads, num_sids, beam in sizes.cases(sizes.threads):
        by_beam = found.setdefault(f"threads{threads}_sids{num_sids}", {})
        by_beam[f"beam{beam}"] = _of_case(sizes, threads, num_sids, beam)
    _print(found)
    ratio = next(iter(found.values()))[f"beam{sizes.beams[0]}"]["ratio_to_python_trie"]
    return {"search_ratio_to_python_trie": ratio, "search_levels": found}


@torch.inference_mode()
def _of_case(sizes: Sizes, threads: int, num_sids: int, beam: int) -> dict[str, Any]:
    torch.set_num_threads(threads)
    network = make_network(sizes)
    catalogue = make_catalogue(num_sids, sizes.num_levels, sizes.codebook_size)
    trie = EveryCode(catalogue.trie)  # the other one knows no shortcut, either
    python_trie = make_python_trie(catalogue)
    scores = eager_scores(network, User(sizes, histories_of(sizes)[-1]).context)
    recorded = Recorded(scores)
    clocks = {
        name: Clocked(score_next, sizes.num_levels)
        for name, score_next in (("eager", scores), ("array", recorded), ("python", recorded))
    }
    runs: Mapping[str, Callable[[], object]] = {
        "eager": lambda: beam_search(clocks["eager"], trie, 1, beam),
        "array": lambda: beam_search(clocks["array"], trie, 1, beam),
        "python": lambda: python_beam_search(clocks["python"], python_trie, beam),
    }
    ended = {
        name: lambda run=run, clock=clocks[name]: (run(), clock.end()) for name, run in runs.items()
    }
    alternate(
        ended, max(5, sizes.rounds // 4), f"levels, {num_sids:,} SIDs, beam {beam}", sizes.case_s
    )
    return _figures(clocks)


def _figures(clocks: Mapping[str, Clocked]) -> dict[str, Any]:
    found = {
        "network_ms": _medians(clocks["eager"].network_ms),
        "array_trie_ms": _medians(clocks["array"].search_ms),
        "python_trie_ms": _medians(clocks["python"].search_ms),
    }
    ratio = sum(found["python_trie_ms"]) / sum(found["array_trie_ms"])
    return {**found, "ratio_to_python_trie": round(ratio, 2)}


def _medians(by_level: list[list[float]]) -> list[float]:
    return [round(statistics.median(of_level), 3) for of_level in by_level]


def _print(found: dict[str, Any]) -> None:
    table = Table(
        "case",
        "network, ms",
        "array trie and top-k, ms",
        "Python trie and top-k, ms",
        "ratio",
        title="by level, eager decoder, undisturbed medians",
    )
    for name, by_beam in found.items():
        for beam, case in by_beam.items():
            parts = ("network_ms", "array_trie_ms", "python_trie_ms")
            table.add_row(
                f"{name} {beam}",
                *("  ".join(f"{ms:.2f}" for ms in case[part]) for part in parts),
                f"{case['ratio_to_python_trie']:.1f}",
            )
    Console().print(table)
