"""Asking a service for its health, from outside of any event loop: what containers and orchestrators do."""

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from semspec.errors import NotFound, Unavailable
from semspec.rpc.tls import Certificates, channel_credentials


def check_health(address: str, service: str, timeout_s: float, certificates: Certificates | None = None) -> None:
    """Return if the service at `address` (host:port) serves; the service "" stands for its process.

    Raises: Unavailable when it does not, there is no answer or a certificate cannot be read; NotFound when it has no
    service of this name.
    """
    with _channel(address, certificates) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        try:
            answer = stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=timeout_s)
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.NOT_FOUND:
                raise NotFound(f"{address} has no service {service!r}") from error
            raise Unavailable(f"{address} does not answer: {error.details() or error.code().name}") from error
    if answer.status != health_pb2.HealthCheckResponse.SERVING:
        status = health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)
        raise Unavailable(f"{service or 'the process'} at {address} is {status}")


def _channel(address: str, certificates: Certificates | None) -> grpc.Channel:
    options = (("grpc.enable_http_proxy", 0),)
    if certificates is None:
        return grpc.insecure_channel(address, options)
    return grpc.secure_channel(address, channel_credentials(certificates), options)
