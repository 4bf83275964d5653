"""A flood from one line of code becomes a trickle; other lines are not touched."""

import logging

import pytest

from stream.quiet_logs import RateLimit, quieten_aiokafka


def test_a_flood_is_cut_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger("tests.flood")
    flood = RateLimit(lines=2, period_s=3600)
    log.addFilter(flood)
    try:
        for n in range(100):
            log.warning("broker %d is away", n)
        log.warning("another line")
    finally:
        log.removeFilter(flood)
    assert caplog.messages == [
        "broker 0 is away",
        "broker 1 is away",
        "another line",
    ]


def test_the_next_period_tells_what_was_left_out(caplog: pytest.LogCaptureFixture) -> None:
    flood = RateLimit(lines=1, period_s=0.0)
    log = logging.getLogger("tests.trickle")
    log.addFilter(flood)
    try:
        for n in range(2):
            log.warning("broker %d is away", n)
            for window in flood._windows.values():
                window.left_out = 7
    finally:
        log.removeFilter(flood)
    assert caplog.messages == [
        "broker 0 is away",
        "broker 1 is away (7 such lines left out before)",
    ]


def test_every_aiokafka_logger_is_limited_once() -> None:
    import aiokafka  # noqa: F401 - its loggers exist once it is imported

    quieten_aiokafka()
    quieten_aiokafka()
    for name in ("aiokafka", "aiokafka.producer.sender", "aiokafka.consumer.fetcher"):
        limits = [f for f in logging.getLogger(name).filters if isinstance(f, RateLimit)]
        assert len(limits) == 1, name
