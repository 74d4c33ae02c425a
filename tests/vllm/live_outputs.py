"""Outputs that vLLM merges before they are read keep the results of `semspec`."""

from vllm.outputs import CompletionOutput, RequestOutput

from semspec.engine.vllm.internals import keep_results
from semspec.engine.vllm.requests import KEY


def test_merged_outputs_keep_the_results_of_both() -> None:
    keep_results()
    keep_results()  # once only, or results would come twice
    one, other, last = output([1]), output([2, 3]), output([])
    last.kv_transfer_params = None
    one.add(other, aggregate=True)
    one.add(last, aggregate=True)
    assert one.kv_transfer_params == {KEY: [1, 2, 3]}


def output(results: list[int]) -> RequestOutput:
    completion = CompletionOutput(
        index=0, text="", token_ids=[], cumulative_logprob=None, logprobs=None
    )
    return RequestOutput(
        "r", None, [], None, [completion], finished=False, kv_transfer_params={KEY: results}
    )
