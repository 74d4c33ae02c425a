"""The engine over vLLM, compared with ours on the bundled pair: `make test-vllm`, in an environment with vLLM."""
