"""What a role's log leaves out of aiokafka's."""

import logging

import pytest
from aiokafka.errors import GroupAuthorizationFailedError, GroupCoordinatorNotAvailableError

from stream.quiet_logs import quieten_aiokafka


def test_a_coordinator_that_is_not_there_yet_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "aiokafka")  # as roles do
    quieten_aiokafka()
    log = logging.getLogger("aiokafka.consumer.group_coordinator")
    for error in (GroupCoordinatorNotAvailableError(), GroupAuthorizationFailedError("g")):
        log.error("Group Coordinator Request failed: %s", error)
    (line,) = caplog.messages
    assert "GroupAuthorizationFailedError" in line
