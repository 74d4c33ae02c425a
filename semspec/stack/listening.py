"""The address that a server listens on: whether its port is free, and how clients reach it."""

import socket

from semspec.stack.child import StackError


def free_port(host: str, wanted: int) -> int:
    """Return `wanted`, or a free port for 0. `host` is a name, an IPv4 or an IPv6 address. Raises: StackError when the
    port cannot be bound, for example because another process listens there."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, wanted, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((address[0], wanted, *address[2:]))  # getaddrinfo takes a port modulo 65536
            port: int = probe.getsockname()[1]
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise StackError(
            f"cannot listen on {host} port {wanted}: {reason}", remedy="choose another port"
        ) from error
    return port


def url_host(host: str) -> str:
    """Return the host by which this machine reaches a server that listens on `host`, as written in a URL."""
    reached = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"[{reached}]" if ":" in reached else reached
