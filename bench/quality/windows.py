"""Histories as sequences of items for neural rankers: windows to train on, contexts to rank for.

Items are places in the task's item table. The order within a basket carries no meaning and is drawn anew every epoch. Only
the last interaction of a basket predicts, and it predicts every target of the next basket, each with one over their
number: nothing of a basket is context of its own prediction, as in the protocol. Where every interaction is a basket of its
own, this is SASRec's loss: each position predicts the next item.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from model.training.histories import Histories, Index

PADDING = -1


@dataclass(frozen=True)
class Sequences:
    """Interactions with ranked items, in (user, time) order."""

    items: Index
    """Per interaction, the place of its item."""
    users: Index
    baskets: Index
    """Per interaction, the number of its basket; ascending."""
    hours: Index
    """Per interaction, hours since the epoch."""
    are_targets: npt.NDArray[np.bool_]
    """Per interaction, whether it is predicted; the others are context alone."""

    @staticmethod
    def of(histories: Histories, item_ids: npt.NDArray[np.uint64]) -> "Sequences":
        places = find_places(histories.rows["item_id"], item_ids)
        known = places >= 0
        hours = histories.rows["event_time_ms"] // 3_600_000
        return Sequences(
            places[known],
            histories.users[known],
            histories.basket_end[known],
            hours[known],
            histories.are_targets[known],
        )

    def starts(self) -> Index:
        """The first position of each user."""
        return np.flatnonzero(np.append(True, self.users[1:] != self.users[:-1]))

    def shuffled(self, random: np.random.Generator) -> "Sequences":
        """The same with a new order within each basket."""
        order = np.lexsort((random.random(len(self.items)), self.baskets))
        return replace(self, items=self.items[order], are_targets=self.are_targets[order])


@dataclass(frozen=True)
class Batch:
    """Windows padded on the right, and what their last basket positions predict. Shapes: B windows, L positions."""

    items_BL: Index
    hours_BL: Index
    rows: Index
    """Positions of the flattened windows that predict."""
    target_rows: Index
    """Per target, the index into `rows`; ascending."""
    targets: Index
    """Per target, its item."""
    weights: npt.NDArray[np.float32]
    """Per target: one over the number of its basket's targets."""


class WindowBatches:
    """Batches of windows of at most `max_len` interactions, of similar length, in random order."""

    def __init__(self, sequences: Sequences, max_len: int, batch_tokens: int) -> None:
        self._sequences, self._max_len, self._batch_tokens = sequences, max_len, batch_tokens
        self._starts = sequences.starts()
        self._ends = np.append(self._starts[1:], len(sequences.items))
        self._index_baskets()

    def _index_baskets(self) -> None:
        """The next basket of each interaction that is the last of its own; elsewhere it is empty."""
        baskets, users = self._sequences.baskets, self._sequences.users
        begins = np.flatnonzero(np.append(True, baskets[1:] != baskets[:-1]))
        ends = np.append(begins[1:], len(baskets))
        self._next_begin = np.zeros(len(baskets), np.int64)
        self._next_size = np.zeros(len(baskets), np.int64)
        last = ends[:-1] - 1
        followed = users[last] == users[np.minimum(last + 1, len(users) - 1)]
        self._next_begin[last[followed]] = begins[1:][followed]
        self._next_size[last[followed]] = (ends[1:] - begins[1:])[followed]

    def epoch(self, random: np.random.Generator) -> Iterator[Batch]:
        """Every training interaction once, in windows that begin elsewhere in each epoch."""
        sequences = self._sequences.shuffled(random)
        starts, ends = self._windows(random)
        by_length = np.lexsort((random.random(len(starts)), ends - starts))
        starts, ends = starts[by_length], ends[by_length]
        places = self._cut_into_batches(ends - starts)
        random.shuffle(places)
        for first, behind in places:
            batch = self._batch(sequences, starts[first:behind], ends[first:behind])
            if len(batch.rows):
                yield batch

    def _windows(self, random: np.random.Generator) -> tuple[Index, Index]:
        """Cuts at a random offset and every `max_len` from there; a user's pieces cover all of him."""
        lengths = self._ends - self._starts
        long = lengths > self._max_len
        offsets = np.where(long, random.integers(1, self._max_len + 1, len(lengths)), lengths)
        more = -((offsets - lengths) // self._max_len)
        counts = 1 + more
        nth = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        begin = np.repeat(self._starts, counts)
        offset = np.repeat(offsets, counts)
        starts = begin + np.where(nth == 0, 0, offset + (nth - 1) * self._max_len)
        ends = np.minimum(begin + offset + nth * self._max_len, np.repeat(self._ends, counts))
        return starts, ends

    def _cut_into_batches(self, lengths: Index) -> list[tuple[int, int]]:
        """Of ascending lengths, so that no batch has more than `batch_tokens`, padding included."""
        places, first = [], 0
        for i in range(1, len(lengths) + 1):
            if i == len(lengths) or (i + 1 - first) * lengths[i] > self._batch_tokens:
                places.append((first, i))
                first = i
        return places

    def _batch(self, sequences: Sequences, starts: Index, ends: Index) -> Batch:
        positions = starts[:, None] + np.arange((ends - starts).max())
        real = positions < ends[:, None]
        positions = np.minimum(positions, len(sequences.items) - 1)
        sizes = np.where(real, self._next_size[positions], 0).ravel()
        rows = np.flatnonzero(sizes)
        sizes = sizes[rows]
        row = np.repeat(np.arange(len(rows)), sizes)
        within = np.arange(len(row)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        targets = np.repeat(self._next_begin[positions.ravel()[rows]], sizes) + within
        wanted = sequences.are_targets[targets]
        predicting, target_rows, counts = np.unique(
            row[wanted], return_inverse=True, return_counts=True
        )
        return Batch(
            items_BL=np.where(real, sequences.items[positions], PADDING),
            hours_BL=sequences.hours[positions],
            rows=rows[predicting],
            target_rows=target_rows,
            targets=sequences.items[targets[wanted]],
            weights=(1 / counts[target_rows]).astype(np.float32),
        )


class Contexts:
    """What comes before cuts of the task's histories."""

    def __init__(self, histories: Histories, item_ids: npt.NDArray[np.uint64]) -> None:
        self._user_start = histories.user_start
        self._places = find_places(histories.rows["item_id"], item_ids)
        self._hours = histories.rows["event_time_ms"] // 3_600_000

    def newest(self, cut: int, max_len: int) -> tuple[Index, Index]:
        """Items and hours of the newest ranked interactions before `cut`, oldest first."""
        start = int(self._user_start[cut])
        first = max(start, cut - 2 * max_len)
        known = first + np.flatnonzero(self._places[first:cut] >= 0)
        if len(known) < max_len and first > start:
            known = start + np.flatnonzero(self._places[start:cut] >= 0)
        known = known[-max_len:]
        return self._places[known], self._hours[known]

    def seen(self, cut: int) -> Index:
        """Places of all ranked items before `cut`."""
        places = self._places[int(self._user_start[cut]) : cut]
        return np.unique(places[places >= 0])


def find_places(
    ids: npt.NDArray[np.uint64], item_ids: npt.NDArray[np.uint64]
) -> npt.NDArray[np.int64]:
    """Where `ids` are among the ascending `item_ids`; -1 for none."""
    places = np.searchsorted(item_ids, ids).clip(max=len(item_ids) - 1)
    return np.where(item_ids[places] == ids, places, -1)


def pad(sequences: list[Index], value: int) -> Index:
    """[B, L], padded on the right; one position at least."""
    padded = np.full((len(sequences), max(1, *map(len, sequences))), value, np.int64)
    for row, sequence in zip(padded, sequences, strict=True):
        row[: len(sequence)] = sequence
    return padded
