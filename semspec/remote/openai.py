"""Client of servers with OpenAI's completions API (vLLM, SGLang, this gateway), based on OpenAI's library."""

from collections.abc import AsyncGenerator

from openai import AsyncOpenAI, omit

from semspec.remote.client import Completion, Delta, Server, translate_errors, with_timeouts
from semspec.types import SegmentEnd


class OpenAIClient:
    """See `semspec.remote.client.CompletionClient`."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._client = AsyncOpenAI(
            base_url=server.url,
            api_key=server.token or "none",
            timeout=server.timeout_s,
            max_retries=server.max_retries,
        )

    async def served(self) -> list[str]:
        with translate_errors(self._server):
            return [model.id async for model in self._client.models.list()]

    async def stream(self, completion: Completion) -> AsyncGenerator[Delta, None]:
        """Does not send `stop_at`: the finish reason "stop" would not distinguish it from end-of-sequence."""
        sampling = completion.sampling
        with translate_errors(self._server):
            stream = await self._client.completions.create(
                model=str(self._server.model),
                prompt=completion.prompt,
                stream=True,
                max_tokens=completion.max_tokens,
                temperature=sampling.temperature,
                top_p=sampling.top_p,
                seed=omit if completion.seed is None else completion.seed,
                extra_body={"top_k": sampling.top_k} if sampling.top_k else None,
            )
            async with stream:
                async for chunk in with_timeouts(stream, self._server.timeout_s):
                    for choice in chunk.choices:
                        yield Delta(choice.text or "", _end(choice.finish_reason))

    async def aclose(self) -> None:
        await self._client.close()


def _end(reason: str | None) -> SegmentEnd | None:
    if not reason:
        return None
    return SegmentEnd.LENGTH if reason == "length" else SegmentEnd.EOS
