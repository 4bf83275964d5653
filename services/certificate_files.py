"""A server's certificate as its files have it now: renewed ones are taken for the next connection, without a restart."""

import logging
import ssl
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

import grpc

from services.errors import SettingsError

log = logging.getLogger(__name__)

_Signature = tuple[tuple[int, int, int] | None, ...]
"""What tells one state of the files from another; None for a file that is not there."""


@dataclass(frozen=True)
class CertificateFiles:
    """In PEM: certificate, key and, for mTLS, the authority of clients."""

    certificate: Path
    key: Path
    client_ca: Path | None = None

    def server_credentials(self) -> grpc.ServerCredentials:
        """Of one server, which has to hold them; they look at the files before every handshake. Raises SettingsError."""
        renewal = _Renewal(self)
        return grpc.dynamic_ssl_server_credentials(
            self.read(),
            renewal.changed,  # type: ignore[arg-type]  # the stubs do not know None: no change
            require_client_authentication=self.client_ca is not None,
        )

    def signature(self) -> _Signature:
        """Of the files as they are now."""
        return tuple(map(_file_signature, self._paths().values()))

    def read(self) -> grpc.ServerCertificateConfiguration:
        """Raises SettingsError for what cannot be read or is no pair."""
        contents = {setting: read_pem(path, setting) for setting, path in self._paths().items()}
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self.certificate, self.key)
        except (ssl.SSLError, OSError) as error:
            raise SettingsError(
                f"tls.certificate {self.certificate} and tls.key {self.key} are no pair in PEM: {error}"
            ) from error
        return grpc.ssl_server_certificate_configuration(
            [(contents["tls.key"], contents["tls.certificate"])],
            root_certificates=contents.get("tls.client_ca"),
        )

    def _paths(self) -> dict[str, Path]:
        paths = {"tls.key": self.key, "tls.certificate": self.certificate}
        return paths if self.client_ca is None else {**paths, "tls.client_ca": self.client_ca}


class _Renewal:
    """What one server has seen of the files. Files that cannot be used leave what is in use, and are told of once."""

    def __init__(self, files: CertificateFiles) -> None:
        self._files = files
        self._lock = Lock()
        self._seen = files.signature()

    def changed(self) -> grpc.ServerCertificateConfiguration | None:
        """New ones, once. In a thread of gRPC's, where an exception would leave the handshake without an answer."""
        with self._lock:
            signature = self._files.signature()
            if signature == self._seen:
                return None
            # Seen before they are read: what is written meanwhile is another change.
            self._seen = signature
            try:
                configuration = self._files.read()
            except SettingsError as error:
                log.warning("the certificate in use stays: %s", error)
                return None
        log.info("took the renewed certificate %s", self._files.certificate)
        return configuration


def _file_signature(path: Path) -> tuple[int, int, int] | None:
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_ino, stat.st_size, stat.st_mtime_ns


def read_pem(path: Path, setting: str) -> bytes:
    """Raises SettingsError."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise SettingsError(f"{setting}: {path} cannot be read: {error.strerror}") from error
