"""`make demo`: train on the earlier weeks, stream the later ones, recommend, compare with what was really bought."""

import argparse
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Collection
from pathlib import Path

import numpy as np
from rich.console import Console

from examples.complete_journey.dataset import Dataset, prepare_dataset
from examples.complete_journey.household import (
    NUM_SHOWN,
    Purchases,
    compare,
    describe_household,
    recommend,
    show_recommendations,
    show_segments,
)
from examples.complete_journey.replay import replay
from examples.complete_journey.roles import Deployment, deployment
from model.bundle_manifest import MANIFEST, read_manifest
from model.errors import BundleError
from state.event_log import EventLog, read_event_log

CACHE = Path(".cache/complete-journey")
HISTORY = """\
[history]
recent_len = 64
mid_term_len = 256
chunk_len = 64
"""
"""Short segments, so that every household with a long history has all three."""
TRAIN_MINUTES = 3
MIN_NEXT_ITEMS = 10
NUM_COMPARED = 300

console = Console()


def main() -> None:
    """Run the demo; a bundle trained by an earlier run is used again."""
    arguments = _parse_arguments()
    signal.signal(
        signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM)
    )  # so that all is cleaned up
    started = time.monotonic()
    if arguments.retrain:
        shutil.rmtree(CACHE, ignore_errors=True)
    console.rule("1. Complete Journey: a year of purchases of 2,469 households")
    with console.status("preparing event logs"):
        dataset = prepare_dataset(CACHE)
    console.print(f"prepared in {CACHE}")
    console.rule("2. Tokenizer and network, trained on weeks 1 to 44")
    bundle = _train(dataset)
    console.rule("3. Kafka, state node, compression worker, inference node")
    with deployment(HISTORY, bundle, console) as where:
        _stream_and_show(where, dataset, arguments.household)
    console.rule(f"All is stopped and cleaned up; {time.monotonic() - started:.0f} s in all")


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__)
    parser.add_argument("--household", help="which one to show; default: the longest history")
    parser.add_argument("--retrain", action="store_true", help="prepare and train anew")
    return parser.parse_args()


def _train(dataset: Dataset) -> Path:
    bundle = CACHE / "bundle"
    if (bundle / MANIFEST).exists():
        try:
            read_manifest(bundle)
        except BundleError as error:
            console.print(f"training anew: {error}")
        else:
            console.print(f"using {bundle} of an earlier run; --retrain makes a new one")
            return bundle
    config = CACHE / "train.toml"
    config.write_text(HISTORY)
    command = [sys.executable, "-m", "services.cli", "train", str(dataset.history)]
    command += ["--items", str(dataset.items), "--config", str(config)]
    command += ["--out", str(bundle), "--minutes", str(TRAIN_MINUTES)]
    subprocess.run(command, check=True)  # noqa: S603  our own command
    return bundle


def _stream_and_show(where: Deployment, dataset: Dataset, household: str | None) -> None:
    console.rule("4. Weeks 1 to 44 through Kafka: the history")
    history = read_event_log(dataset.history)
    replay(where, history, console)
    bought_next = _purchases_by_household(read_event_log(dataset.future))
    household = household or _longest(history, bought_next)
    before = describe_household(where, household)

    console.rule("5. Weeks 45 to 51 through Kafka: live events")
    replay(where, read_event_log(dataset.live), console)
    after = describe_household(where, household)

    console.rule(f"6. Household {household}")
    show_segments(console, {"after week 44": before, "after week 51": after})
    next_ones = bought_next.get(household, Purchases(frozenset(), 0))
    console.print(
        f"Recommended after week 51 (in weeks 52 and 53 it bought {len(next_ones.items)} products):"
    )
    reply = recommend(where, household, next_ones.first_time_ms)
    show_recommendations(console, reply, next_ones.items)

    console.rule(f"7. {NUM_COMPARED} households")
    with console.status("asking for recommendations"):
        outcome = compare(where, dict(list(bought_next.items())[:NUM_COMPARED]))
    console.print(
        f"Of what they bought in weeks 52 and 53, the {NUM_SHOWN} products recommended to each hold "
        f"{outcome.personal:.1%}, the {NUM_SHOWN} most popular products {outcome.popular:.1%}."
    )


def _purchases_by_household(future: EventLog) -> dict[str, Purchases]:
    """Of every household that bought enough distinct items to compare with."""
    found = {}
    for user, household in enumerate(future.user_ids):
        rows = future.rows[future.user_index == user]
        items = frozenset(rows["item_id"].tolist())
        if len(items) >= MIN_NEXT_ITEMS:
            found[household] = Purchases(items, int(rows["event_time_ms"].min()))
    return found


def _longest(history: EventLog, among: Collection[str]) -> str:
    counts = np.bincount(history.user_index).tolist()
    lengths = dict(zip(history.user_ids, counts, strict=True))
    return max(among, key=lambda household: lengths.get(household, 0))


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        console.print("stopped; everything is cleaned up")
        sys.exit(128 + signal.SIGINT)
