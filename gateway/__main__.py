"""Entry point: `python -m gateway`."""

import asyncio
import signal
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager

import uvicorn

from gateway.app import create_app
from gateway.settings import GatewaySettings
from gateway.storage.store import Store
from semspec.decoding import Roles
from semspec.rpc.clients import ClientOptions, RemoteDrafter, RemoteTarget, RemoteVerifier
from semspec.settings import load_settings
from semspec.telemetry import configure_logging
from semspec.tracing import exported_traces

SERVER_HEADER_BYTES = 16 * 1024
"""Longest request head."""


class _Server(uvicorn.Server):
    """Told to stop, it lets requests end and returns, where uvicorn's own would end the process by the signal."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.handle_exit, number, None)
        yield


def main() -> None:
    """Serve until told to stop."""
    settings = load_settings(GatewaySettings)
    configure_logging(settings.log_level, settings.log_json)
    with exported_traces("semspec-gateway"):
        asyncio.run(_serve(settings))


async def _serve(settings: GatewaySettings) -> None:
    async with AsyncExitStack() as connections:
        roles = _connect(settings, connections)
        await _Server(_server_config(settings, roles, Store.connect(settings))).serve()


def _connect(settings: GatewaySettings, connections: AsyncExitStack) -> Roles:
    token = settings.service_token.get_secret_value() if settings.service_token else None
    options = ClientOptions(token=token)
    drafter = RemoteDrafter(settings.draft_address, options)
    target = RemoteTarget(settings.target_address, options)
    verifier = RemoteVerifier(settings.verifier_address, options)
    for client in (drafter, target, verifier):
        connections.push_async_callback(client.aclose)
    return Roles(drafter, target, verifier)


def _server_config(settings: GatewaySettings, roles: Roles, store: Store) -> uvicorn.Config:
    return uvicorn.Config(
        create_app(settings, roles, store),
        host=settings.host,
        port=settings.port,
        log_config=None,
        access_log=False,
        server_header=False,
        h11_max_incomplete_event_size=SERVER_HEADER_BYTES,
        timeout_graceful_shutdown=settings.drain_s,
    )


if __name__ == "__main__":
    main()
