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
from model.tokenizer.health import tokenizer_health
from model.tokenizer.item_vectors import item_vectors
from model.tokenizer.residual_kmeans import ResidualKMeans
from model.training.batches import BatchBuilder
from model.training.budget import Budget
from model.training.config import TrainConfig
from model.training.evaluate import network_recall, popularity_recall
from model.training.histories import Histories, build_histories
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
    vectors = _vectors(histories, items, config)
    progress.advance(preparing)
    tokenizer = ResidualKMeans.fit(
        vectors, config.tokenizer, torch.Generator().manual_seed(config.seed)
    )
    catalogue = items.with_sids(tokenizer.assign(vectors).numpy())
    progress.advance(preparing)

    network = _initial_network(config, items, vectors, tokenizer)
    seconds = 60 * config.minutes * (1 - _RESERVED_SHARE) - (time.monotonic() - start)
    report = _fit(
        network, histories, catalogue, config, Budget(seconds, config.max_steps), progress
    )
    report["tokenizer"] = dataclasses.asdict(
        tokenizer_health(catalogue.columns["sids"], config.tokenizer.codebook_size)
    )
    report["users"], report["interactions"] = len(events.user_ids), len(events.rows)
    report["seconds"] = round(time.monotonic() - start, 1)
    trained = Trained(network, config.history, tokenizer, config.tokenizer, catalogue, report)
    return {**report, "bundle_version": save_bundle(trained, out)}


def _vectors(histories: Histories, items: ItemTable, config: TrainConfig) -> Tensor:
    """Item vectors from training interactions. Order within a basket carries no meaning, so it is drawn anew."""
    random = np.random.default_rng(config.seed)
    trainable = np.flatnonzero(np.arange(len(histories.rows)) < histories.train_end)
    order = np.lexsort((random.random(len(trainable)), histories.basket_end[trainable]))
    positions = trainable[order]
    ids = histories.rows["item_id"][positions]
    places = np.searchsorted(items.item_ids, ids).clip(max=len(items.item_ids) - 1)
    return item_vectors(
        histories.users[positions],
        np.where(items.item_ids[places] == ids, places, -1),
        len(items.item_ids),
        config.tokenizer.window,
        config.tokenizer.vector_width,
    )


def _initial_network(
    config: TrainConfig, items: ItemTable, vectors: Tensor, tokenizer: ResidualKMeans
) -> Network:
    """Item table and codebooks start in the space of the item vectors: an item is near the sum of its codes."""
    width = config.network.layer.width
    network = Network(
        config.network,
        config.history.recent_len,
        config.tokenizer.num_levels,
        config.tokenizer.codebook_size,
    )
    network.features.set_item_vectors(items.item_ids, _fit_width(vectors, width), items.counts)
    with torch.no_grad():
        network.codebooks_DKH.copy_(_fit_width(tokenizer.codebooks, width))
    return network


def _fit_width(vectors: Tensor, width: int) -> Tensor:
    """The leading dimensions, padded with zeros: they come in order of importance."""
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
