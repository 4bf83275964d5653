"""One size of catalogue in one process: what a change costs, what it holds in memory, and what requests feel of it."""

import argparse
import ctypes
import gc
import json
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import torch

from bench.catalogue.world import make_bundle, make_offers, make_user
from model.bundle import Bundle
from model.catalogue import Catalogue
from model.catalogue_view import CatalogueView
from model.item_placement import Removal
from model.live_catalogue import LiveCatalogue
from model.query import Query
from model.recommender import Recommender
from services.catalogue_config import CatalogueConfig

_MIB = 1 << 20
_FIRST_NEW = 1 << 40


def main() -> None:
    """Print one JSON document."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("num_items", type=int)
    parser.add_argument("--changes", type=int, nargs="+", default=[1, 100, 10_000])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--load-s", type=float, default=10.0)
    given = parser.parse_args()
    torch.set_num_threads(1)
    bundle = make_bundle(given.num_items)
    live = LiveCatalogue(bundle, keep_versions=2)
    figures: dict[str, Any] = {"items": given.num_items, "sids": live.view.trie.num_sids}
    for count in given.changes:
        figures[f"changes_{count}"] = _changes(bundle, live, count, given.rounds)
    figures["sorted_anew_s"] = _median(given.rounds, lambda: _sort_anew(live.view.catalogue))
    figures["hide_ms"] = 1e3 * _median(given.rounds, lambda: _hide(live, bundle))
    figures |= _memory(bundle, live)
    figures["requests"] = _requests(bundle, live, given.load_s)
    sys.stdout.write(json.dumps(figures) + "\n")


def _changes(bundle: Bundle, live: LiveCatalogue, count: int, rounds: int) -> dict[str, float]:
    """Medians of SIDs alone, of the whole build, and of the swap."""
    assign, build, publish = [], [], []
    for round_ in range(rounds + 1):
        offers = make_offers(bundle, count, _FIRST_NEW + round_ * count)
        assign.append(_timed(lambda: live.placement.states(offers)))  # noqa: B023
        live.hear(offers.items(), 1)
        batch = live.take()
        assert batch is not None
        built = live.build(batch)
        build.append(built.seconds)
        publish.append(_timed(lambda: live.publish(built)))  # noqa: B023
    found = {"assign_s": assign, "build_s": build, "publish_s": publish}
    return {name: statistics.median(times[1:]) for name, times in found.items()}


def _sort_anew(catalogue: Catalogue) -> None:
    """The slow twin: what a build would cost without a merge."""
    shuffled = np.random.default_rng(0).permutation(len(catalogue))
    columns = {name: column[shuffled] for name, column in catalogue.columns.items()}
    CatalogueView.of(Catalogue(columns, catalogue.titles_packed.take(pa.array(shuffled))))


def _hide(live: LiveCatalogue, bundle: Bundle) -> None:
    live.hear([(int(bundle.catalogue.item_ids[0]), Removal())], 1)


def _memory(bundle: Bundle, live: LiveCatalogue) -> dict[str, float]:
    """Resident memory before a build and at its worst, with both views alive."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # what earlier views left would be used again, unseen
    process = psutil.Process()
    before, peak, done = process.memory_info().rss, 0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.002):
            peak = max(peak, process.memory_info().rss)

    watcher = threading.Thread(target=watch)
    watcher.start()
    live.hear(make_offers(bundle, 100, 2 * _FIRST_NEW).items(), 1)
    batch = live.take()
    assert batch is not None
    built = live.build(batch)
    done.set()
    watcher.join()
    after = process.memory_info().rss
    live.publish(built)
    return {
        "rss_before_mib": before / _MIB,
        "peak_during_build_mib": (peak - before) / _MIB,
        "second_view_mib": (after - before) / _MIB,
    }


def _requests(bundle: Bundle, live: LiveCatalogue, load_s: float) -> dict[str, float]:
    """Requests at rest, and while views are built and swapped with a node's pause between two builds."""
    recommender, user, query = Recommender(bundle), make_user(), Query(k=10)
    recommender.swap(live.view)
    recommender.recommend(user, query)

    def ask(times: list[float], done: threading.Event) -> None:
        while not done.is_set():
            times.append(_timed(lambda: recommender.recommend(user, query)))

    rest: list[float] = []
    loaded: list[float] = []
    with _running(ask, rest):
        time.sleep(load_s)
    swaps, give_up_at = 0, time.monotonic() + load_s
    with _running(ask, loaded):
        while time.monotonic() < give_up_at or not swaps:
            live.hear(make_offers(bundle, 100, 3 * _FIRST_NEW + 100 * swaps).items(), 1)
            batch = live.take()
            assert batch is not None
            live.publish(live.build(batch))
            recommender.swap(live.view)
            swaps += 1
            time.sleep(CatalogueConfig().refresh_interval_s)
    figures: dict[str, float] = {"swaps": swaps, "answered_meanwhile": len(loaded)}
    for name, times in (("rest", rest), ("swapping", loaded)):
        figures[f"{name}_p50_ms"] = 1e3 * float(np.percentile(times, 50))
        figures[f"{name}_p99_ms"] = 1e3 * float(np.percentile(times, 99))
    return figures


@contextmanager
def _running(
    ask: Callable[[list[float], threading.Event], None], times: list[float]
) -> Iterator[None]:
    """`ask` in a thread while the block runs."""
    done = threading.Event()
    asking = threading.Thread(target=ask, args=(times, done))
    asking.start()
    yield
    done.set()
    asking.join()


def _median(rounds: int, run: Callable[[], object]) -> float:
    return statistics.median(_timed(run) for _ in range(rounds))


def _timed(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
