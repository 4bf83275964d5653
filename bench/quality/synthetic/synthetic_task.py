"""The synthetic stream as a task of the harness, with its controls; every target carries its cause and reach."""

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow.parquet

from bench.quality.events import counted_in, part_of
from bench.quality.sources import CACHE
from bench.quality.synthetic.event_stream import Files, write_stream
from bench.quality.synthetic.stream_config import CAUSES, CauseWeights, StreamConfig
from bench.quality.task import Provenance, Task
from model.catalogue import collect_items
from model.training.histories import Histories, Index, build_histories
from model.training.replay import replay
from state.event_log import EventLog, read_event_log
from state.segments import HistoryConfig

MIN_ITEM_ROWS = 5
VALIDATION_BEGINS, TEST_BEGINS = 0.85, 0.9
"""Of every life."""
SEGMENTS = HistoryConfig(recent_len=16, mid_term_len=80, chunk_len=16)
_CUTS_PER_LIFE = 6
"""Openings of sessions that are asked for, at most, and as many places within sessions."""


@dataclass(frozen=True, kw_only=True)
class SyntheticTask(Task):
    """A task that knows the truth about its interactions."""

    config: StreamConfig
    content_path: Path
    causes: Index
    """Per interaction of `histories`, an index into CAUSES."""
    reaches: Index


def load_task() -> SyntheticTask:
    """All causes."""
    return make_task("synthetic", StreamConfig())


def load_many() -> SyntheticTask:
    """All causes in so many lives that a network cannot learn them by heart."""
    return make_task("synthetic_many", StreamConfig(num_users=8_000))


def load_without_lifecycle() -> SyntheticTask:
    """Control: nothing comes back from beyond the mid-term segment but by chance."""
    weights = CauseWeights().without("lifecycle")
    return make_task("synthetic_without_lifecycle", StreamConfig(weights=weights))


def load_without_session() -> SyntheticTask:
    """Control: every interaction is a session of its own."""
    weights = CauseWeights().without("session")
    return make_task("synthetic_without_session", StreamConfig(weights=weights))


def load_shuffled() -> SyntheticTask:
    """Control: what precedes the test is in random order, so that all of it is everywhere."""
    return make_task("synthetic_shuffled", StreamConfig(shuffled_share=TEST_BEGINS))


def make_task(name: str, config: StreamConfig, segments: HistoryConfig = SEGMENTS) -> SyntheticTask:
    """Write the stream's files into the cache, once, and read them."""
    files = _files(config)
    log = _by_number(replay(read_event_log(files.events), segments))
    histories = build_histories(log)
    causes, reaches = _truth(files, len(histories.rows))
    items = collect_items(log.rows, MIN_ITEM_ROWS, files.items)
    place, length = _places(histories)
    validated, tested = (place >= np.floor(b * length) for b in (VALIDATION_BEGINS, TEST_BEGINS))
    trained = np.empty(len(place), np.bool_)
    trained[np.argsort(log.user_index, kind="stable")] = ~validated
    training = part_of(log, trained)
    ranked = np.isin(histories.rows["item_id"], items.item_ids)
    return SyntheticTask(
        name=name,
        training=training,
        histories=histories,
        cuts=_chosen(histories, causes, ranked & tested),
        validation_cuts=_chosen(histories, causes, ranked & validated & ~tested),
        items=counted_in(training, items),
        items_path=files.items,
        segments=segments,
        repeats=True,
        provenance=_provenance(config),
        strata={cause: causes == number for number, cause in enumerate(CAUSES)},
        config=config,
        content_path=files.content,
        causes=causes,
        reaches=reaches,
    )


def _by_number(log: EventLog) -> EventLog:
    """Users in the order of the truth, so that positions in histories are its rows."""
    numbers = np.array([int(user.removeprefix("user-")) for user in log.user_ids])
    return replace(log, user_ids=sorted(log.user_ids), user_index=numbers[log.user_index])


def _truth(files: Files, num_rows: int) -> tuple[Index, Index]:
    """Causes, as indices into CAUSES, and reaches."""
    table = pyarrow.parquet.read_table(files.truth, columns=["cause", "reach"])
    if len(table) != num_rows:
        raise ValueError(
            f"{files.directory}: {len(table)} interactions were made, {num_rows} are in the log; remove it"
        )
    told = table["cause"].combine_chunks()
    numbers = np.array([CAUSES.index(cause) for cause in told.dictionary.to_pylist()])
    return numbers[told.indices.to_numpy()], table["reach"].to_numpy().astype(np.int64)


def _files(config: StreamConfig) -> Files:
    key = hashlib.sha256(repr(config).encode()).hexdigest()[:12]
    files = Files(CACHE / "synthetic" / key)
    return files if files.events.exists() else write_stream(config, files.directory)


def _places(histories: Histories) -> tuple[Index, Index]:
    """Per interaction, its place in its life and the life's length."""
    place = np.arange(len(histories.rows)) - histories.user_start
    return place, np.bincount(histories.users)[histories.users]


def _chosen(histories: Histories, causes: Index, eligible: np.ndarray) -> Index:
    """Positions: of each user the first openings, and as many drawn from within sessions."""
    random = np.random.default_rng(0)
    within = causes == CAUSES.index("session")
    parts = []
    for some in (eligible & ~within, eligible & within):
        positions = random.permutation(np.flatnonzero(some))
        positions = positions[np.argsort(histories.users[positions], kind="stable")]
        users = histories.users[positions]
        nth = np.arange(len(users)) - np.searchsorted(users, users)
        parts.append(positions[nth < _CUTS_PER_LIFE])
    return np.sort(np.concatenate(parts))


def _provenance(config: StreamConfig) -> Provenance:
    return Provenance(
        source=f"generated by bench/quality/synthetic: {config}",
        licence="Gemstream's own, Apache-2.0",
        protocol=(
            f"Next interaction: the first {VALIDATION_BEGINS:.0%} of every life train, up to {TEST_BEGINS:.0%} validate, the "
            f"rest tests; up to {_CUTS_PER_LIFE} openings of sessions and as many places within sessions per user. The history "
            f"is everything of the user before. Items with {MIN_ITEM_ROWS} rows or more are ranked."
        ),
    )
