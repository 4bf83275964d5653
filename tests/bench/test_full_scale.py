"""`--scale full`: larger sizes, on a GPU where there is one; PyTorch's meta device stands for it and meets no tensor from elsewhere."""

from dataclasses import replace
from unittest.mock import Mock

import pytest
import torch

from bench.quality import sasrec, tiger
from bench.quality.changes import with_changes
from bench.quality.gemstream_ranker import FULL_SCALE, Gemstream, at_full_scale
from bench.quality.next_item_ranker import LONG, SHORT, config_of
from bench.quality.sasrec import Sasrec
from bench.quality.synthetic.rankers import SETTINGS
from bench.quality.task import Budget
from bench.quality.tiger import Tiger
from model.training.config import TrainConfig
from model.training.devices import new_tensors_on
from tests.bench.planted import planted_task

SCALES = [Budget(minutes=1, scale="small"), Budget(minutes=1, scale="full")]
META = torch.device("meta")


@pytest.mark.parametrize(
    "config",
    [TrainConfig(), config_of(SHORT), config_of(LONG), with_changes(TrainConfig(), SETTINGS)],
)
def test_every_configuration_has_a_full_scale(config: TrainConfig) -> None:
    full = at_full_scale(config)
    assert full.batch_size > config.batch_size
    assert full.num_held_out == config.num_held_out  # what rivals learn from, too
    assert full.network.layer.width > config.network.layer.width
    assert full.tokenizer == config.tokenizer


@pytest.mark.parametrize("budget", SCALES)
def test_our_ranker_trains_at_the_scale_of_the_budget(
    budget: Budget, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = Mock()
    monkeypatch.setattr("bench.quality.gemstream_ranker.train", trained)
    monkeypatch.setattr("bench.quality.gemstream_ranker.load_bundle", Mock())
    Gemstream().fit(planted_task(), budget)
    (_, _, config, out, _), _ = trained.call_args
    assert config.network.layer.width == (
        FULL_SCALE["network.layer.width"] if budget.scale == "full" else 64
    )
    assert out.name == ("gemstream-0-full" if budget.scale == "full" else "gemstream-0")


@pytest.mark.parametrize(
    "ranker",
    [
        Sasrec(replace(sasrec.SHORT, bf16=False), device=META),
        Tiger(replace(tiger.NEXT_ITEM, bf16=False), device=META),
    ],
)
@pytest.mark.parametrize("budget", SCALES)
def test_rivals_learn_on_the_device_at_the_scale_of_the_budget(
    ranker: Sasrec | Tiger, budget: Budget
) -> None:
    task = planted_task()
    with new_tensors_on(META):
        training, _ = ranker.prepare(task, budget)
        loss = training.loss(next(iter(training.batches())))
    loss.backward()  # type: ignore[no-untyped-call]
    parameters = list(training.network.parameters())
    assert {parameter.device for parameter in parameters} == {META} == {loss.device}
    wide = max(parameter.shape[-1] for parameter in parameters)
    assert (wide >= 1024) == (budget.scale == "full")
