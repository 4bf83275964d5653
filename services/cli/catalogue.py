"""`gemstream catalogue`: items onto their topic, and what the inference nodes make of them."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from protos import catalogue_pb2
from services.catalogue_client import CatalogueClient
from services.channels import Target
from services.cli.each_node import ask_each
from services.cli.options import (
    AddressesOption,
    BootstrapOption,
    ConfigOption,
    RecommenderAddressOption,
    TimeoutOption,
    admin_of_inference_node,
)
from services.cli.output import (
    CommandError,
    JsonOption,
    age_text,
    message_document,
    people,
    print_json,
    print_table,
    print_text,
    time_text,
)
from services.local_broker import find_bootstrap
from services.settings import load_settings
from stream.producer import Producer
from stream.topics import ensure_topics

app = typer.Typer(
    help="The items that can be recommended, while they change.", no_args_is_help=True
)

_BROKER_DEADLINE_S = 5.0

WaitOption = Annotated[
    bool, typer.Option("--wait", help="Return when the inference node serves it.")
]


class State(StrEnum):
    """Of an item."""

    SERVED = "served"
    PENDING = "pending"
    EXPIRED = "expired"
    REMOVED = "removed"
    REFUSED = "refused"


class Source(StrEnum):
    """Who said what is known of an item."""

    BUNDLE = "bundle"
    TOPIC = "topic"


@app.command()
def add(
    items: Annotated[
        Path,
        typer.Argument(
            help="A .parquet or .csv file with item_id and, where known, author_id, tag, title, duration_ms, "
            "expires_at_ms, seen_with (a list of item ids)."
        ),
    ],
    vectors: Annotated[
        Path | None,
        typer.Option(
            help="Content vectors: .parquet with item_id, vector; or .npz with item_ids, vectors."
        ),
    ] = None,
    wait: WaitOption = False,
    config: ConfigOption = None,
    bootstrap: BootstrapOption = None,
    address: RecommenderAddressOption = None,
    timeout: TimeoutOption = 60.0,
    as_json: JsonOption = False,
) -> None:
    """Add items, or change what is said of known ones. Nodes recommend them within seconds.

    With --wait, items that the node refuses are listed with their reasons, and the exit code is 1.
    """
    from services.item_files import read_entries
    from services.item_warnings import item_warnings
    from stream.item_records import send_entries

    entries = read_entries(items, vectors)
    for warning in item_warnings(entries, load_settings(config, {}).bundle):
        people.print(f"warning: {warning}", highlight=False, markup=False, soft_wrap=True)
    end = _send(config, bootstrap, lambda producer, topic: send_entries(producer, topic, entries))
    served = _wait(wait, address, config, timeout, end)
    refused: Sequence[catalogue_pb2.ItemDescription] = []
    if served is not None:
        with CatalogueClient(admin_of_inference_node(address, config), timeout) as client:
            refused = client.refused([entry.item.item_id for entry in entries])
    _report("sent", len(entries), end, served, as_json, refused)
    if refused:
        raise typer.Exit(CommandError.FAILED)


@app.command()
def remove(
    item_ids: Annotated[list[int], typer.Argument(min=1, help="Item ids.")],
    wait: WaitOption = False,
    config: ConfigOption = None,
    bootstrap: BootstrapOption = None,
    address: RecommenderAddressOption = None,
    timeout: TimeoutOption = 60.0,
    as_json: JsonOption = False,
) -> None:
    """Never recommend these items again, the bundle's own or not; `add` brings them back."""
    from stream.item_records import send_removals

    end = _send(config, bootstrap, lambda producer, topic: send_removals(producer, topic, item_ids))
    _report("removed", len(item_ids), end, _wait(wait, address, config, timeout, end), as_json)


@app.command("list")
def list_items(
    state: Annotated[State | None, typer.Option(help="Only these.")] = None,
    source: Annotated[Source | None, typer.Option(help="Only these.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000)] = 100,
    after: Annotated[int, typer.Option(min=0, help="The last item id of the page before.")] = 0,
    config: ConfigOption = None,
    address: RecommenderAddressOption = None,
    timeout: TimeoutOption = 10.0,
    as_json: JsonOption = False,
) -> None:
    """List items by id; refused records with their reasons."""
    request = catalogue_pb2.ListItemsRequest(
        state=f"ITEM_STATE_{state.name if state else 'UNSPECIFIED'}",
        source=f"ITEM_SOURCE_{source.name if source else 'UNSPECIFIED'}",
        limit=limit,
        after_item_id=after,
    )
    with CatalogueClient(admin_of_inference_node(address, config), timeout) as client:
        reply = client.list_items(request)
    if as_json:
        print_json(message_document(reply))
        return
    print_table(
        f"{len(reply.items)} items",
        ["item", "title", "SID", "in bucket", "source", "state", "reason"],
        [
            (
                one.item.item_id, one.item.title, tuple(one.sid), one.bucket, _source(one), _state(one), one.reason,
            )
            for one in reply.items
        ],
    )  # fmt: skip
    if reply.refused:
        print_table(
            "Refused records",
            ["key", "offset", "reason"],
            [(one.key, one.offset, one.reason) for one in reply.refused],
        )


@app.command()
def show(
    item_id: Annotated[int, typer.Argument(min=1, help="The item id.")],
    config: ConfigOption = None,
    address: RecommenderAddressOption = None,
    timeout: TimeoutOption = 10.0,
    as_json: JsonOption = False,
) -> None:
    """Show one item: its SID, how many share it, where it comes from, and whether it is recommended."""
    with CatalogueClient(admin_of_inference_node(address, config), timeout) as client:
        one = client.describe_item(item_id)
    if as_json:
        print_json(message_document(one))
        return
    facts: list[tuple[str, object]] = [
        ("title", one.item.title),
        ("author, tag", f"{one.item.author_id}, {one.item.tag}"),
        ("SID", tuple(one.sid)),
        ("items with this SID", one.bucket),
        ("events in training", one.events),
        ("source", _source(one)),
        ("state", _state(one)),
        ("expires", time_text(one.expires_at_ms) if one.expires_at_ms else "never"),
    ]
    if one.reason:
        facts.append(("reason", one.reason))
    print_table(f"Item {item_id}", ["", ""], facts)


@app.command()
def stats(
    config: ConfigOption = None,
    address: RecommenderAddressOption = None,
    timeout: TimeoutOption = 10.0,
    as_json: JsonOption = False,
) -> None:
    """Show what a node serves: version, items, what is pending, removed, refused."""
    where = admin_of_inference_node(address, config)
    with CatalogueClient(where, timeout) as client:
        found = client.describe()
    if as_json:
        print_json(message_document(found))
        return
    served = found.versions[-1]
    newest = age_text(served.newest_record_ms) + " ago" if served.newest_record_ms else "none"
    facts: list[tuple[str, object]] = [
        ("bundle", found.bundle_version),
        ("version", f"{served.number}, up to offset {served.next_offset}"),
        ("held after a rollback", _yes(found.held)),
        ("items, SIDs", f"{served.items:,}, {served.sids:,}"),
        ("offered by the topic", f"{found.offered_items:,}"),
        ("removed", f"{found.removed_items:,}"),
        ("hidden until the next build", f"{found.hidden_items:,}"),
        ("changes that wait", f"{found.pending_items:,}"),
        ("refused", f"{found.refused_items:,}"),
        ("newest record", newest),
        ("last build", f"{served.rebuild_s:.3f} s"),
        ("Kafka answers", _yes(found.following)),
        ("read all that was there at the start", _yes(found.caught_up)),
    ]
    print_table(f"Catalogue at {where.address}", ["", ""], facts)


@app.command()
def versions(
    config: ConfigOption = None,
    address: RecommenderAddressOption = None,
    timeout: TimeoutOption = 10.0,
    as_json: JsonOption = False,
) -> None:
    """List the versions that a node keeps, oldest first; the last one is served."""
    with CatalogueClient(admin_of_inference_node(address, config), timeout) as client:
        found = client.describe()
    if as_json:
        print_json([message_document(version) for version in found.versions])
        return
    _print_versions(found)


@app.command()
def rollback(
    config: ConfigOption = None,
    address: AddressesOption = None,
    timeout: TimeoutOption = 60.0,
    as_json: JsonOption = False,
) -> None:
    """Go back to the version before, on each node given, and hold there until `resume`.

    What the topic says meanwhile waits, removals included. Again: one more version back.
    """
    _admin(CatalogueClient.roll_back, address, config, timeout, as_json)


@app.command()
def resume(
    config: ConfigOption = None,
    address: AddressesOption = None,
    timeout: TimeoutOption = 60.0,
    as_json: JsonOption = False,
) -> None:
    """Follow the topic again after a rollback, on each node given."""
    _admin(CatalogueClient.resume, address, config, timeout, as_json)


def _admin(
    call: Callable[[CatalogueClient], catalogue_pb2.CatalogueDescription],
    addresses: list[str] | None,
    config: Path | None,
    timeout_s: float,
    as_json: bool,
) -> None:
    given: Sequence[str | None] = addresses or [None]

    def ask(target: Target) -> catalogue_pb2.CatalogueDescription:
        with CatalogueClient(target, timeout_s) as client:
            return call(client)

    targets = [admin_of_inference_node(address, config) for address in given]
    ask_each(targets, ask, _show_version, as_json=as_json)


def _show_version(address: str, found: catalogue_pb2.CatalogueDescription) -> None:
    served = found.versions[-1]
    print_text(
        f"{address}: version {served.number}, up to offset {served.next_offset}, {served.items:,} items"
        + (", held" if found.held else "")
    )


def _send(
    config: Path | None,
    bootstrap: str | None,
    send: Callable[[Producer, str], Awaitable[int]],
) -> int:
    settings = load_settings(config, {"bootstrap": bootstrap})
    address = find_bootstrap(settings)

    async def run() -> int:
        await ensure_topics(address, settings.topics, deadline_s=_BROKER_DEADLINE_S)
        async with Producer(address) as producer:
            return await send(producer, settings.topics.items)

    return asyncio.run(run())


def _wait(
    wait: bool, address: str | None, config: Path | None, timeout_s: float, next_offset: int
) -> catalogue_pb2.CatalogueVersion | None:
    if not wait:
        return None
    with CatalogueClient(admin_of_inference_node(address, config), timeout_s) as client:
        return client.wait_for_offset(next_offset)


def _report(
    what: str,
    count: int,
    end: int,
    served: catalogue_pb2.CatalogueVersion | None,
    as_json: bool,
    refused: Sequence[catalogue_pb2.ItemDescription] = (),
) -> None:
    if as_json:
        version = None if served is None else message_document(served)
        document = {what: count, "next_offset": end, "served": version}
        print_json({**document, "refused": [message_document(one) for one in refused]})
        return
    used = f"{count - len(refused)} of them" if refused else "it"
    state = "" if served is None else f"; version {served.number} serves {used}"
    print_text(f"{count} items {what}, up to offset {end}{state}")
    if refused:
        print_table(
            f"{len(refused)} items are refused",
            ["item", "title", "reason"],
            [(one.item.item_id, one.item.title, one.reason) for one in refused],
        )


def _print_versions(found: catalogue_pb2.CatalogueDescription) -> None:
    print_table(
        "Versions, oldest first; the last one is served" + (", and held" if found.held else ""),
        ["version", "up to offset", "items", "SIDs", "changes", "made at", "seconds"],
        [
            (
                version.number, version.next_offset, f"{version.items:,}", f"{version.sids:,}",
                f"{version.changes:,}", time_text(version.created_at_ms), f"{version.rebuild_s:.3f}",
            )
            for version in found.versions
        ],
    )  # fmt: skip


def _state(one: catalogue_pb2.ItemDescription) -> str:
    return catalogue_pb2.ItemState.Name(one.state).removeprefix("ITEM_STATE_").lower()


def _source(one: catalogue_pb2.ItemDescription) -> str:
    return catalogue_pb2.ItemSource.Name(one.source).removeprefix("ITEM_SOURCE_").lower()


def _yes(value: bool) -> str:
    return "yes" if value else "no"
