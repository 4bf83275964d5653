"""Who may talk to whom: TLS and mTLS of servers and clients, and the bearer token of admin calls."""

import os
from dataclasses import dataclass, field, replace
from pathlib import Path

from services.certificate_files import CertificateFiles, ClientCertificateFiles, read_pem
from services.errors import SettingsError
from state.errors import ConfigError

TOKEN_VARIABLE = "GEMSTREAM_ADMIN_TOKEN"  # noqa: S105  a name, not a token
_MIN_TOKEN_LENGTH = 16


@dataclass(frozen=True, kw_only=True)
class TlsConfig:
    """Files in PEM; servers and clients take renewed ones. Raises ConfigError for half a configuration."""

    certificate: Path | None = None
    """Of this process: servers speak TLS with it, clients show it. With the chain, leaf first."""
    key: Path | None = None
    """Of the certificate."""
    ca: Path | None = None
    """Who signs servers' certificates; without one, clients of a process with a certificate trust the system's."""
    client_ca: Path | None = None
    """Who signs clients' certificates: servers then refuse clients without one (mTLS)."""

    def __post_init__(self) -> None:
        """Check that files that need each other are there together."""
        if (self.certificate is None) != (self.key is None):
            raise ConfigError("certificate and key belong together; set both or neither")
        if self.client_ca is not None and self.certificate is None:
            raise ConfigError("client_ca is set, but a server needs certificate and key, too")

    def relative_to(self, directory: Path) -> "TlsConfig":
        """Relative paths are taken from there."""
        paths = {name: directory / path for name, path in vars(self).items() if path is not None}
        return replace(self, **paths)


@dataclass(frozen=True, kw_only=True)
class AdminConfig:
    """Who may delete, checkpoint and look into the store."""

    token_file: Path | None = None
    """Holds the bearer token of admin calls; GEMSTREAM_ADMIN_TOKEN wins. Without either, admin calls need none."""

    def relative_to(self, directory: Path) -> "AdminConfig":
        """A relative path is taken from there."""
        return AdminConfig(token_file=self.token_file and directory / self.token_file)


@dataclass(frozen=True)
class ServerCredentials:
    """What a server shows and what it asks of callers; by default plain text and nothing."""

    tls: CertificateFiles | None = None
    token: str | None = field(default=None, repr=False)


@dataclass(frozen=True)
class ClientCredentials:
    """What a client trusts and shows; by default plain text and nothing."""

    tls: ClientCertificateFiles | None = None
    token: str | None = field(default=None, repr=False)

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """What an admin call carries."""
        return () if self.token is None else (("authorization", f"Bearer {self.token}"),)


def server_credentials(tls: TlsConfig, admin: AdminConfig) -> ServerCredentials:
    """Read the files. Raises SettingsError."""
    token = _admin_token(admin)
    if tls.certificate is None or tls.key is None:
        return ServerCredentials(None, token)
    files = CertificateFiles(tls.certificate, tls.key, tls.client_ca)
    files.read()  # what is wrong with them shows before anything is started
    return ServerCredentials(files, token)


def client_credentials(tls: TlsConfig, admin: AdminConfig | None = None) -> ClientCredentials:
    """Read the files; `admin` for callers of AdminService alone. Raises SettingsError."""
    token = None if admin is None else _admin_token(admin)
    if tls.ca is None and tls.certificate is None:
        return ClientCredentials(None, token)
    return ClientCredentials(ClientCertificateFiles(tls.ca, tls.certificate, tls.key), token)


def _admin_token(admin: AdminConfig) -> str | None:
    token, origin = os.environ.get(TOKEN_VARIABLE), TOKEN_VARIABLE
    if not token and admin.token_file is not None:
        origin = f"admin.token_file {admin.token_file}"
        token = read_pem(admin.token_file, "admin.token_file").decode(errors="replace").strip()
    elif not token:
        return None
    if len(token) < _MIN_TOKEN_LENGTH or not (token.isascii() and token.isprintable()):
        raise SettingsError(
            f"{origin} holds {len(token)} characters; a token has at least {_MIN_TOKEN_LENGTH}, all printable ASCII: "
            "make one with `openssl rand -hex 32`"
        )
    return token
