"""Which answers of a gateway are collected, who may read them, and what a collector keeps of them."""

import asyncio
import json
import logging
import signal
import sys
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from semspec.client import Gateway as Client
from semspec.errors import Conflict, InvalidRequest, Mismatch, NotFound
from semspec.keys import Keys, entry, new_key
from semspec.training.collect import alone, fetch, forget, num_answers
from semspec.training.data.questions import collected_rows
from semspec.training.files import StageFolder, read_rows, write_json, write_rows
from tests.gateway.fakes import NUM_SEGMENTS, Fakes
from tests.gateway.support import (
    GENEROUS_S,
    Gateway,
    GatewayFactory,
    RedisServer,
    bearer,
    make_settings,
    until,
)

ALICE, BOB, COLLECTOR = new_key(), new_key(), new_key()
KEYS = f"{entry('alice', ALICE)}:consents {entry('bob', BOB)} {entry('ops', COLLECTOR)}:collector"
LISTED = 'semspec_gateway_collection_answers_total{result="listed"}'
EXCEPTED = 'semspec_gateway_collection_answers_total{result="excepted"}'


@pytest.fixture
async def collecting(start_gateway: GatewayFactory, mortal_redis: RedisServer) -> Any:
    """Starts gateways that collect, over a Redis of their own: the list is one for all gateways of a Redis."""

    async def start(fakes: Fakes | None = None, **settings: Any) -> Gateway:
        fields = {
            "api_keys": KEYS,
            "collect": {"share": 1.0},
            "redis_url": mortal_redis.url,
            **settings,
        }
        gateway = await start_gateway(fakes, **fields)
        gateway.http.headers.update(bearer(ALICE))
        return gateway

    return start


async def ask(gateway: Gateway, content: str = "How many?", key: str = ALICE, **fields: Any) -> str:
    """Ask, and return the id of the answer."""
    response = await gateway.chat(
        bearer(key), **{"messages": [{"role": "user", "content": content}], **fields}
    )
    assert response.status_code == 200, response.text
    return str(response.json()["id"])


def client(gateway: Gateway, key: str = COLLECTOR) -> "aclosing[Client]":
    return aclosing(Client.at(gateway.base_url, key))


async def page(gateway: Gateway, after: str = "0") -> dict[str, Any]:
    async with client(gateway) as collector:
        return await collector.collection(after, 100)


async def fetched(gateway: Gateway, folder: StageFolder, most: int = 1000) -> int:
    async with client(gateway) as collector:
        return await fetch(collector, folder, most)


def rows(folder: StageFolder) -> list[dict[str, Any]]:
    return [
        row for number in folder.numbers() for row in read_rows(folder.file(number, ".parquet"))
    ]


async def test_only_answers_of_keys_that_consent_are_collected_as_they_were_served(
    collecting: Any,
) -> None:
    gateway = await collecting()
    await ask(gateway, key=BOB)
    id = await ask(gateway)
    await ask(gateway, "Say it in JSON.", response_format={"type": "json_object"})
    await ask(gateway, "By sentences.", semspec={"segmentation": "sentence"})
    await gateway.metric_becomes(LISTED, 1)
    found = await page(gateway)
    [answer] = found["data"]
    assert (answer["id"], answer["owner"], answer["question"]) == (id, "alice", "How many?")
    trace = (await gateway.stored(id, "/trace"))["segments"]
    names = ("text", "token_ids", "tokenizer", "writer", "end")
    assert [[one[name] for name in names] for one in answer["segments"]] == [
        [one[name] for name in names] for one in trace[:-1]
    ]
    assert len(trace) == NUM_SEGMENTS and {one["writer"] for one in answer["segments"]} == {
        "draft",
        "target",
    }
    stored = await gateway.stored(id)
    assert (answer["prompt"], answer["draft_prompt"]) == (stored["prompt"], None)
    assert found["target"]["fingerprint"] == "fake-target"
    assert (await page(gateway, found["next"]))["data"] == []


async def test_nothing_is_collected_or_handed_out_unless_asked_for(collecting: Any) -> None:
    gateway = await collecting()
    for key in (ALICE, BOB):
        async with client(gateway, key) as reader:
            with pytest.raises(NotFound, match="option collector"):
                await reader.collection("0", 1)
    off = await collecting(collect={})
    await ask(off)
    with pytest.raises(NotFound, match="SEMSPEC_GATEWAY_COLLECT"):
        await page(off)
    assert (await page(gateway))["data"] == []


async def test_withdrawn_consent_holds_for_answers_listed_before(
    collecting: Any, tmp_path: Path
) -> None:
    file = tmp_path / "keys"
    file.write_text(KEYS)
    gateway = await collecting(api_keys="", api_keys_file=file)
    await ask(gateway)
    await gateway.metric_becomes(LISTED, 1)
    assert len((await page(gateway))["data"]) == 1
    file.write_text(KEYS.replace(":consents", ""))
    await until(lambda: page(gateway), lambda found: not found["data"])


def test_owner_consents_only_if_all_of_its_keys_do() -> None:
    ours = f"{entry('us', ALICE)}:consents"
    assert Keys(ours, None).has("us", "consents") and not Keys(ours, None).has("us", "collector")
    assert not Keys(f"{ours} {entry('us', BOB)}", None).has("us", "consents")
    assert not Keys(ours, None).has("them", "consents")
    both = Keys(f"{ours}:collector", None)
    assert (
        both.has("us", "consents")
        and both.has("us", "collector")
        and both.owner(ALICE.encode()) == "us"
    )
    with pytest.raises(ValueError, match="entry 1 is not NAME:SHA256"):
        Keys(f"{entry('us', ALICE)}:consent", None)


async def test_answers_that_match_the_expression_are_left_out_and_in_no_log(
    collecting: Any, caplog: pytest.LogCaptureFixture
) -> None:
    gateway = await collecting(collect={"share": 1, "exclude": r"secret-\d+|target 2 says"})
    with caplog.at_level(logging.DEBUG):
        await ask(gateway, "This is secret-12.")
        await ask(gateway)  # the third segment is the target's
        await gateway.metric_becomes(EXCEPTED, 2)
        await ask(gateway, semspec={"strategy": "draft"})
        await gateway.metric_becomes(LISTED, 1)
    assert "secret-12" not in caplog.text and "How many" not in caplog.text
    assert len((await page(gateway))["data"]) == 1
    stricter = await collecting(collect={"share": 1, "exclude": "How"})
    assert (await page(stricter))["data"] == []


async def test_expression_is_searched_in_linear_time(collecting: Any) -> None:
    gateway = await collecting(collect={"share": 1, "exclude": "(a+)+b"}, max_body_bytes=1 << 20)
    await asyncio.wait_for(
        ask(gateway, "a" * 1500), GENEROUS_S
    )  # backtracking would take 2^1500 steps
    await gateway.metric_becomes(LISTED, 1)


async def test_list_is_bounded_and_drops_the_oldest(collecting: Any) -> None:
    gateway = await collecting(collect={"share": 1, "max_answers": 3})
    ids = [await ask(gateway, f"How many, {number}?") for number in range(5)]
    await gateway.metric_becomes(LISTED, 5)
    assert {answer["id"] for answer in (await page(gateway))["data"]} == set(ids[2:])


async def test_share_of_requests_is_drawn(collecting: Any) -> None:
    gateway = await collecting(collect={"share": 0.5})
    for number in range(40):
        await ask(gateway, f"How many, {number}?", max_tokens=5)
    await asyncio.sleep(0.1)
    assert 5 <= len((await page(gateway))["data"]) <= 35  # 1e-6 beyond


async def test_answers_of_other_models_are_not_handed_out(collecting: Any) -> None:
    gateway = await collecting()
    await ask(gateway)
    await gateway.metric_becomes(LISTED, 1)
    other = await collecting(Fakes.make().with_other_target("another"))
    assert (await page(other))["data"] == []


async def test_answer_that_the_client_does_not_let_be_stored_is_not_collected(
    collecting: Any,
) -> None:
    gateway = await collecting()
    for path, prompt in (
        ("/v1/completions", {"prompt": "Once"}),
        ("/v1/responses", {"input": "How many?"}),
    ):
        assert (await gateway.http.post(path, json={**prompt, "store": False})).status_code == 200
    await ask(gateway, store=False)
    others = [await ask(gateway, store=None), await ask(gateway)]
    await gateway.metric_becomes(LISTED, 2)
    assert {answer["id"] for answer in (await page(gateway))["data"]} == set(others)


async def test_draft_prompt_is_collected_where_the_target_serves_alone(collecting: Any) -> None:
    fakes = Fakes.make().told(drafter={"chat_template": "D"}, target={"chat_template": "T"})
    gateway = await collecting(fakes)
    await ask(gateway, semspec={"strategy": "target"})
    await gateway.metric_becomes(LISTED, 1)
    fakes.drafter.refusal = InvalidRequest("the template refuses it")
    await ask(gateway, semspec={"strategy": "target"})
    await gateway.metric_becomes(
        'semspec_gateway_collection_answers_total{result="no draft prompt"}', 1
    )
    [answer] = (await page(gateway))["data"]
    assert (
        answer["prompt"]["text"] == "T<user>How many?"
        and answer["draft_prompt"]["text"] == "D<user>How many?"
    )
    assert {segment["writer"] for segment in answer["segments"]} == {"target"}


async def test_turns_of_a_conversation_share_its_digest(collecting: Any) -> None:
    gateway = await collecting()
    first = {"role": "user", "content": "How many?"}
    turns = [first, {"role": "assistant", "content": "Four."}, {"role": "user", "content": "Why?"}]
    for messages in ([first], turns, [turns[-1]]):
        await ask(gateway, messages=messages)
    for content in ("One.", "Two."):
        await ask(gateway, content, semspec={"session": "s"})
    await gateway.metric_becomes(LISTED, 5)
    answers = {
        answer["question"]: answer["conversation"] for answer in (await page(gateway))["data"]
    }
    assert answers["How many?"] == answers["How many?\n\nWhy?"] != answers["Why?"]
    assert answers["One."] == answers["Two."] and len(set(answers.values())) == 3


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"collect": {"share": 0.5}, "auth": "none"}, "needs API keys, whose owners consent"),
        ({"collect": {"exclude": "("}}, "is no regular expression"),
        (
            {"collect": {"exclude": r"(a)\1"}},
            "is no regular expression without look-around and back-references",
        ),
        ({"collect": {"share": 1.5}}, "less than or equal to 1"),
    ],
)
def test_settings_that_cannot_collect_are_refused(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        make_settings(**fields)
    assert make_settings().collect.share == 0


async def test_collector_keeps_each_answer_once_and_stops_when_full(
    collecting: Any, tmp_path: Path
) -> None:
    gateway, folder = await collecting(), StageFolder(tmp_path)
    ids = [await ask(gateway, f"How many, {number}?") for number in range(5)]
    await gateway.metric_becomes(LISTED, 5)
    assert [await fetched(gateway, folder, most) for most in (2, 4, 4, 9, 9)] == [2, 2, 0, 1, 0]
    assert sorted(row["id"] for row in rows(folder)) == sorted(ids) and num_answers(folder) == 5
    row = rows(folder)[0]
    assert [piece["writer"] for piece in row["pieces"]][:2] == ["user", "draft"] and row[
        "draft_prompt"
    ] is None
    assert len(row["pieces"]) == NUM_SEGMENTS


KILLED = """
import asyncio, os, signal, sys
from pathlib import Path
from semspec.client import Gateway
from semspec.training import collect
from semspec.training.files import StageFolder

class Dying(StageFolder):
    def commit(self, number, *arguments, **facts):
        if number == 1:
            self.file(number, ".parquet.left.partial").write_text("half")
            os.kill(os.getpid(), signal.SIGKILL)
        super().commit(number, *arguments, **facts)

collect.PAGE = 2
asyncio.run(collect.fetch(Gateway.at(*sys.argv[1:3]), Dying(Path(sys.argv[3])), 100))
"""


@pytest.mark.slow
async def test_killed_collector_goes_on_and_loses_and_repeats_nothing(
    collecting: Any, tmp_path: Path
) -> None:
    gateway = await collecting()
    ids = [await ask(gateway, f"How many, {number}?") for number in range(5)]
    await gateway.metric_becomes(LISTED, 5)
    arguments = ["-c", KILLED, gateway.base_url, COLLECTOR, str(tmp_path)]
    process = await asyncio.create_subprocess_exec(sys.executable, *arguments)
    assert await process.wait() == -signal.SIGKILL
    assert [row["id"] for row in collected_rows(tmp_path)] == [
        row["id"] for row in rows(StageFolder(tmp_path))
    ]
    with alone(tmp_path) as folder:
        assert num_answers(folder) == 2 and folder.file(1, ".parquet").exists()
        assert await fetched(gateway, folder) == 3
        assert not list(tmp_path.glob("*.partial"))
        with (
            pytest.raises(Conflict, match="another `semspec train collect` writes"),
            alone(tmp_path),
        ):
            pass
    assert sorted(row["id"] for row in collected_rows(tmp_path)) == sorted(ids)


async def test_folder_of_other_models_is_refused_in_one_line(
    collecting: Any, tmp_path: Path
) -> None:
    gateway, folder = await collecting(), StageFolder(tmp_path)
    await ask(gateway)
    await gateway.metric_becomes(LISTED, 1)
    assert await fetched(gateway, folder) == 1
    recipe = json.loads((tmp_path / "recipe.json").read_text())
    recipe["target"]["fingerprint"] = "another"
    (tmp_path / "recipe.json").write_text(json.dumps(recipe))
    with pytest.raises(
        Mismatch, match=r"target\.fingerprint: 'another' there, .*; give another --output"
    ) as refusal:
        await fetched(gateway, folder)
    assert "\n" not in refusal.value.message and num_answers(folder) == 1


async def test_answers_of_an_owner_can_be_deleted(collecting: Any, tmp_path: Path) -> None:
    keys = f"{KEYS} {entry('carol', new := new_key())}:consents"
    gateway, folder = await collecting(api_keys=keys), StageFolder(tmp_path)
    for number, key in enumerate((ALICE, new, ALICE)):
        await ask(gateway, f"How many, {number}?", key)
    await gateway.metric_becomes(LISTED, 3)
    assert await fetched(gateway, folder) == 3
    assert [forget(folder, "alice"), forget(folder, "alice")] == [2, 0]
    assert [row["owner"] for row in collected_rows(tmp_path)] == ["carol"]
    assert await fetched(gateway, folder) == 0  # not fetched again
    assert forget(folder, "carol") == 1 and list(collected_rows(tmp_path)) == []


def test_damaged_shard_is_refused_by_name(tmp_path: Path) -> None:
    write_json(tmp_path / "recipe.json", {"collection": 1})
    folder = StageFolder(tmp_path)
    with pytest.raises(InvalidRequest, match="has no answers yet"):
        list(collected_rows(tmp_path))
    for number in range(2):
        row: dict[str, Any] = {"id": str(number), "pieces": [], "draft_prompt": None}
        write_rows(folder.file(number, ".parquet"), [row])
        folder.commit(number, [".parquet"], num_answers=1, next="0")
    write_rows(folder.file(2, ".parquet"), [row])  # of a collector that was killed
    assert [row["id"] for row in collected_rows(tmp_path)] == ["0", "1"]
    folder.file(1, ".parquet").write_bytes(b"cut")
    with pytest.raises(
        Mismatch, match=r"00001\.parquet is damaged; delete .*00001\.json to leave this shard out"
    ):
        list(collected_rows(tmp_path))
    folder.file(1, ".json").unlink()
    assert [row["id"] for row in collected_rows(tmp_path)] == ["0"]
