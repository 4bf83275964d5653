"""Bytes of a history's item statistics.

offset  size  field
0       1     format version, 1: half-lives of 7, 21, 56 and 168 days, visits an hour apart
1       4     number of records, little-endian: 0, or 1 (the history as a whole) + the distinct items
5       4     CRC-32 of bytes 0..4 and of the payload
9       n     payload: one zstd frame of the columns in the order of STATISTICS, each a little-endian array: item ids
              and last times as differences to the one before, first times as distances from the last time
"""

import struct
import zlib

import cramjam
import numpy as np

from state.errors import CorruptValue, UnknownFormat
from state.interaction import Rows
from state.item_statistics import STATISTICS, ItemStatistics, Records

FORMAT_VERSION = 1
_HEADER = struct.Struct("<BII")
_CHECKED = 5  # header bytes covered by the checksum
_ZSTD_LEVEL = 3


def encode_statistics(statistics: ItemStatistics) -> bytes:
    """Statistics to bytes."""
    records = np.concatenate([statistics.history, statistics.items])
    columns = {name: records[name] for name in STATISTICS.names or ()}
    columns["item_id"] = np.diff(records["item_id"], prepend=np.uint64(0))
    columns["first_time_ms"] = records["last_time_ms"] - records["first_time_ms"]
    columns["last_time_ms"] = np.diff(records["last_time_ms"], prepend=np.int64(0))
    columns["decayed"] = records["decayed"].T
    data = b"".join([column.tobytes() for column in columns.values()])
    payload = bytes(cramjam.zstd.compress(data, level=_ZSTD_LEVEL))
    head = _HEADER.pack(FORMAT_VERSION, len(records), 0)[:_CHECKED]
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
    if version != FORMAT_VERSION:
        raise UnknownFormat(
            f"item statistics have format version {version}; this release reads version {FORMAT_VERSION}"
        )
    payload = data[_HEADER.size :]
    if zlib.crc32(payload, zlib.crc32(data[:_CHECKED])) != checksum:
        raise CorruptValue(
            f"statistics of {count} items fail their checksum; restore the store from a checkpoint"
        )
    records = _records(bytes(cramjam.zstd.decompress(payload)), count)
    return ItemStatistics(records[:1], records[1:])


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
