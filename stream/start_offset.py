"""Where the reading of a partition begins: at the stored offset, if the topic still has it."""

import logging
import time

from state.user_store import UserStore
from stream.errors import OffsetUnreachable

log = logging.getLogger(__name__)


def find_start(store: UserStore, topic: str, span: range, *, accept_hole: bool) -> int:
    """The first offset to read: one before the stored one, so that its fingerprint can be compared.

    `span` holds the offsets that can be sought. Raises OffsetUnreachable when the stored offset lies outside;
    `accept_hole` records what retention removed as a hole instead, and goes on behind it.
    """
    begin, end = span.start, span.stop - 1
    position = store.position()
    if position is None:
        return begin
    stored = position.next_offset
    if stored in span:
        return max(begin, stored - 1)
    name = f"{topic}-{store.partition}"
    if stored > end:
        raise OffsetUnreachable(
            f"{name}: the store is at offset {stored}, but the topic ends at {end}: it was made anew, or this is "
            "another cluster. Point to the right Kafka, or start from a new data directory "
            "(and another checkpoints.uri)"
        )
    if not accept_hole:
        raise OffsetUnreachable(
            f"{name}: the store needs offset {stored}, but the topic now begins at {begin}: retention removed "
            f"{begin - stored} records that were never applied. Raise the topic's retention and start from a checkpoint "
            "that is new enough, or go on without them: --accept-hole"
        )
    store.record_hole(begin, time.time_ns() // 1_000_000)
    log.warning("%s: the records from %d to %d are lost; the hole is recorded", name, stored, begin)
    return begin
