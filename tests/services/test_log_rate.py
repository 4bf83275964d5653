"""What every request may warn of is said once a second, and nothing is lost count of."""

import logging

from services.log_rate import OncePerSecond


def record(message: str, *args: object, level: int = logging.WARNING) -> logging.LogRecord:
    return logging.LogRecord("here", level, "", 0, message, args, None)


def test_one_a_second_and_how_many_were_left_out() -> None:
    now_s = [10.0]
    once = OncePerSecond(lambda: now_s[0])
    assert once.filter(record("user %r is stale", "ann"))
    assert not any(once.filter(record("user %r is stale", user)) for user in ("bo", "cy"))
    assert once.filter(record("another"))
    assert once.filter(record("user %r is stale", "dee", level=logging.ERROR))
    now_s[0] += 1.0
    told = record("user %r is stale", "eve")
    assert once.filter(told)
    assert told.getMessage() == "user 'eve' is stale (and 2 like it)"
    now_s[0] += 5.0
    told = record("user %r is stale", "flo 100 %")
    assert once.filter(told)
    assert told.getMessage() == "user 'flo 100 %' is stale"
