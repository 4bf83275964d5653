"""HTTP for machines that watch this one: a few paths, answered by threads while the event loop is busy or stuck."""

import logging
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from socketserver import TCPServer, ThreadingMixIn
from threading import Thread
from types import TracebackType
from typing import Any, ClassVar, Self

from services.errors import CannotListen

log = logging.getLogger(__name__)

_CLIENT_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class Reply:
    """What a path answers."""

    status: HTTPStatus
    body: bytes
    content_type: str = "text/plain; charset=utf-8"


Route = Callable[[str], Reply]
"""Answers a request with this Accept header. May block; runs in a thread of its own."""


class _Server(ThreadingMixIn, TCPServer):
    # A restart must not wait for old connections; two listeners still exclude each other.
    allow_reuse_address = True
    daemon_threads = True  # a request that hangs must not keep the process

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away before its answer is nobody's business."""
        log.debug("a request from %s broke off", client_address)


class _Handler(BaseHTTPRequestHandler):
    timeout = _CLIENT_TIMEOUT_S
    routes: ClassVar[Mapping[str, Route]] = {}

    def do_GET(self) -> None:
        self._send(self._answer(), with_body=True)

    def do_HEAD(self) -> None:
        self._send(self._answer(), with_body=False)

    def _answer(self) -> Reply:
        route = self.routes.get(self.path.partition("?")[0])
        if route is None:
            paths = "\n".join(sorted(self.routes))
            return Reply(HTTPStatus.NOT_FOUND, f"there is:\n{paths}\n".encode())
        try:
            return route(self.headers.get("Accept", ""))
        except Exception:
            log.exception("GET %s failed", self.path)
            return Reply(HTTPStatus.INTERNAL_SERVER_ERROR, b"see the log of this process\n")

    def _send(self, reply: Reply, *, with_body: bool) -> None:
        self.send_response(reply.status)
        self.send_header("Content-Type", reply.content_type)
        self.send_header("Content-Length", str(len(reply.body)))
        self.end_headers()
        if with_body:
            self.wfile.write(reply.body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  the base class names it so
        """Nobody wants a line per scrape."""


class HttpServer:
    """Serves `routes` while entered. An empty address serves nothing."""

    def __init__(self, listen: str, setting: str, routes: Mapping[str, Route]) -> None:
        """`setting` names the key that holds the address, for whoever has to change it."""
        self._listen = listen
        self._setting = setting
        self._routes = dict(routes)
        self._server: _Server | None = None
        self.address: str | None = None
        """host:port while serving."""

    def __enter__(self) -> Self:
        """Listen. Raises CannotListen."""
        if not self._listen:
            return self
        host, _, port = self._listen.rpartition(":")
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        kind = type("Server", (_Server,), {"address_family": family})
        handler = type("Handler", (_Handler,), {"routes": self._routes})
        try:
            server: _Server = kind((host.strip("[]"), int(port)), handler)
        except OSError as error:
            raise CannotListen(
                f"cannot listen on {self._listen} for metrics and health: {error}; stop what listens there, or set "
                f'{self._setting} to another address ("" for none)'
            ) from error
        self._server, self.address = server, f"{host}:{server.server_address[1]}"
        Thread(target=server.serve_forever, args=(0.1,), name="http", daemon=True).start()
        log.info("metrics and health on http://%s/metrics, /healthz, /readyz", self.address)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop listening; what is being answered is not waited for."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None
