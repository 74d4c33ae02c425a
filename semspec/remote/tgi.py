"""Text Generation Inference, by the client that huggingface_hub maintains."""

from collections.abc import AsyncGenerator
from typing import Any

from huggingface_hub import AsyncInferenceClient, get_async_session, hf_raise_for_status

from semspec.remote.client import Completion, Delta, Server, paced, translated
from semspec.types import SamplingParams, SegmentEnd

ENDS = {"eos_token": SegmentEnd.EOS, "stop_sequence": SegmentEnd.BOUNDARY, "length": SegmentEnd.LENGTH}


class TgiClient:
    """See `semspec.remote.client.CompletionClient`."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._url = server.url.rstrip("/")
        # Without a header of ours the client would send the token of the user who is logged in to the hub.
        self._headers: dict[str, Any] = {"authorization": f"Bearer {server.token}" if server.token else None}

    async def served(self) -> list[str]:
        headers = {name: value for name, value in self._headers.items() if value}
        with translated(self._server):
            async with get_async_session() as http:
                response = await http.get(f"{self._url}/info", headers=headers, timeout=self._server.timeout_s)
                hf_raise_for_status(response)
                return [str(response.json()["model_id"])]

    async def stream(self, completion: Completion) -> AsyncGenerator[Delta, None]:
        stop, text = completion.stop_at, ""
        # A client keeps its responses open until it is closed itself: with one a stream, leaving hangs up.
        client = AsyncInferenceClient(base_url=self._url, headers=self._headers, timeout=self._server.timeout_s)
        with translated(self._server):
            async with client:
                events = await client.text_generation(
                    completion.prompt,
                    stream=True,
                    details=True,
                    max_new_tokens=completion.max_tokens,
                    seed=completion.seed,
                    stop=[stop] if stop else None,
                    **_drawn(completion.sampling),
                )
                async for event in paced(events, self._server.timeout_s):
                    delta = "" if event.token.special else event.token.text
                    end = ENDS[event.details.finish_reason] if event.details else None
                    text += delta
                    if stop and end is SegmentEnd.BOUNDARY and not text.endswith(stop):
                        delta += stop  # TGI tells it; others that speak its API may keep it back, as OpenAI's do
                    yield Delta(delta, end)

    async def aclose(self) -> None:
        """Nothing outlives its stream."""


def _drawn(sampling: SamplingParams) -> dict[str, Any]:
    """Greedy says nothing of the filters: to TGI any of them means to sample."""
    if sampling.temperature == 0:
        return {"do_sample": False}
    drawn: dict[str, Any] = {"do_sample": True, "temperature": sampling.temperature}
    if sampling.top_p < 1:
        drawn["top_p"] = sampling.top_p
    if sampling.top_k:
        drawn["top_k"] = sampling.top_k
    return drawn
