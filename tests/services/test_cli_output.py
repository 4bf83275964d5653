"""What commands show people: nothing is cut off, and no word is taken for markup."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
import typer

from services.cli.main import app
from services.cli.output import print_table


def test_long_cells_are_folded_however_narrow_the_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    reason = " ".join(f"word{n}" for n in range(30))
    print_table("A letter", ("", ""), [("rejected_at_ms", 1), ("reason", reason)])
    shown = re.sub(r"[\s│]", "", capsys.readouterr().out)
    assert "rejected_at_ms" in shown
    assert all(word in shown for word in reason.split())


def test_columns_that_say_nothing_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    columns = ("partition", "lost", "damaged")
    print_table("Two partitions", columns, [(0, "", ""), (1, "", "ann")])
    shown = capsys.readouterr().out
    assert "damaged" in shown
    assert "lost" not in shown
    print_table("None", columns, [])
    shown = capsys.readouterr().out
    assert all(column in shown for column in columns)


def commands(command: Any) -> Iterator[Any]:
    yield command
    for each in getattr(command, "commands", {}).values():
        yield from commands(each)


def test_names_of_tables_in_help_are_no_markup() -> None:
    """Rich would leave `[backfills]` out."""
    for command in commands(typer.main.get_command(app)):
        options = [getattr(each, "help", None) for each in command.params]
        for text in (command.help, *options):
            assert not re.search(r"(?<!\\)\[[a-z]", text or ""), f"{command.name}: {text}"
