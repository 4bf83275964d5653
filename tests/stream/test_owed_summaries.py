"""What is owed, by the clock: one job per user, sent again ever later, and a rest after too many failures."""

import pytest

from state.errors import ConfigError
from state.user_store import DirtyMark
from stream.owed_summaries import DispatchConfig, Owed, OwedSummaries

CONFIG = DispatchConfig(interval_s=1, redispatch_after_s=30, max_in_flight=2, max_failures=3)


def seeing(*users: str, now_s: float = 0.0, boundary: int = 6) -> OwedSummaries:
    owed = OwedSummaries(CONFIG)
    see(owed, now_s, *users, boundary=boundary)
    return owed


def see(owed: OwedSummaries, now_s: float, *users: str, boundary: int = 6) -> None:
    """All the marks there are."""
    changes = owed.changes([DirtyMark(user, boundary) for user in users])
    for part in changes.parts(1):
        owed.see(part, now_s)


def send(owed: OwedSummaries, now_s: float) -> list[str]:
    """The users that get a job."""
    due = owed.due(now_s)
    for each in due:
        owed.send(each, now_s)
    return [each.user_id for each in due]


def fail(owed: OwedSummaries, user: str, now_s: float) -> float:
    """When it is tried again."""
    owed.failed(user, "on fire", now_s)
    next_s = owed.next_due_s(now_s)
    return -1 if next_s is None else next_s


def test_jobs_of_one_user_coalesce_until_something_is_heard() -> None:
    owed = seeing("ann")
    assert send(owed, 0) == ["ann"]
    see(owed, 1, "ann", boundary=9)  # the boundary moved on: the worker goes on, too
    assert send(owed, 29) == []
    owed.completed("ann")
    see(owed, 29, "ann", boundary=12)
    assert send(owed, 29) == ["ann"]


def test_lost_jobs_are_sent_again_each_time_later() -> None:
    owed = seeing("ann")
    sent_at = [now for now in range(2_000) if send(owed, now)]
    assert sent_at == [0, 30, 90, 210, 450, 930, 1_890]
    assert owed.next_due_s(1_890) == 1_890 + 960


def test_progress_and_release() -> None:
    owed = seeing("ann")
    send(owed, 0)
    owed.progressed("ann", 20)
    assert send(owed, 49) == []
    owed.released("ann", 49)
    assert send(owed, 49) == ["ann"]
    owed.unsend(owed.due(200)[0], 200)
    assert send(owed, 200) == ["ann"]


def test_who_waits_longest_goes_first_and_few_are_under_way() -> None:
    owed = seeing("z")
    see(owed, 5, "a", "b", "z")
    assert send(owed, 5) == ["z", "a"]
    assert send(owed, 6) == []
    owed.completed("a")
    assert send(owed, 6) == ["b"]
    assert send(owed, 35) == ["z"]
    backlog = owed.backlog(36)
    assert (backlog.users, backlog.resting, backlog.oldest_s) == (2, 0, 36)


def test_too_many_failures_give_a_rest_until_the_boundary_moves() -> None:
    owed = seeing("ann")
    assert [fail(owed, "ann", 0), fail(owed, "ann", 0), fail(owed, "ann", 0)] == [4, 16, -1]
    assert send(owed, 1_000) == []
    (ann,) = owed.poisoned()
    assert (ann.failures, ann.reason, ann.boundary) == (3, "on fire", 6)
    owed.rest(ann)
    assert owed.poisoned() == []
    assert (owed.backlog(7).resting, owed.backlog(7).oldest_s) == (1, 0)
    see(owed, 1_000, "ann")
    assert send(owed, 1_000) == []
    see(owed, 1_001, "ann", boundary=9)
    assert send(owed, 1_001) == ["ann"]
    assert owed.backlog(1_001).resting == 0


def test_a_replayed_job_ends_the_rest_when_it_goes_well() -> None:
    owed = seeing("ann", "bob")
    for user in ("ann", "bob"):
        for _ in range(3):
            owed.failed(user, "on fire", 0)
    for each in owed.poisoned():
        owed.rest(each)
    owed.failed("ann", "still", 10)  # the replayed job
    assert (owed.poisoned(), send(owed, 100)) == ([], [])
    owed.progressed("ann", 100)
    assert owed.backlog(100).resting == 1
    assert send(owed, 130) == ["ann"]
    owed.completed("bob")
    assert owed.backlog(100).resting == 0


def test_the_store_is_looked_at_when_there_is_room() -> None:
    owed = OwedSummaries(CONFIG)
    assert owed.wants_marks(0)
    see(owed, 0, "a", "b", "c", "d")
    assert send(owed, 0) == ["a", "b"]
    assert not owed.wants_marks(1)
    assert owed.wants_marks(30)
    owed.completed("a")
    owed.completed("b")
    assert send(owed, 1) == ["c", "d"]
    owed.completed("c")
    assert owed.wants_marks(1)


def test_what_is_not_marked_is_nobody() -> None:
    owed = seeing("ann")
    see(owed, 1)
    for tell in (owed.progressed, owed.released):
        tell("ann", 1)
    owed.failed("ann", "late", 1)
    owed.completed("ann")
    assert (owed.due(1), owed.poisoned(), owed.next_due_s(1)) == ([], [], None)
    assert owed.backlog(1).users == 0


def test_marks_of_two_bundles_are_dispatched_each_by_itself() -> None:
    owed = seeing()
    owed.see(owed.changes([DirtyMark("ann", 6), DirtyMark("ann", 6, "v2")]), 0)
    due = owed.due(0)
    assert [each.key for each in due] == [("ann", ""), ("ann", "v2")]
    for each in due:
        owed.send(each, 0)
    owed.completed("ann")
    owed.released("ann", 1)  # nobody: that mark is done
    assert send(owed, 1) == []
    for _ in range(3):
        owed.failed("ann", "on fire", 1, "v2")
    assert [each.key for each in owed.poisoned()] == [("ann", "v2")]
    owed.see(owed.changes([DirtyMark("ann", 9)]), 2)
    assert (owed.poisoned(), [each.key for each in owed.due(2)]) == ([], [("ann", "")])


def test_a_retry_waits_no_longer_than_a_lost_job() -> None:
    owed = OwedSummaries(DispatchConfig(max_failures=50))
    see(owed, 0, "ann")
    waits = [fail(owed, "ann", 0) for _ in range(20)]
    assert waits[:4] == [1, 4, 16, 30]
    assert waits[-1] == 30
    assert isinstance(owed.due(30)[0], Owed)


@pytest.mark.parametrize(
    "wrong", [{"interval_s": 0}, {"interval_s": 40}, {"max_in_flight": 0}, {"max_failures": 0}]
)
def test_settings_out_of_range(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        DispatchConfig(**wrong)  # type: ignore[arg-type]
