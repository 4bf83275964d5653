"""`gemstream recommend`: ask an inference node."""

from typing import Annotated

import typer

from protos import recommender_pb2
from services.cli.options import (
    ConfigOption,
    RecommenderAddressOption,
    TimeoutOption,
    recommender_address,
)
from services.cli.output import (
    JsonOption,
    message_document,
    print_json,
    print_table,
    print_text,
    time_text,
)


def recommend(
    user: Annotated[str, typer.Argument(help="The user id.")],
    k: Annotated[int, typer.Option("-k", min=1, max=500, help="How many items.")] = 10,
    exclude: Annotated[list[int] | None, typer.Option(help="Item ids never to return.")] = None,
    beam_width: Annotated[int, typer.Option(min=0, max=1000, help="0 = the server's default.")] = 0,
    config: ConfigOption = None,
    address: RecommenderAddressOption = None,
    timeout: TimeoutOption = 10.0,
    as_json: JsonOption = False,
) -> None:
    """Recommend items to a user."""
    from services import clients

    request = recommender_pb2.RecommendRequest(
        user_id=user, k=k, exclude_item_ids=exclude or [], beam_width=beam_width
    )
    reply = clients.recommend(recommender_address(address, config), request, timeout)
    if as_json:
        print_json(message_document(reply))
        return
    print_table(
        f"Recommended to user {user}",
        ["#", "item", "title", "SID", "score", "source"],
        [
            (
                rank,
                entry.item.item_id,
                entry.item.title,
                tuple(entry.sid),
                f"{entry.score:.3f}",
                source_name(entry.source),
            )
            for rank, entry in enumerate(reply.items, 1)
        ],
    )
    print_text(describe(reply))


def source_name(source: recommender_pb2.Source) -> str:
    """As people read it."""
    return recommender_pb2.Source.Name(source).removeprefix("SOURCE_").lower()


def describe(reply: recommender_pb2.RecommendResponse) -> str:
    """What the items were made from, in words."""
    segments, freshness = reply.segments, reply.freshness
    if recommender_pb2.DEGRADATION_STATE_UNAVAILABLE in reply.degraded:
        origin = f"{source_name(reply.source)} items: the user's state could not be read"
    elif reply.source != recommender_pb2.SOURCE_PERSONAL:
        origin = f"{source_name(reply.source)} items: nothing is known of this user"
    else:
        origin = (
            f"made from {segments.recent} recent, {segments.mid_term} mid-term and {segments.lifecycle} "
            f"lifecycle interactions, the newest of {time_text(freshness.newest_event_time_ms)}"
        )
    missing = [recommender_pb2.Degradation.Name(value).lower() for value in reply.degraded]
    degraded = f"; {', '.join(missing)}" if missing else ""
    return f"{origin}; state {reply.state_version}, bundle {reply.bundle_version}{degraded}"
