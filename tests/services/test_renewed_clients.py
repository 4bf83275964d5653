"""Certificates of clients that are replaced while a process runs: what its calls show and trust from then on."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme

from services.clients import StateClient
from services.credentials import AdminConfig, TlsConfig, client_credentials, server_credentials
from services.errors import SettingsError, Unreachable
from services.grpc_server import GrpcServer


@pytest.fixture(autouse=True)
def loud(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "services.certificate_files")


@dataclass
class Seen:
    """Knows no user, and remembers whose certificate each call came with."""

    names: list[str] = field(default_factory=list)
    answers: asyncio.Event = field(default_factory=asyncio.Event)
    """Calls wait for it."""

    async def get_user_state(self, _: Any, context: Any) -> None:
        (pem,) = context.auth_context()["x509_subject_alternative_name"]
        self.names.append(pem.decode())
        await self.answers.wait()
        await context.abort(grpc.StatusCode.NOT_FOUND, "no such user")

    def handlers(self) -> grpc.GenericRpcHandler:
        methods: dict[str, Any] = {
            "GetUserState": grpc.unary_unary_rpc_method_handler(self.get_user_state)
        }
        return grpc.method_handlers_generic_handler("gemstream.v1.StateService", methods)


@dataclass(frozen=True)
class Site:
    """Where a server and its client have their files."""

    folder: Path

    @property
    def server(self) -> TlsConfig:
        return self._tls("server", client_ca=self.folder / "clients.pem")

    @property
    def client(self) -> TlsConfig:
        return self._tls("client", ca=self.folder / "servers.pem")

    def _tls(self, name: str, **authority: Path) -> TlsConfig:
        certificate, key = (self.folder / f"{name}{end}.pem" for end in ("", "_key"))
        return TlsConfig(certificate=certificate, key=key, **authority)

    def issue(self, role: str, authority: trustme.CA, name: str) -> None:
        """A certificate and its key."""
        issued = authority.issue_cert(name)
        chain = b"".join(pem.bytes() for pem in issued.cert_chain_pems)
        self.write({f"{role}_key": issued.private_key_pem.bytes(), role: chain})

    def trust(self, whom: str, *authorities: trustme.CA) -> None:
        self.write({whom: b"".join(one.cert_pem.bytes() for one in authorities)})

    def write(self, contents: Mapping[str, bytes]) -> None:
        """As a renewal does: new files take the old ones' places, one after the other."""
        for name, content in contents.items():
            partial = self.folder / f"{name}.new"
            partial.write_bytes(content)
            partial.replace(self.folder / f"{name}.pem")


@pytest.fixture
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def site(tmp_path: Path, authority: trustme.CA) -> Site:
    site = Site(tmp_path)
    site.issue("server", authority, "127.0.0.1")
    site.issue("client", authority, "first.client")
    site.trust("clients", authority)
    site.trust("servers", authority)
    return site


@contextlib.asynccontextmanager
async def calling(site: Site) -> AsyncIterator[tuple[StateClient, Seen]]:
    """A client that lasts, and what its server sees; mTLS."""
    server = GrpcServer("127.0.0.1:0", [], server_credentials(site.server, AdminConfig()))
    seen = Seen()
    seen.answers.set()
    server.server.add_generic_rpc_handlers((seen.handlers(),))
    address = await server.start()
    try:
        async with StateClient(address, 10.0, client_credentials(site.client)) as client:
            yield client, seen
    finally:
        await server.stop()


async def ask(client: StateClient) -> None:
    """Raises Unreachable where the two do not trust each other."""
    assert await client.read_user("ann", "v1") is None


async def test_calls_show_the_renewed_certificate_and_those_under_way_end(
    site: Site, authority: trustme.CA, caplog: pytest.LogCaptureFixture
) -> None:
    async with calling(site) as (client, seen):
        await ask(client)
        left = client._channel._channel
        seen.answers.clear()
        async with asyncio.TaskGroup() as calls:
            calls.create_task(ask(client))
            async with asyncio.timeout(10):
                while len(seen.names) < 2:
                    await asyncio.sleep(0.01)  # between two looks
            site.issue("client", authority, "second.client")
            calls.create_task(ask(client))
            async with asyncio.timeout(10):
                while len(seen.names) < 3:
                    await asyncio.sleep(0.01)  # between two looks
            seen.answers.set()
        await ask(client)
        await asyncio.gather(*client._channel._leaving)
        assert left.get_state() is grpc.ChannelConnectivity.SHUTDOWN
        await ask(client)
    assert seen.names == ["first.client"] * 2 + ["second.client"] * 3
    assert caplog.text.count("took the renewed certificate") == 1


async def test_a_client_follows_to_another_authority(site: Site, authority: trustme.CA) -> None:
    """First all trust both, then certificates change."""
    new = trustme.CA()
    async with calling(site) as (client, seen):
        await ask(client)
        site.trust("clients", authority, new)
        site.trust("servers", authority, new)
        site.issue("server", new, "127.0.0.1")
        await ask(client)
        site.issue("client", new, "second.client")
        site.trust("servers", new)
        site.trust("clients", new)
        await ask(client)
        site.trust("servers", authority)
        with pytest.raises(Unreachable):
            await ask(client)
    assert seen.names == ["first.client"] * 2 + ["second.client"]


async def test_files_that_cannot_be_used_leave_the_certificate_and_the_channel(
    site: Site, authority: trustme.CA, caplog: pytest.LogCaptureFixture
) -> None:
    async with calling(site) as (client, seen):
        await ask(client)
        channel = client._channel._channel
        for spoilt in ("client", "servers"):
            good = (site.folder / f"{spoilt}.pem").read_bytes()
            site.write({spoilt: good[: len(good) // 2]})
            await ask(client)
            await ask(client)
            site.write({spoilt: good})
        (site.folder / "servers.pem").unlink()
        await ask(client)
        assert client._channel._channel is channel
        site.trust("servers", authority)
        await ask(client)
    assert caplog.text.count("the certificate in use stays") == 3, "once a change"
    assert set(seen.names) == {"first.client"}


def test_what_is_no_authority_is_refused_at_the_start(site: Site) -> None:
    site.write({"servers": b"nobody"})
    with pytest.raises(SettingsError, match="holds no certificates in PEM"):
        client_credentials(site.client)
    site.trust("servers", trustme.CA())
    site.issue("client", trustme.CA(), "another.client")
    site.write({"client_key": (site.folder / "server_key.pem").read_bytes()})
    with pytest.raises(SettingsError, match="are no pair in PEM"):
        client_credentials(site.client)
