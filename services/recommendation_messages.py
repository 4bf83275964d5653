"""Answers as messages of protos/recommender.proto: items, what they were made from, and what was missing."""

import time

from model.query import AttendedInteraction, Explanation, Recommended, Source
from protos import recommender_pb2
from services.generation import Generated, UserView
from services.item_wire import item_to_wire

Degradation = recommender_pb2.Degradation

SOURCES = {
    Source.PERSONAL: recommender_pb2.SOURCE_PERSONAL,
    Source.TRENDING: recommender_pb2.SOURCE_TRENDING,
    Source.POPULAR: recommender_pb2.SOURCE_POPULAR,
}


def fill_response(response: recommender_pb2.RecommendResponse, generated: Generated) -> None:
    """Everything that the generator knows of its answer."""
    if generated.view is not None:
        response.source = recommender_pb2.SOURCE_PERSONAL
        _describe(response, generated.view)
    else:
        first = generated.items[0].source if generated.items else Source.POPULAR
        response.source = SOURCES[first]
    response.degraded.extend(degradations_of(generated))
    response.bundle_version = generated.bundle_version
    response.timings_ms.update(generated.timings_ms)
    for entry in generated.items:
        item = _recommended(entry)
        reason = generated.explanations.get(entry.item.item_id)
        if reason is not None:
            item.reason.CopyFrom(_reason(reason))
        response.items.append(item)


def degradations_of(generated: Generated) -> list[recommender_pb2.Degradation]:
    """What the answer lacks."""
    view, degraded = generated.view, []
    if view is not None and view.is_stale:
        degraded.append(Degradation.DEGRADATION_STATE_STALE)
    if view is not None and view.meta.lifecycle_boundary and view.summary_boundary is None:
        degraded.append(Degradation.DEGRADATION_SUMMARY_MISSING)
    elif view is not None and _summary_lag(view):
        degraded.append(Degradation.DEGRADATION_SUMMARY_BEHIND)
    if not generated.seen_complete:
        degraded.append(Degradation.DEGRADATION_SEEN_INCOMPLETE)
    return degraded


def kind_of(degradation: recommender_pb2.Degradation) -> str:
    """Its name for people and metrics, such as "summary_missing"."""
    return Degradation.Name(degradation).removeprefix("DEGRADATION_").lower()


def _summary_lag(view: UserView) -> int:
    """Interactions of the lifecycle segment that no summary covers."""
    covered = view.meta.first_position if view.summary_boundary is None else view.summary_boundary
    return max(0, view.meta.lifecycle_boundary - covered)


def _describe(response: recommender_pb2.RecommendResponse, view: UserView) -> None:
    meta = view.meta
    response.state_version = meta.version
    response.freshness.newest_event_time_ms = meta.newest_event_time_ms
    if meta.newest_event_time_ms:
        age_ms = time.time_ns() // 1_000_000 - meta.newest_event_time_ms
        response.freshness.age_ms = max(0, age_ms)
    response.freshness.summary_lag = _summary_lag(view)
    response.segments.recent = view.recent
    response.segments.mid_term = view.mid_term
    response.segments.lifecycle = view.lifecycle


def _recommended(entry: Recommended) -> recommender_pb2.RecommendedItem:
    return recommender_pb2.RecommendedItem(
        item=item_to_wire(entry.item),
        score=entry.score,
        sid=entry.sid,
        source=SOURCES[entry.source],
    )


def _reason(explanation: Explanation) -> recommender_pb2.Reason:
    return recommender_pb2.Reason(
        shares=recommender_pb2.StreamShares(
            recent=explanation.recent,
            mid_term=explanation.mid_term,
            lifecycle=explanation.lifecycle,
            repeats=explanation.repeats,
        ),
        attended=[_attended(interaction) for interaction in explanation.attended],
    )


def _attended(interaction: AttendedInteraction) -> recommender_pb2.AttendedInteraction:
    return recommender_pb2.AttendedInteraction(
        item=item_to_wire(interaction.item),
        event_time_ms=interaction.event_time_ms,
        attention=interaction.attention,
    )
