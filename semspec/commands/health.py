"""`semspec health`: exit code 0 if a service or the gateway serves, for HEALTHCHECK and exec probes."""

import argparse
import ssl
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from urllib.parse import SplitResult, urlsplit

from semspec.commands.terminal import say
from semspec.errors import InvalidRequest, Unavailable
from semspec.rpc.health import check_health
from semspec.rpc.tls import Certificates

REMEDY = "give grpc://host:port, grpcs://host:port, http://host:port or https://host:port"


def run(arguments: argparse.Namespace) -> int:
    address = _address(arguments.address)
    try:
        if address.scheme in ("grpc", "grpcs"):
            check_health(address.netloc, arguments.service, arguments.timeout_s, _certificates(address, arguments))
        else:
            _check_http(address, arguments)
    except OSError as error:
        raise Unavailable(f"{address.geturl()}: {error}") from error
    say("serving")
    return 0


def _address(text: str) -> SplitResult:
    address = urlsplit(text)
    try:
        known = address.scheme in ("grpc", "grpcs", "http", "https") and address.hostname and address.port
    except ValueError:
        known = False
    if not known:
        raise InvalidRequest(f"{text!r} is no address; {REMEDY}", "address")
    return address


def _certificates(address: SplitResult, arguments: argparse.Namespace) -> Certificates | None:
    if address.scheme == "grpc":
        return None
    if arguments.ca is None:
        raise InvalidRequest("grpcs wants --ca, the PEM file of the authority that signed the service's certificate")
    return Certificates(arguments.ca, arguments.certificate, arguments.key)


def _check_http(address: SplitResult, arguments: argparse.Namespace) -> None:
    """Raises: Unavailable when the answer is another than 200; OSError when there is none."""
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
