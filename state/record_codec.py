"""Bytes of a user's meta data and of a summary; both begin with a format version and a CRC-32 of the rest."""

import struct
import zlib
from collections.abc import Sequence
from dataclasses import fields as fields_of

import numpy as np
import numpy.typing as npt

from state.errors import CorruptValue, UnknownFormat
from state.summary import Summary
from state.user_state import UserMeta

FORMAT_VERSION = 1
_ENVELOPE = struct.Struct("<BI")  # format version, CRC-32 of the body
META_FIELDS = tuple(field.name for field in fields_of(UserMeta))
_META = struct.Struct(f"<{len(META_FIELDS)}q")
_NEW_USER = bytes(_META.size)
_SUMMARY = struct.Struct("<QQqIII")  # boundary, count, built at, accumulator bytes, tokens, width


def encode_meta(meta: UserMeta) -> bytes:
    """Meta data to bytes."""
    return _seal(_META.pack(*(getattr(meta, name) for name in META_FIELDS)))


def decode_meta(data: bytes) -> UserMeta:
    """Bytes to meta data. Raises UnknownFormat or CorruptValue."""
    values = _META.unpack(_open(data, "meta data", _META.size))
    return UserMeta(**dict(zip(META_FIELDS, values, strict=True)))


def encode_metas(fields: npt.NDArray[np.int64]) -> list[bytes]:
    """Many users' meta data, [users, META_FIELDS], to bytes."""
    body = fields.astype("<i8").tobytes()
    return [_seal(body[start : start + _META.size]) for start in range(0, len(body), _META.size)]


def decode_metas(values: Sequence[bytes | None]) -> npt.NDArray[np.int64]:
    """Inverse of encode_metas; zeros for a user of whom nothing is stored. Raises UnknownFormat or CorruptValue."""
    bodies = [
        _NEW_USER if data is None else _open(data, "meta data", _META.size) for data in values
    ]
    return np.frombuffer(b"".join(bodies), "<i8").astype(np.int64).reshape(-1, len(META_FIELDS))


def encode_summary(summary: Summary) -> bytes:
    """A summary to bytes; its bundle version belongs to the key."""
    num_tokens, width = summary.tokens.shape
    fixed = _SUMMARY.pack(
        summary.boundary,
        summary.count,
        summary.built_at_ms,
        len(summary.accumulators),
        num_tokens,
        width,
    )
    return _seal(fixed + summary.accumulators + summary.tokens.astype("<f4").tobytes())


def decode_summary(data: bytes, bundle_version: str) -> Summary:
    """Bytes to a summary. Raises UnknownFormat or CorruptValue."""
    body = _open(data, "a summary", _SUMMARY.size)
    boundary, count, built_at_ms, num_bytes, num_tokens, width = _SUMMARY.unpack_from(body)
    tokens_start = _SUMMARY.size + num_bytes
    tokens = np.frombuffer(body, "<f4", num_tokens * width, tokens_start)
    return Summary(
        bundle_version=bundle_version,
        boundary=boundary,
        count=count,
        accumulators=body[_SUMMARY.size : tokens_start],
        tokens=tokens.reshape(num_tokens, width).astype(np.float32),
        built_at_ms=built_at_ms,
    )


def _seal(body: bytes) -> bytes:
    return _ENVELOPE.pack(FORMAT_VERSION, zlib.crc32(body)) + body


def _open(data: bytes, what: str, min_bytes: int) -> bytes:
    if len(data) < _ENVELOPE.size + min_bytes:
        raise CorruptValue(
            f"{what} has {len(data)} bytes; at least {_ENVELOPE.size + min_bytes} are needed"
        )
    version, checksum = _ENVELOPE.unpack_from(data)
    if version != FORMAT_VERSION:
        raise UnknownFormat(
            f"{what} has format version {version}; this release reads version {FORMAT_VERSION}"
        )
    body = data[_ENVELOPE.size :]
    if zlib.crc32(body) != checksum:
        raise CorruptValue(f"{what} fails its checksum; restore the store from a checkpoint")
    return body
