"""From an address list to addresses of replicas."""

import asyncio
from collections.abc import Mapping, Sequence

import pytest

from semspec.errors import InvalidRequest
from semspec.rpc import resolver
from semspec.rpc.resolver import Endpoint, Resolver, look_up, parse_endpoints


class Names:
    """A resolver that knows what it is told."""

    def __init__(self, **names: Sequence[str]) -> None:
        self.names: Mapping[str, Sequence[str]] = names

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        if host not in self.names:
            raise OSError("no such name")
        return self.names[host]


def test_list_holds_names_addresses_and_sockets() -> None:
    assert parse_endpoints("target:50052, 10.0.0.1:1,[::1]:2,unix:/run/semspec.sock") == (
        Endpoint("target:50052", "target", 50052),
        Endpoint("10.0.0.1:1"),
        Endpoint("[::1]:2"),
        Endpoint("unix:/run/semspec.sock"),
    )


@pytest.mark.parametrize(
    "addresses", ["target", "target:", ":50052", "::1:50052", "target:65536", "a:1,", "a:1,,b:1"]
)
def test_what_is_no_address_is_refused_by_name(addresses: str) -> None:
    with pytest.raises(InvalidRequest, match="is not an address: write host:port"):
        parse_endpoints(addresses)


async def test_name_of_many_addresses_has_a_replica_at_each() -> None:
    names = Names(target=["10.0.0.1", "10.0.0.2"])
    directory = Resolver("target:50052,10.0.0.9:1", names)
    assert await directory.resolve() == {
        "10.0.0.1:50052": "target",
        "10.0.0.2:50052": "target",
        "10.0.0.9:1": "",
    }
    names.names = {"target": ["10.0.0.2", "10.0.0.3"]}
    assert set(await directory.resolve()) == {"10.0.0.2:50052", "10.0.0.3:50052", "10.0.0.9:1"}


async def test_host_of_two_families_has_each_replica_once() -> None:
    both = ["10.0.0.1", "10.0.0.2", "fd00::1", "fd00::2"]
    assert set(await Resolver("target:1", Names(target=both)).resolve()) == {
        "10.0.0.1:1",
        "10.0.0.2:1",
    }
    assert set(await Resolver("target:1", Names(target=both[1:])).resolve()) == {
        "[fd00::1]:1",
        "[fd00::2]:1",
    }


@pytest.mark.parametrize("ips", [["127.0.0.1"], ["::1", "127.0.0.1"], []])
async def test_name_of_one_host_is_called_by_its_name(ips: Sequence[str]) -> None:
    assert await Resolver("localhost:1", Names(localhost=ips)).resolve() == {"localhost:1": ""}


async def test_name_that_is_not_found_stands_for_what_it_stood_for() -> None:
    names = Names()
    directory = Resolver("target:1", names)
    assert await directory.resolve() == {"target:1": ""}
    names.names = {"target": ["10.0.0.1", "10.0.0.2"]}
    found = await directory.resolve()
    names.names = {}
    assert await directory.resolve() == found != {"target:1": ""}


async def test_resolver_that_hangs_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    async def hang(host: str, port: int) -> Sequence[str]:
        await asyncio.Event().wait()
        return []

    monkeypatch.setattr(resolver, "LOOKUP_TIMEOUT_S", 0.05)
    assert await Resolver("target:1", hang).resolve() == {"target:1": ""}


async def test_resolver_of_the_system_knows_this_host() -> None:
    assert "127.0.0.1" in await look_up("localhost", 1)
