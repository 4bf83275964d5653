"""`gemstream bundle load|share|promote|unload|status`: which bundles inference nodes serve, and to whom."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from protos import bundle_pb2
from services.bundle_client import BundleClient
from services.channels import Target
from services.cli.each_node import ask_each
from services.cli.options import (
    AddressesOption,
    ConfigOption,
    TimeoutOption,
    admin_of_inference_node,
)
from services.cli.output import (
    JsonOption,
    age_text,
    bytes_text,
    print_table,
    print_text,
)

VersionOption = Annotated[
    str, typer.Option("--version", help="Refuse where the candidate is another. Default: any.")
]
Share = Annotated[float, typer.Argument(min=0, max=1, help="Of users, 0 to 1.")]


def load(
    path: Annotated[Path, typer.Argument(help="The bundle's directory, on the nodes' machines.")],
    share: Annotated[float, typer.Option(min=0, max=1, help="Of users, 0 to 1.")] = 0.0,
    config: ConfigOption = None,
    address: AddressesOption = None,
    timeout: TimeoutOption = 300.0,
    as_json: JsonOption = False,
) -> None:
    """Serve a bundle beside the primary, to a share of users, on each node given.

    Returns when it is ready. A bundle that cannot be served changes nothing. Without --share it answers nobody yet.
    """
    where = str(path.absolute())
    _each(lambda client: client.load(where, share), address, config, timeout, as_json)


def set_share(
    share: Share,
    config: ConfigOption = None,
    address: AddressesOption = None,
    timeout: TimeoutOption = 30.0,
    as_json: JsonOption = False,
) -> None:
    """Change the candidate's share of users. A larger one only moves users to the candidate."""
    _each(lambda client: client.set_share(share), address, config, timeout, as_json)


def promote(
    version: VersionOption = "",
    config: ConfigOption = None,
    address: AddressesOption = None,
    timeout: TimeoutOption = 30.0,
    as_json: JsonOption = False,
) -> None:
    """Make the candidate the primary: it answers all users, and the old one leaves memory.

    A restart serves what the settings say: set `bundle` there, too.
    """
    _each(lambda client: client.promote(version), address, config, timeout, as_json)


def unload(
    version: VersionOption = "",
    config: ConfigOption = None,
    address: AddressesOption = None,
    timeout: TimeoutOption = 30.0,
    as_json: JsonOption = False,
) -> None:
    """Give up the candidate: the primary answers all users."""
    _each(lambda client: client.unload(version), address, config, timeout, as_json)


def status(
    config: ConfigOption = None,
    address: AddressesOption = None,
    timeout: TimeoutOption = 10.0,
    as_json: JsonOption = False,
) -> None:
    """Show which bundles each node given serves, to how many users, and how they answer."""
    _each(BundleClient.describe, address, config, timeout, as_json)


def _each(
    call: Callable[[BundleClient], bundle_pb2.ServedBundles],
    addresses: list[str] | None,
    config: Path | None,
    timeout_s: float,
    as_json: bool,
) -> None:
    given: Sequence[str | None] = addresses or [None]

    def ask(target: Target) -> bundle_pb2.ServedBundles:
        with BundleClient(target, timeout_s) as client:
            return call(client)

    targets = [admin_of_inference_node(each, config) for each in given]
    ask_each(targets, ask, _show, as_json=as_json)


def _show(address: str, served: bundle_pb2.ServedBundles) -> None:
    bundles = {"primary": served.primary}
    if served.HasField("candidate"):
        bundles["candidate"] = served.candidate
    facts: dict[str, Callable[[bundle_pb2.ServedBundle], str]] = {
        "bundle": lambda one: one.bundle_version,
        "directory": lambda one: one.path,
        "users": lambda one: f"{one.share:.1%}",
        "answers in this role": lambda one: f"{one.answers:,}",
        "degraded": lambda one: ", ".join(
            f"{n:,} {kind}" for kind, n in sorted(one.degraded.items())
        ),
        "engine": lambda one: one.engine,
        "cached": lambda one: f"{one.cached_users:,} users, {bytes_text(one.cached_bytes)}",
        "items": lambda one: f"{one.catalogue_items:,}",
        "loaded": lambda one: f"{age_text(one.loaded_at_ms)} ago",
    }
    rows = [(name, *(text(one) for one in bundles.values())) for name, text in facts.items()]
    print_table(f"Bundles at {address}", ["", *bundles], rows)
    if not served.as_configured:
        print_text("The node's settings say otherwise: a restart serves what they say.")
