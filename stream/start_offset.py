"""Where the reading of a partition begins: at the stored offset, if the topic still has it."""

import logging
import time

from state.user_store import UserStore
from stream.errors import OffsetUnreachable

log = logging.getLogger(__name__)


def find_start(
    store: UserStore, topic: str, span: range, committed: int | None, *, accept_hole: bool
) -> int:
    """The first offset to read: one before the stored one, so that its fingerprint can be compared.

    `span` holds the offsets that can be sought, `committed` is what the group applied before, wherever. Raises
    OffsetUnreachable when records that the state needs are gone; `accept_hole` records them as a hole instead, and goes
    on behind it. What was gone before anybody applied anything is such a hole, too, and stops nobody.
    """
    begin, end = span.start, span.stop - 1
    name = f"{topic}-{store.partition}"
    position = store.position()
    if position is None:
        if begin and committed and not accept_hole:
            raise OffsetUnreachable(
                f"{name}: there is no state here, the group had applied it up to offset {committed}, and the topic now "
                f"begins at {begin}: what came before cannot be built again. Bring back a checkpoint (checkpoints.uri, "
                "gemstream store restore), or go on without those records: --accept-hole"
            )
        return _record_hole(store, name, 0, begin) if begin else 0
    stored = position.next_offset
    if stored in span:
        return max(begin, stored - 1)
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
    return _record_hole(store, name, stored, begin)


def _record_hole(store: UserStore, name: str, start: int, end: int) -> int:
    store.record_hole(end, time.time_ns() // 1_000_000)
    log.warning("%s: the records from %d to %d are lost; the hole is recorded", name, start, end)
    return end
