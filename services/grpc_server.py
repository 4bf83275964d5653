"""A gRPC server as every role wants it: health, reflection, one table of status codes, graceful stop."""

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import Any

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from services.authentication import TokenCheck
from services.credentials import ServerCredentials
from services.errors import CannotListen
from services.request_stats import RequestStats
from services.status_codes import rpc_status, status_code, trailing_metadata
from services.tracing import Tracing

log = logging.getLogger(__name__)

_OPTIONS = [
    ("grpc.so_reuseport", 0),  # a second server on the address must fail, not share it
    ("grpc.max_receive_message_length", 16 << 20),
    ("grpc.max_send_message_length", 16 << 20),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
]
_STOP_GRACE_S = 5.0

PROTECTED_SERVICES = frozenset(
    f"gemstream.v1.{name}Service" for name in ("Admin", "Bundle", "Catalogue", "Rollout")
)
"""Where a token is configured, their calls need it."""


def is_loopback(listen: str) -> bool:
    """Whether only this machine can reach a server that listens there."""
    host = listen.rpartition(":")[0].strip("[]")
    return host == "localhost" or host == "::1" or host.startswith("127.")


class GrpcServer:
    """Serves the given services on one address."""

    def __init__(
        self,
        listen: str,
        service_names: Sequence[str],
        credentials: ServerCredentials | None = None,
        tracing: Tracing | None = None,
    ) -> None:
        """`service_names` are the full names that health and reflection know."""
        self._credentials, self._tracing = credentials or ServerCredentials(), tracing
        self._tls: grpc.ServerCredentials | None = None
        self._listen = listen
        self._names = ["", *service_names]
        self.requests = RequestStats()
        self.serving = False
        """What health checks answer."""
        self.server = grpc.aio.server(interceptors=self._interceptors(), options=_OPTIONS)
        self._health = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self.server)
        reflection.enable_server_reflection(
            [*service_names, health.SERVICE_NAME, reflection.SERVICE_NAME], self.server
        )

    async def start(self) -> str:
        """Listen, not yet serving as far as health goes; returns the address. Raises CannotListen."""
        await self.set_serving(False)
        try:
            port = self._add_port()
        except RuntimeError as error:
            raise CannotListen(
                f"cannot listen on {self._listen}: the address is taken or not this machine's"
            ) from error
        await self.server.start()
        host = self._listen.rpartition(":")[0]
        log.info("listening on %s:%d", host, port)
        return f"{host}:{port}"

    def _interceptors(self) -> list[grpc.aio.ServerInterceptor]:
        """Outermost first."""
        interceptors = [] if self._tracing is None else [self._tracing.interceptor]
        interceptors.append(_ErrorTable(self.requests))
        if self._credentials.token is not None:
            interceptors.append(TokenCheck(self._credentials.token, PROTECTED_SERVICES))
        return interceptors

    def _add_port(self) -> int:
        if self._credentials.tls is None:
            return self.server.add_insecure_port(self._listen)
        self._tls = (
            self._credentials.tls.server_credentials()
        )  # gRPC calls them, and does not hold them
        return self.server.add_secure_port(self._listen, self._tls)

    async def set_serving(self, serving: bool) -> None:
        """What health checks answer from now on."""
        self.serving = serving
        for name in self._names:
            await self.set_part_serving(name, serving=serving)

    async def set_part_serving(self, name: str, *, serving: bool) -> None:
        """What health checks of one name answer from now on."""
        answer = health_pb2.HealthCheckResponse
        await self._health.set(name, answer.SERVING if serving else answer.NOT_SERVING)

    async def stop(self) -> None:
        """Say NOT_SERVING, let calls finish, then stop."""
        self.serving = False
        await self._health.enter_graceful_shutdown()
        await self.server.stop(_STOP_GRACE_S)
        if self._tracing is not None:
            await asyncio.to_thread(self._tracing.close)


class _ErrorTable(grpc.aio.ServerInterceptor):
    """Turns the errors that handlers raise into status codes, and counts the answers."""

    def __init__(self, requests: RequestStats) -> None:
        self._requests = requests

    async def intercept_service(
        self, continuation: Any, handler_call_details: grpc.HandlerCallDetails
    ) -> Any:
        """Wrap unary handlers; streams (health, reflection) are not ours."""
        handler = await continuation(handler_call_details)
        if handler is None or handler.unary_unary is None:
            return handler

        method = handler_call_details.method

        async def answer(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
            started_s, code = time.perf_counter(), grpc.StatusCode.OK
            try:
                return await handler.unary_unary(request, context)
            except asyncio.CancelledError:
                code = grpc.StatusCode.CANCELLED
                raise
            except grpc.aio.AbortError:
                code = grpc.StatusCode.UNKNOWN
                raise
            except Exception as error:
                code = status_code(error)
                if code is grpc.StatusCode.INTERNAL:
                    log.exception("%s failed", method)
                await _abort(context, error)
            finally:
                self._requests.count(method, code.name, time.perf_counter() - started_s)

        return grpc.unary_unary_rpc_method_handler(
            answer, handler.request_deserializer, handler.response_serializer
        )


async def _abort(context: grpc.aio.ServicerContext[Any, Any], error: Exception) -> None:
    """End the call; trailing metadata that the handler has set, such as a request id, stays."""
    status = rpc_status(error)
    metadata = (*(context.trailing_metadata() or ()), *trailing_metadata(status))
    await context.abort(status_code(error), status.message, metadata)
