"""Our own ranker where histories are sequences without repeats and the next item is asked for (Amazon, MovieLens-1M)."""

from dataclasses import dataclass, replace

import pyarrow.parquet as pq

from bench.quality.gemstream_ranker import Gemstream
from bench.quality.task import Task
from model.features import FeatureConfig
from model.layers import LayerConfig
from model.network import NetworkConfig
from model.next_item import NextItemConfig
from model.recent import Positions
from model.repeats import RepeatConfig
from model.tokenizer.item_vectors import ItemVectorConfig
from model.training.config import StageRules, TrainConfig


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What differs between short sequences over many items and long ones over few."""

    batch_size: int
    even_batches: bool = False
    codes_every: int = 1
    shares: tuple[float, float, float] = (0.9, 0.02, 0.08)
    evaluate_every: int = 100
    """Small steps are many, and each evaluation takes up to a hundredth of the time."""
    targets: int
    """Of the codes, from as many interactions behind a cut."""
    positions: int
    width: int = 64
    dropout: float = 0.2
    transition_weight: float
    """Of what followed the newest items, chosen on validation items."""
    item_buckets: int = 49_152
    recent_positions: Positions = "newest"


_SHORT_LEN = 64
SHORT = Shape(
    batch_size=128,
    codes_every=8,
    shares=(0.94, 0.01, 0.05),
    targets=1,
    positions=20,
    transition_weight=0.7,
    width=128,
    dropout=0.4,
)
"""Learned by heart within minutes, so dropout is high."""
LONG = Shape(
    batch_size=8,
    even_batches=True,
    codes_every=8,
    shares=(0.94, 0.01, 0.05),
    evaluate_every=1000,
    targets=8,
    positions=200,
    transition_weight=0.5,
    width=128,
    item_buckets=16_384,
    recent_positions="distance",
)


class NextItemGemstream(Gemstream):
    """Items beside codes, no repeat path; chosen on validation items."""

    def __init__(self) -> None:
        """Nothing is learnt yet."""
        super().__init__("gemstream_next")

    def config(self, task: Task) -> TrainConfig:
        """By how long the sequences are; without titles, items are described by behaviour alone."""
        config = config_of(LONG if task.segments.recent_len > _SHORT_LEN else SHORT)
        if "title" in pq.read_schema(task.items_path).names:
            return config
        return replace(config, items=replace(config.items, text_weight=0.0))


def config_of(shape: Shape) -> TrainConfig:
    """The settings for one shape of sequences."""
    return TrainConfig(
        network=NetworkConfig(
            layer=LayerConfig(width=shape.width, ffn_width=2 * shape.width, dropout=shape.dropout),
            features=FeatureConfig(item_buckets=shape.item_buckets, item_hashes=2),
            repeats=RepeatConfig(enabled=False),
            next_item=NextItemConfig(
                enabled=True,
                dropout=shape.dropout,
                transition_weight=shape.transition_weight,
                positions=shape.positions,
            ),
            recent_layers=2,
            recent_positions=shape.recent_positions,
        ),
        items=ItemVectorConfig(text_weight=1.0),
        stages=StageRules(shares=shape.shares, evaluate_every=shape.evaluate_every, patience=20),
        min_item_count=1,
        batch_size=shape.batch_size,
        even_batches=shape.even_batches,
        codes_every=shape.codes_every,
        targets=shape.targets,
        target_window=shape.targets,
        newest_cuts=0.5,
        table_rate=1.0,
        repeat_share=0.0,
    )
