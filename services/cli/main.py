"""The `gemstream` command: its groups, and the one place where errors become messages and exit codes."""

import logging
import signal
import sys

import typer

from model.errors import ModelError
from services.cli import bundle, catalogue, dlq, kafka, store, user
from services.cli.output import CommandError, print_error
from services.cli.produce import produce
from services.cli.recommend import recommend
from services.cli.run import run
from services.cli.train import train
from services.cli.up import up
from services.errors import ChildMisconfigured, NotFound, ServiceError, Unreachable
from services.supervisor import EX_CONFIG
from state.errors import StateError
from stream.errors import BrokerUnavailable, StreamError

app = typer.Typer(
    help="A streaming, incremental-state recommender: Kafka in, RocksDB state, semantic IDs out.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.command()(up)
app.command()(run)
app.command()(train)
app.command()(produce)
app.command()(recommend)
app.add_typer(bundle.app, name="bundle")
app.add_typer(catalogue.app, name="catalogue")
app.add_typer(user.app, name="user")
app.add_typer(store.app, name="store")
app.add_typer(dlq.app, name="dlq")
app.add_typer(kafka.app, name="kafka")


def main() -> None:
    """Entry point. Errors we foresaw print one line; anything else is our bug and keeps its traceback."""
    # A command says itself what went wrong; a role sets the level that its log wants.
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    except (CommandError, ModelError, ServiceError, StateError, StreamError) as error:
        print_error(error)
        sys.exit(_exit_code(error))


def _exit_code(error: Exception) -> int:
    if isinstance(error, CommandError):
        return error.exit_code
    if isinstance(error, ChildMisconfigured):
        return EX_CONFIG
    if isinstance(error, NotFound):
        return CommandError.NOT_FOUND
    if isinstance(error, (Unreachable, BrokerUnavailable)):
        return CommandError.UNREACHABLE
    return CommandError.FAILED
