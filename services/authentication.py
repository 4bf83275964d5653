"""Refuses calls of some services that do not carry the bearer token."""

import hmac
from collections.abc import Collection
from typing import Any, NoReturn

import grpc
import grpc.aio

from services.errors import Unauthenticated

_BEARER = "bearer "


class TokenCheck(grpc.aio.ServerInterceptor):
    """Health, reflection and all other services stay open."""

    def __init__(self, token: str, services: Collection[str]) -> None:
        """`services` by full name."""
        self._token = token.encode()
        self._services = frozenset(services)

    async def intercept_service(
        self, continuation: Any, handler_call_details: grpc.HandlerCallDetails
    ) -> Any:
        """The handler, or one that refuses."""
        service = handler_call_details.method[1:].partition("/")[0]
        if service in self._services and not self._is_shown(handler_call_details):
            return grpc.unary_unary_rpc_method_handler(_refuse)
        return await continuation(handler_call_details)

    def _is_shown(self, details: grpc.HandlerCallDetails) -> bool:
        for key, value in details.invocation_metadata or ():
            if key == "authorization" and isinstance(value, str):
                scheme, shown = value[: len(_BEARER)], value[len(_BEARER) :]
                is_it = hmac.compare_digest(shown.encode(errors="replace"), self._token)
                return scheme.lower() == _BEARER and is_it
        return False


async def _refuse(_request: Any, _context: grpc.aio.ServicerContext[Any, Any]) -> NoReturn:
    raise Unauthenticated(
        "admin calls need the bearer token: set `token_file` in [admin], or GEMSTREAM_ADMIN_TOKEN, to the server's"
    )
