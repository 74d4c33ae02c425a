"""`semspec health`: exit code 0 if a service or the gateway serves, for HEALTHCHECK and exec probes."""

import argparse
import ssl
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from urllib.parse import SplitResult, urlsplit

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from semspec.errors import InvalidRequest, NotFound, Unavailable
from semspec.rpc.tls import Certificates, channel_credentials

REMEDY = "give grpc://host:port, grpcs://host:port, http://host:port or https://host:port"


def run(arguments: argparse.Namespace) -> int:
    address = _address(arguments.address)
    try:
        if address.scheme in ("grpc", "grpcs"):
            check_health(
                address.netloc,
                arguments.service,
                arguments.timeout_s,
                _certificates(address, arguments),
            )
        else:
            _check_http(address, arguments)
    except OSError as error:
        raise Unavailable(f"{address.geturl()}: {error}") from error
    print("serving")
    return 0


def _address(text: str) -> SplitResult:
    address = urlsplit(text)
    try:
        known = (
            address.scheme in ("grpc", "grpcs", "http", "https")
            and address.hostname
            and address.port
        )
    except ValueError:
        known = False
    if not known:
        raise InvalidRequest(f"{text!r} is not an address", remedy=REMEDY)
    return address


def _certificates(address: SplitResult, arguments: argparse.Namespace) -> Certificates | None:
    if address.scheme == "grpc":
        return None
    if arguments.ca is None:
        raise InvalidRequest(
            "grpcs requires --ca, the PEM file of the CA that signed the service's certificate"
        )
    return Certificates(arguments.ca, arguments.certificate, arguments.key)


def check_health(
    address: str, service: str, timeout_s: float, certificates: Certificates | None = None
) -> None:
    """Check that the service at `address` (host:port) is serving; the service "" is the whole process.

    Raises: Unavailable when it is not serving, does not answer, or a certificate cannot be read; NotFound.
    """
    with _channel(address, certificates) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        try:
            answer = stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=timeout_s)
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.NOT_FOUND:
                raise NotFound(f"{address} has no service {service!r}") from error
            raise Unavailable(
                f"{address} does not answer: {error.details() or error.code().name}"
            ) from error
    if answer.status != health_pb2.HealthCheckResponse.SERVING:
        status = health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)
        raise Unavailable(f"{service or 'the process'} at {address} is {status}")


def _channel(address: str, certificates: Certificates | None) -> grpc.Channel:
    options = (("grpc.enable_http_proxy", 0),)
    if certificates is None:
        return grpc.insecure_channel(address, options)
    return grpc.secure_channel(address, channel_credentials(certificates), options)


def _check_http(address: SplitResult, arguments: argparse.Namespace) -> None:
    """Check an HTTP address. Raises: Unavailable when the status is not 200; OSError without a response."""
    connection = _connection(address, arguments)
    try:
        connection.request("GET", address.path or "/ready")
        response = connection.getresponse()
    except HTTPException as error:
        raise Unavailable(f"{address.geturl()} does not speak HTTP: {error!r}") from error
    finally:
        connection.close()
    if response.status != 200:
        raise Unavailable(f"{address.geturl()} answers {response.status} {response.reason}")


def _connection(address: SplitResult, arguments: argparse.Namespace) -> HTTPConnection:
    host, timeout_s = address.hostname or "", arguments.timeout_s
    if address.scheme == "http":
        return HTTPConnection(host, address.port, timeout=timeout_s)
    context = ssl.create_default_context(cafile=arguments.ca)
    return HTTPSConnection(host, address.port, timeout=timeout_s, context=context)
