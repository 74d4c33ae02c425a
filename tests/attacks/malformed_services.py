"""Malformed answers of services: between gateway and services stand servers that change what the services answer.

What is within the bounds of its messages is another draft or verifier, and is believed: the answer may be another
then, but it is whole, its segments are its text, and the client is not blamed.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import grpc
import httpx
from google.protobuf.message_factory import GetMessageClass
from grpc import aio
from grpc_health.v1 import health_pb2

from semspec.rpc.calls import path_of
from tests.attacks.case import CRITICAL, HIGH, MEDIUM, Case, Draw, Family, Found, Run
from tests.attacks.victim import ATTACKER, WORD, Logs, Victim
from tests.helpers.gateway import free_port
from tests.helpers.processes import another_gateway
from tests.helpers.stack import answer_of, chat_body, http_of
from tests.helpers.variants import VARIANTS
from tests.security.support import METHODS, edited, spoil
from tests.test_openapi.support import CHAT

RECOVERY_S, LATE_S = 300.0, 3.0
KINDS = ("field", "field", "field", "bytes", "status", "empty", "again", "cut", "late", "early")
NOTICED_S = 60.0
CHECK = path_of(health_pb2.DESCRIPTOR.services_by_name["Health"].methods_by_name["Check"])
STATUSES = [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK]
ALTERED = ("Draft.Info", "Draft.Generate", "Draft.Propose", "Target.Info", "Target.Score", "Target.Generate",
        "Target.VerifyTokens", "Target.Encode", "Verifier.Info", "Verifier.Judge")  # fmt: skip
"""Methods whose answers are altered."""
STRATEGIES = "semantic semantic token-level surprisal last-hidden target".split()
_OPTIONS = (("grpc.max_receive_message_length", 1 << 30), ("grpc.max_send_message_length", 1 << 30))
Json = dict[str, Any]
Alter = Callable[[bytes, Any], Awaitable[bytes]]
"""`alter(answer, context)`: what is answered instead."""


def altering(case: Case) -> Alter:
    """Leaves the first answers as they are."""
    kind, chance, answers = case["kind"], Random(case["seed"]), list[bytes]()

    async def alter(truth: bytes, context: Any) -> bytes:
        answers.append(truth)
        if len(answers) <= case["after"]:
            return truth
        match kind:
            case "field":
                message = GetMessageClass(_method(case).output_type)()
                message.ParseFromString(truth)
                for _ in range(chance.randint(1, 3)):
                    spoil(message, chance)
                return message.SerializeToString()
            case "status":
                await context.abort(chance.choice(STATUSES), "altered")
            case "late":
                await asyncio.sleep(LATE_S)
        cut = truth[: chance.randrange(len(truth) + 1)]
        return {
            "bytes": edited(truth, chance),
            "again": answers[-2:][0],
            "cut": cut,
            "late": truth,
        }.get(kind, b"")

    return alter


def _method(case: Case) -> Any:
    return next(one for one in METHODS if one.full_name == case["method"])


class AlteringProxy(grpc.GenericRpcHandler):
    """Passes every call of a service on, health checks as well, and changes the answers of some methods."""

    def __init__(self, upstream: aio.Channel) -> None:
        self._upstream: Any = upstream
        self.altered: dict[str, Alter] = {}
        """By the path of a method."""
        self.is_early = False
        """True if health checks report that the service is not serving, while it answers all calls."""

    def service(self, handler_call_details: Any) -> Any:
        return grpc.stream_stream_rpc_method_handler(
            partial(self._answer, handler_call_details.method)
        )

    async def _answer(
        self, path: str, requests: AsyncIterator[bytes], context: Any
    ) -> AsyncIterator[bytes]:
        """A stream, which is the same on the wire where there is one request or response."""
        if self.is_early and path == CHECK:
            async for request in requests:
                name = health_pb2.HealthCheckRequest.FromString(request).service
                status = (
                    health_pb2.HealthCheckResponse.NOT_SERVING
                    if name
                    else health_pb2.HealthCheckResponse.SERVING
                )
                yield health_pb2.HealthCheckResponse(status=status).SerializeToString()
            return
        own = tuple(
            (name, value)
            for name, value in context.invocation_metadata()
            if name == "authorization"
        )
        call = self._upstream.stream_stream(path)(requests, metadata=own)
        try:
            async for truth in call:
                yield await self.altered[path](truth, context) if path in self.altered else truth
        except aio.AioRpcError as error:
            context.set_trailing_metadata(tuple(error.trailing_metadata() or ()))
            await context.abort(error.code(), error.details() or "")
        finally:
            call.cancel()


@dataclass(frozen=True, slots=True)
class AlteredSite:
    """A gateway over altering proxies."""

    http: httpx.AsyncClient
    logs: Logs
    proxies: dict[str, AlteringProxy]
    """By service, as `Draft`."""
    texts: dict[str, str] = field(default_factory=dict)
    """What is answered undisturbed, by strategy."""

    async def asked(self, strategy: str) -> Json:
        """The answer, nothing if there is none. Raises: Found when the client or the gateway is blamed."""
        body = {
            "seed": 3,
            "max_tokens": 60,
            "temperature": 0.0,
            "semspec": {**VARIANTS[strategy], "trace": True},
        }
        response = await self.http.post(CHAT, json=chat_body(WORD, body))
        is_believed = (
            "needs a draft model" in response.text
        )  # what Info tells, until it is asked again
        if response.status_code not in (200, 429, 503, 504) and not is_believed:
            raise Found(MEDIUM, f"{response.status_code}: {response.text[:300]}")
        answer: Json = response.json() if response.status_code == 200 else {}
        return answer

    async def check_absence(self, service: str) -> None:
        """Raises: Found unless a service that answers before it serves is taken for one that is away."""
        self.proxies[service].is_early = True
        try:
            async with asyncio.timeout(NOTICED_S):
                while not _is_away(service, (await self.http.get("/ready")).text):
                    await asyncio.sleep(0.2)
            answer = await self.asked("semantic")
        except TimeoutError:
            raise Found(
                HIGH, f"the {service} counts as serving, though its health checks deny it"
            ) from None
        finally:
            self.proxies[service].is_early = False
        if answer and (service == "Target" or not answer["semspec"]["fallback"]):
            raise Found(
                HIGH,
                f"the {service} is called, though its health checks report that it is not serving",
            )

    async def run(self, case: Case) -> None:
        method = _method(case)
        service = method.containing_service.name
        self.logs.restart()
        answer: Json = {}
        if case["kind"] == "early":
            await self.check_absence(service)
        else:
            self.proxies[service].altered = {path_of(method): altering(case)}
            try:
                answer = await self.asked(case["strategy"])
            finally:
                self.proxies[service].altered = {}
        async with asyncio.timeout(RECOVERY_S):
            while not (normal := await self.asked("semantic")) or normal["semspec"]["fallback"]:
                await asyncio.sleep(0.2)
        if answer_of(normal) != self.texts["semantic"]:
            raise Found(
                CRITICAL,
                f"after the alteration {answer_of(normal)!r}, before {self.texts['semantic']!r}",
            )
        self.logs.check((b"Traceback",))
        if answer:
            _check(answer, self.texts[case["strategy"]], service, case["kind"])
        elif service != "Target" and method.name != "Info" and case["kind"] != "early":
            raise Found(HIGH, "no answer, though the target was sound", is_of_load=True)


def _is_away(service: str, readiness: str) -> bool:
    """Whether `/ready` says so of a service; without the target the gateway is not ready."""
    return '"ready"' not in readiness if service == "Target" else "alone" in readiness


def drawn(seed: str, number: int) -> list[Case]:
    cases = []
    for i in range(number):
        chance = Random(f"{seed}/{i}")
        case = {
            "method": f"semspec.v2.{chance.choice(ALTERED)}",
            "kind": KINDS[i % len(KINDS)],
            "seed": f"{seed}/{i}",
        }
        cases.append(
            {**case, "after": chance.choice((0, 0, 1, 3)), "strategy": chance.choice(STRATEGIES)}
        )
    return cases


def _check(answer: Json, text: str, service: str, kind: str) -> None:
    said = answer["semspec"]
    told = "".join(record["text"] for record in said["trace"])
    if told.replace("</think>", "") != answer_of(answer).replace("</think>", ""):
        raise Found(MEDIUM, f"the records are not the text: {answer_of(answer)!r}")
    is_believable = service == "Target" or kind in ("field", "bytes", "again", "cut")
    if not is_believable and not said["fallback"] and answer_of(answer) != text:
        raise Found(CRITICAL, f"{answer_of(answer)!r}, undisturbed {text!r}")


@asynccontextmanager
async def opened(victim: Victim, _: Path) -> AsyncIterator[tuple[Draw, Run]]:
    async with AsyncExitStack() as held:
        proxies, own = dict[str, AlteringProxy](), {"SEMSPEC_GATEWAY_TARGET_PATIENCE_S": "1"}
        for role in ("Draft", "Target", "Verifier"):
            channel = aio.insecure_channel(victim.stack.addresses[role.lower()], options=_OPTIONS)
            await held.enter_async_context(channel)
            proxies[role], server = AlteringProxy(channel), aio.server(options=_OPTIONS)
            server.add_generic_rpc_handlers((proxies[role],))
            port = server.add_insecure_port("127.0.0.1:0")
            own[f"SEMSPEC_GATEWAY_{role.upper()}_ADDRESS"] = f"127.0.0.1:{port}"
            await server.start()
            held.push_async_callback(server.stop, 0)
        gateway = another_gateway(
            victim.processes["gateway"], "gateway altered", free_port(), **own
        )
        await gateway.start()
        http = await held.enter_async_context(http_of(victim.stack, gateway.address))
        http.headers["authorization"] = f"Bearer {ATTACKER}"
        site = AlteredSite(http, Logs({"gateway": gateway.child.log}), proxies)
        site.texts.update(
            {strategy: answer_of(await site.asked(strategy)) for strategy in set(STRATEGIES)}
        )
        try:
            yield drawn, site.run
        finally:
            await gateway.kill()
            del victim.stack.processes[gateway.name]


FAMILY = Family("lying services", 90, opened)
