"""From stored rows to the wire message of protos/interaction.proto."""

from functools import cache
from typing import Any

from protos.interaction_pb2 import Interaction
from state.interaction import NUM_KINDS


def interaction_to_wire(row: tuple[Any, ...], user_id: str, event_id: str = "") -> Interaction:
    """A row as `rows.tolist()` gives it; stored rows do not know their event id any more."""
    message = Interaction(user_id=user_id, event_id=event_id)
    (
        message.item_id,
        message.author_id,
        message.tag,
        message.event_time_ms,
        message.play_time_ms,
        message.duration_ms,
        kinds,
        _,
    ) = row
    message.kinds.extend(_kinds(kinds))  # type: ignore[arg-type]  # enum values are ints on the wire
    return message


@cache
def _kinds(mask: int) -> list[int]:
    return [kind for kind in range(1, NUM_KINDS) if mask >> kind & 1]
