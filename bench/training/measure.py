"""One measurement: steps of one stage at one history length; prints one JSON document."""

import argparse
import json
import resource
import statistics
import sys
import time
from collections.abc import Iterator

import numpy as np
import torch

from model.catalogue import collect_items
from model.network import Network, NetworkConfig
from model.training.batches import BatchBuilder
from model.training.histories import Histories, build_histories
from model.training.losses import Stage, batch_losses
from model.training.precision import autocast, recompute_activations
from model.trie import Trie
from state.event_log import EventLog
from state.interaction import INTERACTION
from state.segments import HistoryConfig

STAGES: tuple[Stage, ...] = ("dense", "indexer", "selection")
NUM_ITEMS, LEVELS, CODES, TARGETS = 20_000, 3, 256, 32


def histories_of(length: int, num_users: int) -> Histories:
    """Users with `length` interactions before their last basket, one a minute, of a Zipf-like catalogue."""
    random = np.random.default_rng(0)
    num_rows = num_users * (length + TARGETS)
    rows = np.zeros(num_rows, INTERACTION)
    rows["item_id"] = 1 + (random.random(num_rows) ** 3 * NUM_ITEMS).astype(np.uint64)
    rows["author_id"], rows["tag"] = rows["item_id"] % 977, rows["item_id"] % 97
    minutes = np.arange(length + TARGETS).clip(max=length)
    rows["event_time_ms"] = 1_700_000_000_000 + 60_000 * np.repeat(minutes, num_users)
    rows["kinds"] = 2
    users = np.tile(np.arange(num_users), length + TARGETS)
    return build_histories(EventLog([str(u) for u in range(num_users)], users, [], rows))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("length", type=int)
    parser.add_argument("stage", choices=STAGES)
    parser.add_argument("precision", choices=["fp32", "bf16"])
    parser.add_argument("--recompute", action="store_true")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--steps", type=int, default=6)
    return parser.parse_args()


def steps(arguments: argparse.Namespace) -> Iterator[int]:
    """One training step each; yields its tokens: interactions encoded and codes predicted."""
    histories = histories_of(arguments.length, arguments.batch)
    items = collect_items(histories.rows, 1, None)
    sids = np.random.default_rng(0).integers(0, CODES, (len(items.item_ids), LEVELS))
    catalogue = items.with_sids(sids)
    config, history = NetworkConfig(), HistoryConfig()
    builder = BatchBuilder(histories, catalogue, config, history, 128)
    trie = Trie(catalogue.sids_SD, catalogue.sid_counts_S)
    network = Network(config, history, LEVELS, CODES)
    if arguments.recompute:
        recompute_activations(network)
    optimiser = torch.optim.AdamW(network.parameters(), fused=True)
    while True:
        random = np.random.default_rng(0)
        batch = builder.build(histories.held_out_cuts, TARGETS, TARGETS, random)
        with autocast(arguments.precision, torch.device("cpu")):
            losses = batch_losses(network, trie, batch, arguments.stage)
        total = losses.next_token + losses.indexer + 0.1 * losses.reconstruction
        total.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        optimiser.zero_grad()
        yield int(batch.mask.sum()) + int((batch.target_weights > 0).sum()) * LEVELS


def main() -> None:
    arguments = parse_arguments()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    training, seconds, processor_seconds = steps(arguments), [], []
    tokens = next(training)
    for _ in range(arguments.steps):
        start, processor_start = time.perf_counter(), time.process_time()
        tokens = next(training)
        seconds.append(time.perf_counter() - start)
        processor_seconds.append(time.process_time() - processor_start)
    median = statistics.median(seconds)
    document = {
        "step_ms": 1_000 * median,
        "cpu_ms": 1_000 * statistics.median(processor_seconds),
        "tokens_per_s": tokens / median,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
    sys.stdout.write(json.dumps({k: round(v, 1) for k, v in document.items()}) + "\n")


if __name__ == "__main__":
    main()
