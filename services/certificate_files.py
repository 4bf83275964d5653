"""Certificates as their files have them now: renewed ones are taken for the next connection, without a restart."""

import logging
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Generic, TypeVar

import grpc

from services.errors import SettingsError

log = logging.getLogger(__name__)

_Made = TypeVar("_Made")

_Signature = tuple[tuple[int, int, int] | None, ...]
"""What tells one state of the files from another; None for a file that is not there."""


@dataclass(frozen=True)
class CertificateFiles:
    """Of a server, in PEM: certificate, key and, for mTLS, the authority of clients."""

    certificate: Path
    key: Path
    client_ca: Path | None = None

    def server_credentials(self) -> grpc.ServerCredentials:
        """Of one server, which has to hold them; they look at the files before every handshake. Raises SettingsError."""
        renewal = Renewal(self._paths(), self.read)
        return grpc.dynamic_ssl_server_credentials(
            self.read(),
            renewal.changed,  # type: ignore[arg-type]  # the stubs do not know None: no change
            require_client_authentication=self.client_ca is not None,
        )

    def read(self) -> grpc.ServerCertificateConfiguration:
        """Raises SettingsError for what cannot be read or is no pair."""
        contents = _read_all(self._paths())
        _check_pair(self.certificate, self.key)
        return grpc.ssl_server_certificate_configuration(
            [(contents["tls.key"], contents["tls.certificate"])],
            root_certificates=contents.get("tls.client_ca"),
        )

    def _paths(self) -> dict[str, Path]:
        return _present(
            {"tls.key": self.key, "tls.certificate": self.certificate}
            | {"tls.client_ca": self.client_ca}
        )


class ClientCertificateFiles:
    """Of a process as a client, in PEM: whom it trusts, and what it shows. Shared by its channels; any thread may ask."""

    def __init__(self, ca: Path | None, certificate: Path | None, key: Path | None) -> None:
        """Reads the files. Raises SettingsError for what cannot be read, is no pair or no authority."""
        self._pair = None if certificate is None or key is None else (certificate, key)
        self._paths = _present({"tls.ca": ca, "tls.key": key, "tls.certificate": certificate})
        self._renewal = Renewal(self._paths, self._read)
        self._current, self._lock = self._read(), Lock()

    def current(self) -> grpc.ChannelCredentials:
        """The very same ones until the files change, and after that where these cannot be used."""
        with self._lock:
            self._current = self._renewal.changed() or self._current
            return self._current

    def _read(self) -> grpc.ChannelCredentials:
        contents = _read_all(self._paths)
        if self._pair is not None:
            _check_pair(*self._pair)
        if "tls.ca" in contents:
            _check_authority(self._paths["tls.ca"], contents["tls.ca"])
        return grpc.ssl_channel_credentials(
            root_certificates=contents.get("tls.ca"),
            private_key=contents.get("tls.key"),
            certificate_chain=contents.get("tls.certificate"),
        )


class Renewal(Generic[_Made]):
    """What was seen of some files. Such that cannot be used leave what is in use, and are told of once."""

    def __init__(self, paths: Mapping[str, Path], read: Callable[[], _Made]) -> None:
        """The files are as they were read, or will be before the first `changed`."""
        self._paths, self._read = paths, read
        self._lock = Lock()
        self._seen = self._signature()

    def changed(self) -> _Made | None:
        """New ones, once. Never raises: in a thread of gRPC's, an exception would leave the handshake without an answer."""
        with self._lock:
            signature = self._signature()
            if signature == self._seen:
                return None
            # Seen before they are read: what is written meanwhile is another change.
            self._seen = signature
            try:
                made = self._read()
            except SettingsError as error:
                log.warning("the certificate in use stays: %s", error)
                return None
        log.info("took the renewed certificate: %s", ", ".join(map(str, self._paths.values())))
        return made

    def _signature(self) -> _Signature:
        return tuple(map(_file_signature, self._paths.values()))


def read_pem(path: Path, setting: str) -> bytes:
    """Raises SettingsError."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise SettingsError(f"{setting}: {path} cannot be read: {error.strerror}") from error


def _read_all(paths: Mapping[str, Path]) -> dict[str, bytes]:
    return {setting: read_pem(path, setting) for setting, path in paths.items()}


def _present(paths: Mapping[str, Path | None]) -> dict[str, Path]:
    return {setting: path for setting, path in paths.items() if path is not None}


def _check_pair(certificate: Path, key: Path) -> None:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
    except (ssl.SSLError, OSError) as error:
        raise SettingsError(
            f"tls.certificate {certificate} and tls.key {key} are no pair in PEM: {error}"
        ) from error


def _check_authority(path: Path, content: bytes) -> None:
    try:
        ssl.create_default_context(cadata=content.decode("ascii"))
    except (ssl.SSLError, ValueError) as error:
        raise SettingsError(f"tls.ca {path} holds no certificates in PEM: {error}") from error


def _file_signature(path: Path) -> tuple[int, int, int] | None:
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_ino, stat.st_size, stat.st_mtime_ns
