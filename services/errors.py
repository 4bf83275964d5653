"""The errors of this package; what gRPC raises becomes one of these at the seam.

ServiceError
├── SettingsError       a configuration file or option cannot be used
├── CannotListen        the address is taken or not ours
├── InvalidRequest      a caller's mistake
├── Unreachable         a service does not answer
└── NotFound            a service answered that there is no such thing
"""


class ServiceError(Exception):
    """Anything this package raises on purpose."""


class SettingsError(ServiceError):
    """A configuration file or option cannot be used; it names the key and the file."""


class CannotListen(ServiceError):
    """The listening address is taken or not ours."""


class InvalidRequest(ServiceError):
    """A caller asked for something outside the limits; the message names field, value and limit."""


class Unreachable(ServiceError):
    """A service does not answer, or not in time."""


class NotFound(ServiceError):
    """A service answered that what was asked for does not exist."""
