"""Bytes of the list of items a user had forgotten.

offset  size  field
0       1     format version, 1
1       4     CRC-32 of the entries, little-endian
5       16 n  the entries in their order: item id (8, little-endian), event time until which it is refused (8)
"""

import struct
import zlib

import numpy as np

from state.errors import CorruptValue, UnknownFormat
from state.forgotten_items import FORGOTTEN, ForgottenItems

FORMAT_VERSION = 1
_ENVELOPE = struct.Struct("<BI")


def encode_forgotten(forgotten: ForgottenItems) -> bytes:
    """A list to bytes."""
    body = forgotten.entries.tobytes()
    return _ENVELOPE.pack(FORMAT_VERSION, zlib.crc32(body)) + body


def decode_forgotten(data: bytes) -> ForgottenItems:
    """Bytes to a list. Raises UnknownFormat or CorruptValue."""
    if len(data) < _ENVELOPE.size:
        raise CorruptValue(
            f"a list of forgotten items has {len(data)} bytes; at least {_ENVELOPE.size} are needed"
        )
    version, checksum = _ENVELOPE.unpack_from(data)
    if version != FORMAT_VERSION:
        raise UnknownFormat(
            f"a list of forgotten items has format version {version}; this release reads version {FORMAT_VERSION}"
        )
    body = data[_ENVELOPE.size :]
    if zlib.crc32(body) != checksum:
        raise CorruptValue(
            "a list of forgotten items fails its checksum; restore the store from a checkpoint that `gemstream store verify --deep` finds good"
        )
    return ForgottenItems(np.frombuffer(body, FORGOTTEN))
