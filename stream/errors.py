"""The errors of the broker side; what aiokafka and Faust raise becomes one of these at the seam.

StreamError
├── BrokerUnavailable       nobody answers, or not yet: worth another try
├── TopicMismatch           a topic exists with other settings than ours
├── RecordTooLarge          the topic does not take a record of this size
├── OffsetUnreachable       store and topic do not meet: retention overtook it, or the topic is another one
├── LeaseExpired            the partitions may be another member's by now
└── WorkerCrashed           the Faust app died and will not come back by itself
"""


class StreamError(Exception):
    """Anything this package raises on purpose."""


class BrokerUnavailable(StreamError):
    """No broker answers at the address, or it is not ready yet; trying again may help."""


class TopicMismatch(StreamError):
    """A topic exists with settings that would break routing; nobody but its owner may change it."""


class RecordTooLarge(StreamError):
    """A record exceeds what the producer or the topic's max.message.bytes allows."""


class OffsetUnreachable(StreamError):
    """The stored offset of a partition lies outside what the topic holds; going on would lose or double."""


class LeaseExpired(StreamError):
    """The group has not confirmed this member for longer than its session timeout; nothing may be written."""


class WorkerCrashed(StreamError):
    """The Faust app crashed; the process should end and be restarted."""
