"""`gemstream dlq`: records that could not be read and users that could not be compressed, why, and their way back."""

import asyncio
from typing import Annotated, Any

import typer

from services.cli.options import BootstrapOption, ConfigOption
from services.cli.output import (
    CommandError,
    JsonOption,
    message_document,
    print_json,
    print_table,
    print_text,
    time_text,
)
from services.local_broker import find_bootstrap
from services.settings import Settings, load_settings
from stream.dead_letter_log import DeadLetter, read_dead_letters, replay as replay_letter
from stream.errors import StreamError
from stream.producer import Producer

app = typer.Typer(
    help="Records that could not be read, users that could not be compressed (dead letters).",
    no_args_is_help=True,
)

LetterArgument = Annotated[str, typer.Argument(help="PARTITION:OFFSET, as `dlq list` shows it.")]


@app.command("list")
def list_letters(
    config: ConfigOption = None,
    bootstrap: BootstrapOption = None,
    limit: Annotated[int, typer.Option(min=1, help="The newest so many.")] = 50,
    as_json: JsonOption = False,
) -> None:
    """List dead letters, newest last."""
    letters = sorted(_read(config, bootstrap), key=lambda letter: letter.time_ms)[-limit:]
    if as_json:
        print_json([_summary(letter) for letter in letters])
        return
    print_table(
        f"{len(letters)} dead letters",
        ["letter", "rejected at", "from", "bytes", "reason"],
        [
            (
                f"{letter.partition}:{letter.offset}",
                time_text(letter.time_ms),
                letter.source,
                len(letter.value or b""),
                letter.reason,
            )
            for letter in letters
        ],
    )


@app.command()
def show(
    letter: LetterArgument,
    config: ConfigOption = None,
    bootstrap: BootstrapOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show one dead letter whole: key, headers, bytes, and fields where they can be parsed."""
    (found,) = _choose(_read(config, bootstrap), [letter])
    document = _whole(found)
    if as_json:
        print_json(document)
        return
    known = {name: value for name, value in document.items() if value is not None}
    known["rejected_at_ms"] = f"{found.time_ms} ({time_text(found.time_ms)})"
    print_table(f"Dead letter {letter}", ["", ""], list(known.items()))


@app.command()
def replay(
    letters: Annotated[
        list[str] | None, typer.Argument(help="PARTITION:OFFSET ...; with --all none.")
    ] = None,
    replay_all: Annotated[bool, typer.Option("--all", help="Every letter in the topic.")] = False,
    rekey: Annotated[
        bool, typer.Option(help="Under the key of the user the value names, whatever it was.")
    ] = False,
    config: ConfigOption = None,
    bootstrap: BootstrapOption = None,
    as_json: JsonOption = False,
) -> None:
    """Send dead letters to their source topic again, after the fault was mended. They stay listed.

    The letter of a user that could not be compressed is a job: a worker tries that user again.

    An interaction that was applied meanwhile is not doubled while its event id is remembered.
    """
    if bool(letters) == replay_all:
        raise CommandError("name letters as PARTITION:OFFSET, or give --all")
    settings, address = _settings(config, bootstrap)
    found = _read_all(settings, address)
    chosen = found if replay_all else _choose(found, letters or [])
    failed = asyncio.run(_replay(address, chosen, rekey))
    if as_json:
        print_json({"replayed": len(chosen) - len(failed), "failed": failed})
    else:
        print_text(f"{len(chosen) - len(failed)} of {len(chosen)} letters are in their topic again")
        for reason in failed:
            print_text(reason)
    if failed:
        raise typer.Exit(CommandError.FAILED)


async def _replay(address: str, letters: list[DeadLetter], rekey: bool) -> list[str]:
    failed = []
    async with Producer(address) as producer:
        for letter in letters:
            try:
                await replay_letter(producer, letter, rekey=rekey)
            except StreamError as error:
                failed.append(str(error))
    return failed


def _settings(config: Any, bootstrap: str | None) -> tuple[Settings, str]:
    settings = load_settings(config, {"bootstrap": bootstrap})
    return settings, find_bootstrap(settings)


def _read(config: Any, bootstrap: str | None) -> list[DeadLetter]:
    return _read_all(*_settings(config, bootstrap))


def _read_all(settings: Settings, address: str) -> list[DeadLetter]:
    async def collect() -> list[DeadLetter]:
        return [letter async for letter in read_dead_letters(address, settings.topics.dead_letters)]

    return asyncio.run(collect())


def _choose(letters: list[DeadLetter], names: list[str]) -> list[DeadLetter]:
    by_name = {f"{letter.partition}:{letter.offset}": letter for letter in letters}
    missing = [name for name in names if name not in by_name]
    if missing:
        raise CommandError(f"no dead letter {', '.join(missing)}", CommandError.NOT_FOUND)
    return [by_name[name] for name in names]


def _summary(letter: DeadLetter) -> dict[str, Any]:
    return {
        "letter": f"{letter.partition}:{letter.offset}",
        "rejected_at_ms": letter.time_ms,
        "source": letter.source,
        "reason": letter.reason,
        "bytes": len(letter.value or b""),
    }


def _whole(letter: DeadLetter) -> dict[str, Any]:
    interaction, job = letter.interaction, letter.job
    return {
        **_summary(letter),
        "key": None if letter.key is None else letter.key.decode(errors="backslashreplace"),
        "headers": {
            name: value.decode(errors="backslashreplace") for name, value in letter.headers
        },
        "value_hex": None if letter.value is None else letter.value.hex(),
        "cut_from_bytes": letter.cut_from_bytes,
        "interaction": interaction and message_document(interaction),
        "compression_job": job and message_document(job),
    }
