"""Malformed answers of services: between gateway and services stand servers that change what the services answer.

What is within the bounds of its messages is another draft or verifier, and is believed: the answer may be another
then, but it is whole, its segments are its text, and the client is not blamed.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import grpc
import httpx
from google.protobuf.message_factory import GetMessageClass
from grpc import aio

from semspec.rpc.calls import path_of
from tests.attacks.case import Broken, Case, Draw, Family, Verdict, edited, shown
from tests.attacks.fixtures import Logs, Victim
from tests.gateway.support import free_port
from tests.processes import Process, another_gateway
from tests.security.support import METHODS, spoil
from tests.stack.support import LONG_QUESTION, answer_of, chat_body, http_of
from tests.variants import VARIANTS

RECOVERY_S = 300.0
KINDS = ("field", "field", "field", "bytes", "status", "empty", "again", "cut")
STATUSES = [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK]
ALTERED = ("Draft.Info", "Draft.Generate", "Draft.Propose", "Target.Info", "Target.Score", "Target.Generate",
        "Target.VerifyTokens", "Target.Encode", "Verifier.Info", "Verifier.Judge")  # fmt: skip
"""Methods whose answers are altered."""
STRATEGIES = ("semantic", "semantic", "semantic", "token-level", "surprisal", "likelihood", "target")
Json = dict[str, Any]


@dataclass(slots=True)
class Alteration:
    """What becomes of the answers to one method."""

    method: Any
    kind: str
    chance: Random
    after: int
    """Answers that are left as they are before."""
    before: bytes = b""
    """The answer before, to repeat."""

    async def altered(self, truth: bytes, context: Any) -> bytes:
        """What is answered instead."""
        self.after -= 1
        earlier, self.before = self.before, truth
        if self.after >= 0:
            return truth
        match self.kind:
            case "field":
                message = GetMessageClass(self.method.output_type)()
                message.ParseFromString(truth)
                for _ in range(self.chance.randint(1, 3)):
                    spoil(message, self.chance)
                return message.SerializeToString()
            case "bytes":
                return edited(truth, self.chance)
            case "status":
                await context.abort(self.chance.choice(STATUSES), "altered")
            case "again":
                return earlier or truth
            case "cut":
                return truth[: self.chance.randrange(len(truth) + 1)]
        return b""


class AlteringProxy(grpc.GenericRpcHandler):
    """Passes every call of a service on, health checks as well, and changes the answers of one method."""

    def __init__(self, upstream: aio.Channel) -> None:
        self._upstream: Any = upstream
        self.alteration: Alteration | None = None

    def service(self, handler_call_details: Any) -> Any:
        return grpc.stream_stream_rpc_method_handler(partial(self._answer, handler_call_details.method))

    async def _answer(self, path: str, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        """A stream, which is the same on the wire where there is one request or response."""
        own = tuple((name, value) for name, value in context.invocation_metadata() if name == "authorization")
        call = self._upstream.stream_stream(path)(requests, metadata=own)
        try:
            async for truth in call:
                alteration = self.alteration
                is_altered = alteration and path_of(alteration.method) == path
                yield await alteration.altered(truth, context) if alteration and is_altered else truth
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
    gateway: Process

    async def asked(self, body: Json) -> Json:
        """The answer. Raises: Broken when it is no answer, or blames the client or the gateway."""
        response = await self.http.post("/v1/chat/completions", json=body)
        answer: Json = response.json()
        if response.status_code not in (200, 429, 503, 504):
            raise Broken(Verdict.MEDIUM, f"{response.status_code}: {response.text[:300]}")
        return answer if response.status_code == 200 else {}

    async def until_normal(self, body: Json, text: str) -> None:
        """Raises: Broken when the answer is not what it was before."""
        answer: Json = {}
        async with asyncio.timeout(RECOVERY_S):
            while not answer or answer["semspec"]["fallback"]:
                await asyncio.sleep(0.2)
                answer = await self.asked(body)
        if answer_of(answer) != text:
            raise Broken(Verdict.DIFFERING, f"after the alteration {answer_of(answer)!r}, before {text!r}")


def _draw(site: AlteredSite, texts: dict[str, str], chance: Random) -> Case:
    name, kind, after = chance.choice(ALTERED), chance.choice(KINDS), chance.choice((0, 0, 1, 3))
    service, _, rpc = name.partition(".")
    method = next(one for one in METHODS if (one.containing_service.name, one.name) == (service, rpc))
    alteration, strategy = Alteration(method, kind, chance, after), chance.choice(STRATEGIES)
    body = _body(strategy)

    async def run() -> None:
        site.logs.restart()
        site.proxies[service].alteration = alteration
        try:
            answer = await site.asked(body)
        finally:
            site.proxies[service].alteration = None
        await site.until_normal(_body("semantic"), texts["semantic"])
        if not site.gateway.child.is_alive:
            raise Broken(Verdict.LOST, "the gateway ended")
        site.logs.check((b"Traceback",))
        if answer:
            _check(answer, texts[strategy], service, kind)
        elif service != "Target":
            raise Broken(Verdict.LOST, "no answer, though the target was sound")

    return Case(kind, shown(f"{name} from answer {after + 1} on, {strategy}"), run)


def _check(answer: Json, text: str, service: str, kind: str) -> None:
    said = answer["semspec"]
    told = "".join(record["text"] for record in said["trace"])
    if told.replace("</think>", "") != answer_of(answer).replace("</think>", ""):
        raise Broken(Verdict.MEDIUM, f"the records are not the text: {answer_of(answer)!r}")
    is_believable = service == "Target" or kind in ("field", "bytes", "again", "cut")
    if not is_believable and not said["fallback"] and answer_of(answer) != text:
        raise Broken(Verdict.DIFFERING, f"{answer_of(answer)!r}, undisturbed {text!r}")


def _body(strategy: str) -> Json:
    options = {**VARIANTS[strategy], "trace": True}
    return chat_body(LONG_QUESTION, {"seed": 3, "max_tokens": 120, "temperature": 0.0, "semspec": options})


@asynccontextmanager
async def opened(victim: Victim, _: Path) -> AsyncIterator[Draw]:
    async with AsyncExitStack() as held:
        proxies, places = dict[str, AlteringProxy](), dict[str, str]()
        for role in ("Draft", "Target", "Verifier"):
            channel = aio.insecure_channel(victim.stack.addresses[role.lower()], options=_OPTIONS)
            await held.enter_async_context(channel)
            proxies[role] = AlteringProxy(channel)
            server = aio.server(options=_OPTIONS)
            server.add_generic_rpc_handlers((proxies[role],))
            places[role.lower()] = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
            await server.start()
            held.push_async_callback(server.stop, 0)
        gateway = _gateway(victim, places)
        await gateway.start()
        http = await held.enter_async_context(http_of(victim.stack, gateway.address))
        site = AlteredSite(http, Logs({"gateway": gateway.child.log}), proxies, gateway)
        texts = {strategy: answer_of(await site.asked(_body(strategy))) for strategy in dict.fromkeys(STRATEGIES)}
        try:
            yield lambda chance: _draw(site, texts, chance)
        finally:
            await gateway.kill()
            del victim.stack.processes[gateway.name]


_OPTIONS = (("grpc.max_receive_message_length", 1 << 30), ("grpc.max_send_message_length", 1 << 30))


def _gateway(victim: Victim, places: dict[str, str]) -> Process:
    own = {f"SEMSPEC_GATEWAY_{role.upper()}_ADDRESS": place for role, place in places.items()}
    own["SEMSPEC_GATEWAY_TARGET_PATIENCE_S"] = "1"
    return another_gateway(Process.of(victim.stack, "gateway"), "gateway altered", free_port(), **own)


FAMILY = Family("lying services", 70, opened)
