"""The endpoints that watchers ask: what they answer, and what happens to the address."""

import threading
import urllib.error
import urllib.request
from http import HTTPStatus

import pytest
from prometheus_client.parser import text_string_to_metric_families

from services.errors import CannotListen
from services.http_server import HttpServer, Reply
from services.metrics.exposition import Metrics
from services.watch_endpoints import watch_endpoints
from stream.watchdog import Verdict


def get(address: str | None, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=10) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_health_readiness_and_metrics() -> None:
    state = {"verdict": Verdict(True, "alive"), "ready": False}
    server = watch_endpoints(
        "127.0.0.1:0",
        "x.metrics_listen",
        Metrics(),
        lambda: state["verdict"],  # type: ignore[arg-type, return-value]
        lambda: bool(state["ready"]),
    )
    with server:
        assert get(server.address, "/healthz") == (200, "alive\n")
        assert get(server.address, "/readyz") == (503, "not ready\n")
        state.update(verdict=Verdict(False, "stalled: partition 3"), ready=True)
        assert get(server.address, "/healthz") == (503, "stalled: partition 3\n")
        assert get(server.address, "/readyz?verbose") == (200, "ready\n")
        status, text = get(server.address, "/metrics")
        names = {family.name for family in text_string_to_metric_families(text)}
        assert status == 200
        assert {"process_resident_memory_bytes", "python_info"} <= names
        assert get(server.address, "/") == (404, "there is:\n/healthz\n/metrics\n/readyz\n")


def test_a_taken_port_is_named_with_its_setting() -> None:
    with HttpServer("127.0.0.1:0", "a.metrics_listen", {}) as first:
        assert first.address is not None
        with pytest.raises(CannotListen, match=f"{first.address} .*set b.metrics_listen"):
            HttpServer(first.address, "b.metrics_listen", {}).__enter__()
    with HttpServer(first.address, "b.metrics_listen", {}):
        pass  # free again at once


def test_no_address_is_no_server() -> None:
    with HttpServer("", "a.metrics_listen", {}) as server:
        assert server.address is None


def test_a_route_that_hangs_or_fails_does_not_stop_the_others() -> None:
    entered, leave = threading.Event(), threading.Event()

    def hang(_: str) -> Reply:
        entered.set()
        leave.wait(10)
        return Reply(HTTPStatus.OK, b"late")

    def fail(_: str) -> Reply:
        raise RuntimeError("secret")

    routes = {"/hang": hang, "/fail": fail, "/fine": lambda _: Reply(HTTPStatus.OK, b"fine")}
    with HttpServer("127.0.0.1:0", "a.metrics_listen", routes) as server:
        waiting = threading.Thread(target=get, args=(server.address, "/hang"))
        waiting.start()
        assert entered.wait(10)
        assert get(server.address, "/fail") == (500, "see the log of this process\n")
        assert get(server.address, "/fine") == (200, "fine")
        leave.set()
        waiting.join(10)
