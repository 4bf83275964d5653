"""`gemstream store backfill` on Ray, beside a running deployment that takes what it made."""

import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from protos import recommender_pb2 as wire
from services.local_kafka import RunningKafka
from state.event_log import EventLog
from stream.topics import TopicsConfig
from tests.end_to_end.processes import Deployment, to_messages, wait_for
from tests.model.worlds import make_event_log

pytestmark = [pytest.mark.broker, pytest.mark.slow]

USERS = [f"user-{index}" for index in range(24)]


@pytest.fixture
def deployed(
    kafka: RunningKafka, topics: TopicsConfig, tmp_path: Path, bundle: Path
) -> Iterator[Deployment]:
    (tmp_path / "place").mkdir()
    deployment = Deployment(tmp_path, kafka.bootstrap, topics, bundle)
    text = deployment.config.read_text()
    deployment.config.write_text(f'{text}[backfills]\nuri = "place"\ninterval_s = 0.5\n')
    yield deployment
    if deployment.process is not None:
        deployment.process.kill()
        print(deployment.log.read_text())


def write_log(path: Path, log: EventLog, chosen: Sequence[int]) -> None:
    columns: dict[str, Any] = {
        "user_id": [log.user_ids[log.user_index[row]] for row in chosen],
        "event_id": [log.event_ids[row] for row in chosen],
        "kinds": ["purchase"] * len(chosen),
    }
    numbers = ("item_id", "event_time_ms", "author_id", "tag")
    columns |= {name: log.rows[name][list(chosen)] for name in numbers}
    path.parent.mkdir(exist_ok=True)
    pyarrow.parquet.write_table(pa.table(columns), path)


async def test_live_users_get_their_past_and_nothing_is_doubled(deployed: Deployment) -> None:
    log = make_event_log()  # 64 events of each of 24 users
    num_events = len(log.rows)
    half, overlap = num_events // 2, num_events // 2 + 96
    write_log(deployed.directory / "histories" / "1.parquet", log, range(half - 300))
    write_log(deployed.directory / "histories" / "2.parquet", log, range(half - 300, overlap))
    live = [row for row in range(half, num_events) if log.user_ids[log.user_index[row]] != "user-5"]
    deployed.start("up")
    events = to_messages(log)
    await deployed.produce([events[row] for row in live])
    wait_for("the live events in the state", lambda: deployed.applied() == len(live))

    command = [sys.executable, "-m", "services.cli", "store", "backfill", "--num-cpus", "2"]
    done = subprocess.run(
        [*command, str(deployed.directory / "histories"), "--config", str(deployed.config)],
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert f"3 partitions made, 24 users, {overlap} interactions, 24 summaries" in done.stdout
    deployed.kill_role("state-node")

    lengths = np.bincount(log.user_index[[*range(overlap), *live]], minlength=24)
    lengths -= np.bincount(log.user_index[[row for row in live if row < overlap]], minlength=24)
    for user, length in zip(USERS, lengths.tolist(), strict=True):
        wait_for(f"the past of {user}", lambda: has_length(deployed, user, length))  # noqa: B023
        wait_for(f"the summary of {user}", lambda: summary_is_complete(deployed, user))  # noqa: B023
    assert deployed.applied() == len(live)
    wait_for("an answer to user-5, of whom nothing came through Kafka", lambda: is_known(deployed))
    deployed.stop()


def is_known(deployed: Deployment) -> bool:
    reply = deployed.recommend("user-5", k=5)
    return reply.source == wire.SOURCE_PERSONAL and len(reply.items) == 5


def has_length(deployed: Deployment, user: str, length: int) -> bool:
    described = deployed.describe_user(user)
    return described is not None and described.meta.length == length


def summary_is_complete(deployed: Deployment, user: str) -> bool:
    described = deployed.describe_user(user)
    return (
        described is not None
        and not described.dirty
        and [each.boundary for each in described.summaries] == [described.meta.lifecycle_boundary]
    )
