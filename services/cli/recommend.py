"""`gemstream recommend`: ask an inference node."""

from datetime import UTC, datetime
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
    CommandError,
    JsonOption,
    message_document,
    print_json,
    print_table,
    print_text,
    printable,
    time_text,
)

_SMALLEST_SHARE = 0.005


def recommend(
    users: Annotated[list[str], typer.Argument(help="User ids; several make one batch.")],
    k: Annotated[int, typer.Option("-k", min=1, max=500, help="How many items.")] = 10,
    exclude: Annotated[
        list[int] | None, typer.Option(min=0, max=2**64 - 1, help="Item ids never to return.")
    ] = None,
    exclude_seen: Annotated[
        bool, typer.Option("--exclude-seen", help="Nothing that the kept history holds.")
    ] = False,
    allow_tag: Annotated[
        list[int] | None, typer.Option(min=0, max=2**32 - 1, help="Only these tags.")
    ] = None,
    deny_tag: Annotated[
        list[int] | None, typer.Option(min=0, max=2**32 - 1, help="None of these tags.")
    ] = None,
    allow_author: Annotated[
        list[int] | None, typer.Option(min=0, max=2**64 - 1, help="Only these authors.")
    ] = None,
    deny_author: Annotated[
        list[int] | None, typer.Option(min=0, max=2**64 - 1, help="None of these authors.")
    ] = None,
    no_repeats: Annotated[
        bool, typer.Option("--no-repeats", help="Items do not gain by having been taken before.")
    ] = False,
    explain: Annotated[
        bool, typer.Option("--explain", help="Say what each item was generated from.")
    ] = False,
    page_token: Annotated[
        str, typer.Option(help="What the page before said; for one user alone.")
    ] = "",
    surface: Annotated[
        str, typer.Option(help="Where the items are shown, for logs and traces.")
    ] = "",
    at: Annotated[
        datetime | None, typer.Option(help="When the items are wanted, in UTC; default: now.")
    ] = None,
    beam_width: Annotated[int, typer.Option(min=0, max=1000, help="0 = the server's default.")] = 0,
    config: ConfigOption = None,
    address: RecommenderAddressOption = None,
    timeout: TimeoutOption = 10.0,
    as_json: JsonOption = False,
) -> None:
    """Recommend items to users."""
    from services import clients

    if page_token and len(users) > 1:
        raise typer.BadParameter("a page token belongs to one user", param_hint="--page-token")
    requests = [
        recommender_pb2.RecommendRequest(
            user_id=user,
            k=k,
            exclude_item_ids=exclude or [],
            exclude_seen=exclude_seen,
            allow_tags=allow_tag or [],
            deny_tags=deny_tag or [],
            allow_author_ids=allow_author or [],
            deny_author_ids=deny_author or [],
            no_repeats=no_repeats,
            explain=explain,
            page_token=page_token,
            surface=surface,
            beam_width=beam_width,
            time_ms=_time_ms(at),
        )
        for user in users
    ]
    target = recommender_address(address, config)
    if len(requests) > 1:
        batch = recommender_pb2.RecommendBatchRequest(requests=requests)
        _show_batch(users, clients.recommend_batch(target, batch, timeout), as_json=as_json)
        return
    reply = clients.recommend(target, requests[0], timeout)
    if as_json:
        print_json(message_document(reply))
    else:
        _show(users[0], reply)


def _time_ms(at: datetime | None) -> int:
    """0 stands for now. Raises typer.BadParameter for a time that would read as that, or comes before."""
    if at is None:
        return 0
    time_ms = int(at.replace(tzinfo=UTC).timestamp() * 1_000)
    if time_ms <= 0:
        raise typer.BadParameter(f"{at} is not after 1970-01-01 00:00", param_hint="--at")
    return time_ms


def _show_batch(
    users: list[str], reply: recommender_pb2.RecommendBatchResponse, *, as_json: bool
) -> None:
    """All answers; raises CommandError when one of them is an error."""
    if as_json:
        print_json(message_document(reply))
    failed = []
    for user, entry in zip(users, reply.entries, strict=True):
        if entry.status.code:
            failed.append(f"{printable(user)}: {entry.status.message}")
        elif not as_json:
            _show(user, entry.response)
    if failed:
        raise CommandError(
            f"no answer for {len(failed)} of {len(users)} users: {'; '.join(failed)}"
        )


def _show(user: str, reply: recommender_pb2.RecommendResponse) -> None:
    columns = ["#", "item", "title", "SID", "score", "source"]
    explained = any(entry.HasField("reason") for entry in reply.items)
    print_table(
        f"Recommended to user {user}",
        [*columns, "because of"] if explained else columns,
        [
            (
                rank,
                entry.item.item_id,
                entry.item.title,
                tuple(entry.sid),
                f"{entry.score:.3f}",
                source_name(entry.source),
                *([_because(entry.reason)] if explained else []),
            )
            for rank, entry in enumerate(reply.items, 1)
        ],
    )
    print_text(describe(reply))
    if reply.next_page_token:
        print_text(f"more: --page-token {reply.next_page_token}")


def _because(reason: recommender_pb2.Reason) -> str:
    """Shares in per cent, largest first, then the interactions that were looked at most."""
    shares = {
        "recent": reason.shares.recent,
        "mid-term": reason.shares.mid_term,
        "lifecycle": reason.shares.lifecycle,
        "repeats": reason.shares.repeats,
    }
    parts = [
        f"{name} {share:.0%}"
        for name, share in sorted(shares.items(), key=lambda entry: -entry[1])
        if share >= _SMALLEST_SHARE
    ]
    attended = [
        f"{each.item.title or each.item.item_id} ({each.attention:.0%})" for each in reason.attended
    ]
    return ", ".join(parts) + (f"; saw {', '.join(attended)}" if attended else "")


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
