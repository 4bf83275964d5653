"""The errors of this package; what gRPC raises becomes one of these at the seam.

ServiceError
├── SettingsError       a configuration file or option cannot be used
├── CannotListen        the address is taken or not ours
├── InvalidRequest      a caller's mistake
├── Unauthenticated     a caller did not show the token that the call needs
├── Overloaded          too much work is waiting; it says when to ask again
├── DeadlineExceeded    an answer was not ready in the caller's time
├── Unreachable         a service does not answer
│   └── TimedOut        it may be alive, but said nothing in time
├── DataLoss            a service found stored bytes damaged
├── NotFound            a service answered that there is no such thing
├── LocalKafkaError     Kafka cannot be fetched or started here
└── ChildMisconfigured  a role ended because its configuration is wrong
"""


class ServiceError(Exception):
    """Anything this package raises on purpose."""


class SettingsError(ServiceError):
    """A configuration file or option cannot be used; it names the key and the file."""


class CannotListen(ServiceError):
    """The listening address is taken or not ours."""


class InvalidRequest(ServiceError):
    """A caller asked for something outside the limits; the message names field, value and limit."""


class Unauthenticated(ServiceError):
    """A caller did not show the bearer token that the call needs."""


class Overloaded(ServiceError):
    """More work is waiting than can be done in time; what is new is refused."""

    def __init__(self, retry_after_s: float, message: str | None = None) -> None:
        """`retry_after_s`: how long a caller should wait before asking again."""
        super().__init__(
            message or f"too many requests are waiting; ask again in {retry_after_s:g} s"
        )
        self.retry_after_s = retry_after_s


class DeadlineExceeded(ServiceError):
    """The caller's time ran out before the answer was ready."""


class Unreachable(ServiceError):
    """A service does not answer, or not in time."""


class TimedOut(Unreachable):
    """A service said nothing within the time that a call may take."""


class DataLoss(ServiceError):
    """A service found what it stores damaged; its text says what to do."""


class NotFound(ServiceError):
    """A service answered that what was asked for does not exist."""


class LocalKafkaError(ServiceError):
    """Kafka cannot be fetched, formatted or started here; the message says what to do next."""


class ChildMisconfigured(ServiceError):
    """A child process ended with EX_CONFIG; all others have been stopped."""
