"""The engine over vLLM, compared with ours on the bundled pair. Run by `make test-vllm`, in an environment with vLLM."""
