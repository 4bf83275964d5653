"""One training run: histories, catalogue and codes, three stages, held-out recall, bundle."""

import dataclasses
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.progress import Progress
from torch import Tensor
from torch.nn import functional

from model.bundle import Trained, check_target, save_bundle
from model.catalogue import Catalogue, ItemTable, collect_items
from model.network import Network
from model.tokenizer.fitting import fit_tokenizer
from model.tokenizer.health import tokenizer_health
from model.tokenizer.item_vectors import principal_axes
from model.tokenizer.residual_codes import mean_residuals
from model.training.batches import BatchBuilder
from model.training.budget import Budget
from model.training.config import TrainConfig
from model.training.evaluate import network_recall, popularity_recall
from model.training.histories import Histories, build_histories
from model.training.item_blocks import build_item_vectors
from model.training.repeat_items import describe_items, standardise
from model.training.repeat_stage import RepeatStage
from model.training.stages import StageReport, StageRunner
from model.trie import Trie
from state.event_log import EventLog

RECALL_AT = 20
_RESERVED_SHARE = 0.06  # of the wall-clock budget, for held-out recall and saving


def train(
    events: EventLog, items_path: Path | None, config: TrainConfig, out: Path, progress: Progress
) -> dict[str, Any]:
    """Train on `events` and save a bundle to `out`; returns the training report, with the bundle's version.

    Repeatable bit by bit for one seed, step budget and number of threads. Raises ModelError (TrainingError,
    CatalogueError, BundleError) when the log, the items file or `out` cannot be used.
    """
    start = time.monotonic()
    check_target(out)
    torch.set_num_threads(config.num_threads)
    torch.manual_seed(config.seed)
    preparing = progress.add_task("histories, item vectors and codes", total=3)
    histories = build_histories(events)
    items = collect_items(events.rows, config.min_item_count, items_path)
    progress.advance(preparing)
    item_vectors = build_item_vectors(histories, items, config)
    vectors = item_vectors.vectors_RV
    progress.advance(preparing)
    tokenizer = fit_tokenizer(vectors, config.tokenizer, config.seed)
    codes = tokenizer.assign(vectors, config.tokenizer.bounds)
    catalogue = items.with_sids(codes.numpy())
    progress.advance(preparing)

    network = _initial_network(config, items, vectors, codes)
    seconds = 60 * config.minutes * (1 - _RESERVED_SHARE) - (time.monotonic() - start)
    report = _fit(
        network, histories, catalogue, config, Budget(seconds, config.max_steps), progress
    )
    report["tokenizer"] = dataclasses.asdict(
        tokenizer_health(tokenizer, vectors, codes.numpy(), config.tokenizer.codebook_sizes)
    )
    report["users"], report["interactions"] = len(events.user_ids), len(events.rows)
    report["seconds"] = round(time.monotonic() - start, 1)
    trained = Trained(
        network=network,
        history=config.history,
        tokenizer=tokenizer,
        tokenizer_config=config.tokenizer,
        item_vectors=item_vectors.rows(np.searchsorted(items.item_ids, catalogue.item_ids)),
        catalogue=catalogue,
        training_report=report,
    )
    return {**report, "bundle_version": save_bundle(trained, out)}


def _initial_network(
    config: TrainConfig, items: ItemTable, vectors: Tensor, codes: Tensor
) -> Network:
    """Item table and codebooks start in the space of the item vectors: an item is near the sum of its codes."""
    width, codebook_size = config.network.layer.width, config.tokenizer.codebook_size
    network = Network(
        config.network, config.history.recent_len, config.tokenizer.num_levels, codebook_size
    )
    leading = vectors @ principal_axes(vectors)[:, :width]
    network.features.set_item_vectors(items.item_ids, _fit_width(leading, width), items.counts)
    network.set_codebooks(_fit_width(mean_residuals(leading, codes, codebook_size), width))
    return network


def _fit_width(vectors: Tensor, width: int) -> Tensor:
    """Padded with zeros."""
    return functional.pad(vectors, (0, width - vectors.shape[-1]))


def _fit(
    network: Network,
    histories: Histories,
    catalogue: Catalogue,
    config: TrainConfig,
    budget: Budget,
    progress: Progress,
) -> dict[str, Any]:
    """All stages and the held-out recall: half of the held-out users steer the stages, others are reported on."""
    trie = Trie(catalogue.sids_SD, catalogue.sid_counts_S)
    builder = BatchBuilder(
        histories, catalogue, config.network, config.history, config.lifecycle_sample
    )
    shuffled = np.random.default_rng(config.seed).permutation(histories.held_out_cuts)
    num_steering = min(config.evaluation_users // 2, (len(shuffled) + 1) // 2)
    tested = shuffled[num_steering : num_steering + config.evaluation_users]
    tested = tested if len(tested) else shuffled
    describe_items(network.repeats, histories, config.network.features.item_buckets)
    standardise(network.repeats, builder, config.seed)
    repeat_stage = RepeatStage(network.repeats, builder, config)
    first = repeat_stage.run(shuffled[:num_steering], budget.part(config.repeat_share), progress)
    network.train()
    runner = StageRunner(network, trie, builder, config, budget, progress)
    stages: list[StageReport] = [first, *runner.run(shuffled[:num_steering])]
    network.eval()
    evaluating = progress.add_task(
        f"recall at {RECALL_AT} of {len(tested)} held-out baskets", total=1
    )
    recall = network_recall(network, trie, builder, tested, RECALL_AT)
    progress.advance(evaluating)
    return {
        "stages": [dataclasses.asdict(stage) for stage in stages],
        f"recall_at_{RECALL_AT}": {
            "network": recall,
            "popularity": popularity_recall(histories, catalogue, tested, RECALL_AT),
            "baskets": len(tested),
        },
    }
