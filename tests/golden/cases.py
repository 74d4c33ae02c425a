"""Requests whose answers are frozen, by strategy. Remove a strategy by its entry in `STRATEGIES` and its file."""

from typing import Any

Json = dict[str, Any]

QUESTIONS = (
    "Style 0. Fay passes to Ada. Ivy passes to Cora. Dan passes to Ivan. Bob passes to Ivy. Cora passes to Dan. "
    "Ivan passes to Fay. Ada passes to Abel. Abel passes to Bob. Cards: Ivan 30, Ada 59, Abel 40, Ivy 25, Dan 70, "
    "Fay 68, Cora 96, Bob 13. The ball starts with Ada. Round 1: 1 pass. Round 2: 2 passes. Round 3: 4 passes. "
    "Round 4: 1 pass. Round 5: 1 pass. Round 6: 1 pass. Round 7: 1 pass. Which card has the ball at the end?",
    "Style 3. Leo passes to Bea. Jack passes to Hugo. Hugo passes to Finn. Finn passes to Gina. Fay passes to Karl. "
    "Karl passes to Hana. Gina passes to Fay. Bea passes to Jack. Hana passes to Leo. Cards: Gina 22, Karl 11, "
    "Finn 80, Bea 51, Fay 99, Jack 73, Leo 33, Hugo 46, Hana 68. The ball starts with Gina. Round 1: 1 pass. "
    "Round 2: 1 pass. Round 3: 1 pass. Round 4: 1 pass. Round 5: 2 passes. Round 6: 1 pass. Round 7: 4 passes. "
    "Round 8: 1 pass. Round 9: 2 passes. Which card has the ball at the end?",
)
"""Two questions in the language of the bundled pair, short and long."""
SAMPLINGS: dict[str, Json] = {
    "sampled": {"temperature": 1.0, "seed": 5, "max_tokens": 220},
    "greedy": {"temperature": 0.0, "seed": 0, "max_tokens": 220},
}
"""Each case is run with the first question sampled, and with the second one greedy."""

SAMPLE: Json = {"rule": "sample"}
STRATEGIES: dict[str, dict[str, Json]] = {
    "semantic": {
        "one segment": {"gamma": 1, "acceptance": SAMPLE},
        "three segments": {"gamma": 3, "acceptance": {"rule": "threshold", "threshold": 0.5}},
        "three candidates": {"gamma": 1, "acceptance": SAMPLE, "num_candidates": 3},
        "token-level rewrites": {"gamma": 2, "acceptance": SAMPLE, "rewrite": "token-level"},
        "retrieval rewrites": {"gamma": 2, "acceptance": SAMPLE, "rewrite": "retrieval"},
        "last-hidden probes": {"gamma": 2, "acceptance": SAMPLE, "probes": "last-hidden"},
        "surprisal probes": {"gamma": 2, "acceptance": SAMPLE, "probes": "surprisal"},
    },
    "likelihood": {
        "one segment": {"gamma": 1},
        "three segments": {"gamma": 3, "acceptance": {"rule": "threshold", "threshold": 0.9}},
    },
    "token-level": {
        "paragraphs": {},
        "sentences": {"num_speculative_tokens": 7, "segmentation": "sentence"},
    },
    "retrieval": {
        "all sources": {},
        "context": {"retrieval": {"source": "context"}, "num_speculative_tokens": 4},
    },
    "spec-reason": {"greedy scores": {}},
    "target": {"paragraphs": {}, "sentences": {"segmentation": "sentence"}},
    "draft": {"paragraphs": {}},
    "random": {"two segments": {"gamma": 2, "acceptance": SAMPLE}},
    "spec-thinking": {"paragraphs": {}},
}
"""By strategy: the cases by name, each as fields of the request's object `semspec`."""

CHAT = "/v1/chat/completions"
SCHEMA = {
    "type": "object",
    "properties": {"card": {"enum": [25, 51]}, "sure": {"type": "boolean"}},
    "required": ["card", "sure"],
    "additionalProperties": False,
}
FORMAT = {
    "type": "json_schema",
    "json_schema": {"name": "answer", "schema": SCHEMA, "strict": True},
}
TOOL = {"type": "function", "function": {"name": "answer", "parameters": SCHEMA, "strict": True}}
ANSWERS: dict[str, tuple[str, Json]] = {
    "JSON schema": (CHAT, {"response_format": FORMAT}),
    "tool call": (CHAT, {"tools": [TOOL], "tool_choice": "required"}),
    "two choices": (CHAT, {"n": 2}),
    "stop": (CHAT, {"stop": ["boxed"]}),
    "logprobs": (CHAT, {"logprobs": True, "top_logprobs": 2, "max_tokens": 12}),
    "penalties": (
        CHAT,
        {"presence_penalty": 0.5, "logit_bias": {"40": 5}, "top_k": 20, "min_p": 0.1},
    ),
    "exact answer": (CHAT, {"semspec": {"strategy": "semantic", "exact_answer": True}}),
    "strictness": (CHAT, {"semspec": {"strategy": "likelihood", "strictness": 0.5}}),
    "plain completion": (
        "/v1/completions",
        {"prompt": [*QUESTIONS], "logprobs": 1, "max_tokens": 12, "seed": 5},
    ),
    "response": ("/v1/responses", {"input": QUESTIONS[0], "seed": 5}),
    "TGI": (
        "/generate",
        {"inputs": QUESTIONS[0], "parameters": {"details": True, "max_new_tokens": 40, "seed": 5}},
    ),
}
"""Path and fields of requests that are sent over HTTP only; a chat gets the first question and sampling."""
