"""Values without effect are accepted on every text route; what would have an effect and is not served is refused."""

from typing import Any

import pytest

from semspec_gateway.api.shared.requests import OPENAI_DEFAULTS, TGI_DEFAULTS
from tests.helpers.gateway import Gateway

ROUTES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "How many?"}]},
    "/v1/completions": {"prompt": "Once"},
}


@pytest.mark.parametrize("path", ROUTES)
async def test_values_without_effect_change_nothing(gateway: Gateway, path: str) -> None:
    body = {**ROUTES[path], "model": "semspec-demo", "seed": 7}
    plain = (await gateway.http.post(path, json=body)).json()
    neutral = {name: values[0] for name, values in OPENAI_DEFAULTS.items() if values}
    answer = await gateway.http.post(path, json={**body, **neutral})
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"] == plain["choices"]
    assert answer.json()["semspec"]["parameters"] == plain["semspec"]["parameters"]
    for name, value in (
        (name, value) for name, values in OPENAI_DEFAULTS.items() for value in values[1:]
    ):
        assert (await gateway.http.post(path, json={**body, name: value})).status_code == 200, name


@pytest.mark.parametrize("path", ROUTES)
async def test_null_selects_the_default_of_every_field(gateway: Gateway, path: str) -> None:
    document = gateway.app.openapi()
    schema = document["paths"][path]["post"]["requestBody"]["content"]["application/json"][
        "schema"
    ]["$ref"]
    fields = document["components"]["schemas"][schema.rpartition("/")[2]]["properties"]
    answer = await gateway.http.post(path, json={**dict.fromkeys(fields), **ROUTES[path]})
    assert answer.status_code == 200, answer.text
    options = dict.fromkeys(
        ("strategy", "acceptance", "retrieval", "trace", "session", "strictness", "gamma")
    )
    streamed = {"semspec": options, "stream": True, "stream_options": {"include_usage": None}}
    answer = await gateway.http.post(path, json={**ROUTES[path], **streamed})
    assert answer.status_code == 200 and answer.text.endswith("data: [DONE]\n\n"), answer.text


async def test_parameters_of_tgi_without_effect_change_nothing(gateway: Gateway) -> None:
    async def text(parameters: Any) -> str:
        answer = await gateway.http.post(
            "/generate", json={"inputs": "Once", "parameters": parameters, "semspec": None}
        )
        assert answer.status_code == 200, answer.text
        return str(answer.json()["generated_text"])

    neutral = {name: values[0] for name, values in TGI_DEFAULTS.items() if values}
    assert await text({"seed": 7, **neutral}) == await text({"seed": 7})
    nulls = dict.fromkeys(
        (*TGI_DEFAULTS, "do_sample", "stop", "temperature", "top_k", "top_p", "details")
    )
    assert await text({"seed": 7, **nulls}) == await text({"seed": 7})
    assert await text(None)


@pytest.mark.parametrize(
    "fields", [{}, {"model": None}, {"model": "tgi"}, {"model": "dummy"}], ids=str
)
@pytest.mark.parametrize("path", ROUTES)
async def test_request_that_names_no_model_gets_the_pair(
    gateway: Gateway, path: str, fields: dict[str, Any]
) -> None:
    answer = await gateway.http.post(path, json={**ROUTES[path], **fields})
    assert answer.status_code == 200 and answer.json()["model"] == "semspec-demo"
    assert answer.json()["semspec"]["strategy"] == "semantic"
