"""Steps at which items alone learn, from the recent segment; and positions in it by distance."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.progress import Progress
from torch import nn

from model.bundle import Bundle
from model.errors import ModelConfigError, TrainingError
from model.layers import EncoderLayer
from model.network import Network
from model.next_item import NextItemConfig
from model.recent import RecentEncoder
from model.training.batches import BatchBuilder
from model.training.data_parallel import Workers
from model.training.histories import build_histories
from model.training.losses import batch_losses, item_losses
from model.training.metrics import read_metrics
from model.training.train import RunPlace, train
from state.event_log import EventLog
from tests.model.worlds import SMALL

LAYER = SMALL.network.layer
NETWORK = replace(
    SMALL.network, next_item=NextItemConfig(enabled=True, positions=3), recent_positions="distance"
)
CONFIG = replace(SMALL, network=NETWORK)


def test_by_distances_a_causal_state_is_the_same_wherever_it_stands() -> None:
    encoder = RecentEncoder(LAYER, 2, max_len=8, causal=True, positions="distance").double()
    assert encoder.distances_LAR is not None
    nn.init.normal_(encoder.distances_LAR)
    items, mask = torch.randn(1, 8, LAYER.width).double(), torch.ones(1, 8, dtype=torch.bool)
    whole = encoder(items, mask).vectors
    newest = encoder(items[:, :5], mask[:, :5]).vectors[:, -1]
    torch.testing.assert_close(whole[:, 4], newest)
    swapped = items[:, [1, 0, *range(2, 8)]]
    assert not torch.allclose(encoder(swapped, mask).vectors[:, 7], whole[:, 7], atol=1e-4)


def test_items_alone_learn_from_the_recent_segment_alone(
    event_log: EventLog, bundle: Bundle
) -> None:
    """The same loss as beside codes, without what is older; it reaches the recent stream and what it stands on."""
    histories = build_histories(event_log)
    builder = BatchBuilder(histories, bundle.catalogue, NETWORK, SMALL.history, 9)
    cuts = histories.train_cuts[[9, 13]]
    whole = builder.build(cuts, 2, 2, np.random.default_rng(0))
    batch = builder.build(cuts, 2, 2, np.random.default_rng(0), recent_alone=True)
    num_recent = whole.lengths[2]
    assert min(whole.lengths) > 0
    assert batch.lengths == [0, 0, num_recent]
    assert torch.equal(batch.items.ids, whole.items.ids[:, -num_recent:])
    assert torch.equal(batch.mask, whole.mask[:, -num_recent:])
    assert batch.repeats.items.shape == batch.repeat_weights.shape == (2, 0)
    network = Network(NETWORK, SMALL.history, 3, 6).eval()
    losses = item_losses(network, batch)
    beside = batch_losses(network, bundle.trie, whole, "dense")
    torch.testing.assert_close(losses.next_item, beside.next_item)
    assert losses.total(0.1, 1.0) == losses.next_item
    losses.next_item.backward()  # type: ignore[no-untyped-call]
    reached = {name.split(".")[0] for name, p in network.named_parameters() if p.grad is not None}
    assert reached == {"features", "recent", "next_item"}


def test_codes_learn_at_some_steps_of_the_first_stage(event_log: EventLog, tmp_path: Path) -> None:
    config = replace(CONFIG, codes_every=3, even_batches=True, max_steps=12)
    config = replace(config, stages=replace(config.stages, shares=(0.6, 0.2, 0.2)))
    place = RunPlace(tmp_path / "run")
    train(event_log, None, config, tmp_path / "bundle", Progress(disable=True), place)
    rows = [row for row in read_metrics(tmp_path / "run/metrics.csv") if row.stage != "repeats"]
    assert all(row.next_item_loss is not None for row in rows)
    of_codes = [i for i, row in enumerate(rows) if row.next_token_loss is not None]
    num_dense = sum(row.stage == "dense" for row in rows)
    assert 6 <= num_dense < len(rows)
    assert of_codes == [*range(0, num_dense, 3), *range(num_dense, len(rows))]


@pytest.mark.parametrize(
    ("setting", "value", "why"),
    [
        ("codes_every", 0, "codes_every is 0"),
        ("network", SMALL.network, "codes_every is 2; without network.next_item"),
    ],
)
def test_settings_outside_their_limits_are_refused(setting: str, value: Any, why: str) -> None:
    with pytest.raises(ModelConfigError, match=why):
        replace(CONFIG, **{"codes_every": 2, setting: value})


def test_a_bias_without_a_mask_is_refused() -> None:
    x_BNH, bias_ANN = torch.zeros(1, 3, LAYER.width), torch.zeros(LAYER.num_heads, 3, 3)
    with pytest.raises(ValueError, match="needs a mask"):
        EncoderLayer(LAYER)(x_BNH, None, bias_ANN=bias_ANN)


def test_positions_of_another_name_are_refused() -> None:
    name: Any = "oldest"
    with pytest.raises(ModelConfigError, match="recent_positions is 'oldest'"):
        replace(NETWORK, recent_positions=name)


@pytest.mark.parametrize(("batch_size", "even"), [(1, False), (7, True)])
def test_every_process_needs_a_context_of_every_batch(
    batch_size: int, even: bool, event_log: EventLog, tmp_path: Path
) -> None:
    config = replace(CONFIG, batch_size=batch_size, even_batches=even)
    least = 8 if even else 2
    with pytest.raises(TrainingError, match=f"with 2 processes it must be at least {least}"):
        train(
            event_log, None, config, tmp_path, Progress(disable=True), RunPlace(None, Workers(0, 2))
        )
