"""In vLLM's process: a worker that also says what it runs and how much memory it takes."""

import torch

from semspec.engine.vllm.internals import SemspecWorker
from semspec_bench.gpu.record import Facts


class MeasuredWorker(SemspecWorker):
    def measured(self) -> Facts:
        """Peak: of the allocator, since the process began; used: of the GPU, by all processes."""
        runner = self.model_runner
        facts: Facts = {"attention": str(runner.attn_groups[0][0].backend.get_name())}
        facts["kv_bytes"] = sum(cache.nbytes for cache in runner.kv_caches)
        if torch.cuda.is_available():
            facts["weights_bytes"] = int(runner.model_memory_usage)
            facts["activation_bytes"] = int(
                getattr(self, "peak_activation_memory", 0)
            )  # of a profile
            facts["peak_bytes"] = torch.cuda.max_memory_allocated()
            free, total = torch.cuda.mem_get_info()
            facts["used_bytes"] = total - free
        return facts
