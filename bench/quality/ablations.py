"""Our ranker without one of its parts, or with another one in its place."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from bench.quality.changes import Changes, configure
from bench.quality.gemstream_ranker import Gemstream
from bench.quality.task import Budget, ItemIds, Task
from model.decoder import Context, DecoderBlock
from model.layers import Segment
from model.network import Network
from model.training.batches import BatchBuilder
from model.training.histories import Index
from state.item_statistics import ItemStatistics, statistics_of
from state.segments import HistoryConfig

STREAMS = ("recent", "mid_term", "lifecycle")


@dataclass(frozen=True, kw_only=True)
class Variant:
    """What differs from the default configuration."""

    without: frozenset[str] = frozenset()
    """Streams that the decoder does not see, in training and ranking."""
    statistics_of_newest: int | None = None
    """Repeats know so many interactions alone."""
    block: type[DecoderBlock] = DecoderBlock
    segments: HistoryConfig | None = None
    """Instead of the task's."""
    changes: Changes = field(default_factory=dict)
    """Of TrainConfig, by dotted name."""


class GatedBlock(DecoderBlock):
    """Every stream's update is weighed by a learned gate of the state; all gates begin with 1."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        width = self.self_norm.weight.shape[0]
        self.gates = nn.Linear(width, len(STREAMS))
        nn.init.zeros_(self.gates.weight)
        nn.init.zeros_(self.gates.bias)

    def fuse(self, states_BQH: Tensor, updates: Mapping[str, Tensor]) -> Tensor:
        gates = 2 * self.gates(states_BQH).sigmoid()
        weighed = {
            name: update * gates[..., STREAMS.index(name), None] for name, update in updates.items()
        }
        return super().fuse(states_BQH, weighed)


class ConcatenatedBlock(DecoderBlock):
    """The updates side by side, through one learned layer; it begins as their sum."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        width = self.self_norm.weight.shape[0]
        self.fusion = nn.Linear(len(STREAMS) * width, width, bias=False)
        with torch.no_grad():
            self.fusion.weight.copy_(torch.eye(width).repeat(1, len(STREAMS)))

    def fuse(self, states_BQH: Tensor, updates: Mapping[str, Tensor]) -> Tensor:
        absent = torch.zeros_like(states_BQH)
        fused: Tensor = self.fusion(torch.cat([updates.get(name, absent) for name in STREAMS], -1))
        return fused


class Ablated(Gemstream):
    """Trains and ranks as a variant does."""

    def __init__(self, name: str, variant: Variant) -> None:
        super().__init__(name, configure(variant.changes))
        self._variant = variant

    def fit(self, task: Task, budget: Budget) -> None:
        if self._variant.segments is not None:
            task = replace(task, segments=self._variant.segments)
        with changed(self._variant):
            super().fit(task, budget)

    def rank(self, task: Task, cuts: Index) -> Iterator[ItemIds]:
        with changed(self._variant):
            return iter(list(super().rank(task, cuts)))


@contextlib.contextmanager
def changed(variant: Variant) -> Iterator[None]:
    """The model as the variant has it, while the block runs: networks are made and read differently."""
    with contextlib.ExitStack() as stack:

        def put(target: Any, name: str, replacement: Callable[..., Any]) -> None:
            stack.enter_context(mock.patch.object(target, name, replacement))

        if variant.without:
            put(Network, "encode", _encode_without(variant.without))
        if variant.statistics_of_newest is not None:
            put(BatchBuilder, "_statistics", _newest_statistics(variant.statistics_of_newest))
        if variant.block is not DecoderBlock:
            stack.enter_context(mock.patch("model.decoder.DecoderBlock", variant.block))
        yield


def _encode_without(streams: frozenset[str]) -> Callable[..., Context]:
    encode = Network.encode

    def encode_some(network: Network, *arguments: Any) -> Context:
        context = encode(network, *arguments)
        return replace(context, **{name: _empty(getattr(context, name)) for name in streams})

    return encode_some


def _empty(segment: Segment) -> Segment:
    return Segment(segment.vectors[:, :0], segment.mask[:, :0])


def _newest_statistics(newest: int) -> Callable[[BatchBuilder, int], ItemStatistics]:
    def of_newest(builder: BatchBuilder, cut: int) -> ItemStatistics:
        start = max(int(builder.histories.user_start[cut]), cut - newest)
        return statistics_of(builder.histories.rows[start:cut])

    return of_newest


def _generator(variant: Variant) -> Variant:
    """The same without repeats: what the streams and codes say alone."""
    return replace(variant, changes={**variant.changes, "network.repeats.enabled": False})


_LATER = frozenset({"mid_term", "lifecycle"})
_SHORT = HistoryConfig(recent_len=50, mid_term_len=500, chunk_len=50)
_LONG = HistoryConfig()

_ARCHITECTURES = {
    "without_recent": Variant(without=frozenset({"recent"})),
    "without_mid_term": Variant(without=frozenset({"mid_term"})),
    "without_lifecycle": Variant(without=frozenset({"lifecycle"})),
    "recent_only": Variant(without=_LATER),
    "dense": Variant(changes={"network.mid_term.top_k": 100_000}),
    "top_k_64": Variant(changes={"network.mid_term.top_k": 64}),
    "top_k_16": Variant(changes={"network.mid_term.top_k": 16}),
    "delta_none": Variant(changes={"network.lifecycle.delta": "none"}),
    "delta_top_r": Variant(changes={"network.lifecycle.delta": "top_r"}),
    "gated": Variant(block=GatedBlock),
    "concatenated": Variant(block=ConcatenatedBlock),
    "residual_literal": Variant(changes={"network.residual": "literal"}),
    "levels_2": Variant(changes={"tokenizer.codebook_sizes": (1024, 1024)}),
    "levels_4": Variant(changes={"tokenizer.codebook_sizes": (64, 64, 64, 64)}),
    "codes_64": Variant(changes={"tokenizer.codebook_sizes": (64, 64, 64)}),
    "codes_1024": Variant(changes={"tokenizer.codebook_sizes": (1024, 1024, 1024)}),
    "rq_vae": Variant(changes={"tokenizer.kind": "rq_vae"}),
    "code_recency": Variant(changes={"network.code_recency": True}),
    "live_prior": Variant(changes={"network.live_prior": True}),
}
_SEGMENTS = {
    "short": Variant(segments=_SHORT),
    "short_recent_only": Variant(segments=_SHORT, without=_LATER, statistics_of_newest=50),
    "short_generator": _generator(Variant(segments=_SHORT)),
    "short_generator_recent_only": _generator(Variant(segments=_SHORT, without=_LATER)),
    "long": Variant(segments=_LONG),
    "long_recent_only": Variant(segments=_LONG, without=_LATER, statistics_of_newest=256),
}

VARIANTS = {
    "full": Variant(),
    "generator": _generator(Variant()),
    **_ARCHITECTURES,
    **{f"generator_{name}": _generator(one) for name, one in _ARCHITECTURES.items()},
    **_SEGMENTS,
}
"""By name. The default, as a rule, is not repeated: three levels of 256 codes, k = 128, delta "self", sum."""


def make_ablated(name: str) -> Ablated:
    """A variant as a ranker of its own. Raises ValueError for unknown names."""
    if name not in VARIANTS:
        raise ValueError(f"no ablation {name}; there are {', '.join(VARIANTS)}")
    return Ablated(f"ablation:{name}", VARIANTS[name])
