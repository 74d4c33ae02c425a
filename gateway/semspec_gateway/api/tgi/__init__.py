"""Text Generation Inference's API, and vLLM's routes for tokens."""
