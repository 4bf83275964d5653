"""`gemstream store`: what a state node holds, and its checkpoints."""

import typer

from protos import admin_pb2
from services.cli import backfill, checkpoints, rollout
from services.cli.options import ConfigOption, StateAddressOption, TimeoutOption, state_address
from services.cli.output import (
    JsonOption,
    age_text,
    bytes_text,
    message_document,
    print_json,
    print_table,
)

_NAMED_USERS = 5

app = typer.Typer(help="What a state node holds, and its checkpoints.", no_args_is_help=True)
app.command("checkpoint")(checkpoints.checkpoint)
app.command("list")(checkpoints.list_checkpoints)
app.command("verify")(checkpoints.verify)
app.command("restore")(checkpoints.restore)
app.command("backfill")(backfill.backfill)
app.command("recompress")(backfill.recompress)
app.add_typer(rollout.app, name="rollout")


@app.command()
def stats(
    config: ConfigOption = None,
    state: StateAddressOption = None,
    timeout: TimeoutOption = 30.0,
    as_json: JsonOption = False,
) -> None:
    """Show partitions, offsets, users and counters of a state node."""
    from services import clients

    store = clients.describe_store(state_address(state, config), timeout)
    if as_json:
        print_json(message_document(store))
        return
    users = sum(partition.users for partition in store.partitions)
    print_table(
        f"{users} users, {bytes_text(store.disk_bytes)} on disk, {_backlog(store)}; "
        f"recent {store.recent_len}, mid-term up to {store.mid_term_len}, chunks of {store.chunk_len}",
        [
            "partition",
            "phase",
            "next offset",
            "behind",
            "for",
            "users",
            "last checkpoint",
            "lost offsets",
            "quarantined users",
        ],
        [
            (
                partition.partition,
                partition.phase,
                partition.next_offset,
                partition.lag_records if partition.HasField("lag_records") else "?",
                f"{partition.lag_s:.1f} s" if partition.HasField("lag_s") else "?",
                partition.users,
                _last_checkpoint(partition),
                ", ".join(
                    f"{hole.start_offset} to {hole.end_offset - 1}" for hole in partition.holes
                ),
                _quarantined(partition),
            )
            for partition in store.partitions
        ],
    )
    print_table(
        "Since the node started",
        ["count", "of"],
        [(store.counters[name], name) for name in sorted(store.counters)],
    )


def _backlog(store: admin_pb2.StoreDescription) -> str:
    text = f"{store.dirty_users} owed a summary"
    if store.dirty_users > store.resting_users and store.HasField("oldest_dirty_s"):
        text += f", the oldest for {store.oldest_dirty_s:.0f} s"
    if store.resting_users:
        text += f", {store.resting_users} failed too often (`gemstream dlq list`)"
    return text


def _quarantined(partition: admin_pb2.PartitionDescription) -> str:
    named = partition.quarantined_users[:_NAMED_USERS]
    more = partition.num_quarantined_users - len(named)
    return ", ".join([*named, *([f"and {more} more"] if more else [])])


def _last_checkpoint(partition: admin_pb2.PartitionDescription) -> str:
    if not partition.HasField("checkpoint"):
        text = "none"
    else:
        last = partition.checkpoint
        text = f"offset {last.next_offset}, {age_text(last.created_at_ms)} ago"
    failures = partition.checkpoint_failures
    return f"{text}; {failures} failed" if failures else text
