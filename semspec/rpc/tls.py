"""TLS between gateway and services: credentials of clients and servers."""

from dataclasses import dataclass
from pathlib import Path

import grpc

from semspec.certificates import FileBacked, check_authority, read, server_context
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
    """Return the credentials of a client channel. Raises: Unavailable when a file cannot be read."""
    files = (certificates.ca, certificates.key, certificates.certificate)
    try:
        ca, key, certificate = (read(path) if path else None for path in files)
    except ValueError as error:
        raise Unavailable(str(error)) from error
    return grpc.ssl_channel_credentials(ca, key, certificate)


def server_credentials(settings: ServiceSettings) -> grpc.ServerCredentials | None:
    """Return the credentials of a server; None: no TLS. Changed files take effect at the next connection.

    Raises: Unavailable when the files cannot be used.
    """
    certificate, key, client_ca = settings.tls_certificate, settings.tls_key, settings.tls_client_ca
    if certificate is None or key is None:
        return None

    def configuration() -> grpc.ServerCertificateConfiguration:
        """Raises: ValueError when the files are unusable; gRPC itself would not report it."""
        server_context(certificate, key)
        if client_ca:
            check_authority(client_ca)
        pair = read(key), read(certificate)
        return grpc.ssl_server_certificate_configuration(
            [pair], read(client_ca) if client_ca else None
        )

    try:
        renewed = FileBacked(
            [path for path in (certificate, key, client_ca) if path], configuration
        )
    except ValueError as error:
        raise Unavailable(str(error), "tls_certificate") from error
    current = renewed.get()

    def fetch() -> grpc.ServerCertificateConfiguration | None:
        """Called by gRPC before each handshake; None: unchanged. gRPC takes ownership of a returned configuration."""
        nonlocal current
        if (newest := renewed.get()) is current:
            return None
        current = newest
        return newest

    return grpc.dynamic_ssl_server_credentials(current, fetch, client_ca is not None)  # type: ignore[arg-type]
