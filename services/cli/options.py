"""Options that several commands share, and the settings they add up to."""

from pathlib import Path
from typing import Annotated

import typer

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
    str, typer.Option("--state", help="Address of the state node.", envvar="GEMSTREAM_STATE")
]
RecommenderAddressOption = Annotated[
    str,
    typer.Option(
        "--address", help="Address of the inference node.", envvar="GEMSTREAM_RECOMMENDER"
    ),
]

DEFAULT_STATE_ADDRESS = "127.0.0.1:50051"
DEFAULT_RECOMMENDER_ADDRESS = "127.0.0.1:50052"
