"""Which Kafka a command talks to when nobody gave an address: the local broker, if it runs."""

from services.detached_kafka import running_kafka
from services.errors import SettingsError
from services.settings import KAFKA_VARIABLE, Settings


def find_bootstrap(settings: Settings) -> str:
    """The configured address, or the local broker's. Raises SettingsError when there is neither."""
    if settings.bootstrap is not None:
        return settings.bootstrap
    kafka = running_kafka()
    if kafka is None:
        raise SettingsError(
            f"no Kafka: start one with `gemstream kafka start`, or give an address with --bootstrap or {KAFKA_VARIABLE}"
        )
    return kafka.bootstrap
