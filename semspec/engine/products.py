"""Products with packed weights, by ONNX Runtime's MatMulNBits.

Weights keep the integers of a GGUF file. ONNX Runtime rounds the activations of each group to eight bits, as llama.cpp
does. Each row's result is independent of how many rows there are, so verifying repeats decoding exactly.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnxruntime
import torch
from onnx import NodeProto, TensorProto, helper, numpy_helper
from torch import Tensor

from semspec.engine.gguf_weights import Floats, Packed
from semspec.engine.packed import Compute

Weight = tuple[Packed, Floats | None]
"""A matrix and its bias `[rows]`."""

EIGHT_BIT_ACTIVATIONS = 4
"""Accuracy level of MatMulNBits that rounds activations to eight bits by group."""
LARGEST_INSIDE = 1 << 10
"""Bytes of a constant up to which it is part of the serialised graph. Larger ones are handed over by themselves."""
MODEL_VERSION, OPERATORS_VERSION = 10, 21
"""Versions of the ONNX format and of its operators."""


class _Graph:
    """Nodes and constants of an ONNX graph under construction."""

    def __init__(self) -> None:
        self.nodes: list[NodeProto] = []
        self._constants: dict[str, np.ndarray] = {}
        self._sums: dict[tuple[str, int], str] = {}

    def add(self, operator: str, inputs: Sequence[str], **attributes: Any) -> str:
        """Add a node and return the name of its output."""
        output = f"value{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, inputs, [output], **attributes))
        return output

    def product(self, source: str, weight: Packed, bias: Floats | None) -> str:
        """Add the product of `source` and `weight`, plus `bias`."""
        rows, columns = weight.shape
        inputs = [source, self._constant(weight.codes), self._constant(weight.scales.reshape(-1))]
        if bias is not None:
            inputs += ["", "", self._constant(bias)]
        sizes = {"K": columns, "N": rows, "bits": weight.bits, "block_size": weight.group_size}
        level = {"accuracy_level": EIGHT_BIT_ACTIVATIONS}
        output = self.add("MatMulNBits", inputs, domain="com.microsoft", **sizes, **level)
        if weight.offsets is None:
            return output
        offsets = self._constant(np.ascontiguousarray(weight.offsets.T))
        return self.add("Gemm", [self._group_sums(source, weight), offsets, output])

    def _group_sums(self, source: str, weight: Packed) -> str:
        """Add the sums of the columns of each group; an offset is multiplied by these."""
        key = source, weight.group_size
        if key not in self._sums:
            shape = self._constant(
                np.array([-1, weight.shape[1] // weight.group_size, weight.group_size])
            )
            grouped = self.add("Reshape", [source, shape])
            self._sums[key] = self.add(
                "ReduceSum", [grouped, self._constant(np.array([2]))], keepdims=0
            )
        return self._sums[key]

    def _constant(self, values: np.ndarray) -> str:
        name = f"constant{len(self._constants)}"
        self._constants[name] = np.ascontiguousarray(values)
        return name

    def session(self, num_columns: int, output: str, num_outputs: int, num_threads: int) -> Compute:
        """Return a function from `[tokens, num_columns]` to `[tokens, num_outputs]`."""
        ends = [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, ["tokens", size])
            for name, size in (("input", num_columns), (output, num_outputs))
        ]
        small = {n: c for n, c in self._constants.items() if c.nbytes <= LARGEST_INSIDE}
        large = {n: c for n, c in self._constants.items() if n not in small}
        constants = [numpy_helper.from_array(values, name) for name, values in small.items()]
        constants += [_outside(name, values) for name, values in large.items()]
        graph = helper.make_graph(self.nodes, "product", ends[:1], ends[1:], constants)
        versions = [
            helper.make_opsetid("", OPERATORS_VERSION),
            helper.make_opsetid("com.microsoft", 1),
        ]
        model = helper.make_model(graph, opset_imports=versions, ir_version=MODEL_VERSION)
        options = _options(num_threads)
        buffers = [values.reshape(-1).view(np.uint8) for values in large.values()]
        sizes = [values.nbytes for values in large.values()]
        options.add_external_initializers_from_files_in_memory([*large], buffers, sizes)
        session = onnxruntime.InferenceSession(
            model.SerializeToString(), options, ["CPUExecutionProvider"]
        )

        def compute(rows: Tensor) -> Tensor:
            result: Tensor = torch.from_numpy(session.run([output], {"input": rows.numpy()})[0])
            return result

        return compute


def _options(num_threads: int) -> onnxruntime.SessionOptions:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = num_threads
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.enable_cpu_mem_arena = False
    options.log_severity_level = 3
    return options


def _outside(name: str, values: np.ndarray) -> TensorProto:
    """Return a constant whose values are in a "file" in memory that has its name."""
    tensor = TensorProto(
        name=name,
        dims=values.shape,
        data_type=helper.np_dtype_to_tensor_dtype(values.dtype),
        data_location=TensorProto.EXTERNAL,
    )
    place = {"location": name, "offset": "0", "length": str(values.nbytes)}
    for key, value in place.items():
        tensor.external_data.add(key=key, value=value)
    return tensor


def product(weights: Sequence[Weight], num_threads: int) -> Compute:
    """Return a function from fp32 `[tokens, columns]` to the products with all `weights`, `[tokens, sum of rows]`."""
    graph = _Graph()
    outputs = [graph.product("input", weight, bias) for weight, bias in weights]
    output = outputs[0] if len(outputs) == 1 else graph.add("Concat", outputs, axis=1)
    num_outputs = sum(weight.shape[0] for weight, _ in weights)
    return graph.session(weights[0][0].shape[1], output, num_outputs, num_threads)


def gated_mlp(gate: Weight, up: Weight, down: Weight, num_threads: int) -> Compute:
    """Return the function `down(silu(gate(x)) * up(x))` of fp32 rows."""
    graph = _Graph()
    gates = graph.product("input", *gate)
    activated = graph.add("Mul", [gates, graph.add("Sigmoid", [gates])])
    hidden = graph.add("Mul", [activated, graph.product("input", *up)])
    output = graph.product(hidden, *down)
    return graph.session(gate[0].shape[1], output, down[0].shape[0], num_threads)
