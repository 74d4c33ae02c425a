"""TLS between gateway and services: who is believed, who is let in, and certificates that are renewed."""

import asyncio
import socket
import ssl
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from semspec.commands.health import check_health
from semspec.errors import Unavailable
from semspec.rpc import replica
from semspec.rpc.clients import RemoteDrafter, RemoteTarget
from semspec.rpc.connection import ClientOptions
from semspec.rpc.server import ServiceServer
from semspec.rpc.servicers import DraftServicer
from semspec.rpc.tls import Certificates
from semspec.settings import ServiceSettings
from tests.helpers.certificates import Authority, Pair, another
from tests.helpers.pools import LENIENT, service_of, until
from tests.helpers.rpc import CONTEXT, ORDER, SEGMENT, FakeEngine, serving, settings


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def secured(pair: Pair, client_ca: Path | None = None) -> ServiceSettings:
    return settings(tls_certificate=pair.certificate, tls_key=pair.key, tls_client_ca=client_ca)


@asynccontextmanager
async def called(
    service: ServiceSettings,
    certificates: Certificates | None,
    server_name: str = "",
    engine: FakeEngine | None = None,
) -> AsyncIterator[tuple[str, RemoteDrafter]]:
    """The address of a service, and its client."""
    options = ClientOptions(timeout_s=20, certificates=certificates, server_name=server_name)
    async with (
        serving(DraftServicer(lambda: engine or FakeEngine()), service) as server,
        aclosing(RemoteDrafter(server.address, options)) as client,
    ):
        yield server.address, client


async def shown(address: str) -> bytes:
    """The certificate a server shows to a new connection, unchecked."""

    def connect() -> bytes:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.set_alpn_protocols(["h2"])
        host, _, port = address.rpartition(":")
        with (
            socket.create_connection((host, int(port)), timeout=20) as plain,
            context.wrap_socket(plain) as link,
        ):
            return link.getpeercert(binary_form=True) or b""

    return await asyncio.to_thread(connect)


def der(pair: Pair) -> bytes:
    return ssl.PEM_cert_to_DER_cert(pair.certificate.read_text())


@pytest.mark.parametrize("mistake", ["plain", "untrusted", "misnamed"])
async def test_service_that_cannot_prove_itself_is_not_called(
    mistake: str, authority: Authority
) -> None:
    signer = another(authority.folder) if mistake == "untrusted" else authority
    pair = signer.issue("draft", "draft.example" if mistake == "misnamed" else "127.0.0.1")
    engine = FakeEngine()
    options = settings() if mistake == "plain" else secured(pair)
    async with called(options, Certificates(authority.file), engine=engine) as (_, client):
        with pytest.raises(Unavailable):
            await client.info()
        with pytest.raises(Unavailable):
            await anext(client.generate(CONTEXT, ORDER))
    assert engine.num_steps == 0


async def test_certificate_of_another_name_is_believed_if_that_is_the_name_asked_for(
    authority: Authority,
) -> None:
    service = secured(authority.issue("draft", "draft.example"))
    async with called(service, Certificates(authority.file), server_name="draft.example") as (
        _,
        client,
    ):
        assert (await client.info()).model == "fake"


@pytest.mark.parametrize("caller", ["plain", "none", "untrusted", "known"])
async def test_caller_needs_a_certificate_of_the_authority_asked_for(
    caller: str, authority: Authority
) -> None:
    signer = another(authority.folder) if caller == "untrusted" else authority
    pair = signer.issue("gateway", "gateway.example")
    own = () if caller == "none" else (pair.certificate, pair.key)
    certificates = None if caller == "plain" else Certificates(authority.file, *own)
    async with called(secured(authority.issue("draft"), authority.file), certificates) as (
        address,
        client,
    ):
        if caller == "known":
            assert (await client.info()).model == "fake"
            await asyncio.to_thread(check_health, address, DraftServicer.name, 20, certificates)
        else:
            with pytest.raises(Unavailable):
                await client.info()
            with pytest.raises(Unavailable):
                await asyncio.to_thread(check_health, address, "", 20, certificates)


async def test_renewed_certificate_is_shown_to_the_next_caller(authority: Authority) -> None:
    mounted = authority.mount("first")
    async with called(secured(mounted), Certificates(authority.file)) as (address, client):
        await client.info()
        before = der(mounted)
        assert await shown(address) == before
        authority.mount("second")
        assert await shown(address) == der(mounted) != before
        assert (await client.info()).model == "fake", "whoever was connected stays so"


async def test_renewed_authority_of_callers_counts_for_the_next_one(authority: Authority) -> None:
    new = another(authority.folder)
    trusted = authority.folder / "callers.pem"
    trusted.write_bytes(authority.file.read_bytes())
    async with serving(
        DraftServicer(FakeEngine), secured(authority.issue("draft"), trusted)
    ) as server:
        trusted.write_bytes(new.file.read_bytes())
        for signer, is_known in ((authority, False), (new, True)):
            pair = signer.issue("gateway")
            certificates = Certificates(authority.file, pair.certificate, pair.key)
            options = ClientOptions(timeout_s=20, certificates=certificates)
            async with aclosing(RemoteDrafter(server.address, options)) as client:
                with nullcontext() if is_known else pytest.raises(Unavailable):
                    await client.info()


async def test_renewed_certificate_that_is_broken_leaves_the_old(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    pair = authority.issue("draft")
    before = der(pair)
    async with serving(DraftServicer(FakeEngine), secured(pair)) as server:
        pair.key.write_text("half a ke")
        assert await shown(server.address) == before
        assert await shown(server.address) == before
    [error] = [record for record in caplog.records if record.levelname == "ERROR"]
    assert str(pair.key) in error.getMessage() and "half" not in error.getMessage()


async def test_certificate_gone_since_the_settings_were_read_is_told(authority: Authority) -> None:
    pair = authority.issue("draft")
    server = ServiceServer(DraftServicer(FakeEngine), secured(pair))
    pair.certificate.unlink()
    with pytest.raises(Unavailable, match=str(pair.certificate)):
        await server.start()
    await server.abandon()


async def test_authority_that_cannot_be_read_makes_the_service_unavailable(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    client = RemoteDrafter(
        "127.0.0.1:1", ClientOptions(certificates=Certificates(tmp_path / "nowhere.pem"))
    )
    with pytest.raises(Unavailable):
        await client.info()
    assert "nowhere.pem" in caplog.text
    await client.aclose()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has all of 127.0.0.0/8")
async def test_replicas_prove_the_name_they_were_found_under(authority: Authority) -> None:
    async def lookup(host: str, port: int) -> Sequence[str]:
        return ["127.0.0.1", "127.0.0.2"]

    mine = authority.issue("gateway", "gateway.example")
    certificates = Certificates(authority.file, mine.certificate, mine.key)
    options = replace(LENIENT, certificates=certificates)
    named = secured(authority.issue("target", "target.example"), authority.file)
    async with serving(service_of(FakeEngine()), named) as first:
        second = named.model_copy(update={"host": "127.0.0.2", "port": first.port})
        async with (
            serving(service_of(FakeEngine()), second),
            aclosing(RemoteTarget(f"target.example:{first.port}", options, lookup)) as target,
            aclosing(RemoteTarget(first.address, options)) as unnamed,
        ):
            await until(lambda: target.pool.num_replicas == 2)
            assert len(await target.score(CONTEXT, [SEGMENT], "s")) == 1
            with pytest.raises(Unavailable):
                await unnamed.info()


async def test_renewed_certificate_is_shown_to_a_replica_that_refused_the_old(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica, "REOPEN_S", 0.5)
    old, new = another(authority.folder).issue("gateway"), authority.issue("gateway")
    assert old.certificate != new.certificate
    shown = Certificates(authority.file, old.certificate, old.key)
    options = replace(LENIENT, certificates=shown)
    async with (
        serving(
            service_of(FakeEngine()), secured(authority.issue("target"), authority.file)
        ) as server,
        aclosing(RemoteTarget(server.address, options)) as target,
    ):
        with pytest.raises(Unavailable):
            await target.info()
        old.certificate.write_bytes(new.certificate.read_bytes())
        old.key.write_bytes(new.key.read_bytes())
        await until(lambda: target.pool.num_replicas == 1)
        assert (await target.info()).model == "fake"
