"""Training: cuts and targets, stages, repeatability, and that something is learnt."""

import copy
import json
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from rich.progress import Progress
from safetensors.torch import load_file

from model.bundle import Bundle, load_bundle
from model.compression import Compressor
from model.errors import BundleError, ModelConfigError, TrainingError
from model.network import NetworkConfig
from model.recommender import Recommender
from model.repeat_features import repeat_candidates
from model.training.batches import BatchBuilder
from model.training.budget import Budget
from model.training.config import StageRules, TrainConfig
from model.training.convergence import Convergence
from model.training.devices import on_device
from model.training.gains import item_gains
from model.training.histories import build_histories, draw_cuts
from model.training.losses import Stage, batch_losses
from model.training.precision import Precision, faster_precision
from model.training.train import train
from state.event_log import EventLog
from state.fold import fold
from state.interaction import empty_rows
from state.segments import HistoryConfig
from state.user_delta import split_state
from state.user_state import UserMeta, UserState
from tests.model.worlds import BASKET_LEN, NUM_BASKETS, NUM_USERS, SMALL, make_event_log

HISTORY = SMALL.history


@pytest.fixture(scope="module")
def builder(event_log: EventLog, bundle: Bundle) -> BatchBuilder:
    return BatchBuilder(build_histories(event_log), bundle.catalogue, SMALL.network, HISTORY, 100)


def test_each_users_last_basket_is_held_out(event_log: EventLog) -> None:
    histories = build_histories(event_log)
    assert len(histories.held_out_cuts) == NUM_USERS
    assert len(histories.train_cuts) == NUM_USERS * (NUM_BASKETS - 2)
    assert np.all(histories.basket_size == BASKET_LEN)
    for cut in histories.held_out_cuts:
        assert (
            histories.basket_end[cut] == cut + BASKET_LEN == histories.train_end[cut] + BASKET_LEN
        )


def test_users_who_are_not_evaluated_are_trained_on_to_the_end(event_log: EventLog) -> None:
    histories = build_histories(event_log, num_held_out=5, seed=1)
    assert len(histories.held_out_cuts) == 5
    held_out = set(histories.users[histories.held_out_cuts].tolist())
    for user in range(NUM_USERS):
        rows = np.flatnonzero(histories.users == user)
        expected = rows[-1] + 1 - BASKET_LEN * (user in held_out)
        assert set(histories.train_end[rows].tolist()) == {expected}
    assert len(histories.train_cuts) == NUM_USERS * (NUM_BASKETS - 1) - 5
    again = build_histories(event_log, num_held_out=5, seed=1).held_out_cuts
    assert again.tolist() == histories.held_out_cuts.tolist()
    assert len(build_histories(event_log, num_held_out=10_000).held_out_cuts) == NUM_USERS


def test_some_cuts_are_their_users_last_ones(event_log: EventLog) -> None:
    histories = build_histories(event_log, num_held_out=5)
    last = {
        int(histories.train_cuts[histories.users[histories.train_cuts] == user].max())
        for user in range(NUM_USERS)
    }
    drawn = np.concatenate(
        draw_cuts(
            histories, 4_000, 40, np.random.default_rng(0), [(histories.newest_train_cuts, 0.5)]
        )
    )
    assert set(drawn.tolist()) <= set(histories.train_cuts.tolist())
    anyway = 1 / NUM_BASKETS
    assert np.isin(drawn, list(last)).mean() == pytest.approx(0.5 + 0.5 * anyway, abs=0.05)
    (always,) = draw_cuts(
        histories, 50, 50, np.random.default_rng(0), [(histories.newest_train_cuts, 1.0)]
    )
    assert set(always.tolist()) <= last


@given(st.integers(0, 10_000), st.integers(2, 40), st.integers(1, 12))
def test_even_batches_hold_as_many_interactions(seed: int, batch_size: int, parts: int) -> None:
    """To within a context; the same cuts as in batches of as many contexts, none of which is empty."""
    histories, even_len = build_histories(make_event_log(), num_held_out=5), 20
    plain, even = (
        draw_cuts(
            histories, batch_size * parts, batch_size, np.random.default_rng(seed), even_len=length
        )
        for length in (None, even_len)
    )
    assert len(even) == len(plain) == parts
    assert sorted(np.concatenate(even).tolist()) == sorted(np.concatenate(plain).tolist())
    sums = [np.minimum(cuts - histories.user_start[cuts], even_len).sum() for cuts in even]
    for cuts, interactions in zip(even, sums, strict=True):
        assert len(cuts) >= max(1, batch_size // 4)
        if batch_size // 4 < len(cuts):
            assert interactions <= np.mean(sums) + 2 * even_len


def test_contexts_are_cut_like_the_fold_cuts(event_log: EventLog, builder: BatchBuilder) -> None:
    """The same interactions in the same segments as the stream's fold gives at that moment."""
    histories = builder.histories
    for cut in histories.train_cuts[[0, 5, 9, 13]]:
        start = int(histories.user_start[cut])
        past = histories.rows[start:cut].copy()
        past["event_hash"] = np.arange(1, len(past) + 1)
        folded = fold(UserMeta(), empty_rows(), past, HISTORY)
        batch = builder.build(np.array([cut]), 4, 8, None)
        boundary = folded.meta.lifecycle_boundary
        recent_start = HISTORY.recent_start(folded.meta.length)
        assert batch.lengths == [boundary, recent_start - boundary, len(past) - recent_start]
        assert torch.equal(batch.items.ids[0], builder.items.ids[start:cut])


def test_targets_follow_the_cut_and_weigh_one_per_basket(builder: BatchBuilder) -> None:
    random = np.random.default_rng(0)
    cuts = builder.histories.train_cuts[:20]
    batch = builder.build(cuts, targets=8, window=8, random=random)
    for row, cut in enumerate(cuts):
        end = min(cut + 8, builder.histories.train_end[cut])
        real = batch.target_weights[row] > 0
        drawn = batch.target_sids[row][real].tolist()
        assert sorted(drawn) == sorted(builder.target_sids[cut:end].tolist())
        assert batch.target_weights[row][real].tolist() == [1 / BASKET_LEN] * len(drawn)


def test_an_item_counts_as_it_raises_ndcg() -> None:
    sizes = np.array([1, 2, 10, 11, 60])
    gains = item_gains(sizes)
    second = 1 / np.log2(3)
    assert gains[0] / gains[1] == pytest.approx(1 + second)
    assert gains[2:].tolist() == pytest.approx([0.1] * 3)
    assert (np.diff(gains * sizes) > 0).all()


def test_repeats_are_those_of_serving(builder: BatchBuilder, bundle: Bundle) -> None:
    """Statistics by way of the compressor's chunks and of the rows at hand; targets are the next basket's."""
    histories, catalogue, compressor = builder.histories, bundle.catalogue, Compressor(bundle)
    cuts = histories.held_out_cuts[:3]
    candidates, weights = builder.repeats(cuts)
    for row, cut in enumerate(cuts):
        rows = histories.rows[histories.user_start[cut] : cut]
        boundary = HISTORY.lifecycle_boundary(len(rows))
        chunks = [rows[i : i + HISTORY.chunk_len] for i in range(0, boundary, HISTORY.chunk_len)]
        summary = compressor.roll(None, chunks, boundary, now_ms=1)
        tail_start = HISTORY.tail_start(len(rows))
        meta = UserMeta(length=len(rows), lifecycle_boundary=boundary, tail_start=tail_start)
        state = UserState("someone", meta, rows[boundary:], summary)
        context, _ = Recommender(bundle).encode(split_state(state, HISTORY))
        features, asked_ms = SMALL.network.features, [histories.rows["event_time_ms"][cut]]
        served = repeat_candidates(
            [context.statistics], catalogue, features, 512, times_ms=asked_ms
        )
        real = candidates.real[row]
        assert torch.equal(candidates.items[row][real], served.items[0])
        torch.testing.assert_close(candidates.features[row][real], served.features[0])
        basket = catalogue.find(
            np.unique(histories.rows["item_id"][cut : histories.basket_end[cut]])
        )
        hit = np.isin(candidates.items[row], basket) & real.numpy()
        ideal = sum(1 / np.log2(2 + place) for place in range(len(basket)))
        of_ten = sum(1 / np.log2(2 + place) for place in range(10)) / 10
        np.testing.assert_allclose(weights[row], hit * of_ten / ideal, rtol=1e-6)


def test_a_large_lifecycle_is_sampled_evenly(event_log: EventLog, bundle: Bundle) -> None:
    history = HistoryConfig(recent_len=4, mid_term_len=8, chunk_len=4, max_history=1000)
    builder = BatchBuilder(build_histories(event_log), bundle.catalogue, SMALL.network, history, 5)
    cut = builder.histories.held_out_cuts[0]
    batch = builder.build(np.array([cut]), 4, 8, None)
    start, boundary = builder.histories.user_start[cut], history.lifecycle_boundary(60)
    expected = [start + i * boundary // 5 for i in range(5)]
    assert torch.equal(batch.items.ids[0, :5], builder.items.ids[torch.tensor(expected)])


@pytest.mark.parametrize("drawn", [False, True])
def test_a_context_is_the_same_beside_longer_ones(builder: BatchBuilder, drawn: bool) -> None:
    """Whatever segments the others of its batch have."""
    cuts = builder.histories.train_cuts[:14]
    batch = builder.build(cuts, 1, 1, np.random.default_rng(0) if drawn else None)
    for row, cut in enumerate(cuts.tolist()):
        start = int(builder.histories.user_start[cut])
        own = builder.items.ids[start:cut]
        assert torch.equal(batch.items.ids[row][batch.mask[row]], own)


def test_one_context_serves_all_its_targets(builder: BatchBuilder, bundle: Bundle) -> None:
    """The loss of several targets at once is the mean of the losses of one at a time."""
    cuts = builder.histories.train_cuts[5:6]
    batch = builder.build(cuts, 4, 4, None)
    together = batch_losses(bundle.network, bundle.trie, batch, "dense").next_token
    alone = []
    for i in range(BASKET_LEN):
        one = replace(
            batch,
            target_sids=batch.target_sids[:, i : i + 1],
            target_weights=batch.target_weights[:, i : i + 1],
        )
        alone.append(batch_losses(bundle.network, bundle.trie, one, "dense").next_token)
    torch.testing.assert_close(together, torch.stack(alone).mean(), atol=1e-4, rtol=1e-4)


def test_training_is_repeatable_and_reports(
    event_log: EventLog, bundle_path: Path, tmp_path: Path
) -> None:
    report = train(event_log, None, SMALL, tmp_path / "again", Progress(disable=True))
    one, two = (load_file(p / "network.safetensors") for p in (bundle_path, tmp_path / "again"))
    assert all(torch.equal(one[name], two[name]) for name in one)
    names = [stage["name"] for stage in report["stages"]]
    assert names == ["repeats", "dense", "indexer", "selection"]
    assert report["stages"][0]["steps"] <= SMALL.max_steps
    assert sum(stage["steps"] for stage in report["stages"][1:]) == SMALL.max_steps
    assert report["stages"][1]["kept_attention_mass"] is None
    assert 0 < report["stages"][3]["kept_attention_mass"] <= 1
    assert report["stages"][1]["kept_by_top_k"] == {}
    kept = report["stages"][2]["kept_by_top_k"]
    assert list(kept) == ["64", "128", "256", "512", "1024"]
    assert set(kept.values()) == {None}  # no user has more than sixteen
    assert report["bundle_version"] == load_bundle(tmp_path / "again").version
    json.dumps(report)


def test_tastes_are_learnt(event_log: EventLog, tmp_path: Path) -> None:
    """Sixty items, fifteen of a user's taste: popularity at 20 finds a third, a network most."""
    config = replace(SMALL, max_steps=60)
    report = train(event_log, None, config, tmp_path / "longer", Progress(disable=True))
    recall = report["recall_at_20"]
    assert recall["popularity"] < 0.5
    assert recall["network"] > 0.8


def test_a_plateau_needs_patience_and_the_least_steps() -> None:
    rules = StageRules(patience=2, min_improvement=0.1, smoothing=0.0, min_steps=60)
    losses = (3.0, 2.0, 1.95, 1.91, 1.95, 1.5, 1.45, 1.41)
    convergence = Convergence()
    seen = [convergence.reached(loss, 10 * i, rules) for i, loss in enumerate(losses, 1)]
    assert seen == [False, False, False, False, False, False, False, True]


def test_one_lucky_evaluation_does_not_reset_a_smoothed_loss() -> None:
    rules = StageRules(patience=3, min_improvement=0.1, smoothing=0.9)
    convergence = Convergence()
    seen = [convergence.reached(loss, 1, rules) for loss in (2.0, 2.0, 1.5, 2.0)]
    assert seen == [False, False, False, True]
    assert convergence.smoothed == pytest.approx(0.9 * 1.95 + 0.1 * 2.0)


def test_a_step_budget_ignores_the_clock() -> None:
    budget = Budget(seconds=0.0, max_steps=4)
    budget.steps = 1
    assert budget.spent() == 0.25
    assert Budget(seconds=0.0, max_steps=None).spent() == 1.0


def test_a_log_without_three_baskets_is_refused(event_log: EventLog) -> None:
    few = NUM_USERS * BASKET_LEN * 2
    short = EventLog(
        event_log.user_ids,
        event_log.user_index[:few],
        event_log.event_ids[:few],
        event_log.rows[:few],
    )
    with pytest.raises(TrainingError, match="three baskets"):
        build_histories(short)


def test_a_wrong_target_is_refused_before_the_work(event_log: EventLog, tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(BundleError, match="not a bundle"):
        train(event_log, None, SMALL, tmp_path, Progress(disable=True))


def test_settings_outside_their_limits_name_themselves() -> None:
    with pytest.raises(ModelConfigError, match="batch_size is 0"):
        TrainConfig(batch_size=0)
    with pytest.raises(ModelConfigError, match="max_steps is 2"):
        TrainConfig(max_steps=2)
    with pytest.raises(ModelConfigError, match="shares are"):
        StageRules(shares=(0.5, 0.5, 0.5))
    with pytest.raises(ModelConfigError, match="num_blocks is 0"):
        NetworkConfig(num_blocks=0)


def is_real(gradient: torch.Tensor | None) -> bool:
    return gradient is not None


@pytest.mark.parametrize("stage", ["indexer", "selection"])
def test_indexers_learn_from_their_own_loss_alone(
    builder: BatchBuilder, bundle: Bundle, stage: Stage
) -> None:
    network = copy.deepcopy(bundle.network).requires_grad_(True)
    batch = builder.build(builder.histories.held_out_cuts[:4], 4, 4, None)
    losses = batch_losses(network, bundle.trie, batch, stage)
    names, parameters = zip(*network.named_parameters(), strict=True)
    for loss, of_indexers in ((losses.indexer, True), (losses.next_token, False)):
        gradients = torch.autograd.grad(loss, parameters, retain_graph=True, allow_unused=True)
        reached = {
            name for name, gradient in zip(names, gradients, strict=True) if is_real(gradient)
        }
        assert reached
        assert {".indexer." in name for name in reached} == {of_indexers}


def test_recomputed_activations_change_nothing(
    event_log: EventLog, bundle_path: Path, tmp_path: Path
) -> None:
    config = replace(SMALL, gradient_checkpointing=True)
    train(event_log, None, config, tmp_path / "recomputed", Progress(disable=True))
    one, two = (
        load_file(p / "network.safetensors") for p in (bundle_path, tmp_path / "recomputed")
    )
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_bf16_learns_the_same(event_log: EventLog, tmp_path: Path) -> None:
    config = replace(SMALL, precision="bf16")
    report = train(event_log, None, config, tmp_path / "bf16", Progress(disable=True))
    exact = train(event_log, None, SMALL, tmp_path / "fp32", Progress(disable=True))
    assert (report["precision"], exact["precision"]) == ("bf16", "fp32")
    for rounded, stage in zip(report["stages"], exact["stages"], strict=True):
        assert rounded["validation_loss"] == pytest.approx(stage["validation_loss"], rel=0.02)


def test_the_faster_precision_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    cost: dict[Precision, float] = {"fp32": 3.0, "bf16": 2.0}
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr("model.training.precision.has_bf16", lambda device: True)

    def attempt(precision: Precision) -> None:
        clock[0] += cost[precision]

    cpu = torch.device("cpu")
    assert faster_precision(attempt, cpu) == "bf16"
    cost["bf16"] = 2.9  # not worth the rounding
    assert faster_precision(attempt, cpu) == "fp32"
    monkeypatch.setattr("model.training.precision.has_bf16", lambda device: False)
    cost["bf16"] = 0.1
    assert faster_precision(attempt, cpu) == "fp32"


def test_tensors_in_anything_move_together(builder: BatchBuilder, bundle: Bundle) -> None:
    batch = builder.build(builder.histories.held_out_cuts[:2], 4, 4, None)
    meta = torch.device("meta")
    moved, trie = on_device(batch, meta), on_device(bundle.trie, meta)
    assert {moved.items.ids.device, moved.repeats.sids.device, moved.mask.device} == {meta}
    assert trie.paths_SD.device == meta
    assert bundle.trie.paths_SD.device == batch.mask.device == torch.device("cpu")
