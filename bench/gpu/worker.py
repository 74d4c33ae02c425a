"""In vLLM's process: a worker that also says what it runs and how much memory it takes."""

import torch

from semspec.bench.gpu.record import Facts
from semspec.engine.vllm.internals import SemspecWorker


class MeasuredWorker(SemspecWorker):
    def measured(self) -> Facts:
        """Peak: of the allocator, since the process began."""
        facts: Facts = {"attention": str(self.model_runner.attn_groups[0][0].backend.get_name())}
        if torch.cuda.is_available():
            facts["weights_bytes"] = int(self.model_runner.model_memory_usage)
            facts["peak_bytes"] = torch.cuda.max_memory_allocated()
        return facts
