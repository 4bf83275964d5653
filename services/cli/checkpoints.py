"""`gemstream store checkpoint|list|verify|restore`: copies of the state to fall back on."""

from typing import Annotated, Any

import typer

from services.cli.checkpoint_output import (
    print_checkpoint_reports,
    print_local_reports,
    print_restored,
)
from services.cli.options import (
    ConfigOption,
    DataDirOption,
    StateAddressOption,
    state_address,
)
from services.cli.output import (
    CommandError,
    JsonOption,
    age_text,
    bytes_text,
    message_document,
    people,
    print_json,
    print_table,
    print_text,
    time_text,
)
from services.settings import Settings, load_settings
from state.checkpoint_manifest import created_at_ms_of, offset_of, short_name
from state.checkpoint_repository import CheckpointRepository
from state.errors import DamagedCheckpoint, UnknownFormat

PartitionOption = Annotated[
    int | None, typer.Option("--partition", min=0, help="Only this one. Default: all.")
]


def checkpoint(
    partition: PartitionOption = None,
    prune: Annotated[
        bool,
        typer.Option(
            help="Then remove all older checkpoints but the newest without damage, so that deleted users leave them now."
        ),
    ] = False,
    full: Annotated[
        bool,
        typer.Option(
            help="Upload every file anew: mends what was damaged where the checkpoints lie."
        ),
    ] = False,
    config: ConfigOption = None,
    state: StateAddressOption = None,
    timeout: Annotated[float, typer.Option("--timeout", help="Seconds to wait.")] = 600.0,
    as_json: JsonOption = False,
) -> None:
    """Let the running state node take checkpoints now, of the partitions that it serves."""
    from services import clients

    reply = clients.take_checkpoints(
        state_address(state, config), partition, timeout, prune=prune, full=full
    )
    if as_json:
        print_json(message_document(reply))
    else:
        print_table(
            f"{len(reply.checkpoints)} checkpoints, {len(reply.failures)} failures",
            ["partition", "next offset", "files", "size", "uploaded", "seconds"],
            [
                (
                    each.partition,
                    each.next_offset,
                    each.files,
                    bytes_text(each.bytes),
                    f"nothing new since {time_text(each.created_at_ms)}"
                    if each.unchanged
                    else bytes_text(each.uploaded_bytes),
                    f"{each.seconds:.2f}",
                )
                for each in reply.checkpoints
            ],
        )
        for failure in reply.failures:
            print_text(f"partition {failure.partition} failed: {failure.reason}")
    if reply.failures:
        raise typer.Exit(CommandError.FAILED)


def list_checkpoints(
    partition: PartitionOption = None, config: ConfigOption = None, as_json: JsonOption = False
) -> None:
    """List the checkpoints that there are, newest first."""
    repository = _repository(load_settings(config, {}))
    found = [
        _listed(repository, each, name)
        for each in _partitions(repository, partition)
        for name in repository.names(each)
    ]
    if as_json:
        print_json(found)
        return
    print_table(
        f"{len(found)} checkpoints of {repository.topic} at {repository.shown_uri}",
        ["partition", "checkpoint", "taken at", "age", "files", "size", ""],
        [
            (
                each["partition"],
                each["checkpoint"],
                time_text(each["created_at_ms"]),
                age_text(each["created_at_ms"]),
                each.get("files", "?"),
                bytes_text(each["bytes"]) if "bytes" in each else "?",
                each.get("damage", ""),
            )
            for each in found
        ],
        unbroken="checkpoint",
    )


def restore(
    partition: Annotated[
        str, typer.Option("--partition", help="Its number, or `all` that have checkpoints.")
    ],
    offset: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="The newest checkpoint with this next offset. Default: the newest without known damage.",
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option("--checkpoint", help="The checkpoint of this name, as `store list` shows it."),
    ] = None,
    discard_newer: Annotated[
        bool,
        typer.Option(help="Remove checkpoints newer than the restored one, for good."),
    ] = False,
    check: Annotated[
        bool,
        typer.Option(help="Read every record of the copy before it takes the place of the store."),
    ] = True,
    data_dir: DataDirOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Put checkpoints into the place of local stores, while the state node is stopped.

    The node then replays Kafka from their offsets. At its start it restores missing stores by itself; this is for
    stores that are there and are no good.
    """
    from services.wiring.stores import checkpoint_restorer

    settings = load_settings(config, {"data_dir": data_dir})
    restorer = checkpoint_restorer(settings)
    repository = restorer.repository
    wanted = None if partition == "all" else _number(partition)
    if name is not None and (wanted is None or offset is not None):
        raise typer.BadParameter(
            "is of one partition: give its number, and no --offset", param_hint="--checkpoint"
        )
    chosen = {
        each: _choose(repository, each, offset, name) for each in _partitions(repository, wanted)
    }
    if not chosen:
        raise CommandError(
            f"there are no checkpoints of {repository.topic} at {repository.shown_uri}",
            CommandError.NOT_FOUND,
        )
    restored = []
    for each, (found, newer) in chosen.items():
        people.print(f"partition {each}: restoring checkpoint {short_name(found)} ...")
        try:
            manifest = restorer.restore(each, found, whole=check)
        except (DamagedCheckpoint, UnknownFormat) as error:
            raise CommandError(
                f"partition {each} keeps the store that it has: {error}. `store verify --deep` finds a good one: "
                "choose one with --checkpoint, and --discard-newer; --no-check takes this one with single damaged users"
            ) from error
        if discard_newer:
            repository.remove(each, newer)
        restored.append(
            {
                "partition": each,
                "checkpoint": short_name(found),
                "next_offset": manifest.next_offset,
                "created_at_ms": manifest.created_at_ms,
                "files": len(manifest.files),
                "bytes": manifest.num_bytes,
                "path": str(restorer.directory.path(each)),
                "newer_checkpoints": 0 if discard_newer else len(newer),
            }
        )
    print_restored(restored, as_json=as_json)


def verify(
    partition: PartitionOption = None,
    deep: Annotated[
        bool,
        typer.Option(help="Download every checkpoint, and read every record in it, too."),
    ] = False,
    data_dir: DataDirOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check all checkpoints, and every record of the local stores; a store in use by a running node is left out.

    Without --deep, a checkpoint's files must be there with the right sizes. Exit code 1: something is damaged.
    """
    from services.wiring.stores import store_verification

    settings = load_settings(config, {"data_dir": data_dir})
    verification = store_verification(settings, people.print)
    checkpoints = verification.check_checkpoints(partition, deep=deep)
    stores = verification.check_stores(partition)
    is_damaged = any([*(each.damage for each in checkpoints), *(each.damage for each in stores)])
    if as_json:
        print_json(
            {
                "damaged": is_damaged,
                "checkpoints": [each.document() for each in checkpoints],
                "stores": [each.document() for each in stores],
            }
        )
    else:
        if settings.checkpoints.uri is None:
            print_text("no checkpoints are kept: `uri` in [checkpoints] is not set")
        else:
            print_checkpoint_reports(checkpoints, deep=deep)
        print_local_reports(stores, settings.data_dir)
    if is_damaged:
        raise typer.Exit(CommandError.FAILED)


def _repository(settings: Settings) -> CheckpointRepository:
    from services.wiring.stores import checkpoint_repository

    return checkpoint_repository(settings)


def _partitions(repository: CheckpointRepository, wanted: int | None) -> list[int]:
    return repository.partitions() if wanted is None else [wanted]


def _number(text: str) -> int:
    if not text.isdecimal():
        raise typer.BadParameter(
            f"{text!r} is neither a number nor `all`", param_hint="--partition"
        )
    return int(text)


def _choose(
    repository: CheckpointRepository, partition: int, offset: int | None, wanted: str | None
) -> tuple[str, list[str]]:
    """The name of the wanted checkpoint, and of those that are newer. Raises CommandError."""
    names = repository.names(partition)
    if offset is None and wanted is None and names:
        found = _newest_without_damage(repository, partition, names)
        return found, names[: names.index(found)]
    for rank, name in enumerate(names):
        if wanted in (name, short_name(name)) or (wanted is None and offset_of(name) == offset):
            return name, names[:rank]
    what = f" {wanted}" if wanted is not None else "" if offset is None else f" at offset {offset}"
    there = f"; there are {', '.join(map(short_name, names)) or 'none'}" if what else ""
    raise CommandError(
        f"partition {partition} has no checkpoint{what}{there}", CommandError.NOT_FOUND
    )


def _newest_without_damage(
    repository: CheckpointRepository, partition: int, names: list[str]
) -> str:
    """The newest of all where damage of every one is known."""
    for name in names:
        if (damage := repository.damage(partition, name)) is None:
            return name
        people.print(
            f"partition {partition}: checkpoint {short_name(name)} is passed over: {damage}"
        )
    return names[0]


def _listed(repository: CheckpointRepository, partition: int, name: str) -> dict[str, Any]:
    about: dict[str, Any] = {
        "partition": partition,
        "checkpoint": short_name(name),
        "next_offset": offset_of(name),
        "created_at_ms": created_at_ms_of(name),
    }
    try:
        manifest = repository.read(partition, name)
    except (DamagedCheckpoint, UnknownFormat) as error:
        return {**about, "damage": str(error)}
    if manifest.damaged_users:
        about["damage"] = f"{manifest.damaged_users} damaged users"
        about["damaged_users"] = manifest.damaged_users
    return {**about, "files": len(manifest.files), "bytes": manifest.num_bytes}
