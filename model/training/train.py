"""One training run: histories, catalogue and codes, three stages, held-out recall, bundle."""

import dataclasses
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.progress import Progress
from torch import Tensor
from torch.nn import functional

from model.bundle import Trained, check_target, save_bundle
from model.catalogue import ItemTable, collect_items
from model.errors import TrainingError
from model.network import Network
from model.tokenizer.fitting import fit_tokenizer
from model.tokenizer.health import tokenizer_health
from model.tokenizer.item_vectors import principal_axes
from model.tokenizer.residual_codes import mean_residuals
from model.training.batches import BatchBuilder
from model.training.budget import Budget
from model.training.config import TrainConfig
from model.training.data_parallel import ALONE, Workers
from model.training.devices import training_device
from model.training.divergence import check_weights
from model.training.evaluate import network_recall, popularity_recall
from model.training.histories import Histories, Index, build_histories
from model.training.item_blocks import build_item_vectors
from model.training.plots import draw_run
from model.training.precision import recompute_activations
from model.training.repeat_items import describe_items, standardise
from model.training.repeat_stage import RepeatStage
from model.training.replay import replay
from model.training.run_directory import RunDirectory, run_identity
from model.training.run_log import RunLog
from model.training.run_progress import RunProgress
from model.training.stages import VALIDATION_SHARE, StageRunner
from model.training.steps import Surroundings
from model.training.stop_signals import stop_requests
from model.trie import Trie
from state.event_log import EventLog

RECALL_AT = 20
_RECALL_SHARE = 0.05  # of the wall-clock budget, and what training leaves of its own
_RESERVED_SHARE = (
    _RECALL_SHARE + 2 * VALIDATION_SHARE + 0.01
)  # and the last stage's figures, and saving


@dataclasses.dataclass(frozen=True)
class RunPlace:
    """Where a run takes place, and since when."""

    directory: Path | None = None
    """Keeps its checkpoint and metrics, from which it is resumed; None keeps nothing."""
    workers: Workers = ALONE
    began_s: float | None = None
    """By the monotonic clock, before the log was read; None: when `train` is called."""


def train(
    events: EventLog,
    items_path: Path | None,
    config: TrainConfig,
    out: Path,
    progress: Progress,
    place: RunPlace = RunPlace(),
) -> dict[str, Any]:
    """Train on `events` and save a bundle to `out`; returns the training report, with the bundle's version.

    Repeatable bit by bit for one seed, step budget and number of threads, wherever it is stopped and resumed. Of
    several workers, the first alone saves; the others return an empty report. Raises TrainingStopped when a signal
    came, and ModelError (TrainingError, TrainingRunError, CatalogueError, BundleError) when the log, the items file,
    the run's directory or `out` cannot be used.
    """
    start = time.monotonic() if place.began_s is None else place.began_s
    check_target(out)
    if config.batch_size < place.workers.size:
        raise TrainingError(
            f"batch_size is {config.batch_size}; it must be at least the number of processes, {place.workers.size}"
        )
    torch.set_num_threads(config.num_threads)
    torch.manual_seed(config.seed)
    preparing = progress.add_task("histories, item vectors and codes", total=3)
    histories = build_histories(replay(events, config.history))
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
    budget = Budget(seconds, config.max_steps)
    builder = BatchBuilder(
        histories, catalogue, config.network, config.history, config.lifecycle_sample
    )
    report = _fit(network, builder, config, budget, progress, place)
    if not place.workers.is_first:
        return {}
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
    version = save_bundle(trained, out)
    return {**report, "bundle_version": version, "run": _finish(place)}


def _finish(place: RunPlace) -> dict[str, str | None]:
    """Draw the picture; nothing is left to be resumed."""
    if place.directory is None:
        return {}
    directory = RunDirectory(place.directory)
    drawn = draw_run(directory.metrics, directory.plot)
    directory.forget_checkpoint()
    board = directory.tensorboard if directory.tensorboard.exists() else None
    return {
        "metrics": str(directory.metrics),
        "plot": str(directory.plot) if drawn else None,
        "tensorboard": None if board is None else str(board),
    }


def _initial_network(
    config: TrainConfig, items: ItemTable, vectors: Tensor, codes: Tensor
) -> Network:
    """Item table and codebooks start in the space of the item vectors: an item is near the sum of its codes."""
    width, codebook_size = config.network.layer.width, config.tokenizer.codebook_size
    network = Network(config.network, config.history, config.tokenizer.num_levels, codebook_size)
    leading = vectors @ principal_axes(vectors)[:, :width]
    network.features.set_item_vectors(items.item_ids, _fit_width(leading, width), items.counts)
    network.set_codebooks(_fit_width(mean_residuals(leading, codes, codebook_size), width))
    return network


def _fit_width(vectors: Tensor, width: int) -> Tensor:
    """Padded with zeros."""
    return functional.pad(vectors, (0, width - vectors.shape[-1]))


def _learn_repeats(
    network: Network,
    builder: BatchBuilder,
    config: TrainConfig,
    around: Surroundings,
    run: RunProgress,
    validation_cuts: Index,
) -> None:
    """The stage before the others."""
    if not run.state.repeats.steps:
        describe_items(network.repeats, builder.histories, config.network.features.item_buckets)
        standardise(network.repeats, builder, config.seed)
    RepeatStage(network.repeats, builder, config, around, run).run(validation_cuts)


def _fit(
    network: Network,
    builder: BatchBuilder,
    config: TrainConfig,
    budget: Budget,
    progress: Progress,
    place: RunPlace,
) -> dict[str, Any]:
    """All stages and the held-out recall: half of the held-out users steer the stages, others are reported on."""
    histories = builder.histories
    steering, tested = _held_out(histories, config)
    trie = Trie(builder.catalogue.sids_SD, builder.catalogue.sid_counts_S)
    directory = None if place.directory is None else RunDirectory(place.directory)
    identity = run_identity(config, histories, builder.catalogue)
    place.workers.begin_alike(network, identity)
    every_s, writes = config.checkpoint_every_s, place.workers.is_first
    with (
        stop_requests(directory is not None) as stop,
        closing(RunLog(directory, identity, every_s, writes, stop)) as log,
    ):
        around = Surroundings(budget, progress, log, place.workers, training_device())
        run = RunProgress(network, around)
        run.resume()
        if not run.state.reports:
            _learn_repeats(network, builder, config, around, run, steering)
        network.to(around.device).train()
        place.workers.begin_alike(network, identity)
        if config.gradient_checkpointing:
            recompute_activations(network)
        runner = StageRunner(network, trie, builder, config, around, run)
        stages = runner.run(steering)
    if not place.workers.is_first:
        return {}
    network.cpu().eval()
    check_weights(network)
    return {
        "stages": [dataclasses.asdict(stage) for stage in stages],
        "precision": runner.precision,
        "device": around.device.type,
        "processes": place.workers.size,
        f"recall_at_{RECALL_AT}": _recall(network, trie, builder, tested, config, around),
    }


def _held_out(histories: Histories, config: TrainConfig) -> tuple[Index, Index]:
    """The baskets that steer the stages, and those that are reported on."""
    shuffled = np.random.default_rng(config.seed).permutation(histories.held_out_cuts)
    num_steering = min(config.evaluation_users // 2, (len(shuffled) + 1) // 2)
    tested = shuffled[num_steering : num_steering + config.evaluation_users]
    return shuffled[:num_steering], tested if len(tested) else shuffled


def _recall(
    network: Network,
    trie: Trie,
    builder: BatchBuilder,
    tested: Index,
    config: TrainConfig,
    around: Surroundings,
) -> dict[str, Any]:
    evaluating = around.progress.add_task(
        f"recall at {RECALL_AT} of {len(tested)} held-out baskets", total=1
    )
    limit_s = 60 * config.minutes * _RECALL_SHARE + around.budget.left_s
    recall, taken = network_recall(network, trie, builder, tested, RECALL_AT, limit_s)
    around.progress.advance(evaluating)
    return {
        "network": recall,
        "popularity": popularity_recall(builder.histories, builder.catalogue, taken, RECALL_AT),
        "baskets": len(taken),
        "asked_baskets": len(tested),
    }
