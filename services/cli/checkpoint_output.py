"""How checkpoints and what became of them are shown to people."""

from pathlib import Path
from typing import Any

from services.cli.output import bytes_text, print_json, print_table, print_text, time_text
from services.store_verification import CheckpointReport, LocalReport
from state.checkpoint_manifest import created_at_ms_of, short_name


def print_restored(restored: list[dict[str, Any]], *, as_json: bool) -> None:
    """Which store stands where now."""
    if as_json:
        print_json(restored)
        return
    print_table(
        f"{len(restored)} partitions restored into {Path(restored[0]['path']).parent}",
        ["partition", "next offset", "taken at", "files", "size"],
        [
            (
                each["partition"],
                each["next_offset"],
                time_text(each["created_at_ms"]),
                each["files"],
                bytes_text(each["bytes"]),
            )
            for each in restored
        ],
    )
    if any(each["newer_checkpoints"] for each in restored):
        print_text(
            "There are newer checkpoints. A state node restores the newest when it starts: restore again with "
            "--discard-newer if they are no good."
        )


def print_checkpoint_reports(reports: list[CheckpointReport], *, deep: bool) -> None:
    """A line for each checkpoint, then what is wrong."""
    how = "read whole" if deep else "files and sizes; --deep reads them"
    print_table(
        f"{len(reports)} checkpoints ({how})",
        ["partition", "checkpoint", "taken at", "result"],
        [
            (
                each.partition,
                short_name(each.name),
                time_text(created_at_ms_of(each.name)),
                "DAMAGED" if each.damage else "ok",
            )
            for each in reports
        ],
        unbroken="checkpoint",
    )
    for each in reports:
        for damage in each.damage:
            print_text(f"partition {each.partition}, {damage}")


def print_local_reports(reports: list[LocalReport], data_dir: Path) -> None:
    """A line for each store, then what is wrong."""
    print_table(
        f"{len(reports)} local stores in {data_dir}",
        ["partition", "next offset", "users", "records", "result"],
        [
            (
                each.partition,
                "?" if each.next_offset is None else each.next_offset,
                each.users,
                each.records,
                "DAMAGED" if each.damage else each.left_out or "ok",
            )
            for each in reports
        ],
    )
    for each in reports:
        for damage in each.damage:
            print_text(f"partition {each.partition}: {damage}")
