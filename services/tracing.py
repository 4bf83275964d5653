"""One span per call, by OpenTelemetry: the caller's trace goes on, stages and request ids are attributes.

The packages are an optional extra (`gemstream[tracing]`) and are imported where tracing is switched on alone.
"""

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import grpc
import grpc.aio

from services.errors import SettingsError
from state.errors import ConfigError

_PREFIX = "gemstream."
_EXPORT_TIMEOUT_S = 3.0
"""A collector that is away does not hold up a stop for longer."""

_attributes: ContextVar[dict[str, str | int | float] | None] = ContextVar(
    "attributes of the call's span", default=None
)


_outgoing: ContextVar[tuple[tuple[str, str], ...]] = ContextVar(
    "metadata that calls to others carry", default=()
)


def outgoing_trace() -> tuple[tuple[str, str], ...]:
    """Metadata for calls that are made on behalf of the call in hand: they join its trace."""
    return _outgoing.get()


def annotate(**attributes: str | int | float) -> None:
    """Attributes of the span of the call in hand; nothing happens where calls are not traced."""
    noted = _attributes.get()
    if noted is not None:
        noted.update(attributes)


@dataclass(frozen=True, kw_only=True)
class TracingConfig:
    """Where spans go. Raises ConfigError for what is no address."""

    endpoint: str | None = None
    """A collector's OTLP address over gRPC, http:// or https://; without one, calls are not traced."""
    sample_ratio: float = 1.0
    """Of calls that come without a trace; others are sampled where their caller is."""

    def __post_init__(self) -> None:
        """Check address and ratio."""
        if self.endpoint is not None and urlsplit(self.endpoint).scheme not in ("http", "https"):
            raise ConfigError(
                f"endpoint is {self.endpoint!r}; it must be http://host:port or https://host:port"
            )
        if not 0 <= self.sample_ratio <= 1:
            raise ConfigError(f"sample_ratio is {self.sample_ratio}; it must be 0 to 1")


@dataclass(frozen=True)
class Tracing:
    """What a server needs to trace its calls, and how it ends."""

    interceptor: grpc.aio.ServerInterceptor
    close: Callable[[], None]
    """Sends what is left."""


def start_tracing(config: TracingConfig, role: str) -> Tracing | None:
    """None where no collector is configured. Raises SettingsError where OpenTelemetry is not installed."""
    if config.endpoint is None:
        return None
    try:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise SettingsError(
            "[tracing] endpoint is set, but OpenTelemetry is not installed: pip install 'gemstream[tracing]'"
        ) from error
    exporter = OTLPSpanExporter(
        endpoint=config.endpoint,
        insecure=urlsplit(config.endpoint).scheme == "http",
        timeout=_EXPORT_TIMEOUT_S,
    )
    return tracing_to(BatchSpanProcessor(exporter), config.sample_ratio, role)


def tracing_to(processor: Any, sample_ratio: float, role: str) -> Tracing:
    """Tracing through an OpenTelemetry span processor."""
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio

    provider = TracerProvider(
        resource=Resource.create({"service.name": f"gemstream-{role}"}),
        sampler=ParentBasedTraceIdRatio(sample_ratio),
        shutdown_on_exit=False,
    )
    provider.add_span_processor(processor)
    return Tracing(_CallSpans(provider.get_tracer("gemstream")), provider.shutdown)


class _CallSpans(grpc.aio.ServerInterceptor):
    """Puts a span around every unary call."""

    def __init__(self, tracer: Any) -> None:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._tracer = tracer
        self._propagator = TraceContextTextMapPropagator()

    async def intercept_service(
        self, continuation: Any, handler_call_details: grpc.HandlerCallDetails
    ) -> Any:
        """Streams (health, reflection) are not ours."""
        handler = await continuation(handler_call_details)
        if handler is None or handler.unary_unary is None:
            return handler
        service, _, method = handler_call_details.method[1:].partition("/")
        metadata = {
            key: value
            for key, value in handler_call_details.invocation_metadata or ()
            if isinstance(value, str)
        }

        async def answer(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
            from opentelemetry.trace import SpanKind

            with self._tracer.start_as_current_span(
                f"{service}/{method}",
                context=self._propagator.extract(metadata),
                kind=SpanKind.SERVER,
                attributes={"rpc.system": "grpc", "rpc.service": service, "rpc.method": method},
                record_exception=False,
                set_status_on_exception=False,
            ) as span:
                noted: dict[str, str | int | float] = {}
                carrier: dict[str, str] = {}
                self._propagator.inject(carrier)
                # A call is a task of its own: nothing has to be set back.
                _attributes.set(noted)
                _outgoing.set(tuple(carrier.items()))
                try:
                    return await handler.unary_unary(request, context)
                finally:
                    span.set_attributes({f"{_PREFIX}{name}": noted[name] for name in noted})
                    _set_status(span, context)

        return grpc.unary_unary_rpc_method_handler(
            answer, handler.request_deserializer, handler.response_serializer
        )


def _set_status(span: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
    from opentelemetry.trace import StatusCode

    code: Any = context.code()  # a number before one is set
    number = code.value[0] if isinstance(code, grpc.StatusCode) else int(code or 0)
    span.set_attribute("rpc.grpc.status_code", number)
    if number:
        span.set_status(StatusCode.ERROR)
