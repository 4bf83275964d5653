"""Bytes from the `interactions` topic to an interaction or a deletion, or the reason why not.

Compiled code (stream/decode_kernel.py) reads what is ordinary, all of a poll at once. What it passes over is read here,
record by record.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import compress
from typing import Protocol

import numpy as np
import xxhash
from google.protobuf.message import DecodeError

from protos.interaction_pb2 import INTERACTION_KIND_FORGET, Interaction
from state.arrivals import Arrivals, Deletion, Position
from state.errors import ConfigError, InvalidInteraction
from state.interaction import (
    KINDS_MASK,
    MAX_EVENT_ID_BYTES,
    MAX_EVENT_TIME_MS,
    MAX_USER_ID_BYTES,
    MIN_EVENT_TIME_MS,
    NUM_KINDS,
    check_event_id,
    check_event_time,
    check_item_id,
    check_user_id,
    hash_event,
)
from stream.decode_kernel import Limits, Read, read_interactions
from stream.topics import partition_of

_PARTITIONS_REMEMBERED = 1 << 17


class Record(Protocol):
    """What is needed of a Kafka record; aiokafka's ConsumerRecord has it."""

    @property
    def partition(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def timestamp(self) -> int: ...
    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...
    @property
    def headers(self) -> Sequence[tuple[str, bytes | None]]: ...


def fingerprint(record: Record) -> int:
    """64 bits that tell a record from whatever may lie at its offset in another topic."""
    digest = xxhash.xxh3_64(record.timestamp.to_bytes(8, "big", signed=True))
    digest.update(record.key or b"")
    digest.update(record.value or b"")
    return digest.intdigest()


@dataclass(frozen=True)
class Rejected:
    """A record that cannot become an interaction."""

    record: Record
    reason: str


@dataclass
class Decoded:
    """One partition's share of a poll."""

    arrivals: Arrivals
    rejected: list[Rejected] = field(default_factory=list)
    future: int = 0
    """Event times that lay ahead of the record's own timestamp and were set back to it."""
    quarantined: list[Rejected] = field(default_factory=list)
    """Records of users whose stored state is damaged (stream/set_aside.py)."""

    @property
    def letters(self) -> list[Rejected]:
        """All that goes to the dead-letter topic."""
        return [*self.rejected, *self.quarantined]


@dataclass(frozen=True, kw_only=True)
class DecoderConfig:
    """What the decoder tolerates."""

    max_future_ms: int = 5 * 60_000
    """How far an event time may lie ahead of the record's timestamp before it is set back to it."""
    max_value_bytes: int = 64 << 10

    def __post_init__(self) -> None:
        """Check the limits."""
        if self.max_future_ms < 0 or self.max_value_bytes < 64:
            raise ConfigError(
                f"max_future_ms is {self.max_future_ms} and max_value_bytes {self.max_value_bytes}; "
                "they must be at least 0 and 64"
            )


class Decoder:
    """Decodes the records of one topic. Pure: the same records always give the same rows.

    The clock an event time is held against is the record's timestamp (the broker's, when the topic appends its own),
    never this process's, so that a replay gives the same state.
    """

    def __init__(self, config: DecoderConfig, num_partitions: int) -> None:
        """`num_partitions` of the topic decides which users belong to which."""
        self._config = config
        self._num_partitions = num_partitions
        self._message = Interaction()
        self._partition_of = lru_cache(_PARTITIONS_REMEMBERED)(
            lambda user_id: partition_of(user_id, num_partitions)
        )
        self._read(0, [], [])  # compiles, or loads what was compiled: not while records wait

    def decode(self, partition: int, records: Sequence[Record]) -> Decoded:
        """Decode the records of one partition, which are in offset order and at least one."""
        keys = [record.key or b"" for record in records]
        rows, fine, future = self._read(partition, records, keys)
        deletions: list[Deletion] = []
        rejected: list[Rejected] = []
        for index in np.flatnonzero(~fine).tolist():
            record = records[index]
            try:
                if record.value is None:
                    deletions.append(self._decode_deletion(record))
                    continue
                message = self._parse(record.value)
                if INTERACTION_KIND_FORGET in message.kinds:
                    deletions.append(self._decode_forget(record, message))
                    continue
                user_id, row, clamped = self._decode_interaction(record, message)
            except InvalidInteraction as error:
                rejected.append(Rejected(record, str(error)))
                continue
            keys[index], rows[index], fine[index] = user_id.encode(), row, True
            future += clamped
        offsets = np.fromiter([record.offset for record in records], np.int64, len(records))
        if len(deletions) + len(rejected) > 0:
            keys, offsets, rows = list(compress(keys, fine.tolist())), offsets[fine], rows[fine]
        last = records[-1]
        position = Position(last.offset + 1, fingerprint(last))
        arrivals = Arrivals(partition, position, keys, offsets, rows, deletions)
        return Decoded(arrivals, rejected, future)

    def _read(self, partition: int, records: Sequence[Record], keys: Sequence[bytes]) -> Read:
        """Read the ordinary ones among the records."""
        values = [record.value or b"" for record in records]
        timestamps = np.fromiter([record.timestamp for record in records], np.int64, len(records))
        limits = Limits(
            partition=partition,
            num_partitions=self._num_partitions,
            max_user_id_bytes=MAX_USER_ID_BYTES,
            max_event_id_bytes=MAX_EVENT_ID_BYTES,
            min_event_time_ms=MIN_EVENT_TIME_MS,
            end_event_time_ms=MAX_EVENT_TIME_MS,
            max_future_ms=self._config.max_future_ms,
            max_value_bytes=self._config.max_value_bytes,
            kinds_mask=KINDS_MASK,
            forget_mask=1 << INTERACTION_KIND_FORGET,
        )
        return read_interactions(values, keys, timestamps, limits)

    def _decode_deletion(self, record: Record) -> Deletion:
        """A null value: the user in the key is to be forgotten, up to the record's timestamp."""
        try:
            user_id = (record.key or b"").decode()
        except UnicodeDecodeError as error:
            raise InvalidInteraction(
                f"the value is null and the key is no user id: {error}"
            ) from error
        check_user_id(user_id)
        self._check_partition(user_id, record)
        return Deletion(user_id, record.offset, record.timestamp)

    def _decode_forget(self, record: Record, message: Interaction) -> Deletion:
        """What the user did with the item is to be forgotten, up to the record's timestamp."""
        check_user_id(message.user_id)
        check_item_id(message.item_id)
        self._check_partition(message.user_id, record)
        return Deletion(message.user_id, record.offset, record.timestamp, message.item_id)

    def _decode_interaction(
        self, record: Record, message: Interaction
    ) -> tuple[str, tuple[int, ...], bool]:
        user_id, event_id = message.user_id, message.event_id
        event_time_ms = message.event_time_ms
        check_user_id(user_id)
        check_event_id(event_id)
        check_item_id(message.item_id)
        check_event_time(event_time_ms)
        self._check_partition(user_id, record)
        clamped = (
            event_time_ms > record.timestamp + self._config.max_future_ms
            and record.timestamp >= MIN_EVENT_TIME_MS  # a broken clock is no judge
        )
        if clamped:
            event_time_ms = record.timestamp
        row = (
            message.item_id,
            message.author_id,
            message.tag,
            event_time_ms,
            message.play_time_ms,
            message.duration_ms,
            _kinds_mask(message.kinds),
            hash_event(event_id, event_time_ms),
        )
        return user_id, row, clamped

    def _check_partition(self, user_id: str, record: Record) -> None:
        owner = self._partition_of(user_id)
        if owner != record.partition:
            raise InvalidInteraction(
                f"user_id {user_id!r} belongs to partition {owner}, the record is in {record.partition}; "
                "key records by user_id with the murmur2 partitioner"
            )

    def _parse(self, value: bytes) -> Interaction:
        if len(value) > self._config.max_value_bytes:
            raise InvalidInteraction(
                f"the value has {len(value)} bytes; at most {self._config.max_value_bytes} are read"
            )
        try:
            self._message.ParseFromString(value)
        except DecodeError as error:
            raise InvalidInteraction(
                f"the value is not a gemstream.v1.Interaction: {error}"
            ) from error
        return self._message


def _kinds_mask(kinds: Iterable[int]) -> int:
    """Bits of the kinds this release knows; a newer producer's are left out."""
    mask = 0
    for kind in kinds:
        if 0 < kind < NUM_KINDS:
            mask |= 1 << kind
    return mask & KINDS_MASK
