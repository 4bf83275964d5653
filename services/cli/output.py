"""How every command speaks: tables for people, one JSON document for programs, errors with an exit code."""

import json
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

JsonOption = Annotated[
    bool, typer.Option("--json", help="Print exactly one JSON document on standard output.")
]

people = Console(stderr=True)
"""Progress, notes and errors: standard error, so that standard output holds results alone."""


class CommandError(Exception):
    """A command cannot do what was asked; the message says what to do next.

    Exit codes: 1 = failed, 3 = not found, 4 = a service cannot be reached. Wrong usage is 2, from the parser.
    """

    FAILED, NOT_FOUND, UNREACHABLE = 1, 3, 4

    def __init__(self, message: str, exit_code: int = FAILED) -> None:
        """Keep the exit code beside the message."""
        super().__init__(message)
        self.exit_code = exit_code


def print_json(document: Any) -> None:
    """The document on standard output, on one line."""
    sys.stdout.write(json.dumps(document, ensure_ascii=False) + "\n")


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """A table for people on standard output."""
    table = Table(title=title, title_justify="left")
    for name in columns:
        table.add_column(name)
    for row in rows:
        table.add_row(*(str(cell) for cell in row))
    Console().print(table)
