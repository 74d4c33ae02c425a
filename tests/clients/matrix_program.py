"""`matrix_program.py CLIENT URL KEY MODEL`: prints in JSON what each capability of a client gave.

It runs with an interpreter that has the client, and imports nothing of this repository. A capability gives
`{"text": ...}`, `{"parts": [...]}` or `{"error": ...}`.
"""

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

QUESTION = "How many?"
ANOTHER = "no-such-model"
TOOL = {
    "type": "function",
    "function": {
        "name": "count",
        "description": "Count things.",
        "parameters": {"type": "object", "properties": {"of": {"type": "string"}}, "required": ["of"]},
    },
}
JSON_OBJECT = {"type": "json_object"}


class Client:
    """One client; a capability that it does not have raises NotImplementedError."""

    def __init__(self, url: str, key: str, model: str) -> None:
        self.url, self.key, self.model = url, key, model

    def chat(self, **fields: Any) -> str:
        raise NotImplementedError

    def stream(self) -> Iterator[str]:
        raise NotImplementedError

    def tools(self) -> str:
        return self.chat(tools=[TOOL])

    def json(self) -> str:
        return self.chat(response_format=JSON_OBJECT)

    def errors(self) -> str:
        self.model = ANOTHER
        return self.chat()

    @property
    def messages(self) -> list[Any]:
        return [{"role": "user", "content": QUESTION}]


class Openai(Client):
    def made(self) -> Any:
        return import_module("openai").OpenAI(base_url=f"{self.url}/v1", api_key=self.key, max_retries=0)

    def chat(self, **fields: Any) -> str:
        answer = self.made().chat.completions.create(model=self.model, messages=self.messages, **fields)
        return said(answer.choices[0].message)

    def stream(self) -> Iterator[str]:
        for chunk in self.made().chat.completions.create(model=self.model, messages=self.messages, stream=True):
            yield from (choice.delta.content or "" for choice in chunk.choices)


class OpenaiResponses(Openai):
    def chat(self, **fields: Any) -> str:
        return str(self.made().responses.create(model=self.model, input=QUESTION, **fields).output_text)

    def stream(self) -> Iterator[str]:
        for event in self.made().responses.create(model=self.model, input=QUESTION, stream=True):
            if event.type == "response.output_text.delta":
                yield event.delta

    def tools(self) -> str:
        tool = {"type": "function", **TOOL["function"], "strict": True}  # type: ignore[dict-item]
        answer = self.made().responses.create(model=self.model, input=QUESTION, tools=[tool])
        calls = [item.arguments for item in answer.output if item.type == "function_call"]
        return " ".join(calls) or str(answer.output_text)

    def json(self) -> str:
        return self.chat(text={"format": JSON_OBJECT})


class Langchain(Client):
    def made(self) -> Any:
        return import_module("langchain_openai").ChatOpenAI(
            base_url=f"{self.url}/v1", api_key=self.key, model=self.model, max_retries=0
        )

    def chat(self, **fields: Any) -> str:
        return str(self.made().invoke(QUESTION).text)

    def stream(self) -> Iterator[str]:
        for chunk in self.made().stream(QUESTION):
            yield chunk.text

    def tools(self) -> str:
        return str(self.made().bind_tools([TOOL]).invoke(QUESTION))

    def json(self) -> str:
        schema = {"title": "Count", **TOOL["function"]["parameters"]}  # type: ignore[index]
        return str(self.made().with_structured_output(schema).invoke(QUESTION))


class HuggingfaceHub(Client):
    """Without a name for the model, as its documentation has it for TGI; refusals by a field that TGI does not have."""

    def made(self) -> Any:
        return import_module("huggingface_hub").InferenceClient(base_url=self.url, token=self.key)

    def chat(self, **fields: Any) -> str:
        named = {"model": ANOTHER} if self.model == ANOTHER else {}
        return said(self.made().chat_completion(self.messages, **named, **fields).choices[0].message)

    def stream(self) -> Iterator[str]:
        client = self.made()  # which closes its streams when it is collected
        for chunk in client.chat_completion(self.messages, stream=True):
            yield from (choice.delta.content or "" for choice in chunk.choices)


class TextGeneration(Client):
    """`chat`, and a stream of `/generate_stream`: its streamed chat cannot read `[DONE]`."""

    def made(self) -> Any:
        return import_module("text_generation").Client(self.url, headers={"authorization": f"Bearer {self.key}"})

    def chat(self, **fields: Any) -> str:
        message = import_module("text_generation.types").Message(role="user", content=QUESTION)
        return said(self.made().chat([message], **fields).choices[0].message)

    def stream(self) -> Iterator[str]:
        for event in self.made().generate_stream(QUESTION):
            yield event.token.text

    def json(self) -> str:
        grammar = {"type": "json", "value": TOOL["function"]["parameters"]}  # type: ignore[index]
        return str(self.made().generate(QUESTION, grammar=grammar).generated_text)

    def errors(self) -> str:
        return str(self.made().generate(QUESTION, truncate=5).generated_text)


class Curl(Client):
    def chat(self, **fields: Any) -> str:
        body = json.dumps({"model": self.model, "messages": self.messages, **fields})
        headers = ["-H", f"authorization: Bearer {self.key}", "-H", "content-type: application/json"]
        command = ["curl", "-sSN", "--fail-with-body", f"{self.url}/v1/chat/completions", *headers, "-d", body]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(done.stdout + done.stderr)
        return done.stdout

    def stream(self) -> Iterator[str]:
        for line in self.chat(stream=True).splitlines():
            if line.startswith("data: {"):
                yield from (choice["delta"].get("content") or "" for choice in json.loads(line[6:])["choices"])


class OpenaiAgents(Client):
    def agent(self, **fields: Any) -> Any:
        agents, openai = import_module("agents"), import_module("openai")
        agents.set_tracing_disabled(True)
        client = openai.AsyncOpenAI(base_url=f"{self.url}/v1", api_key=self.key, max_retries=0)
        model = agents.OpenAIChatCompletionsModel(self.model, client)
        return agents.Agent(name="counter", instructions="Be brief.", model=model, **fields)

    def chat(self, **fields: Any) -> str:
        return str(import_module("agents").Runner.run_sync(self.agent(**fields), QUESTION).final_output)

    def stream(self) -> Iterator[str]:
        async def collected() -> list[str]:
            run = import_module("agents").Runner.run_streamed(self.agent(), QUESTION)
            events = [event async for event in run.stream_events() if event.type == "raw_response_event"]
            return [event.data.delta for event in events if event.data.type == "response.output_text.delta"]

        yield from asyncio.run(collected())

    def tools(self) -> str:
        return self.chat(tools=[import_module("agents").function_tool(count)])

    def json(self) -> str:
        return self.chat(output_type=import_module("pydantic").create_model("Count", number=int))


class PydanticAi(Client):
    def agent(self, **fields: Any) -> Any:
        models = import_module("pydantic_ai.models.openai")
        provider = import_module("pydantic_ai.providers.openai").OpenAIProvider(f"{self.url}/v1", self.key)
        return import_module("pydantic_ai").Agent(models.OpenAIChatModel(self.model, provider=provider), **fields)

    def chat(self, **fields: Any) -> str:
        return str(self.agent(**fields).run_sync(QUESTION).output)

    def stream(self) -> Iterator[str]:
        async def collected() -> list[str]:
            async with self.agent().run_stream(QUESTION) as run:
                return [text async for text in run.stream_text(delta=True, debounce_by=None)]

        yield from asyncio.run(collected())

    def tools(self) -> str:
        return self.chat(tools=[count])

    def json(self) -> str:
        native = import_module("pydantic_ai").NativeOutput
        return self.chat(output_type=native(import_module("pydantic").create_model("Count", number=int)))


class Smolagents(Client):
    def made(self) -> Any:
        return import_module("smolagents").OpenAIModel(self.model, api_base=f"{self.url}/v1", api_key=self.key)

    def chat(self, **fields: Any) -> str:
        return said(self.made().generate(self.messages, **fields))

    def stream(self) -> Iterator[str]:
        for delta in self.made().generate_stream(self.messages):
            yield delta.content or ""

    def tools(self) -> str:
        return self.chat(tools_to_call_from=[import_module("smolagents").tool(count)])


class Haystack(Client):
    def made(self, **fields: Any) -> Any:
        secret = import_module("haystack.utils").Secret.from_token(self.key)
        generator = import_module("haystack.components.generators.chat").OpenAIChatGenerator
        return generator(api_key=secret, model=self.model, api_base_url=f"{self.url}/v1", max_retries=0, **fields)

    def run(self, **fields: Any) -> str:
        message = import_module("haystack.dataclasses").ChatMessage.from_user(QUESTION)
        reply = self.made(**fields).run([message])["replies"][0]
        return str(reply.tool_calls or reply.text)

    def chat(self, **fields: Any) -> str:
        return self.run(generation_kwargs=fields)

    def stream(self) -> Iterator[str]:
        parts = list[str]()
        self.run(streaming_callback=lambda chunk: parts.append(chunk.content))
        yield from parts

    def tools(self) -> str:
        tool = import_module("haystack.tools").create_tool_from_function(count)
        return self.run(tools=[tool])


class Autogen(Client):
    def made(self) -> Any:
        info = {"vision": False, "function_calling": True, "json_output": True, "family": "unknown"}
        return import_module("autogen_ext.models.openai").OpenAIChatCompletionClient(
            model=self.model,
            base_url=f"{self.url}/v1",
            api_key=self.key,
            max_retries=0,
            include_name_in_message=False,  # names of participants are refused, since templates do not show them
            model_info={**info, "structured_output": True},
        )

    def asked(self) -> list[Any]:
        return [import_module("autogen_core.models").UserMessage(content=QUESTION, source="user")]

    def chat(self, **fields: Any) -> str:
        return str(asyncio.run(self.made().create(self.asked(), **fields)).content)

    def stream(self) -> Iterator[str]:
        async def collected() -> list[str]:
            return [part async for part in self.made().create_stream(self.asked()) if isinstance(part, str)]

        yield from asyncio.run(collected())

    def tools(self) -> str:
        tool = import_module("autogen_core.tools").FunctionTool(count, description="Count things.")
        return self.chat(tools=[tool])

    def json(self) -> str:
        return self.chat(json_output=True)


class Instructor(Client):
    """Structured output is all it does: as a tool's call, or as JSON."""

    def extracted(self, mode: str) -> str:
        instructor, openai = import_module("instructor"), import_module("openai")
        client = openai.OpenAI(base_url=f"{self.url}/v1", api_key=self.key, max_retries=0)
        model = import_module("pydantic").create_model("Count", number=int)
        return str(
            instructor.from_openai(client, mode=instructor.Mode[mode]).chat.completions.create(
                model=self.model, messages=self.messages, response_model=model, max_retries=1
            )
        )

    def tools(self) -> str:
        return self.extracted("TOOLS")

    def json(self) -> str:
        return self.extracted("JSON")

    def errors(self) -> str:
        self.model = ANOTHER
        return self.extracted("JSON")


class Aisuite(Client):
    def chat(self, **fields: Any) -> str:
        made = import_module("aisuite").Client({"openai": {"base_url": f"{self.url}/v1", "api_key": self.key}})
        answer = made.chat.completions.create(model=f"openai:{self.model}", messages=self.messages, **fields)
        return said(answer.choices[0].message)


class AiSdk(Client):
    """Vercel's, by Node.js."""

    def run(self, capability: str) -> Any:
        packages = Path(__file__).resolve().parents[2] / ".work" / "venvs" / "ai-sdk"
        program = Path(__file__).with_name("ai_sdk.mjs")
        command = ["node", str(program), str(packages), capability, self.url, self.key, self.model]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(done.stderr)
        return json.loads(done.stdout)

    def chat(self, **fields: Any) -> str:
        return str(self.run("chat"))

    def stream(self) -> Iterator[str]:
        yield from self.run("stream")

    def tools(self) -> str:
        return str(self.run("tools"))

    def json(self) -> str:
        return str(self.run("json"))


def said(message: Any) -> str:
    """A message's calls, or else its text."""
    return str(getattr(message, "tool_calls", None) or message.content)


def count(of: str) -> int:
    """Count things.

    Args:
        of: What to count.
    """
    return len(of)


CLIENTS: dict[str, type[Client]] = {
    "openai": Openai,
    "openai-responses": OpenaiResponses,
    "langchain-openai": Langchain,
    "huggingface_hub": HuggingfaceHub,
    "text-generation": TextGeneration,
    "curl": Curl,
    "openai-agents": OpenaiAgents,
    "pydantic-ai": PydanticAi,
    "smolagents": Smolagents,
    "haystack-ai": Haystack,
    "autogen": Autogen,
    "instructor": Instructor,
    "aisuite": Aisuite,
    "ai-sdk": AiSdk,
}


def outcome(call: Callable[[], object]) -> dict[str, object]:
    """What a capability gave."""
    try:
        found = call()
        return {"text": found} if isinstance(found, str) else {"parts": list(found)}  # type: ignore[call-overload]
    except NotImplementedError:
        return {}
    except BaseException as error:  # whatever a client raises
        chain = [error, error.__cause__, error.__context__]
        return {"error": " ".join(str(one) for one in chain if one is not None)}


def main(name: str, url: str, key: str, model: str) -> None:
    made = CLIENTS[name]
    names = ("chat", "stream", "tools", "json", "errors")
    found = {capability: outcome(getattr(made(url, key, model), capability)) for capability in names}
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
