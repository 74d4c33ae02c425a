"""Tiny checkpoints with random weights, of the classes people serve."""

from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

from demo.tokenizer import build_tokenizer

SIZES = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders of a Qwen2 and a Llama model over the demo language's vocabulary."""
    tokenizer = build_tokenizer()
    torch.manual_seed(0)
    common = {
        "vocab_size": len(tokenizer),
        "eos_token_id": 1,
        "bos_token_id": None,
        "max_position_embeddings": 600,
        **SIZES,
    }
    models: dict[str, PreTrainedModel] = {
        "qwen2": Qwen2ForCausalLM(Qwen2Config(**common)),
        "llama": LlamaForCausalLM(LlamaConfig(**common)),
    }
    folders = {}
    for name, model in models.items():
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, 1.0 if parameter.dim() == 1 else 0.0, 0.2)
        folders[name] = tmp_path_factory.mktemp(name)
        model.save_pretrained(folders[name])
        tokenizer.save_pretrained(folders[name])
    return folders
