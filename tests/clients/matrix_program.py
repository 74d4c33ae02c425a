"""`matrix_program.py CLIENT URL KEY MODEL`: prints in JSON what each capability of a client gave.

It runs with an interpreter that has the client, and imports nothing of this repository. A capability gives
`{"text": ...}`, `{"parts": [...]}` or `{"error": ...}`.
"""

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

Capabilities = dict[str, Callable[..., Any]]
"""By name; each gives a text, or the parts of one. `chat` takes more fields of the request."""

QUESTION = os.environ.get("SEMSPEC_CLIENTS_QUESTION") or (
    "Style 1. Ivy passes to Finn. Finn passes to Hugo. Kate passes to Ivy. Leo passes to Bea. Fay passes to Kate."
    " Bea passes to Hana. Hana passes to Fay. Hugo passes to Leo. Cards: Hana 65, Hugo 22, Finn 77, Leo 49, Ivy "
    "55, Bea 88, Kate 37, Fay 19. The ball starts with Hugo. Round 1: 1 pass. Round 2: 4 passes. Round 3: 2 "
    "passes. Round 4: 1 pass. Round 5: 1 pass. Round 6: 1 pass. Which card has the ball at the end?"
)
"""Of the bundled pair, unless the test names another."""
IS_NATURAL = bool(os.environ.get("SEMSPEC_CLIENTS_QUESTION"))
OPENING = "" if IS_NATURAL else "<think>\n\n"
"""With which the chat template opens the assistant's turn."""
PROMPT = f"<|im_start|>user\n{QUESTION}<|im_end|>\n<|im_start|>assistant\n{OPENING}"
TIMEOUT_S = 300
"""For a client whose own limit is a few seconds."""
MESSAGES = [{"role": "user", "content": QUESTION}]
ROOT = Path(__file__).resolve().parents[2]
ANOTHER = "no-such-model"
OF = {"type": "string", "maxLength": 9}
PARAMETERS = {
    "type": "object",
    "properties": {"of": OF},
    "required": ["of"],
    "additionalProperties": False,
}
FUNCTION = {"name": "count", "description": "Count things.", "parameters": PARAMETERS}
TOOL = {"type": "function", "function": FUNCTION}
FORMAT: dict[str, Any] = {
    "type": "json_schema",
    "json_schema": {"name": "Count", "schema": PARAMETERS},
}


def openai(url: str, key: str, model: str) -> Capabilities:
    client = import_module("openai").OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0)
    create = partial(client.chat.completions.create, model=model, messages=MESSAGES)
    return capabilities(
        lambda **fields: said(create(**fields).choices[0].message),
        lambda: (
            choice.delta.content or "" for chunk in create(stream=True) for choice in chunk.choices
        ),
    )


def openai_responses(url: str, key: str, model: str) -> Capabilities:
    client = import_module("openai").OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0)
    create = partial(client.responses.create, model=model, input=QUESTION)

    def tools() -> str:
        answer = create(tools=[{"type": "function", **FUNCTION, "strict": True}])
        calls = [item.arguments for item in answer.output if item.type == "function_call"]
        return " ".join(calls) or str(answer.output_text)

    return capabilities(
        lambda: str(create().output_text),
        lambda: (
            event.delta
            for event in create(stream=True)
            if event.type == "response.output_text.delta"
        ),
        tools=tools,
        json=lambda: str(
            create(text={"format": {"type": "json_schema", **FORMAT["json_schema"]}}).output_text
        ),
    )


def langchain(url: str, key: str, model: str) -> Capabilities:
    made = import_module("langchain_openai").ChatOpenAI(
        base_url=f"{url}/v1", api_key=key, model=model, max_retries=0
    )
    return capabilities(
        lambda: str(made.invoke(QUESTION).text),
        lambda: (chunk.text for chunk in made.stream(QUESTION)),
        tools=lambda: str(made.bind_tools([TOOL]).invoke(QUESTION)),
        json=lambda: str(
            made.with_structured_output({"title": "Count", **PARAMETERS}).invoke(QUESTION)
        ),
    )


def huggingface_hub(url: str, key: str, model: str) -> Capabilities:
    """Without a name for the model, as its documentation has it for TGI."""
    client = import_module("huggingface_hub").InferenceClient(base_url=url, token=key)
    create = partial(
        client.chat_completion, MESSAGES, **({"model": ANOTHER} if model == ANOTHER else {})
    )
    return capabilities(
        lambda **fields: said(create(**fields).choices[0].message),
        lambda: (
            choice.delta.content or "" for chunk in create(stream=True) for choice in chunk.choices
        ),
    )


def text_generation(url: str, key: str, model: str) -> Capabilities:
    """A stream of `/generate_stream`: its streamed chat cannot read `[DONE]`. Refused is a field: it names no model."""
    headers = {"authorization": f"Bearer {key}"}
    client = import_module("text_generation").Client(url, headers=headers, timeout=TIMEOUT_S)
    message = import_module("text_generation.types").Message(role="user", content=QUESTION)
    grammar = {"type": "json", "value": PARAMETERS}
    return capabilities(
        lambda **fields: said(client.chat([message], **fields).choices[0].message),
        lambda: (event.token.text for event in client.generate_stream(PROMPT, max_new_tokens=500)),
        json=lambda: str(client.generate(QUESTION, grammar=grammar).generated_text),
        errors=lambda: str(client.generate(QUESTION, truncate=5).generated_text),
    )


def curl(url: str, key: str, model: str) -> Capabilities:
    def chat(**fields: Any) -> str:
        body = json.dumps({"model": model, "messages": MESSAGES, **fields})
        headers = ["-H", f"authorization: Bearer {key}", "-H", "content-type: application/json"]
        command = [
            "curl",
            "-sSN",
            "--fail-with-body",
            f"{url}/v1/chat/completions",
            *headers,
            "-d",
            body,
        ]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(done.stdout + done.stderr)
        return done.stdout

    def stream() -> list[str]:
        chunks = [
            json.loads(line[6:])
            for line in chat(stream=True).splitlines()
            if line.startswith("data: {")
        ]
        return [
            choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"]
        ]

    return capabilities(chat, stream)


def openai_agents(url: str, key: str, model: str) -> Capabilities:
    agents = import_module("agents")
    agents.set_tracing_disabled(True)
    client = import_module("openai").AsyncOpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0)
    own = agents.OpenAIChatCompletionsModel(model, client)
    agent = partial(agents.Agent, name="counter", instructions="Be brief.", model=own)
    must_call = agents.ModelSettings(tool_choice="required")  # until the first call

    def chat(**fields: Any) -> str:
        return str(agents.Runner.run_sync(agent(**fields), QUESTION).final_output)

    async def stream() -> AsyncIterator[str]:
        async for event in agents.Runner.run_streamed(agent(), QUESTION).stream_events():
            if (
                event.type == "raw_response_event"
                and event.data.type == "response.output_text.delta"
            ):
                yield event.data.delta

    return capabilities(
        chat,
        lambda: collected(stream()),
        tools=lambda: chat(tools=[agents.function_tool(count)], model_settings=must_call),
        json=lambda: chat(output_type=counted()),
    )


def pydantic_ai(url: str, key: str, model: str) -> Capabilities:
    library, models = import_module("pydantic_ai"), import_module("pydantic_ai.models.openai")
    provider = import_module("pydantic_ai.providers.openai").OpenAIProvider(f"{url}/v1", key)
    agent = partial(library.Agent, models.OpenAIChatModel(model, provider=provider))

    def chat(**fields: Any) -> str:
        return str(agent(**fields).run_sync(QUESTION).output)

    async def stream() -> AsyncIterator[str]:
        async with agent().run_stream(QUESTION) as run:
            async for text in run.stream_text(delta=True, debounce_by=None):
                yield text

    return capabilities(
        chat,
        lambda: collected(stream()),
        tools=lambda: chat(tools=[count]),
        json=lambda: chat(output_type=library.NativeOutput(counted())),
    )


def smolagents(url: str, key: str, model: str) -> Capabilities:
    library = import_module("smolagents")
    made = library.OpenAIModel(model, api_base=f"{url}/v1", api_key=key)

    def chat(**fields: Any) -> str:
        return said(made.generate(MESSAGES, **fields))

    return capabilities(
        chat,
        lambda: (delta.content or "" for delta in made.generate_stream(MESSAGES)),
        tools=lambda: chat(tools_to_call_from=[library.tool(count)]),
    )


def haystack(url: str, key: str, model: str) -> Capabilities:
    generator = import_module("haystack.components.generators.chat").OpenAIChatGenerator
    secret = import_module("haystack.utils").Secret.from_token(key)
    message = import_module("haystack.dataclasses").ChatMessage.from_user(QUESTION)

    def run(**fields: Any) -> str:
        made = generator(
            api_key=secret, model=model, api_base_url=f"{url}/v1", max_retries=0, **fields
        )
        reply = made.run([message])["replies"][0]
        return str(reply.tool_calls or reply.text)

    def stream() -> list[str]:
        parts = list[str]()
        run(streaming_callback=lambda chunk: parts.append(chunk.content))
        return parts

    return capabilities(
        lambda **fields: run(generation_kwargs=fields),
        stream,
        tools=lambda: run(tools=[import_module("haystack.tools").create_tool_from_function(count)]),
    )


def autogen(url: str, key: str, model: str) -> Capabilities:
    info = {"vision": False, "function_calling": True, "json_output": True, "family": "unknown"}
    client = import_module("autogen_ext.models.openai").OpenAIChatCompletionClient(
        model=model,
        base_url=f"{url}/v1",
        api_key=key,
        max_retries=0,
        model_info={**info, "structured_output": True},
    )
    asked = [import_module("autogen_core.models").UserMessage(content=QUESTION, source="user")]

    def chat(**fields: Any) -> str:
        return str(asyncio.run(client.create(asked, **fields)).content)

    def tools() -> str:
        return chat(
            tools=[
                import_module("autogen_core.tools").FunctionTool(count, description="Count things.")
            ]
        )

    return capabilities(
        chat,
        lambda: [part for part in collected(client.create_stream(asked)) if isinstance(part, str)],
        tools=tools,
        json=lambda: chat(json_output=counted()),
    )


def instructor(url: str, key: str, model: str) -> Capabilities:
    """Structured output is all it does: as a tool's call, or as JSON."""
    library = import_module("instructor")
    client = import_module("openai").OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0)

    def extracted(mode: str) -> str:
        completions = library.from_openai(client, mode=library.Mode[mode]).chat.completions
        return str(
            completions.create(
                model=model, messages=MESSAGES, response_model=counted(), max_retries=1
            )
        )

    return {
        "tools": lambda: extracted("TOOLS"),
        "json": lambda: extracted("JSON_SCHEMA"),
        "errors": lambda: extracted("TOOLS"),
    }


def aisuite(url: str, key: str, model: str) -> Capabilities:
    made = import_module("aisuite").Client({"openai": {"base_url": f"{url}/v1", "api_key": key}})
    create = partial(made.chat.completions.create, model=f"openai:{model}", messages=MESSAGES)
    return capabilities(lambda **fields: said(create(**fields).choices[0].message))


def ai_sdk(url: str, key: str, model: str) -> Capabilities:
    """Vercel's, by Node.js."""

    def run(capability: str) -> Any:
        packages = ROOT / ".work" / "venvs" / "ai-sdk"
        program = Path(__file__).with_name("ai_sdk.mjs")
        command = ["node", str(program), str(packages), capability, url, key, model, QUESTION]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(done.stderr)
        return json.loads(done.stdout)

    names = {"errors": "chat", **{name: name for name in ("chat", "stream", "tools", "json")}}
    return {name: partial(run, capability) for name, capability in names.items()}


def lm_eval(url: str, key: str, model: str) -> Capabilities:
    """Runs the task of docs/clients.md on one question."""

    def chat() -> str:
        [task] = re.findall(
            r"```yaml\n(task: cards\n.*?)```", (ROOT / "docs" / "clients.md").read_text(), re.DOTALL
        )
        files = {
            "cards.yaml": task,
            "cards.jsonl": json.dumps({"question": QUESTION, "answer": "88"}),
        }
        options = "--model local-chat-completions --tasks cards --include_path . --apply_chat_template --log_samples"
        server = [
            "--output_path",
            ".",
            "--model_args",
            f"model={model},base_url={url}/v1/chat/completions",
        ]
        return str(
            harness(key, files, "samples*.jsonl", "lm_eval", "run", *options.split(), *server)[
                "resps"
            ][0][0]
        )

    return {"chat": chat}


def guidellm(url: str, key: str, model: str) -> Capabilities:
    """Wants a number of tokens, so it sends `ignore_eos`."""

    def stream() -> str:
        files = {"data.jsonl": json.dumps({"prompt": QUESTION, "output_tokens_count": 200})}
        options = (
            "--profile kind=synchronous --constraint kind=max_requests,count=1 --disable-console"
        )
        places = (
            "--data kind=json_file,path=data.jsonl --output kind=json,path=report.json --backend"
        )
        server = f"kind=openai_http,target={url},api_key={key},model={model}"
        report = harness(
            key, files, "report.json", "guidellm", "run", *options.split(), *places.split(), server
        )
        [request] = report["benchmarks"][0]["requests"]["successful"]
        return f"{request['reasoning_output'] or ''}{request['output']}"

    return {"stream": stream}


def harness(key: str, files: dict[str, str], result: str, program: str, *arguments: str) -> Any:
    """The file in JSON that a program of this environment writes to a folder with these files."""
    with TemporaryDirectory() as folder:
        for name, text in files.items():
            Path(folder, name).write_text(text)
        command = [f"{sys.exec_prefix}/bin/{program}", *arguments]
        environment = {**os.environ, "OPENAI_API_KEY": key}
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
        found = next(Path(folder).rglob(result), None)
        if found is None:
            raise RuntimeError(done.stdout + done.stderr)
        return json.loads(found.read_text())


def capabilities(
    chat: Callable[..., str], stream: Callable[[], Any] | None = None, **own: Any
) -> Capabilities:
    """Tools and JSON are asked for by OpenAI's fields of `chat`, unless a client has ways of its own."""
    by_fields = {
        "tools": partial(chat, tools=[TOOL]),
        "json": partial(chat, response_format=FORMAT),
    }
    return {
        "chat": chat,
        **({"stream": stream} if stream else {}),
        **by_fields,
        "errors": chat,
        **own,
    }


def collected(stream: AsyncIterator[Any]) -> list[Any]:
    async def parts() -> list[Any]:
        return [part async for part in stream]

    return asyncio.run(parts())


def said(message: Any) -> str:
    """A message's calls, or else its text."""
    return str(getattr(message, "tool_calls", None) or message.content)


def counted() -> Any:
    """A model of the answer that is to be structured."""
    return import_module("pydantic").create_model("Count", number=int)


def count(of: str) -> str:
    """Count things.

    Args:
        of: What to count.
    """
    return f"The result is \\boxed{{{len(of)}}}. Tell the user." if IS_NATURAL else str(len(of))


CLIENTS: dict[str, Callable[[str, str, str], Capabilities]] = {
    "openai": openai,
    "openai-responses": openai_responses,
    "langchain-openai": langchain,
    "huggingface_hub": huggingface_hub,
    "text-generation": text_generation,
    "curl": curl,
    "openai-agents": openai_agents,
    "pydantic-ai": pydantic_ai,
    "smolagents": smolagents,
    "haystack-ai": haystack,
    "autogen": autogen,
    "instructor": instructor,
    "aisuite": aisuite,
    "ai-sdk": ai_sdk,
    "lm_eval": lm_eval,
    "guidellm": guidellm,
}


def outcome(capability: str, client: str, url: str, key: str, model: str) -> dict[str, object]:
    """What a capability gave; nothing, if the client does not have it."""
    try:
        call = CLIENTS[client](url, key, ANOTHER if capability == "errors" else model).get(
            capability
        )
        if call is None:
            return {}
        found = call()
        return {"text": found} if isinstance(found, str) else {"parts": list(found)}
    except BaseException as error:  # whatever a client raises
        chain = [error, error.__cause__, error.__context__]
        return {"error": " ".join(str(one) for one in chain if one is not None)}


if __name__ == "__main__":
    names = ("chat", "stream", "tools", "json", "errors")
    sys.stdout.write(json.dumps({name: outcome(name, *sys.argv[1:]) for name in names}))
