"""TLS, mTLS and the token of admin calls: who gets in and who does not, over real sockets."""

import asyncio
from dataclasses import dataclass
from pathlib import Path

import grpc
import grpc.aio
import pytest
import trustme
from grpc_health.v1 import health_pb2, health_pb2_grpc

from protos import admin_pb2, admin_pb2_grpc, state_pb2
from protos.state_pb2_grpc import StateServiceStub
from services import clients
from services.channels import Target
from services.clients import StateClient, StateClients
from services.credentials import (
    AdminConfig,
    ClientCredentials,
    ServerCredentials,
    TlsConfig,
    client_credentials,
    server_credentials,
)
from services.deployment import wait_until_serving
from services.errors import SettingsError, Unauthenticated, Unreachable
from services.grpc_server import is_loopback
from services.settings import load_settings
from state.errors import ConfigError
from tests.services.calls import call
from tests.services.nodes import FakeOwner, recommending

TOKEN = "correct-horse-battery-staple"  # noqa: S105
NO_ADMIN = AdminConfig()


@dataclass(frozen=True)
class Files:
    """Certificates of one authority, and of another one."""

    ca: Path
    server: Path
    server_key: Path
    client: Path
    client_key: Path
    other_ca: Path

    @property
    def server_tls(self) -> TlsConfig:
        return TlsConfig(certificate=self.server, key=self.server_key)

    @property
    def server_mtls(self) -> TlsConfig:
        return TlsConfig(certificate=self.server, key=self.server_key, client_ca=self.ca)

    @property
    def client_mtls(self) -> TlsConfig:
        return TlsConfig(certificate=self.client, key=self.client_key, ca=self.ca)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    folder = tmp_path_factory.mktemp("tls")
    authority, other = trustme.CA(), trustme.CA()
    server, client = authority.issue_cert("127.0.0.1"), authority.issue_cert("worker-1")
    paths = {
        name: folder / f"{name}.pem"
        for name in ("ca", "server", "server_key", "client", "client_key", "other_ca")
    }
    authority.cert_pem.write_to_path(str(paths["ca"]))
    other.cert_pem.write_to_path(str(paths["other_ca"]))
    for name, certificate in (("server", server), ("client", client)):
        for pem in certificate.cert_chain_pems:
            pem.write_to_path(str(paths[name]), append=True)
        certificate.private_key_pem.write_to_path(str(paths[f"{name}_key"]))
    return Files(**paths)


def with_token(tmp_path: Path, token: str = TOKEN) -> AdminConfig:
    path = tmp_path / "token"
    path.write_text(token + "\n")
    return AdminConfig(token_file=path)


async def describe_store(address: str, *metadata: tuple[str, str]) -> grpc.StatusCode:
    async with grpc.aio.insecure_channel(address) as channel:
        stub = admin_pb2_grpc.AdminServiceStub(channel)
        try:
            await stub.DescribeStore(admin_pb2.DescribeStoreRequest(), metadata=metadata)
        except grpc.aio.AioRpcError as error:
            return error.code()
        return grpc.StatusCode.OK


async def test_admin_calls_need_the_token_and_others_do_not(tmp_path: Path) -> None:
    owner = FakeOwner()
    owner.add("ann", 3)
    credentials = server_credentials(TlsConfig(), with_token(tmp_path))
    async with owner.serving(credentials) as address:
        for metadata in (
            [],
            [("authorization", f"Bearer {TOKEN}x")],
            [("authorization", f"Bearer {TOKEN[:-1]}")],
            [("authorization", TOKEN)],
            [("authorization", f"Basic {TOKEN}")],
            [("authorization", "Bearer ")],
            [("x-authorization", f"Bearer {TOKEN}")],
        ):
            refused = await describe_store(address, *metadata)
            assert refused is grpc.StatusCode.UNAUTHENTICATED
        accepted = [("authorization", f"bearer {TOKEN}")]
        assert await describe_store(address, *accepted) is grpc.StatusCode.OK
        async with grpc.aio.insecure_channel(address) as channel:
            await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
            request = state_pb2.GetUserStateRequest(user_id="ann")
            await StateServiceStub(channel).GetUserState(request)


async def test_without_a_token_admin_calls_are_open() -> None:
    async with FakeOwner().serving() as address:
        assert await describe_store(address) is grpc.StatusCode.OK


async def test_the_command_shows_the_token_of_its_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin = with_token(tmp_path)
    config = tmp_path / "gemstream.toml"
    config.write_text('[admin]\ntoken_file = "token"\n')
    async with FakeOwner().serving(server_credentials(TlsConfig(), admin)) as address:
        arguments = ["store", "stats", "--state", address]
        refused = await asyncio.to_thread(call, *arguments)
        from_file = await asyncio.to_thread(call, *arguments, "--config", str(config))
        monkeypatch.setenv("GEMSTREAM_ADMIN_TOKEN", TOKEN)
        from_environment = await asyncio.to_thread(call, *arguments)
        monkeypatch.setenv("GEMSTREAM_ADMIN_TOKEN", "another-token-of-length")
        wrong = await asyncio.to_thread(call, *arguments, "--config", str(config))
    assert (refused.code, from_file.code, from_environment.code, wrong.code) == (1, 0, 0, 1)
    assert "set `token_file` in [admin]" in refused.stderr
    assert TOKEN not in refused.stderr + wrong.stderr
    assert "another-token" not in wrong.stderr


def test_a_token_is_not_printed_and_has_to_be_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin = with_token(tmp_path)
    for shown in (
        server_credentials(TlsConfig(), admin),
        client_credentials(TlsConfig(), admin),
        admin,
    ):
        assert TOKEN not in repr(shown)
    with pytest.raises(SettingsError, match="holds 5 characters; a token has at least 16"):
        server_credentials(TlsConfig(), with_token(tmp_path, "short"))
    with pytest.raises(SettingsError, match="admin.token_file: .* cannot be read"):
        server_credentials(TlsConfig(), AdminConfig(token_file=tmp_path / "none"))
    monkeypatch.setenv("GEMSTREAM_ADMIN_TOKEN", "tiny")
    with pytest.raises(SettingsError, match="GEMSTREAM_ADMIN_TOKEN holds 4"):
        server_credentials(TlsConfig(), admin)


async def ask(address: str, credentials: ClientCredentials) -> bool:
    async with StateClient(address, 3.0, credentials) as users:
        try:
            assert await users.read_user("ann", "v1") is not None
        except Unreachable:
            return False
        return True


async def test_tls_lets_in_who_trusts_the_server(files: Files) -> None:
    owner = FakeOwner()
    owner.add("ann", 3)
    async with owner.serving(server_credentials(files.server_tls, NO_ADMIN)) as address:
        assert await ask(address, client_credentials(TlsConfig(ca=files.ca)))
        assert not await ask(address, client_credentials(TlsConfig(ca=files.other_ca)))
        assert not await ask(address, ClientCredentials())


async def test_mtls_lets_in_who_has_a_certificate(files: Files) -> None:
    owner = FakeOwner()
    owner.add("ann", 3)
    async with owner.serving(server_credentials(files.server_mtls, NO_ADMIN)) as address:
        mine = client_credentials(files.client_mtls)
        assert await ask(address, mine)
        assert not await ask(address, client_credentials(TlsConfig(ca=files.ca)))
        await asyncio.wait_for(wait_until_serving(Target(address, mine)), 10)
        owners = StateClients(3.0, mine)
        assert (await owners.at(address).read_rolled("ann", "v1", 1)).chunks == []
        await owners.close()


async def test_commands_speak_tls(files: Files, tmp_path: Path) -> None:
    owner = FakeOwner()
    owner.add("ann", 20)
    config = tmp_path / "gemstream.toml"
    server = server_credentials(files.server_mtls, with_token(tmp_path))
    mine = client_credentials(files.client_mtls)
    async with owner.serving(server) as state, StateClient(state, 5.0, mine) as users:
        async with recommending(users, credentials=server) as recommender:
            config.write_text(
                f'[state_node]\nlisten = "{state}"\n[inference_node]\nlisten = "{recommender}"\n'
                f'[admin]\ntoken_file = "token"\n[tls]\nca = "{files.ca}"\n'
                f'certificate = "{files.client}"\nkey = "{files.client_key}"\n'
            )
            for arguments in (["recommend", "ann"], ["user", "show", "ann"], ["store", "stats"]):
                done = await asyncio.to_thread(call, *arguments, "--config", str(config))
                assert done.code == 0, done.stderr
            plain = await asyncio.to_thread(call, "recommend", "ann", "--address", recommender)
    assert plain.code == 4


async def test_a_refused_token_is_an_error_of_its_own(tmp_path: Path) -> None:
    server = server_credentials(TlsConfig(), with_token(tmp_path))
    async with FakeOwner().serving(server) as address:
        with pytest.raises(Unauthenticated, match="refused the call: admin calls need"):
            await asyncio.to_thread(clients.describe_store, Target(address), 5.0)


@pytest.mark.parametrize(
    ("text", "phrase"),
    [
        ('[tls]\ncertificate = "c"', "certificate and key belong together"),
        ('[tls]\nclient_ca = "c"', "client_ca is set, but a server needs certificate"),
        ('[tracing]\nendpoint = "collector:4317"', "it must be http://host:port"),
        ("[tracing]\nsample_ratio = 2.0", "sample_ratio is 2.0; it must be 0 to 1"),
    ],
)
def test_half_a_configuration_is_refused(tmp_path: Path, text: str, phrase: str) -> None:
    path = tmp_path / "gemstream.toml"
    path.write_text(text)
    with pytest.raises((SettingsError, ConfigError), match=phrase):
        load_settings(path, {})


def test_files_are_taken_from_the_settings_directory(tmp_path: Path) -> None:
    path = tmp_path / "gemstream.toml"
    path.write_text('[tls]\ncertificate = "c.pem"\nkey = "/k.pem"\n[admin]\ntoken_file = "token"\n')
    settings = load_settings(path, {})
    assert settings.tls.certificate == tmp_path / "c.pem"
    assert settings.tls.key == Path("/k.pem")
    assert settings.admin.token_file == tmp_path / "token"
    with pytest.raises(SettingsError, match="tls.key: /k.pem cannot be read"):
        server_credentials(settings.tls, NO_ADMIN)


def test_nothing_configured_is_plain_text() -> None:
    assert server_credentials(TlsConfig(), NO_ADMIN) == ServerCredentials()
    assert client_credentials(TlsConfig(), NO_ADMIN) == ClientCredentials()


def test_loopback_is_told_from_other_addresses() -> None:
    assert all(map(is_loopback, ("127.0.0.1:1", "localhost:1", "[::1]:1")))
    assert not any(map(is_loopback, ("0.0.0.0:1", "10.0.0.5:1", "[::]:1", "owner:1")))


def issue(authority: trustme.CA, files: Files) -> None:
    """As a renewal does: the new files take the old ones' places, one after the other."""
    issued = authority.issue_cert("127.0.0.1")
    chain = b"".join(pem.bytes() for pem in issued.cert_chain_pems)
    for path, content in (
        (files.server_key, issued.private_key_pem.bytes()),
        (files.server, chain),
    ):
        partial = path.with_suffix(".new")
        partial.write_bytes(content)
        partial.replace(path)


async def reaches(address: str, ca: Path) -> bool:
    """Over a connection of its own."""
    credentials = client_credentials(TlsConfig(ca=ca))
    async with StateClient(address, 2.0, credentials) as client:
        try:
            return await client.read_delta("ann", "v1", None) is not None
        except Unreachable:
            return False


async def test_a_renewed_certificate_is_taken_by_a_running_server(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "services.certificate_files")
    names = ("ca", "server", "server_key", "client", "client_key", "other_ca")
    files = Files(**{name: tmp_path / f"{name}.pem" for name in names})
    old, new = trustme.CA(), trustme.CA()
    old.cert_pem.write_to_path(str(files.ca))
    new.cert_pem.write_to_path(str(files.other_ca))
    issue(old, files)
    owner = FakeOwner()
    owner.add("ann", 3)
    async with owner.serving(server_credentials(files.server_tls, NO_ADMIN)) as address:
        assert await reaches(address, files.ca)
        assert not await reaches(address, files.other_ca)
        async with StateClient(address, 2.0, client_credentials(TlsConfig(ca=files.ca))) as lasting:
            assert await lasting.read_delta("ann", "v1", None) is not None
            issue(new, files)
            assert await reaches(address, files.other_ca)
            assert not await reaches(address, files.ca)
            assert await lasting.read_delta("ann", "v1", None) is not None
        assert caplog.text.count("took the renewed certificate") == 1

        files.server.write_bytes(b"half a certificate")
        assert await reaches(address, files.other_ca)
        assert await reaches(address, files.other_ca)
        assert caplog.text.count("the certificate in use stays") == 1
        files.server_key.unlink()
        for _ in range(3):
            assert await reaches(address, files.other_ca)
        assert caplog.text.count("the certificate in use stays") == 2, "once a change"
        issue(old, files)
        assert await reaches(address, files.ca)


def test_a_key_of_another_certificate_is_refused_at_the_start(files: Files) -> None:
    with pytest.raises(SettingsError, match="are no pair in PEM"):
        server_credentials(TlsConfig(certificate=files.server, key=files.client_key), NO_ADMIN)
