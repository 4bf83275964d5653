"""Variants of the model change what they name and nothing behind it."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.progress import Progress

from bench.quality.ablations import (
    VARIANTS,
    ConcatenatedBlock,
    GatedBlock,
    Variant,
    changed,
)
from bench.quality.changes import configure, with_changes
from model.bundle import load_bundle
from model.decoder import DecoderBlock
from model.layers import LayerConfig
from model.mid_term import MidTermConfig
from model.network import Network
from model.training.batches import BatchBuilder
from model.training.config import TrainConfig
from model.training.evaluate import rank_at
from model.training.histories import build_histories
from model.training.losses import encode_batch
from model.training.train import train
from tests.model.worlds import SMALL, make_event_log


def test_every_variant_is_a_configuration() -> None:
    for variant in VARIANTS.values():
        configure(variant.changes)
    assert configure({}) == TrainConfig()
    assert configure({"network.mid_term.top_k": 7}).network.mid_term.top_k == 7


@pytest.mark.parametrize("block", [GatedBlock, ConcatenatedBlock])
def test_learned_fusions_begin_as_the_sum(block: type[DecoderBlock]) -> None:
    layer, states = LayerConfig(width=8, num_heads=2, ffn_width=8), torch.randn(2, 3, 8)
    made = block(layer, MidTermConfig(), "one")
    updates = {"recent": torch.randn(2, 3, 8), "lifecycle": torch.randn(2, 3, 8)}
    torch.testing.assert_close(made.fuse(states, updates), sum(updates.values()))


@pytest.mark.parametrize(
    "variant",
    [
        Variant(without=frozenset({"recent"})),
        Variant(without=frozenset({"mid_term", "lifecycle"}), statistics_of_newest=8),
        Variant(changes={"network.repeats.enabled": False}),
        Variant(block=GatedBlock),
    ],
)
def test_a_variant_trains_and_ranks(variant: Variant, tmp_path: Path) -> None:
    log = make_event_log()
    histories = build_histories(log)
    plain = (Network.encode, BatchBuilder._statistics)
    with changed(variant):
        config = replace(with_changes(SMALL, variant.changes), max_steps=6)
        train(log, None, config, tmp_path / "bundle", Progress(disable=True))
        bundle = load_bundle(tmp_path / "bundle")
        network, cuts = bundle.network, histories.held_out_cuts[:4]
        builder = BatchBuilder(histories, bundle.catalogue, network.config, bundle.history, 100)
        batch = builder.build(cuts, 1, 1, None)
        context, _ = encode_batch(network, batch)
        lengths = [getattr(context, name).vectors.shape[1] for name in variant.without]
        assert not any(lengths)
        ranked = list(rank_at(network, bundle.trie, builder, cuts, 8))
        bos = network.decode(context, torch.zeros(4, 1, 0, dtype=torch.int64))
        mixture = network.repeat_mixture(batch.repeats, bos)
    assert all(len(best) for best in ranked)
    says_repeats = bool((mixture.log_repeat > -1e6).any())
    assert says_repeats == config.network.repeats.enabled
    if variant.block is not DecoderBlock:
        assert isinstance(network.decoder.blocks[0], variant.block)
    if variant.statistics_of_newest:
        assert int((batch.repeats.items >= 0).sum(1).max()) <= variant.statistics_of_newest
    assert plain == (Network.encode, BatchBuilder._statistics)
    assert np.all(np.isfinite(mixture.log_generator.detach().numpy()))
