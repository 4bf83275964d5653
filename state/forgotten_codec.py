"""Bytes of the list of items a user had forgotten.

offset  size  field
0       1     format version, 1
1       4     CRC-32 of the entries, little-endian
5       16 n  the entries in their order: item id (8, little-endian), event time until which it is refused (8)
"""

import numpy as np

from state.envelope import seal, unseal
from state.forgotten_items import FORGOTTEN, ForgottenItems

FORMAT_VERSION = 1


def encode_forgotten(forgotten: ForgottenItems) -> bytes:
    """A list to bytes."""
    return seal(FORMAT_VERSION, forgotten.entries.tobytes())


def decode_forgotten(data: bytes) -> ForgottenItems:
    """Bytes to a list. Raises UnknownFormat or CorruptValue."""
    _, body = unseal(data, "a list of forgotten items", FORMAT_VERSION)
    return ForgottenItems(np.frombuffer(body, FORGOTTEN))
