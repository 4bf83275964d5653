"""Two state nodes and one inference node: requests find the owner, whoever it is by now."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from protos import recommender_pb2 as wire
from services.local_kafka import RunningKafka
from stream.topics import TopicsConfig
from tests.end_to_end.processes import Deployment, to_messages, wait_for
from tests.model.worlds import make_event_log

pytestmark = [pytest.mark.broker, pytest.mark.slow]

USERS = [f"user-{index}" for index in range(24)]


@pytest.fixture
def three(
    kafka: RunningKafka, topics: TopicsConfig, tmp_path: Path, bundle: Path
) -> Iterator[tuple[Deployment, Deployment, Deployment]]:
    deployments = []
    for name in ("one", "other", "inference"):
        (tmp_path / name).mkdir()
        deployments.append(Deployment(tmp_path / name, kafka.bootstrap, topics, bundle))
    yield deployments[0], deployments[1], deployments[2]
    for deployment in deployments:
        if deployment.process is not None:
            deployment.process.kill()
            deployment.process.wait()
            print(deployment.log.read_text())


async def test_requests_find_the_owner_through_joins_and_a_death(
    three: tuple[Deployment, Deployment, Deployment],
) -> None:
    one, other, inference = three
    events = to_messages(make_event_log())  # 64 events of each of 24 users
    await one.produce(events)

    def everybody_is_known() -> bool:
        replies = [inference.recommend(user, k=1) for user in USERS]
        return all(
            reply.source == wire.SOURCE_PERSONAL and reply.state_version == 64 for reply in replies
        )

    one.start("run", "state-node")
    inference.start("run", "inference-node")
    wait_for("everybody's state from the first node", everybody_is_known)
    other.start("run", "state-node")
    wait_for("the other node to have its share", lambda: 0 < other.applied() < len(events))
    wait_for("everybody's state from both nodes", everybody_is_known)
    assert one.applied() + other.applied() == len(events)

    one.kill_role("state-node")
    one.process = None
    wait_for("the other node to have everything", lambda: other.applied() == len(events))
    wait_for("everybody's state from the one that is left", everybody_is_known)

    one.start("run", "state-node")
    wait_for("the first node to be back", lambda: one.applied() > 0)
    wait_for("everybody's state from both nodes again", everybody_is_known)
    for deployment in three:
        deployment.stop()
