"""Lets vLLM choose Model Runner V2 on a CPU: Triton's interpreter runs its kernels.

Python imports this module at its start if `PYTHONPATH` names this folder.
"""

import os
from importlib import import_module
from types import SimpleNamespace

os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is imported

driver = SimpleNamespace(is_active=lambda: True)
import_module("triton.backends").backends["cpu"] = SimpleNamespace(driver=driver, compiler=None)
