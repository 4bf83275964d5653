"""One training run: histories, catalogue and codes, three stages, held-out recall, bundle."""

import dataclasses
import time
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.progress import Progress

from model.bundle import Trained, check_target, save_bundle
from model.errors import TrainingError, TrainingRunError
from model.network import Network
from model.training.batches import BatchBuilder
from model.training.budget import Budget
from model.training.config import TrainConfig
from model.training.data_parallel import ALONE, Workers
from model.training.devices import training_device
from model.training.divergence import check_weights
from model.training.evaluate import RECALL_AT, held_out, recall_report
from model.training.histories import FEWEST_SHARE, Index, build_histories
from model.training.initial_network import initial_network
from model.training.item_preparation import PreparedItems, prepare_items
from model.training.plots import draw_run
from model.training.precision import recompute_activations
from model.training.repeat_items import describe_items, standardise
from model.training.repeat_stage import RepeatStage
from model.training.replay import replay
from model.training.run_directory import RunDirectory, run_identity
from model.training.run_log import RunLog
from model.training.run_progress import RunProgress
from model.training.run_state import StageReport
from model.training.stages import STAGES, StageRunner
from model.training.steps import Surroundings
from model.training.stop_signals import stop_requests
from model.training.time_limits import RECALL_SHARE, RESERVED_SHARE, check_time, check_trained
from model.training.transition_counts import count_transitions
from model.transitions import Followers
from model.trie import Trie
from state.event_log import EventLog


@dataclasses.dataclass(frozen=True)
class RunPlace:
    """Where a run takes place, and since when."""

    directory: Path | None = None
    """Keeps its checkpoint and metrics, from which it is resumed; None keeps nothing."""
    workers: Workers = ALONE
    began_s: float | None = None
    """By the monotonic clock, before the log was read; None: when `train` is called."""

    @property
    def run_directory(self) -> RunDirectory | None:
        """The files in `directory`, which is made."""
        return None if self.directory is None else RunDirectory(self.directory)


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
    _set_up(config, place, out)
    preparing = progress.add_task("histories, item vectors and codes", total=3)
    histories = build_histories(
        replay(events, config.history), config.num_held_out, config.seed, config.target_kinds
    )
    items = prepare_items(
        events,
        histories,
        items_path,
        config,
        partial(_warn, progress, place),
        partial(progress.advance, preparing),
    )
    network = initial_network(config, items.table, items.vectors.vectors_RV, items.codes)
    builder = BatchBuilder(
        histories, items.catalogue, config.network, config.history, config.lifecycle_sample
    )
    if config.network.next_item.counts_transitions:
        counted = count_transitions(histories, items.catalogue)
        builder.followers = Followers(counted, items.catalogue)
    seconds = 60 * config.minutes * (1 - RESERVED_SHARE) - (time.monotonic() - start)
    report = _fit(network, builder, config, Budget(seconds, config.max_steps), progress, place)
    if not place.workers.is_first:
        return {}
    report["tokenizer"] = items.health(config)
    report["target_kinds"] = list(config.target_kinds)
    report["users"], report["interactions"] = len(events.user_ids), len(events.rows)
    report["seconds"] = round(time.monotonic() - start, 1)
    version = save_bundle(_trained(network, items, config, report, builder.followers), out)
    return {**report, "bundle_version": version, "run": _finish(place, out)}


def _set_up(config: TrainConfig, place: RunPlace, out: Path) -> None:
    check_target(out)
    least = place.workers.size * (FEWEST_SHARE if config.even_batches else 1)
    if place.workers.size > 1 and config.batch_size < least:
        raise TrainingError(
            f"batch_size is {config.batch_size}; with {place.workers.size} processes it must be at least {least}"
        )
    torch.set_num_threads(config.num_threads)
    torch.manual_seed(config.seed)


def _trained(
    network: Network,
    items: PreparedItems,
    config: TrainConfig,
    report: dict[str, Any],
    followers: Followers | None,
) -> Trained:
    return Trained(
        network=network,
        history=config.history,
        tokenizer=items.tokenizer,
        tokenizer_config=config.tokenizer,
        item_vectors=items.catalogue_vectors(),
        catalogue=items.catalogue,
        training_report=report,
        transitions=None if followers is None else followers.transitions,
    )


def _finish(place: RunPlace, out: Path) -> dict[str, str | None]:
    """Draw the picture; nothing is left to be resumed."""
    if place.directory is None:
        return {}
    if not place.directory.is_dir():
        raise TrainingRunError(
            f"{place.directory} disappeared while the run went on: its metrics are lost; the bundle in {out} is whole"
        )
    directory = RunDirectory(place.directory)
    drawn = draw_run(directory.metrics, directory.plot)
    directory.forget_checkpoint()
    board = directory.tensorboard if directory.tensorboard.exists() else None
    return {
        "metrics": str(directory.metrics),
        "plot": str(directory.plot) if drawn else None,
        "tensorboard": None if board is None else str(board),
    }


def _warn(progress: Progress, place: RunPlace, text: str) -> None:
    if place.workers.is_first:
        progress.console.print(f"warning: {text}", markup=False, highlight=False, soft_wrap=True)


def _begin(
    network: Network,
    builder: BatchBuilder,
    config: TrainConfig,
    around: Surroundings,
    run: RunProgress,
    validation_cuts: Index,
) -> None:
    """Resume where the run stood, and make the stage before the others where there are repeats to learn."""
    run.resume()
    check_time(around.budget, config)
    if not config.network.repeats.enabled:
        return
    popularity = builder.follow_popularity()
    if run.state.reports:
        return
    if not run.state.repeats.steps:
        item_buckets = config.network.features.item_buckets
        describe_items(network.repeats, builder.histories, popularity, item_buckets)
        standardise(network, builder, config.seed)
    RepeatStage(network, builder, config, around, run).run(validation_cuts)


def _fit(
    network: Network,
    builder: BatchBuilder,
    config: TrainConfig,
    budget: Budget,
    progress: Progress,
    place: RunPlace,
) -> dict[str, Any]:
    """All stages and the held-out recall: half of the held-out users steer the stages, others are reported on."""
    steering, tested = held_out(builder.histories, config)
    trie = Trie(builder.catalogue.sids_SD, builder.catalogue.sid_counts_S)
    if config.network.live_prior:
        prior = builder.follow_prior(trie)
        prior.remember_end(network)
        trie = prior.trie
    identity = run_identity(config, builder.histories, builder.catalogue)
    place.workers.begin_alike(network, identity)
    every_s, writes = config.checkpoint_every_s, place.workers.is_first
    with (
        stop_requests(place.directory is not None) as stop,
        closing(RunLog(place.run_directory, identity, every_s, writes, stop)) as log,
    ):
        around = Surroundings(budget, progress, log, place.workers, training_device())
        run = RunProgress(network, around)
        _begin(network, builder, config, around, run, steering)
        network.to(around.device).train()
        place.workers.begin_alike(network, identity)
        if config.gradient_checkpointing:
            recompute_activations(network)
        runner = StageRunner(network, trie, builder, config, around, run)
        stages = runner.run(steering)
    check_trained(stages, budget, config)
    if not place.workers.is_first:
        return {}
    _warn_of_idle(stages, progress, place)
    network.cpu().eval()
    check_weights(network)
    return {
        "stages": [dataclasses.asdict(stage) for stage in stages],
        "precision": runner.precision,
        "device": around.device.type,
        "processes": place.workers.size,
        f"recall_at_{RECALL_AT}": _recall(network, trie, builder, tested, config, around),
    }


def _warn_of_idle(stages: Sequence[StageReport], progress: Progress, place: RunPlace) -> None:
    later = [stage for stage in stages if stage.name in STAGES[1:]]
    for name in (stage.name for stage in later if not stage.steps):
        text = f"no time was left for stage {name!r}; give the run more minutes or steps"
        _warn(progress, place, text)


def _recall(
    network: Network,
    trie: Trie,
    builder: BatchBuilder,
    tested: Index,
    config: TrainConfig,
    around: Surroundings,
) -> dict[str, Any]:
    task = around.progress.add_task(
        f"recall at {RECALL_AT} of {len(tested)} held-out baskets", total=1
    )
    limit_s = 60 * config.minutes * RECALL_SHARE + around.budget.left_s
    report = recall_report(network, trie, builder, tested, limit_s)
    around.progress.advance(task)
    return report
