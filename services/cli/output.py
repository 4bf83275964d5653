"""How every command speaks: tables for people, one JSON document for programs, errors with an exit code."""

import json
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from rich.console import Console
from rich.table import Table
from rich.text import Text

JsonOption = Annotated[
    bool, typer.Option("--json", help="Print exactly one JSON document on standard output.")
]

people = Console(stderr=True)
"""Progress, notes and errors: standard error, so that standard output holds results alone."""


class CommandError(Exception):
    """A command cannot do what was asked; the message says what to do next.

    Exit codes: 1 = failed, 3 = not found, 4 = a service cannot be reached, 78 = a role's configuration is
    wrong. Wrong usage is 2, from the parser.
    """

    FAILED, NOT_FOUND, UNREACHABLE = 1, 3, 4

    def __init__(self, message: str, exit_code: int = FAILED) -> None:
        """Keep the exit code beside the message."""
        super().__init__(message)
        self.exit_code = exit_code


def print_json(document: Any) -> None:
    """The document on standard output, on one line."""
    sys.stdout.write(json.dumps(document, ensure_ascii=False) + "\n")


def message_document(message: Message) -> dict[str, Any]:
    """A message for `print_json`, with its empty fields; 64-bit numbers are strings, as in protobuf's JSON."""
    document: dict[str, Any] = MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    return document


def print_error(error: Exception) -> None:
    """An error on standard error; its text is shown as it is."""
    people.print(Text.assemble(("error: ", "bold red"), str(error)), soft_wrap=True)


def print_table(
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[object]],
    unbroken: str | None = None,
) -> None:
    """A title and a table for people on standard output, less columns in which no row has anything.

    The column `unbroken` is for copying, however narrow the rest.
    """
    print_text(title)
    table = Table()
    cells = [[printable(str(cell)) for cell in row] for row in rows]
    shown = [i for i in range(len(columns)) if not cells or any(row[i] for row in cells)]
    for i in shown:
        table.add_column(columns[i], overflow="fold", no_wrap=columns[i] == unbroken)
    for row in cells:
        table.add_row(*(Text(row[i]) for i in shown))
    Console().print(table)


def print_text(text: str) -> None:
    """A line for people on standard output."""
    Console().print(printable(text), highlight=False, markup=False, soft_wrap=True)


def printable(text: str) -> str:
    """`text` on one line, with control characters escaped: ids and titles come from outside."""
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in text
    )


def time_text(time_ms: int) -> str:
    """Milliseconds since the epoch as a UTC date and time."""
    return datetime.fromtimestamp(time_ms / 1_000, UTC).strftime("%Y-%m-%d %H:%M:%S")


def age_text(since_ms: int) -> str:
    """How long ago a wall-clock time was, in its largest fitting unit."""
    age_s = max(0.0, datetime.now(UTC).timestamp() - since_ms / 1_000)
    for unit, seconds in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if age_s >= seconds:
            return f"{age_s / seconds:.1f} {unit}"
    return f"{age_s:.1f} s"


def bytes_text(num_bytes: float) -> str:
    """A size in its largest fitting binary unit."""
    for unit in ("B", "KiB", "MiB"):
        if num_bytes < 1_024:
            return f"{num_bytes:.0f} {unit}" if unit == "B" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1_024
    return f"{num_bytes:.1f} GiB"
