"""What should trend, computed from a whole log in plain loops, and events to count."""

from collections import defaultdict
from collections.abc import Iterable

from protos.interaction_pb2 import INTERACTION_KIND_DISLIKE, INTERACTION_KIND_VIEW, Interaction
from stream.trending_counts import TrendingConfig

Event = tuple[int, int, int, bool]
"""Item, tag, event time in ms, and whether it is a dislike."""


def weights_of_log(
    events: Iterable[Event], config: TrendingConfig, now_ms: int
) -> dict[tuple[int, int], float]:
    """Weight of each pair of item and tag."""
    weights: dict[tuple[int, int], float] = defaultdict(float)
    width_ms = config.window_s * 1_000
    for item, tag, time_ms, disliked in events:
        start_ms = time_ms - time_ms % width_ms
        if not disliked and start_ms >= now_ms - config.keep_s * 1_000:
            weights[item, tag] += 0.5 ** ((now_ms - start_ms) / (config.half_life_s * 1_000))
    return dict(weights)


def interaction(
    user: str, item: int, time_ms: int, *, tag: int = 0, disliked: bool = False, number: int = 0
) -> Interaction:
    kind = INTERACTION_KIND_DISLIKE if disliked else INTERACTION_KIND_VIEW
    return Interaction(
        event_id=f"{user}-{item}-{time_ms}-{number}",
        user_id=user,
        item_id=item,
        tag=tag,
        event_time_ms=time_ms,
        kinds=[kind],
    )
