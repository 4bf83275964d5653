"""The topic `items` (protos/item.proto): records read and followed, offers and removals sent."""

import re
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

from google.protobuf.message import DecodeError

from protos.item_pb2 import CatalogueEntry
from stream.errors import TopicMismatch
from stream.producer import Producer, wait_for_delivery
from stream.topic_reader import follow_partition
from stream.topics import TopicsConfig, ensure_topics

_MAX_POLL_RECORDS = 500
_SENT_AT_ONCE = 10_000
_MAX_ITEM_ID = 2**64 - 1
_DECIMAL = re.compile(rb"[1-9][0-9]{0,19}")
_KEY_BYTES_SHOWN = 40


@dataclass(frozen=True, kw_only=True)
class ItemRecord:
    """What one record says of one item."""

    key: str
    """For people."""
    offset: int
    time_ms: int
    """When the record was written."""
    item_id: int | None
    """None: the key is no item id."""
    entry: CatalogueEntry | None = None
    """None, without a fault: the item is removed."""
    fault: str | None = None
    """Why the record cannot be used."""


@dataclass(frozen=True)
class ItemBatch:
    """What was read at once."""

    records: Sequence[ItemRecord]
    next_offset: int
    is_at_end: bool
    """All that was in the topic when the following began has been read."""


async def follow_items(
    bootstrap: str, topics: TopicsConfig, start_offset: int
) -> AsyncIterator[ItemBatch]:
    """The topic from an offset on, and then what comes; empty batches while nothing does.

    Makes the topic where there is none. Raises TopicMismatch when it has more than one partition, BrokerUnavailable.
    """
    found = (await ensure_topics(bootstrap, topics)).partitions[topics.items]
    if found != 1:
        raise TopicMismatch(
            f"topic {topics.items!r} at {bootstrap} has {found} partitions; it needs one, as versions of the catalogue "
            "are named by its offsets: make another one and name it in topics.items"
        )
    async for batch in follow_partition(bootstrap, topics.items, start_offset, _MAX_POLL_RECORDS):
        records = [
            parse_item_record(each.key, each.value, each.offset, each.timestamp)
            for each in batch.records
        ]
        yield ItemBatch(records, batch.next_offset, batch.is_at_end)


def parse_item_record(
    key: bytes | None, value: bytes | None, offset: int, time_ms: int
) -> ItemRecord:
    """What a record says; never raises, a record that cannot be used says why."""
    shown = "no key" if key is None else key[:_KEY_BYTES_SHOWN].decode(errors="backslashreplace")
    item_id = int(key) if key is not None and _DECIMAL.fullmatch(key) else None
    if item_id is None or item_id > _MAX_ITEM_ID:
        unusable = (
            f"the key is {shown!r}; an item id in decimal digits is needed, 1 to {_MAX_ITEM_ID}"
        )
        return ItemRecord(key=shown, offset=offset, time_ms=time_ms, item_id=None, fault=unusable)
    entry: CatalogueEntry | None = None
    fault: str | None = None
    if value is not None:
        try:
            entry = CatalogueEntry.FromString(value)
            fault = _fault(entry, item_id)
        except DecodeError as error:
            fault = f"the value is no CatalogueEntry: {error}"
    return ItemRecord(
        key=shown,
        offset=offset,
        time_ms=time_ms,
        item_id=item_id,
        entry=None if fault else entry,
        fault=fault,
    )


def _fault(entry: CatalogueEntry, item_id: int) -> str | None:
    if entry.item.item_id != item_id:
        return f"the key is {item_id} and item.item_id {entry.item.item_id}; both must be the same"
    if entry.expires_at_ms < 0:
        return f"expires_at_ms is {entry.expires_at_ms}; it must not be negative"
    return None


async def send_entries(producer: Producer, topic: str, entries: Iterable[CatalogueEntry]) -> int:
    """Return the offset behind the last one when all are in the log. Raises StreamError."""
    return await _send(
        producer, topic, ((entry.item.item_id, entry.SerializeToString()) for entry in entries)
    )


async def send_removals(producer: Producer, topic: str, item_ids: Iterable[int]) -> int:
    """As `send_entries`, for items that are not to be recommended any more."""
    return await _send(producer, topic, ((item_id, None) for item_id in item_ids))


async def _send(producer: Producer, topic: str, records: Iterable[tuple[int, bytes | None]]) -> int:
    end, waiting = 0, iter(records)
    while some := list(islice(waiting, _SENT_AT_ONCE)):
        queued = [
            await producer.send(topic, value, key=item_key(item_id)) for item_id, value in some
        ]
        end = 1 + max(each.offset for each in await wait_for_delivery(queued))
    return end


def item_key(item_id: int) -> bytes:
    """The key of an item's records."""
    return str(item_id).encode()
