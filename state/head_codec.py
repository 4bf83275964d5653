"""Bytes of a user's head: meta data and the newest interactions, the part that nearly every arrival changes.

offset  size  field
0       4     CRC-32 of everything behind it, little-endian
4       1     format version, 1
5       1     n, how many interactions are open (in no block yet), at most 8
6       2     zero
8       88    the fields of UserMeta in their order, int64 each
96      48 n  the open interactions as INTERACTION records, oldest first
"""

import zlib
from collections.abc import Sequence
from dataclasses import fields as fields_of
from operator import attrgetter

import numpy as np
import numpy.typing as npt

from state.errors import CorruptValue, UnknownFormat
from state.interaction import INTERACTION, Rows
from state.user_state import UserMeta

FORMAT_VERSION = 1
MAX_OPEN = 8
"""Interactions that a head holds; with one more, they leave together as a block of the tail."""

META = np.dtype([(field.name, "<i8") for field in fields_of(UserMeta)])
HEAD = np.dtype(
    [
        ("checksum", "<u4"),
        ("format_version", "u1"),
        ("num_open", "u1"),
        ("zero", "<u2"),
        ("meta", META),
        ("open", INTERACTION, MAX_OPEN),
    ]
)
_CHECKED = 4
_FIXED = HEAD.itemsize - MAX_OPEN * INTERACTION.itemsize
_META_NAMES = META.names or ()
_fields_of = attrgetter(*_META_NAMES)
_LENGTH = 8 + 8 * _META_NAMES.index("length")

Heads = npt.NDArray[np.void]
"""A one-dimensional array of dtype HEAD."""


def make_head(meta: UserMeta, open_rows: Rows) -> Heads:
    """The head of one user, as an array of one. At most MAX_OPEN rows."""
    head = np.zeros(1, HEAD)
    head["meta"] = _fields_of(meta)
    head["num_open"] = len(open_rows)
    head["open"][0, : len(open_rows)] = open_rows
    return head


def meta_of(head: np.void) -> UserMeta:
    """The meta data of one head."""
    return UserMeta(**dict(zip(_META_NAMES, head["meta"].item(), strict=True)))


def encode_heads(heads: Heads) -> list[bytes]:
    """Heads to bytes; fills in what guards them."""
    heads["format_version"] = FORMAT_VERSION
    data = heads.tobytes()
    starts = range(0, len(data), HEAD.itemsize)
    sizes = (_FIXED + heads["num_open"].astype(np.int64) * INTERACTION.itemsize).tolist()
    bodies = [
        data[start + _CHECKED : start + size] for start, size in zip(starts, sizes, strict=True)
    ]
    return [zlib.crc32(body).to_bytes(_CHECKED, "little") + body for body in bodies]


def decode_heads(values: Sequence[bytes]) -> Heads:
    """Inverse of encode_heads. Raises UnknownFormat or CorruptValue."""
    for value in values:
        _check(value)
    data = b"".join(value.ljust(HEAD.itemsize, b"\0") for value in values)
    return np.frombuffer(data, HEAD).copy()


def decode_head(value: bytes) -> tuple[UserMeta, Rows]:
    """One user's meta data and open interactions. Raises UnknownFormat or CorruptValue."""
    (head,) = decode_heads([value])
    return meta_of(head), head["open"][: int(head["num_open"])]


def has_history(value: bytes) -> bool:
    """Whether a user with this head, which may be damaged, counts among those with a history."""
    return len(value) < _FIXED or stored_length(value) > 0


def stored_length(value: bytes) -> int:
    """The history's length in an encoded head, unchecked; 0 when everything of the user was deleted."""
    return int.from_bytes(value[_LENGTH : _LENGTH + 8], "little")


def _check(value: bytes) -> None:
    if len(value) < _FIXED:
        raise CorruptValue(f"a head has {len(value)} bytes; at least {_FIXED} are needed")
    if zlib.crc32(memoryview(value)[_CHECKED:]).to_bytes(4, "little") != value[:4]:
        raise CorruptValue("a head fails its checksum")
    if value[4] != FORMAT_VERSION:
        raise UnknownFormat(
            f"a head has format version {value[4]}; this release reads version {FORMAT_VERSION}"
        )
    if value[5] > MAX_OPEN or len(value) != _FIXED + value[5] * INTERACTION.itemsize:
        raise CorruptValue(f"a head has {len(value)} bytes, and {value[5]} open interactions")
