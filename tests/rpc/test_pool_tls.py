"""Replicas that speak TLS: by the name they were found under, and with certificates that are renewed."""

import sys
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

import pytest

from semspec.errors import Unavailable
from semspec.rpc.clients import RemoteTarget
from semspec.rpc.pool import replica
from semspec.rpc.tls import Certificates
from semspec.settings import ServiceSettings
from tests.certificates import Authority, another
from tests.rpc.fakes import CONTEXT, SEGMENT, FakeEngine, serving
from tests.rpc.fakes import settings as service_settings
from tests.rpc.pools import LENIENT, service_of, until


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def secured(authority: Authority, *hosts: str, **changes: object) -> ServiceSettings:
    pair = authority.issue("target", *hosts)
    paths = {"tls_certificate": pair.certificate, "tls_key": pair.key, "tls_client_ca": authority.file}
    return service_settings(**paths, **changes)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has all of 127.0.0.0/8")
async def test_replicas_prove_the_name_they_were_found_under(authority: Authority) -> None:
    async def lookup(host: str, port: int) -> Sequence[str]:
        return ["127.0.0.1", "127.0.0.2"]

    mine = authority.issue("gateway", "gateway.example")
    certificates = Certificates(authority.file, mine.certificate, mine.key)
    options = replace(LENIENT, certificates=certificates)
    named = secured(authority, "target.example")
    async with serving(service_of(FakeEngine()), named) as first:
        second = named.model_copy(update={"host": "127.0.0.2", "port": first.port})
        async with (
            serving(service_of(FakeEngine()), second),
            aclosing(RemoteTarget(f"target.example:{first.port}", options, lookup)) as target,
            aclosing(RemoteTarget(first.address, options)) as unnamed,
        ):
            await until(lambda: target.num_replicas == 2)
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
        serving(service_of(FakeEngine()), secured(authority)) as server,
        aclosing(RemoteTarget(server.address, options)) as target,
    ):
        with pytest.raises(Unavailable):
            await target.info()
        old.certificate.write_bytes(new.certificate.read_bytes())
        old.key.write_bytes(new.key.read_bytes())
        await until(lambda: target.num_replicas == 1)
        assert (await target.info()).model == "fake"
