"""Two layers of the true configurations of R1-1.5B with R1-32B and with QwQ-32B through the whole stack."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from time import perf_counter

from semspec.engine.checkpoint import load_tokenizer
from semspec.reporting.files import write_json
from semspec.stack import Stack
from semspec_bench.gpu.shapes import PAPER
from studies.rehearsal.depth import Json, client, stack_config
from studies.rehearsal.models import (
    QWQ_ADDED,
    QWQ_TEMPLATE,
    R1_ADDED,
    R1_END,
    R1_TEMPLATE,
    link_model,
    qwen_tokenizer,
    save_model,
    save_probes,
)
from studies.rehearsal.processes import MEBIBYTE, Watch, series

DRAFT, TARGET = replace(PAPER.draft, num_layers=2), replace(PAPER.target, num_layers=2)
R1_DRAFT, R1_TARGET = "DeepSeek-R1-Distill-Qwen-1.5B", "DeepSeek-R1-Distill-Qwen-32B"
R1_WINDOW, QWQ_WINDOW = 131_072, 40_960
MAX_TOKENS = 32
SHARES = {"\n\n": 0.15, "</think>": 0.05, R1_END: 0.0}
SETTINGS = {f"SEMSPEC_{role}_{name}": value for role in ("DRAFT", "TARGET") for name, value in {
    "DTYPE": "bfloat16", "KV_BYTES": str(1024 * MEBIBYTE), "MAX_CONTEXT_TOKENS": "34816"}.items()}  # fmt: skip
TOOL = {
    "name": "add",
    "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
}
SCHEMA = {"type": "object", "properties": {"coins": {"type": "integer"}}, "required": ["coins"]}
STRATEGIES = ("target", "draft", "semantic", "token-level", "spec-reason", "spec-thinking")
REQUESTS: Mapping[str, Json] = {
    **{strategy: {"semspec": {"strategy": strategy}} for strategy in STRATEGIES},
    "semantic, last-hidden": {"semspec": {"strategy": "semantic", "probes": "last-hidden"}},
    "semantic, 3 at once": {"semspec": {"strategy": "semantic", "gamma": 3, "num_candidates": 2}},
    "semantic, greedy": {"semspec": {"strategy": "semantic"}, "temperature": 0},
    "semantic, n-grams": {"semspec": {"strategy": "semantic", "rewrite": "token-level"}},
    "JSON": {
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "coins", "schema": SCHEMA},
        }
    },
    "tools": {"tools": [{"type": "function", "function": TOOL}], "tool_choice": "required"},
    "logprobs, penalties": {
        "logprobs": True,
        "top_logprobs": 3,
        "presence_penalty": 0.5,
        "logit_bias": {"151000": 5},
    },
    "a prompt of 35,000 tokens": {"messages": [{"role": "user", "content": " coins" * 35_000}]},
}


def save_pairs(folder: Path) -> dict[str, Path]:
    """Both pairs, which share their weights; those that `folder` holds are kept."""
    pairs = {name: folder / name for name in ("r1", "qwq")}
    if folder.exists():
        return pairs
    r1, qwq = qwen_tokenizer(R1_ADDED, R1_TEMPLATE), qwen_tokenizer(QWQ_ADDED, QWQ_TEMPLATE)
    partial = folder.with_suffix(".partial")
    save_model(partial / R1_DRAFT, DRAFT, R1_WINDOW, r1, SHARES, 0)
    save_model(partial / R1_TARGET, TARGET, R1_WINDOW, r1, SHARES, 1)
    link_model(partial / R1_TARGET, partial / "QwQ-32B", TARGET, QWQ_WINDOW, qwq)
    for name, target in {"r1": R1_TARGET, "qwq": "QwQ-32B"}.items():
        for role, model in {"draft": R1_DRAFT, "target": target}.items():
            (partial / name).mkdir(exist_ok=True)
            (partial / name / role).symlink_to(f"../{model}")
        save_probes(partial / name)
    partial.rename(folder)
    return pairs


async def shapes(engine: str, output: Path, models: Path) -> None:
    """Every request to both pairs on one engine; writes a file of each pair."""
    for name, pair in save_pairs(models).items():
        config = stack_config(pair, engine)
        commands = {
            **config.commands,
            "gateway": (sys.executable, "-m", "semspec_bench.strategies"),
        }
        config = replace(config, commands=commands, environment={**config.environment, **SETTINGS})
        start = perf_counter()
        async with Stack(config) as stack:
            rows: Json = {
                "start": {"seconds": perf_counter() - start, "self-test": [*_self_tests(stack)]}
            }
            async with client(stack.base_url, stack.api_key) as http:
                watch = Watch(stack, lambda: 0)
                model = (await http.get("/v1/models")).json()["data"][0]["id"]
                rows["tokenize"] = (
                    await http.post("/tokenize", json={"model": model, "prompt": "52 coins"})
                ).json()
                bias = {
                    "logit_bias": {
                        str(
                            load_tokenizer(str(pair / "target")).convert_tokens_to_ids("</think>")
                        ): 12
                    }
                }
                for label, fields in REQUESTS.items():
                    fields = (
                        fields | bias if label in ("JSON", "tools") else fields
                    )  # else they think to the end
                    body = {
                        "model": model,
                        "messages": [{"role": "user", "content": "How many coins are 2 and 5?"}],
                    }
                    body |= {"seed": 3, "max_tokens": MAX_TOKENS} | fields
                    start = perf_counter()
                    response = await http.post("/v1/chat/completions", json=body)
                    rows[label] = {
                        "seconds": perf_counter() - start,
                        **_row(response.status_code, response.json()),
                    }
                    print(engine, name, label, rows[label], flush=True)
                    stack.processes["target"].check_alive()
                    await watch.look()
                peaks = {
                    role: max(series(watch.samples, role, "rss_bytes")) for role in stack.processes
                }
                rows["mebibytes"] = {role: round(peak / MEBIBYTE) for role, peak in peaks.items()}
        write_json(output / f"shapes-{engine}-{name}.json", rows)


def _row(status: int, answer: Json) -> Json:
    if "choices" not in answer:
        return {"status": status, "error": answer["error"]["message"]}
    [choice], semspec = answer["choices"], answer["semspec"]
    message = choice["message"]
    return {
        "status": status,
        "finish_reason": choice["finish_reason"],
        "num_tokens": answer["usage"]["completion_tokens"],
        "reasoning": message.get("reasoning_content"),
        "content": message["content"],
        "tool_calls": [call["function"] for call in message.get("tool_calls") or []],
        **{
            name: semspec.get(name)
            for name in ("num_segments", "acceptance_rate", "target_ratio", "fallback")
        },
    }


def _self_tests(stack: Stack) -> Iterator[str]:
    """What the services log of their self-tests."""
    for child in stack.processes.values():
        with suppress(OSError):
            yield from (line for line in child.log.read_text().splitlines() if "self-test" in line)
