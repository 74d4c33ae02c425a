"""Client of Text Generation Inference, based on huggingface_hub."""

from collections.abc import AsyncGenerator
from typing import Any

from huggingface_hub import AsyncInferenceClient, get_async_session, hf_raise_for_status

from semspec.reasoning import FORMS
from semspec.remote.client import Completion, Delta, Server, translate_errors, with_timeouts
from semspec.types import SamplingParams, SegmentEnd

MARKS = frozenset().union(*(form.marks for form in FORMS))
"""Tokens that are part of the text even if the server calls them special."""
ENDS = {
    "eos_token": SegmentEnd.EOS,
    "stop_sequence": SegmentEnd.BOUNDARY,
    "length": SegmentEnd.LENGTH,
}


class TgiClient:
    """See `semspec.remote.client.CompletionClient`."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._url = server.url.rstrip("/")
        # Without this header the client would send the hub token of the logged-in user.
        self._headers: dict[str, Any] = {
            "authorization": f"Bearer {server.token}" if server.token else None
        }

    async def served(self) -> list[str]:
        headers = {name: value for name, value in self._headers.items() if value}
        with translate_errors(self._server):
            async with get_async_session() as http:
                response = await http.get(
                    f"{self._url}/info", headers=headers, timeout=self._server.timeout_s
                )
                hf_raise_for_status(response)
                return [str(response.json()["model_id"])]

    async def stream(self, completion: Completion) -> AsyncGenerator[Delta, None]:
        stop, text = completion.stop_at, ""
        # A client keeps its responses open until it is closed, so each stream has its own client.
        client = AsyncInferenceClient(
            base_url=self._url, headers=self._headers, timeout=self._server.timeout_s
        )
        with translate_errors(self._server):
            async with client:
                events = await client.text_generation(
                    completion.prompt,
                    stream=True,
                    details=True,
                    max_new_tokens=completion.max_tokens,
                    seed=completion.seed,
                    stop=[stop] if stop else None,
                    **_sampling_options(completion.sampling),
                )
                async for event in with_timeouts(events, self._server.timeout_s):
                    token = event.token
                    delta = "" if token.special and token.text not in MARKS else token.text
                    end = ENDS[event.details.finish_reason] if event.details else None
                    text += delta
                    # TGI includes the stop sequence; compatible servers may omit it.
                    if stop and end is SegmentEnd.BOUNDARY and not text.endswith(stop):
                        delta += stop
                    yield Delta(delta, end)

    async def aclose(self) -> None:
        """Nothing to close: each stream closes its own client."""


def _sampling_options(sampling: SamplingParams) -> dict[str, Any]:
    """Return sampling parameters for TGI. Greedy requests omit the filters, because TGI samples if one is present."""
    if sampling.temperature == 0:
        return {"do_sample": False}
    options: dict[str, Any] = {"do_sample": True, "temperature": sampling.temperature}
    if sampling.top_p < 1:
        options["top_p"] = sampling.top_p
    if sampling.top_k:
        options["top_k"] = sampling.top_k
    return options
