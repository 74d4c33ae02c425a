"""Layers with packed weights as graphs of ONNX Runtime, whose operator MatMulNBits multiplies with them.

All computation between the attentions of two layers is one graph, so that a token needs one call for each layer.

Weights stay the integers of a GGUF file. ONNX Runtime rounds the activations of each group to eight bits, as llama.cpp
does. The result of a row does not depend on the number of rows, so verification repeats decoding exactly.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnxruntime
import torch
from onnx import NodeProto, TensorProto, helper, numpy_helper
from torch import Tensor

from semspec.engine.gguf_weights import Floats, PackedMatrix
from semspec.engine.packed import Compute, FinishLayer

Weight = tuple[PackedMatrix, Floats | None]
"""A matrix and its bias `[rows]`."""
Sizes = Mapping[str, int]
"""Columns of the inputs or outputs of a graph, by name."""

EIGHT_BIT_ACTIVATIONS = 4
"""The accuracy level of MatMulNBits that rounds activations to eight bits by group."""
MAX_EMBEDDED_BYTES = 1 << 10
"""Maximum size of a constant in the serialised graph. Larger constants are passed as external data."""
SPIN_US = 30
"""Time for which a thread spins before it sleeps. Waking it takes longer than most computations between products, but a
thread that spins longer keeps the core from other processes."""
MODEL_VERSION, OPERATORS_VERSION = 10, 21
"""Versions of the ONNX format and of its operators."""


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """Weights of a layer. Norms are `[hidden_size]`."""

    attention_norm: Floats
    qkv: Sequence[Weight]
    out: Weight
    mlp_norm: Floats
    gate: Weight
    up: Weight
    down: Weight

    @property
    def hidden_size(self) -> int:
        """Columns of a layer's input and output."""
        return len(self.attention_norm)

    @property
    def projections_size(self) -> int:
        """Total columns of queries, keys and values."""
        return sum(matrix.shape[0] for matrix, _ in self.qkv)


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

    def product(self, source: str, weight: PackedMatrix, bias: Floats | None) -> str:
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

    def norm(self, source: str, weight: Floats, eps: float) -> str:
        """Add the RMS norm of `source`."""
        inputs = [source, self._constant(weight)]
        return self.add("SimplifiedLayerNormalization", inputs, epsilon=eps)

    def projections(self, hidden: str, layer: LayerWeights, eps: float) -> str:
        """Add a layer's queries, keys and values, concatenated."""
        normed = self.norm(hidden, layer.attention_norm, eps)
        return self.add("Concat", [self.product(normed, *weight) for weight in layer.qkv], axis=1)

    def _group_sums(self, source: str, weight: PackedMatrix) -> str:
        """Add the sum of the columns of each group, by which its offset is multiplied."""
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

    def session(
        self, inputs: Sizes, outputs: Sizes, num_threads: int
    ) -> Callable[..., list[Tensor]]:
        """Return the function of the graph: from fp32 rows `[tokens, size]` of each input to those of each output."""
        input_infos, output_infos = [
            [
                helper.make_tensor_value_info(name, TensorProto.FLOAT, ["tokens", size])
                for name, size in sizes.items()
            ]
            for sizes in (inputs, outputs)
        ]
        small = {n: c for n, c in self._constants.items() if c.nbytes <= MAX_EMBEDDED_BYTES}
        large = {n: c for n, c in self._constants.items() if n not in small}
        constants = [numpy_helper.from_array(values, name) for name, values in small.items()]
        constants += [_external(name, values) for name, values in large.items()]
        graph = helper.make_graph(self.nodes, "layer", input_infos, output_infos, constants)
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

        def compute(*rows: Tensor) -> list[Tensor]:
            arrays = {name: row.numpy() for name, row in zip(inputs, rows, strict=True)}
            return [torch.from_numpy(array) for array in session.run([*outputs], arrays)]

        return compute


def _options(num_threads: int) -> onnxruntime.SessionOptions:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = num_threads
    options.add_session_config_entry("session.intra_op.spin_duration_us", str(SPIN_US))
    options.enable_cpu_mem_arena = False
    options.log_severity_level = 3
    return options


def _external(name: str, values: np.ndarray) -> TensorProto:
    """Return a constant whose values are in an in-memory file with the constant's name."""
    tensor = TensorProto(
        name=name,
        dims=values.shape,
        data_type=helper.np_dtype_to_tensor_dtype(values.dtype),
        data_location=TensorProto.EXTERNAL,
    )
    location = {"location": name, "offset": "0", "length": str(values.nbytes)}
    for key, value in location.items():
        tensor.external_data.add(key=key, value=value)
    return tensor


def product(weight: PackedMatrix, bias: Floats | None, num_threads: int) -> Compute:
    """Return a function from fp32 `[tokens, columns]` to the products with `weight`, `[tokens, rows]`."""
    graph, (num_rows, num_columns) = _Graph(), weight.shape
    output = graph.product("input", weight, bias)
    compute = graph.session({"input": num_columns}, {output: num_rows}, num_threads)
    return lambda rows: compute(rows)[0]


def start_layer(layer: LayerWeights, eps: float, num_threads: int) -> Compute:
    """Return a function from `hidden` to a layer's queries, keys and values, concatenated."""
    graph = _Graph()
    output = graph.projections("hidden", layer, eps)
    compute = graph.session(
        {"hidden": layer.hidden_size}, {output: layer.projections_size}, num_threads
    )
    return lambda hidden: compute(hidden)[0]


def finish_layer(
    layer: LayerWeights, following: LayerWeights | None, eps: float, num_threads: int
) -> FinishLayer:
    """Return the function of a layer after its attention, and of the `following` layer before its attention."""
    graph = _Graph()
    hidden = graph.add("Add", ["hidden", graph.product("attended", *layer.out)])
    normed = graph.norm(hidden, layer.mlp_norm, eps)
    gates = graph.product(normed, *layer.gate)
    activated = graph.add("Mul", [gates, graph.add("Sigmoid", [gates])])
    products = graph.add("Mul", [activated, graph.product(normed, *layer.up)])
    hidden = graph.add("Add", [hidden, graph.product(products, *layer.down)])
    outputs = {hidden: layer.hidden_size}
    if following:
        outputs[graph.projections(hidden, following, eps)] = following.projections_size
    inputs = {"hidden": layer.hidden_size, "attended": layer.out[0].shape[1]}
    return graph.session(inputs, outputs, num_threads)
