"""Lives as tables of events and of truth, user by user, in the order in which events arrive; written as Parquet."""

import multiprocessing
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from bench.quality.synthetic.draws import DISORDER, generator
from bench.quality.synthetic.lives import Life, live
from bench.quality.synthetic.stream_config import CAUSES, PLANTED, StreamConfig
from bench.quality.synthetic.topics import Index, Topics

_USERS_PER_PART = 8
_PARTS_AHEAD = 2  # of every worker: what is in memory does not grow with the stream
_KINDS = np.array(["view", "view|purchase", "view|like", "view|like|purchase"])


@dataclass(frozen=True)
class Files:
    """What `write_stream` leaves in a directory."""

    directory: Path

    @property
    def events(self) -> Path:
        """Event log, as `gemstream produce` and `gemstream train` read it."""
        return self.directory / "events.parquet"

    @property
    def items(self) -> Path:
        """Items file of `gemstream train`."""
        return self.directory / "items.parquet"

    @property
    def content(self) -> Path:
        """Content vectors: `[train.items] vectors`."""
        return self.directory / "content.parquet"

    @property
    def truth(self) -> Path:
        """Cause and reach of every event, latent topics."""
        return self.directory / "truth.parquet"


@dataclass(frozen=True)
class Part:
    """Some users' events in the order of arrival, and the truth about them in the order of their lives."""

    events: pa.Table
    truth: pa.Table


def user_name(user: int) -> str:
    """The user's id in the log."""
    return f"user-{user:06d}"


@lru_cache(maxsize=4)
def topics_of(config: StreamConfig) -> Topics:
    """The stream's items; made once per process."""
    return Topics(config)


def parts(config: StreamConfig, num_workers: int = 1) -> Iterator[Part]:
    """All users, in order; the same bytes whatever `num_workers` is. Bounded memory: a few parts per worker."""
    starts = range(0, config.num_users, _USERS_PER_PART)
    make = partial(make_part, config)
    if num_workers == 1:
        yield from map(make, starts)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(num_workers, mp_context=context) as pool:
        pending: deque[Future[Part]] = deque()
        for start in starts:
            pending.append(pool.submit(make, start))
            if len(pending) > _PARTS_AHEAD * num_workers:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()


def make_part(config: StreamConfig, first_user: int) -> Part:
    """The users from `first_user` on, one part of them."""
    topics = topics_of(config)
    users = range(first_user, min(first_user + _USERS_PER_PART, config.num_users))
    lives = [(user, live(config, topics, user)) for user in users]
    return Part(
        pa.concat_tables([_events(config, topics, user, life) for user, life in lives]),
        pa.concat_tables([_truth(user, life) for user, life in lives]),
    )


def write_stream(config: StreamConfig, directory: Path, num_workers: int = 1) -> Files:
    """Write all files; the events file comes last, as the sign that all of them are whole."""
    directory.mkdir(parents=True, exist_ok=True)
    files = Files(directory)
    topics = topics_of(config)
    pyarrow.parquet.write_table(_items(topics), files.items)
    vectors = pa.array(list(topics.content.astype(np.float32)))
    content = pa.table({"item_id": topics.item_ids, "vector": vectors})
    pyarrow.parquet.write_table(content, files.content)
    partial_events = files.events.with_suffix(".partial")
    with ExitStack() as stack:
        writers: list[pyarrow.parquet.ParquetWriter] = []
        for part in parts(config, num_workers):
            tables = (part.events, part.truth)
            if not writers:
                writers += [
                    stack.enter_context(pyarrow.parquet.ParquetWriter(path, table.schema))
                    for path, table in zip((partial_events, files.truth), tables, strict=True)
                ]
            for writer, table in zip(writers, tables, strict=True):
                writer.write_table(table)
    partial_events.rename(files.events)
    return files


def _events(config: StreamConfig, topics: Topics, user: int, life: Life) -> pa.Table:
    length = len(life.items)
    closes, planted = np.append(life.opens[1:], True), life.causes[_openings(life)] == PLANTED
    kinds = _KINDS[closes + 2 * planted]
    random = generator(config.seed, DISORDER, user)
    told = _told(config, length, random)
    arrivals = _arrivals(config, length, random)
    items, kinds = life.items[told][arrivals], kinds[told][arrivals]
    name = user_name(user)
    return pa.table(
        {
            "user_id": pa.array([name] * len(arrivals)),
            "event_id": pa.array([f"{name}-{place}" for place in arrivals.tolist()]),
            "item_id": topics.item_ids[items],
            "author_id": topics.author_ids[items],
            "tag": topics.tags[items],
            "event_time_ms": life.times_ms[arrivals],
            "kinds": pa.array(kinds),
        }
    )


def _openings(life: Life) -> Index:
    """Per interaction, the place where its session was opened."""
    return np.asarray(np.flatnonzero(life.opens)[np.cumsum(life.opens) - 1])


def _told(config: StreamConfig, length: int, random: np.random.Generator) -> Index:
    """Which interaction the log tells of at each place: another one where the past is shuffled."""
    told = np.arange(length)
    shuffled = int(length * config.shuffled_share)
    told[:shuffled] = random.permutation(shuffled)
    return told


def _arrivals(config: StreamConfig, length: int, random: np.random.Generator) -> Index:
    """Places in the life, in the order in which they arrive: some late, some twice."""
    places = np.arange(length)
    late = random.random(length) < config.late_rate
    twice = np.flatnonzero(random.random(length) < config.duplicate_rate)
    delays = random.integers(1, config.max_delay + 1, length) + 0.5
    again = random.integers(1, config.max_delay + 1, len(twice)) + 0.5
    first = places + late * delays
    arrival = np.concatenate([first, first[twice] + again])
    return np.concatenate([places, twice])[np.argsort(arrival, kind="stable")]


def _truth(user: int, life: Life) -> pa.Table:
    causes = pa.DictionaryArray.from_arrays(pa.array(life.causes, pa.int8()), pa.array(CAUSES))
    return pa.table(
        {
            "user_id": pa.array([user_name(user)] * len(life.items)),
            "place": pa.array(np.arange(len(life.items)), pa.int32()),
            "cause": causes,
            "reach": pa.array(life.reaches, pa.int32()),
            "topic": pa.array(life.topics, pa.int32()),
            "item_id": pa.array(life.items + 1, pa.uint64()),
        }
    )


def _items(topics: Topics) -> pa.Table:
    titles = [f"Item {item_id}" for item_id in topics.item_ids.tolist()]
    return pa.table(
        {
            "item_id": topics.item_ids,
            "author_id": topics.author_ids,
            "tag": topics.tags,
            "title": pa.array(titles),
        }
    )
