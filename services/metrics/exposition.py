"""What one role exposes."""

from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector


class Metrics:
    """What one role exposes: its own collectors and the process's memory, CPU time and files."""

    def __init__(self, *collectors: Collector) -> None:
        """Nothing is read before `expose`."""
        registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        for collector in collectors:
            registry.register(collector)
        self._registry = registry

    def expose(self, accept: str) -> tuple[bytes, str]:
        """Body and content type, in the newest text format that the Accept header names."""
        encode, content_type = choose_encoder(accept)
        return encode(self._registry), content_type
