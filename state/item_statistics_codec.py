"""Bytes of a history's item statistics.

offset  size  field
0       1     format version, 3 or 4: half-lives of 7, 21, 56 and 168 days, visits an hour apart, phases with periods of
              24, 12, 8, 168 and 84 hours in 128ths
1       4     number of records, little-endian: 0, or 1 (the history as a whole) + the distinct items
5       4     CRC-32 of bytes 0..4 and of the payload
9       n     payload: one zstd frame of the columns in the order of STATISTICS, each a little-endian array: item ids
              and last times as differences to the one before, first times as distances from the last time

Version 4 has behind these columns those of DISLIKES, ids and times as differences to the one before. It is written where
something is disliked. 1 and 2 had no phases: they are parts of summaries of bundles that this release does not load.
"""

import struct
import zlib

import cramjam
import numpy as np

from state.errors import CorruptValue, UnknownFormat
from state.interaction import Rows
from state.item_statistics import DISLIKES, STATISTICS, Dislikes, ItemStatistics, Records

_WITHOUT_DISLIKES, FORMAT_VERSION = 3, 4
_HEADER = struct.Struct("<BII")
_CHECKED = 5  # header bytes covered by the checksum
_ZSTD_LEVEL = 3
_ZSTD_FRAME = 64  # and a 256th: the most that a frame adds to what it holds


def max_encoded_bytes(max_items: int) -> int:
    """The most that statistics bounded by `max_items` take, were nothing of them compressible."""
    num_bytes = (max_items + 1) * STATISTICS.itemsize + max_items * DISLIKES.itemsize
    return _HEADER.size + num_bytes + (num_bytes >> 8) + _ZSTD_FRAME


def encode_statistics(statistics: ItemStatistics) -> bytes:
    """Statistics to bytes."""
    records = np.concatenate([statistics.history, statistics.items])
    columns = {name: records[name] for name in STATISTICS.names or ()}
    columns["item_id"] = np.diff(records["item_id"], prepend=np.uint64(0))
    columns["first_time_ms"] = records["last_time_ms"] - records["first_time_ms"]
    columns["last_time_ms"] = np.diff(records["last_time_ms"], prepend=np.int64(0))
    columns["decayed"] = records["decayed"].T
    columns["phases"] = records["phases"].T
    disliked = statistics.disliked
    columns["disliked"] = np.diff(disliked["item_id"], prepend=np.uint64(0))
    columns["disliked_ms"] = np.diff(disliked["time_ms"], prepend=np.int64(0))
    data = b"".join([column.tobytes() for column in columns.values()])
    version = FORMAT_VERSION if len(disliked) else _WITHOUT_DISLIKES
    payload = bytes(cramjam.zstd.compress(data, level=_ZSTD_LEVEL))
    head = _HEADER.pack(version, len(records), 0)[:_CHECKED]
    return head + zlib.crc32(payload, zlib.crc32(head)).to_bytes(4, "little") + payload


def decode_statistics(data: bytes) -> ItemStatistics:
    """Bytes to statistics.

    Raises UnknownFormat for a version this release does not read and CorruptValue when the bytes were damaged.
    """
    if len(data) < _HEADER.size:
        raise CorruptValue(
            f"item statistics have {len(data)} bytes; at least {_HEADER.size} are needed"
        )
    version, count, checksum = _HEADER.unpack_from(data)
    if version not in (_WITHOUT_DISLIKES, FORMAT_VERSION):
        raise UnknownFormat(
            f"item statistics have format version {version}; this release reads {_WITHOUT_DISLIKES} and {FORMAT_VERSION}"
        )
    payload = data[_HEADER.size :]
    if zlib.crc32(payload, zlib.crc32(data[:_CHECKED])) != checksum:
        raise CorruptValue(
            f"statistics of {count} items fail their checksum; restore the store from a checkpoint"
        )
    columns = bytes(cramjam.zstd.decompress(payload))
    records = _records(columns, count)
    disliked = _dislikes(columns[count * STATISTICS.itemsize :])
    return ItemStatistics(records[:1], records[1:], disliked)


def _dislikes(columns: bytes) -> Dislikes:
    count = len(columns) // DISLIKES.itemsize
    disliked: Dislikes = np.zeros(count, DISLIKES)
    disliked["item_id"] = np.cumsum(np.frombuffer(columns, "<u8", count))
    disliked["time_ms"] = np.cumsum(np.frombuffer(columns, "<i8", count, 8 * count))
    return disliked


def _records(columns: bytes, count: int) -> Records:
    records: Rows = np.zeros(count, STATISTICS)
    start = 0
    for name in STATISTICS.names or ():
        base, shape = STATISTICS[name].base, STATISTICS[name].shape
        num_values = count * int(np.prod(shape))
        column = np.frombuffer(columns, base, num_values, start)
        records[name] = column.reshape(*shape, count).T
        start += num_values * base.itemsize
    records["item_id"] = np.cumsum(records["item_id"])
    records["last_time_ms"] = np.cumsum(records["last_time_ms"])
    records["first_time_ms"] = records["last_time_ms"] - records["first_time_ms"]
    return records
