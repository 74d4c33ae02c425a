"""Layers with packed weights, by ONNX Runtime: products are its MatMulNBits.

All that lies between the attention of two layers is one graph, so that a token needs one call a layer.

Weights keep the integers of a GGUF file. ONNX Runtime rounds the activations of each group to eight bits, as llama.cpp
does. Each row's result is independent of how many rows there are, so verifying repeats decoding exactly.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnxruntime
import torch
from onnx import NodeProto, TensorProto, helper, numpy_helper
from torch import Tensor

from semspec.engine.gguf_weights import Floats, Packed
from semspec.engine.packed import Compute, FinishLayer

Weight = tuple[Packed, Floats | None]
"""A matrix and its bias `[rows]`."""
Sizes = Mapping[str, int]
"""Columns of the inputs or outputs of a graph by their names."""

EIGHT_BIT_ACTIVATIONS = 4
"""Accuracy level of MatMulNBits that rounds activations to eight bits by group."""
LARGEST_INSIDE = 1 << 10
"""Bytes of a constant up to which it is part of the serialised graph. Larger ones are handed over by themselves."""
SPIN_US = 30
"""Microseconds for which a thread waits for the next product before it sleeps. Waking it up takes longer than most of
what lies between products; one that waits for longer keeps other processes from the core."""
MODEL_VERSION, OPERATORS_VERSION = 10, 21
"""Versions of the ONNX format and of its operators."""


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """Weights of a layer; norms are `[hidden_size]`."""

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
        """Columns of queries, keys and values together."""
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

    def norm(self, source: str, weight: Floats, eps: float) -> str:
        """Add the RMS norm of `source`."""
        inputs = [source, self._constant(weight)]
        return self.add("SimplifiedLayerNormalization", inputs, epsilon=eps)

    def projections(self, hidden: str, layer: LayerWeights, eps: float) -> str:
        """Add a layer's queries, keys and values, next to one another."""
        normed = self.norm(hidden, layer.attention_norm, eps)
        return self.add("Concat", [self.product(normed, *each) for each in layer.qkv], axis=1)

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

    def session(
        self, inputs: Sizes, outputs: Sizes, num_threads: int
    ) -> Callable[..., list[Tensor]]:
        """Return a function from fp32 rows `[tokens, size]` of each of `inputs` to those of each of `outputs`."""
        ends = [
            [
                helper.make_tensor_value_info(name, TensorProto.FLOAT, ["tokens", size])
                for name, size in sizes.items()
            ]
            for sizes in (inputs, outputs)
        ]
        small = {n: c for n, c in self._constants.items() if c.nbytes <= LARGEST_INSIDE}
        large = {n: c for n, c in self._constants.items() if n not in small}
        constants = [numpy_helper.from_array(values, name) for name, values in small.items()]
        constants += [_outside(name, values) for name, values in large.items()]
        graph = helper.make_graph(self.nodes, "layer", ends[0], ends[1], constants)
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
            arrays = {name: each.numpy() for name, each in zip(inputs, rows, strict=True)}
            return [torch.from_numpy(array) for array in session.run([*outputs], arrays)]

        return compute


def _options(num_threads: int) -> onnxruntime.SessionOptions:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = num_threads
    options.add_session_config_entry("session.intra_op.spin_duration_us", str(SPIN_US))
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


def product(weight: Packed, bias: Floats | None, num_threads: int) -> Compute:
    """Return a function from fp32 `[tokens, columns]` to the products with `weight`, `[tokens, rows]`."""
    graph, (num_rows, num_columns) = _Graph(), weight.shape
    output = graph.product("input", weight, bias)
    compute = graph.session({"input": num_columns}, {output: num_rows}, num_threads)
    return lambda rows: compute(rows)[0]


def start_layer(layer: LayerWeights, eps: float, num_threads: int) -> Compute:
    """Return a function from `hidden` to a layer's queries, keys and values, next to one another."""
    graph = _Graph()
    output = graph.projections("hidden", layer, eps)
    compute = graph.session(
        {"hidden": layer.hidden_size}, {output: layer.projections_size}, num_threads
    )
    return lambda hidden: compute(hidden)[0]


def finish_layer(
    layer: LayerWeights, following: LayerWeights | None, eps: float, num_threads: int
) -> FinishLayer:
    """Return the function of what comes after the attention in a layer, and before it in the `following` one."""
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
