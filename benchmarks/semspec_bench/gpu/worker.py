"""A worker in vLLM's process that also reports its attention backend and its memory."""

import torch

from semspec.engine.vllm.internals import SemspecWorker
from semspec_bench.gpu.record import Facts


class MeasuredWorker(SemspecWorker):
    def measured(self) -> Facts:
        """Return the attention backend and memory: `peak_bytes` of the allocator, `used_bytes` of the GPU in all."""
        runner = self.model_runner
        facts: Facts = {"attention": str(runner.attn_groups[0][0].backend.get_name())}
        facts["kv_bytes"] = sum(cache.nbytes for cache in runner.kv_caches)
        if torch.cuda.is_available():
            facts["weights_bytes"] = int(runner.model_memory_usage)
            facts["activation_bytes"] = int(getattr(self, "peak_activation_memory", 0))
            facts["peak_bytes"] = torch.cuda.max_memory_allocated()
            free, total = torch.cuda.mem_get_info()
            facts["used_bytes"] = total - free
        return facts
