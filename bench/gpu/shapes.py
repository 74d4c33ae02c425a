"""Sizes of the paper's models, and of tiny models that run the same code in seconds."""

from dataclasses import dataclass, replace

ELEMENT_BYTES = 2
"""Weights, keys and values are bf16 throughout."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Configuration of a Qwen2 model with untied embeddings."""

    name: str
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    vocab_size: int
    rope_theta: float = 1e6

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_heads

    @property
    def num_layer_parameters(self) -> int:
        """Parameters of one layer: four projections with biases on three, three matrices of the MLP, two norms."""
        kv_size = self.num_kv_heads * self.head_dim
        attention = 2 * self.hidden_size * (self.hidden_size + kv_size) + self.hidden_size + 2 * kv_size
        return attention + 3 * self.hidden_size * self.intermediate_size + 2 * self.hidden_size

    @property
    def num_head_parameters(self) -> int:
        return self.vocab_size * self.hidden_size

    @property
    def num_body_parameters(self) -> int:
        """Parameters of all layers and the last norm, which every token uses."""
        return self.num_layers * self.num_layer_parameters + self.hidden_size

    @property
    def weight_bytes(self) -> int:
        return ELEMENT_BYTES * (self.num_body_parameters + 2 * self.num_head_parameters)

    @property
    def kv_bytes_per_token(self) -> int:
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * ELEMENT_BYTES


def fitted(shape: Shape, free_bytes: int) -> Shape:
    """`shape` with as many layers as fit into `free_bytes`, at least one."""
    layer_bytes = ELEMENT_BYTES * shape.num_layer_parameters
    num_layers = (free_bytes - (shape.weight_bytes - shape.num_layers * layer_bytes)) // layer_bytes
    return replace(shape, num_layers=max(1, min(shape.num_layers, num_layers)))


@dataclass(frozen=True, slots=True)
class Scale:
    """Sizes and numbers of repetitions of the measurements."""

    draft: Shape
    target: Shape
    contexts: tuple[int, ...]
    """Context lengths in tokens; decoding uses the first."""
    window: int
    """Maximum length of a sequence in tokens; at most what the engine's CUDA graphs support."""
    read_tokens: tuple[int, ...]
    num_steps: int
    """Repetitions of a decoded token."""
    num_reads: int
    num_prefills: int
    written_tokens: int
    """Tokens of a segment written to time the whole engine."""
    copy_bytes: int
    matrix_side: int
    reserve_bytes: int
    """Device memory kept free of weights, for keys, values, graphs and activations."""


GIBIBYTE = 1 << 30

PAPER = Scale(
    draft=Shape("DeepSeek-R1-Distill-Qwen-1.5B", 28, 1536, 8960, 12, 2, 151936, 1e4),
    target=Shape("DeepSeek-R1-Distill-Qwen-32B", 64, 5120, 27648, 40, 8, 152064),
    contexts=(1024, 4096),
    window=8192,
    read_tokens=(16, 32, 64, 128, 256, 512),
    num_steps=60,
    num_reads=20,
    num_prefills=5,
    written_tokens=64,
    copy_bytes=4 * GIBIBYTE,
    matrix_side=8192,
    reserve_bytes=20 * GIBIBYTE,
)
TINY = Scale(
    draft=Shape("tiny draft", 2, 32, 64, 4, 2, 496),
    target=Shape("tiny target", 3, 64, 128, 4, 2, 512),
    contexts=(48, 96),
    window=512,
    read_tokens=(4, 8, 16),
    num_steps=5,
    num_reads=3,
    num_prefills=3,
    written_tokens=8,
    copy_bytes=1 << 20,
    matrix_side=128,
    reserve_bytes=1 << 26,
)
SCALES = {"paper": PAPER, "tiny": TINY}
