"""Sizes of the paper's models and of what is measured; and tiny ones that run the same code in minutes."""

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
        attention = (
            2 * self.hidden_size * (self.hidden_size + kv_size) + self.hidden_size + 2 * kv_size
        )
        return attention + 3 * self.hidden_size * self.intermediate_size + 2 * self.hidden_size

    @property
    def num_head_parameters(self) -> int:
        return self.vocab_size * self.hidden_size

    @property
    def num_body_parameters(self) -> int:
        """Parameters of all layers and the last norm, which every token uses."""
        return self.num_layers * self.num_layer_parameters + self.hidden_size

    @property
    def kv_bytes_per_token(self) -> int:
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * ELEMENT_BYTES


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes to measure one model at; lengths in tokens."""

    window: int
    """Context window: prompt and output together."""
    memory_share: float
    """vLLM's `gpu_memory_utilization`."""
    streams: tuple[int, ...]
    """Calls at once."""
    context: int
    """Prompt of each stream that decodes."""
    long_contexts: tuple[int, ...]
    """Contexts of one stream that decodes; their prefill is timed as well."""
    read_contexts: tuple[int, ...]
    read_tokens: tuple[int, ...]
    num_repeats: int


@dataclass(frozen=True, slots=True)
class Scale:
    draft: Shape
    target: Shape
    draft_sizes: Sizes
    target_sizes: Sizes
    tp2_sizes: Sizes
    """Sizes for the target over two GPUs."""
    num_problems: int
    """Problems of the bundled pair, for parity."""
    num_questions: int
    """Questions to a pair, for each strategy."""
    answer_tokens: int
    copy_bytes: int
    matrix_side: int


LONG, READ = (1024, 8192, 16384, 25_000), (1024, 4096, 16384)
PAPER = Scale(
    draft=Shape("DeepSeek-R1-Distill-Qwen-1.5B", 28, 1536, 8960, 12, 2, 151936, 1e4),
    target=Shape("DeepSeek-R1-Distill-Qwen-32B", 64, 5120, 27648, 40, 8, 152064),
    draft_sizes=Sizes(26_000, 0.5, (1, 8), 900, LONG[:2], READ[:1], (20, 40, 128), 3),
    target_sizes=Sizes(26_000, 0.92, (1, 8, 32), 900, LONG, READ, (20, 40, 128, 512), 3),
    tp2_sizes=Sizes(26_000, 0.92, (1, 8, 32), 900, LONG[-1:], READ[:1], (20, 128), 2),
    num_problems=16,
    num_questions=20,
    answer_tokens=512,
    copy_bytes=4 << 30,
    matrix_side=8192,
)
QUARTER_HOUR = replace(
    PAPER,
    draft_sizes=replace(PAPER.draft_sizes, num_repeats=1),
    target_sizes=replace(PAPER.target_sizes, num_repeats=1),
    num_problems=8,
    num_questions=10,
)
"""All rows of `PAPER`, each timed once."""
TINY = Scale(
    draft=Shape("tiny draft", 2, 128, 64, 2, 2, 2048),
    target=Shape("tiny target", 3, 256, 128, 4, 2, 2048),
    draft_sizes=Sizes(512, 0.2, (1,), 40, (96,), (48,), (4,), 1),
    target_sizes=Sizes(512, 0.2, (1, 2), 40, (96,), (48, 96), (4, 8), 1),
    tp2_sizes=Sizes(512, 0.2, (1,), 40, (), (48,), (4,), 1),
    num_problems=4,
    num_questions=2,
    answer_tokens=96,
    copy_bytes=1 << 20,
    matrix_side=128,
)
CPU = replace(
    TINY,
    target=Shape("target for a CPU", 6, 768, 3072, 12, 12, 8192),
    target_sizes=Sizes(1024, 0.2, (1, 8), 256, (), (256,), (1, 20, 40), 3),
)
"""A target whose step of decoding takes 20 to 40 ms on a core of a CPU, in fp32: 0.3 GB."""
SCALES = {"paper": PAPER, "quarter-hour": QUARTER_HOUR, "tiny": TINY, "cpu": CPU}
