"""Bytes of a block of interactions: a sealed chunk, or a part of the tail.

offset  size  field
0       1     format version, 1
1       1     flags: bit 0 = event hashes are included (tails), bit 1 = records as they lie in memory
2       4     number of interactions, little-endian
6       4     CRC-32 of bytes 0..5 and of the payload
10      n     payload: one zstd frame of the columns in the order of FEATURE_COLUMNS, then the event hashes;
              each column is a little-endian array, event times as differences to the one before;
              with bit 1, the INTERACTION records, neither turned into columns nor compressed
"""

import struct
import zlib

import cramjam
import numpy as np
import numpy.typing as npt

from state.errors import CorruptValue, UnknownFormat
from state.interaction import FEATURE_COLUMNS, INTERACTION, Rows

FORMAT_VERSION = 1
_HAS_HASHES = 1
_AS_RECORDS = 2
_HEADER = struct.Struct("<BBII")
_CHECKED = 6  # header bytes covered by the checksum
_ZSTD_LEVEL = 3


def encode_rows(rows: Rows, *, with_hashes: bool) -> bytes:
    """Rows to bytes. `with_hashes` keeps what catches producer retries; sealed chunks do without."""
    columns = [_column_bytes(rows, name) for name in FEATURE_COLUMNS]
    if with_hashes:
        columns.append(rows["event_hash"].tobytes())
    payload = bytes(cramjam.zstd.compress(b"".join(columns), level=_ZSTD_LEVEL))
    return _sealed(_HAS_HASHES if with_hashes else 0, len(rows), payload)


def encode_records(records: bytes) -> bytes:
    """The bytes of rows to a block, as they are: nothing is quicker, for what is soon written anew."""
    return _sealed(_HAS_HASHES | _AS_RECORDS, len(records) // INTERACTION.itemsize, records)


def _sealed(flags: int, count: int, payload: bytes) -> bytes:
    head = _HEADER.pack(FORMAT_VERSION, flags, count, 0)[:_CHECKED]
    return head + zlib.crc32(payload, zlib.crc32(head)).to_bytes(4, "little") + payload


def decode_rows(data: bytes) -> Rows:
    """Bytes to rows.

    Raises UnknownFormat for a version this release does not read and CorruptValue when the bytes were damaged.
    """
    flags, count, payload = _checked(data)
    if flags & _AS_RECORDS:
        return np.frombuffer(payload, INTERACTION, count)
    names = [*FEATURE_COLUMNS, "event_hash"] if flags & _HAS_HASHES else list(FEATURE_COLUMNS)
    return _split_columns(memoryview(bytes(cramjam.zstd.decompress(payload))), names, count)


def decode_items(data: bytes) -> npt.NDArray[np.uint64]:
    """The item ids alone, the first column, in half the time of all. Raises as decode_rows does."""
    flags, count, payload = _checked(data)
    if flags & _AS_RECORDS:
        return np.frombuffer(payload, INTERACTION, count)["item_id"]
    return np.frombuffer(bytes(cramjam.zstd.decompress(payload)), "<u8", count)


def check_rows(data: bytes) -> None:
    """Raises as decode_rows does, without the work."""
    _checked(data)


def _checked(data: bytes) -> tuple[int, int, memoryview]:
    """Flags, number of interactions, payload."""
    if len(data) < _HEADER.size:
        raise CorruptValue(
            f"a block of interactions has {len(data)} bytes; at least {_HEADER.size} are needed"
        )
    version, flags, count, checksum = _HEADER.unpack_from(data)
    payload = memoryview(data)[_HEADER.size :]
    if zlib.crc32(payload, zlib.crc32(data[:_CHECKED])) != checksum:
        raise CorruptValue(f"a block of {count} interactions fails its checksum")
    if version != FORMAT_VERSION:
        raise UnknownFormat(
            f"a block of interactions has format version {version}; this release reads version {FORMAT_VERSION}"
        )
    return flags, count, payload


def _column_bytes(rows: Rows, name: str) -> bytes:
    column = rows[name]
    if name == "event_time_ms":
        column = np.diff(column, prepend=np.int64(0))
    return column.tobytes()


def _split_columns(columns: memoryview, names: list[str], count: int) -> Rows:
    rows = np.zeros(count, INTERACTION)
    start = 0
    for name in names:
        dtype = INTERACTION[name]
        column = np.frombuffer(columns, dtype, count, start)
        rows[name] = np.cumsum(column) if name == "event_time_ms" else column
        start += count * dtype.itemsize
    return rows
