"""Small worlds for the model's tests: rows, an event log with structure, a configuration that trains in seconds."""

from dataclasses import replace

import numpy as np

from model.features import FeatureConfig
from model.layers import LayerConfig
from model.lifecycle import LifecycleConfig
from model.mid_term import MidTermConfig
from model.network import NetworkConfig
from model.next_item import NextItemConfig
from model.repeats import RepeatConfig
from model.tokenizer.item_vectors import ItemVectorConfig
from model.tokenizer.tokenizer import TokenizerConfig
from model.training.config import StageRules, TrainConfig
from state.event_log import EventLog
from state.interaction import INTERACTION, Rows
from state.segments import HistoryConfig

START_MS = 1_700_000_000_000
HOUR_MS = 3_600_000
NUM_USERS, NUM_BASKETS, BASKET_LEN, NUM_ITEMS = 24, 16, 4, 60


def make_rows(num_rows: int, seed: int = 0) -> Rows:
    """Random interactions, one an hour, with missing values here and there."""
    random = np.random.default_rng(seed)
    rows = np.zeros(num_rows, INTERACTION)
    rows["item_id"] = random.integers(1, NUM_ITEMS + 1, num_rows)
    rows["author_id"] = random.integers(0, 5, num_rows)
    rows["tag"] = random.integers(0, 4, num_rows)
    rows["play_time_ms"] = random.integers(0, 2**32, num_rows)
    rows["duration_ms"] = random.integers(0, 60_000, num_rows)
    rows["kinds"] = 1 << random.integers(1, 10, num_rows)
    rows["event_time_ms"] = START_MS + HOUR_MS * np.arange(num_rows)
    return rows


def make_event_log() -> EventLog:
    """Users of four tastes: fifteen items each, bought in baskets of four."""
    random = np.random.default_rng(7)
    num_rows = NUM_USERS * NUM_BASKETS * BASKET_LEN
    rows = np.zeros(num_rows, INTERACTION)
    users = np.tile(np.repeat(np.arange(NUM_USERS), BASKET_LEN), NUM_BASKETS)
    rows["event_time_ms"] = START_MS + HOUR_MS * np.repeat(
        np.arange(NUM_USERS * NUM_BASKETS), BASKET_LEN
    )
    rows["item_id"] = 1 + users % 4 * 15 + random.integers(0, 15, num_rows)
    rows["author_id"] = rows["item_id"] % 7
    rows["tag"] = 1 + users % 4
    rows["kinds"] = 1 << 7
    names = [f"user-{i}" for i in range(NUM_USERS)]
    return EventLog(names, users.astype(np.int64), [str(i) for i in range(num_rows)], rows)


SMALL = TrainConfig(
    network=NetworkConfig(
        layer=LayerConfig(width=16, num_heads=2, ffn_width=16),
        features=FeatureConfig(
            item_buckets=257, author_buckets=17, tag_buckets=17, small_width=4, mlp_width=16
        ),
        mid_term=MidTermConfig(top_k=4, indexer_width=4),
        lifecycle=LifecycleConfig(num_queries=3, reconstruction_len=4),
        repeats=RepeatConfig(max_popular=0),
    ),
    history=HistoryConfig(recent_len=8, mid_term_len=16, chunk_len=4, max_history=1000),
    items=ItemVectorConfig(cooccurrence_width=8, window=3),
    tokenizer=TokenizerConfig(codebook_sizes=(6, 6, 6)),
    stages=StageRules(evaluate_every=5),
    min_item_count=2,
    max_steps=24,
    batch_size=16,
    targets=6,
    target_window=8,
    lifecycle_sample=16,
    learning_rate=5e-3,
    evaluation_users=12,
    num_threads=1,
)

SCORING = replace(
    SMALL,
    network=replace(
        SMALL.network,
        features=replace(SMALL.network.features, item_hashes=2),
        next_item=NextItemConfig(
            enabled=True, dropout=0.1, weight=0.4, transition_weight=0.7, positions=3
        ),
        recent_positions="distance",
    ),
    newest_cuts=0.5,
)
"""Items are scored beside their codes."""

RECENCY = replace(
    SMALL,
    network=replace(SMALL.network, code_recency=True, repeats=RepeatConfig(enabled=False)),
)
"""First codes of the nearer segments are read."""
