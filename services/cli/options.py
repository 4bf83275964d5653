"""Options that several commands share, and the settings they add up to."""

from pathlib import Path
from typing import Annotated

import typer

from services.channels import Target
from services.credentials import client_credentials
from services.settings import load_settings

ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", help="A TOML file with the settings; see docs/settings.md."),
]
BootstrapOption = Annotated[
    str | None,
    typer.Option(
        "--bootstrap", help="Kafka's address; also GEMSTREAM_KAFKA. Default: the local broker."
    ),
]
DataDirOption = Annotated[
    Path | None, typer.Option("--data-dir", help="Where state is kept. Default: data.")
]
BundleOption = Annotated[
    Path | None, typer.Option("--bundle", help="The trained bundle's directory. Default: bundle.")
]
TimeoutOption = Annotated[float, typer.Option("--timeout", help="Seconds to wait for an answer.")]
StateAddressOption = Annotated[
    str | None,
    typer.Option(
        "--state",
        help="Address of the state node. Default: the settings'.",
        envvar="GEMSTREAM_STATE",
    ),
]
RecommenderAddressOption = Annotated[
    str | None,
    typer.Option(
        "--address",
        help="Address of the inference node. Default: the settings'.",
        envvar="GEMSTREAM_RECOMMENDER",
    ),
]

AddressesOption = Annotated[
    list[str] | None,
    typer.Option("--address", help="An inference node; may be repeated. Default: the settings'."),
]


def state_address(given: str | None, config: Path | None) -> Target:
    """The state node to ask: as given (option, then environment), else the settings'. Raises SettingsError."""
    settings = load_settings(config, {})
    credentials = client_credentials(settings.tls, settings.admin)
    return Target(given or settings.state_node.address, credentials)


def admin_of_inference_node(given: str | None, config: Path | None) -> Target:
    """The inference node to administer; as `recommender_address`, with the token of admin calls."""
    settings = load_settings(config, {})
    credentials = client_credentials(settings.tls, settings.admin)
    return Target(given or settings.inference_node.listen, credentials)


def recommender_address(given: str | None, config: Path | None) -> Target:
    """The inference node to ask: as given (option, then environment), else the settings'. Raises SettingsError."""
    settings = load_settings(config, {})
    return Target(given or settings.inference_node.listen, client_credentials(settings.tls))
