"""The `gemstream` command: its groups, and the one place where errors become messages and exit codes."""

import sys

import typer

from services.cli.output import CommandError, people
from state.errors import StateError

app = typer.Typer(
    help="A streaming, incremental-state recommender: Kafka in, RocksDB state, semantic IDs out.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def main() -> None:
    """Entry point. Errors we foresaw print one line; anything else is our bug and keeps its traceback."""
    try:
        app()
    except CommandError as error:
        people.print(f"[bold red]error:[/] {error}", highlight=False)
        sys.exit(error.exit_code)
    except StateError as error:
        people.print(f"[bold red]error:[/] {error}", highlight=False)
        sys.exit(CommandError.FAILED)
