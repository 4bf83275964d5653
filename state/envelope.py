"""The envelope of small records: a format version (1 byte), the CRC-32 of the body (4, little-endian), the body."""

import struct
import zlib

from state.errors import CorruptValue, UnknownFormat

_ENVELOPE = struct.Struct("<BI")


def seal(version: int, body: bytes) -> bytes:
    """A body in its envelope."""
    return _ENVELOPE.pack(version, zlib.crc32(body)) + body


def unseal(data: bytes, what: str, newest_version: int, min_bytes: int = 0) -> tuple[int, bytes]:
    """Version and body of an envelope that holds `min_bytes` at least; `what` names the record in errors.

    Raises UnknownFormat for a version above `newest_version` and CorruptValue when the bytes were damaged.
    """
    if len(data) < _ENVELOPE.size + min_bytes:
        raise CorruptValue(
            f"{what} has {len(data)} bytes; at least {_ENVELOPE.size + min_bytes} are needed"
        )
    version, checksum = _ENVELOPE.unpack_from(data)
    # A later release writes the next version; what lies beyond is a damaged byte, which the checksum does not cover.
    if not 1 <= version <= newest_version + 1:
        raise CorruptValue(f"{what} has format version {version}, which there is not")
    if version > newest_version:
        readable = "version 1" if newest_version == 1 else f"versions 1 to {newest_version}"
        raise UnknownFormat(f"{what} has format version {version}; this release reads {readable}")
    body = data[_ENVELOPE.size :]
    if zlib.crc32(body) != checksum:
        raise CorruptValue(f"{what} fails its checksum")
    return version, body
