"""TLS between gateway and services: credentials of clients and servers."""

from dataclasses import dataclass
from pathlib import Path

import grpc

from semspec.certificates import Renewed, check_authority, read, server_context
from semspec.errors import Unavailable
from semspec.settings import ServiceSettings


@dataclass(frozen=True, slots=True)
class Certificates:
    """PEM files for calls to a service with TLS; read each time a channel is opened."""

    ca: Path
    certificate: Path | None = None
    """Client certificate for mutual TLS, used together with `key`."""
    key: Path | None = None


def channel_credentials(certificates: Certificates) -> grpc.ChannelCredentials:
    """Credentials of a client channel. Raises: Unavailable when a file cannot be read."""
    files = (certificates.ca, certificates.key, certificates.certificate)
    try:
        ca, key, certificate = (read(path) if path else None for path in files)
    except ValueError as error:
        raise Unavailable(str(error)) from error
    return grpc.ssl_channel_credentials(ca, key, certificate)


def server_credentials(settings: ServiceSettings) -> grpc.ServerCredentials | None:
    """Credentials of a server; None: no TLS. Changed files take effect at the next connection.

    Raises: Unavailable when the files cannot be used.
    """
    if settings.tls_certificate is None or settings.tls_key is None:
        return None
    files = _Files(settings.tls_certificate, settings.tls_key, settings.tls_client_ca)
    try:
        renewed = Renewed(files.paths(), files.read)
    except ValueError as error:
        raise Unavailable(str(error), "tls_certificate") from error
    current = renewed.get()

    def fetch() -> grpc.ServerCertificateConfiguration | None:
        """Called by gRPC before each handshake; None: unchanged. gRPC takes ownership of a returned configuration."""
        nonlocal current
        if (newest := renewed.get()) == current:
            return None
        current = newest
        return newest.configuration()

    wants_certificate = settings.tls_client_ca is not None
    return grpc.dynamic_ssl_server_credentials(current.configuration(), fetch, wants_certificate)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class _Contents:
    """Server key, its certificate chain and the CA of client certificates, in PEM."""

    key: bytes
    certificate: bytes
    client_ca: bytes | None

    def configuration(self) -> grpc.ServerCertificateConfiguration:
        return grpc.ssl_server_certificate_configuration([(self.key, self.certificate)], self.client_ca)


@dataclass(frozen=True, slots=True)
class _Files:
    certificate: Path
    key: Path
    client_ca: Path | None

    def paths(self) -> list[Path]:
        return [path for path in (self.certificate, self.key, self.client_ca) if path]

    def read(self) -> _Contents:
        """Read and check the files. Raises: ValueError when they are unusable; gRPC itself would not report it."""
        server_context(self.certificate, self.key)
        if self.client_ca:
            check_authority(self.client_ca)
        return _Contents(read(self.key), read(self.certificate), read(self.client_ca) if self.client_ca else None)
