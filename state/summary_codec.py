"""Bytes of a summary: a format version and a CRC-32 of the rest, then the rest. The bundle version belongs to the key.

The rest of version 2, little-endian: boundary (8), count (8), built at (8), bytes of accumulators (4), tokens (4), their
width (4), bytes of item statistics (4), then accumulators, tokens as float32, item statistics. Version 1 has none of
these, and no field for their length.
"""

import struct
import zlib

import numpy as np

from state.errors import CorruptValue, UnknownFormat
from state.summary import Summary

FORMAT_VERSION = 2
_ENVELOPE = struct.Struct("<BI")  # format version, CRC-32 of the body
_FIXED = {1: struct.Struct("<QQqIII"), 2: struct.Struct("<QQqIIII")}


def encode_summary(summary: Summary) -> bytes:
    """A summary to bytes."""
    num_tokens, width = summary.tokens.shape
    fixed = _FIXED[FORMAT_VERSION].pack(
        summary.boundary,
        summary.count,
        summary.built_at_ms,
        len(summary.accumulators),
        num_tokens,
        width,
        len(summary.item_statistics),
    )
    tokens = summary.tokens.astype("<f4").tobytes()
    body = fixed + summary.accumulators + tokens + summary.item_statistics
    return _ENVELOPE.pack(FORMAT_VERSION, zlib.crc32(body)) + body


def decode_summary(data: bytes, bundle_version: str) -> Summary:
    """Bytes of any version to a summary. Raises UnknownFormat or CorruptValue."""
    fixed, body = _open(data)
    boundary, count, built_at_ms, num_bytes, num_tokens, width, *_ = fixed.unpack_from(body)
    tokens_start = fixed.size + num_bytes
    tokens = np.frombuffer(body, "<f4", num_tokens * width, tokens_start)
    return Summary(
        bundle_version=bundle_version,
        boundary=boundary,
        count=count,
        accumulators=body[fixed.size : tokens_start],
        tokens=tokens.reshape(num_tokens, width).astype(np.float32),
        built_at_ms=built_at_ms,
        item_statistics=body[tokens_start + tokens.nbytes :],
    )


def _open(data: bytes) -> tuple[struct.Struct, bytes]:
    """The layout of the fixed part, and the body."""
    min_bytes = _ENVELOPE.size + _FIXED[1].size
    if len(data) < min_bytes:
        raise CorruptValue(f"a summary has {len(data)} bytes; at least {min_bytes} are needed")
    version, checksum = _ENVELOPE.unpack_from(data)
    if version not in _FIXED:
        raise UnknownFormat(
            f"a summary has format version {version}; this release reads versions 1 to {FORMAT_VERSION}"
        )
    body = data[_ENVELOPE.size :]
    if zlib.crc32(body) != checksum:
        raise CorruptValue(
            "a summary fails its checksum; restore the store from a checkpoint that `gemstream store verify --deep` finds good"
        )
    return _FIXED[version], body
