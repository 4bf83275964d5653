"""What a role answers to those who watch it: /metrics, /healthz (restart me or not) and /readyz (send me work or not)."""

from collections.abc import Callable
from http import HTTPStatus

from services.http_server import HttpServer, Reply
from services.metrics.exposition import Metrics
from stream.watchdog import Verdict


def watch_endpoints(
    listen: str,
    setting: str,
    metrics: Metrics,
    verdict: Callable[[], Verdict],
    is_ready: Callable[[], bool],
) -> HttpServer:
    """The server, to be entered. `setting` names the key that `listen` comes from."""

    def expose(accept: str) -> Reply:
        body, content_type = metrics.expose(accept)
        return Reply(HTTPStatus.OK, body, content_type)

    def healthz(_: str) -> Reply:
        judged = verdict()
        return _line(judged.reason, fine=judged.alive)

    def readyz(_: str) -> Reply:
        ready = is_ready()
        return _line("ready" if ready else "not ready", fine=ready)

    return HttpServer(listen, setting, {"/metrics": expose, "/healthz": healthz, "/readyz": readyz})


def always_alive() -> Verdict:
    """Of a role that ends where it cannot go on."""
    return Verdict(True, "alive")


def _line(text: str, *, fine: bool) -> Reply:
    return Reply(HTTPStatus.OK if fine else HTTPStatus.SERVICE_UNAVAILABLE, f"{text}\n".encode())
