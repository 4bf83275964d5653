"""`gemstream user`: what is known of a user, and how it is deleted."""

import time
from typing import Annotated

import typer

from protos import admin_pb2
from services.channels import Target
from services.cli.options import ConfigOption, StateAddressOption, TimeoutOption, state_address
from services.cli.output import (
    CommandError,
    JsonOption,
    age_text,
    bytes_text,
    message_document,
    print_json,
    print_table,
    print_text,
    time_text,
)
from services.errors import DataLoss, NotFound
from state.interaction import KIND_NAMES

app = typer.Typer(help="What is known of a user.", no_args_is_help=True)

_LOOK_EVERY_S = 0.1
_DAMAGED = -1


@app.callback()
def group() -> None:
    """What is known of a user."""


@app.command()
def show(
    user: Annotated[str, typer.Argument(help="The user id.")],
    newest: Annotated[
        int, typer.Option(min=0, max=256, help="How many of the newest interactions to list.")
    ] = 5,
    config: ConfigOption = None,
    state: StateAddressOption = None,
    timeout: TimeoutOption = 10.0,
    as_json: JsonOption = False,
) -> None:
    """Show a user's segments, boundary, newest events and summaries."""
    from services import clients

    description = clients.describe_user(state_address(state, config), user, newest, timeout)
    if as_json:
        print_json(message_document(description))
        return
    _print_segments(description)
    _print_summaries(description)
    if description.newest:
        _print_newest(description)


@app.command()
def delete(
    user: Annotated[str, typer.Argument(help="The user id.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    config: ConfigOption = None,
    state: StateAddressOption = None,
    timeout: TimeoutOption = 30.0,
    as_json: JsonOption = False,
) -> None:
    """Delete everything that is stored of a user; older events that come later are refused.

    The deletion goes through Kafka, so that it holds wherever the user's state is built again. Nothing stored is read: a
    damaged user leaves the quarantine with it.
    """
    from services import clients

    if not yes:
        typer.confirm(f"Delete everything stored of user {user}?", abort=True, err=True)
    address = state_address(state, config)
    epoch = _epoch(address, user, timeout)
    clients.delete_user(address, user, timeout)
    give_up_at = time.monotonic() + timeout
    while (now := _epoch(address, user, timeout)) is not None and now == epoch:
        if time.monotonic() > give_up_at:
            raise CommandError(_not_applied("deletion", timeout))
        time.sleep(_LOOK_EVERY_S)
    if as_json:
        print_json({"deleted": user})
    else:
        print_text(f"user {user} is deleted")


@app.command()
def forget(
    user: Annotated[str, typer.Argument(help="The user id.")],
    item: Annotated[int, typer.Argument(min=1, max=2**64 - 1, help="The item id.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    config: ConfigOption = None,
    state: StateAddressOption = None,
    timeout: TimeoutOption = 30.0,
    as_json: JsonOption = False,
) -> None:
    """Delete what a user did with one item until now, as if it had never been.

    Older events of that kind that come later are refused. The request goes through Kafka, as a deletion does.
    """
    from services import clients

    if not yes:
        typer.confirm(
            f"Delete everything that user {user} did with item {item}?", abort=True, err=True
        )
    if not clients.delete_interactions(state_address(state, config), user, item, timeout):
        raise CommandError(_not_applied("request", timeout))
    if as_json:
        print_json({"user": user, "forgotten_item": str(item)})
    else:
        print_text(f"item {item} is forgotten for user {user}")


def _not_applied(what: str, timeout: float) -> str:
    return f"the {what} is in the log, but not applied after {timeout:.0f} s; see `gemstream store stats`"


def _epoch(address: Target, user: str, timeout: float) -> int | None:
    """How often the user was deleted; None while nothing is known of the user, -1 where a value of the user is damaged."""
    from services import clients

    try:
        return clients.describe_user(address, user, 0, timeout).meta.epoch
    except NotFound:
        return None
    except DataLoss:
        return _DAMAGED


def _print_segments(user: admin_pb2.UserDescription) -> None:
    meta = user.meta
    recent_start = meta.length - user.recent
    owned = "" if user.owned else " (not owned by this node now: another may know more)"
    print_table(
        f"User {user.user_id}: {meta.length} interactions, partition {user.partition}{owned}, "
        f"state {meta.version}, "
        f"{user.chunks} sealed chunks, {bytes_text(user.stored_bytes)}",
        ["segment", "interactions", "from position", "to"],
        [
            ("recent", user.recent, recent_start, meta.length),
            ("mid-term", user.mid_term, min(meta.lifecycle_boundary, recent_start), recent_start),
            ("lifecycle", user.lifecycle, meta.first_position, meta.lifecycle_boundary),
        ],
    )


def _print_summaries(user: admin_pb2.UserDescription) -> None:
    owed = "a summary is owed" if user.dirty else "up to date"
    print_table(
        f"Lifecycle boundary at {user.meta.lifecycle_boundary}: {owed}",
        ["summary of bundle", "covers up to", "interactions", "age", "size"],
        [
            (
                summary.bundle_version,
                summary.boundary,
                summary.count,
                age_text(summary.built_at_ms),
                bytes_text(summary.stored_bytes),
            )
            for summary in user.summaries
        ],
    )


def _print_newest(user: admin_pb2.UserDescription) -> None:
    print_table(
        f"Newest event {time_text(user.meta.newest_event_time_ms)}",
        ["event time", "item", "author", "tag", "kinds"],
        [
            (
                time_text(event.event_time_ms),
                event.item_id,
                event.author_id,
                event.tag,
                ", ".join(KIND_NAMES[kind] for kind in event.kinds),
            )
            for event in user.newest
        ],
    )
