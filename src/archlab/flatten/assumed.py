"""Assumptions under which a flattened file is written. `flatten` evaluates the code of archlab.model, and some calls
there have a fixed result under these assumptions.

A flattened file computes a forward pass over whole sequences, without cache, document boundaries or autocast. Only the
source text of an encoder may have padding. Operations that need at least float32 use float32. Attention is a call of
torch's fused kernel, or plain tensor operations if that kernel does not support the config.
"""

import ast
import dataclasses

from archlab.config.components.component import Site
from archlab.config.components.kernel_choice import KernelNeeds, MaskKind
from archlab.config.components.multi_head import MultiHead
from archlab.config.layers import LayerConfig
from archlab.flatten.operations import lift, plain
from archlab.flatten.specialize import Specializer
from archlab.flatten.values import Class, Code, Function, Known, Record, Sequence, Value, module

SKELETON = "archlab.flatten.skeleton"
"""Module with the code that a flattened file contains instead of some parts of archlab.model."""


def parsed(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


class Assumed(Specializer):
    """Evaluator that replaces a call with its result, if the result follows from the assumptions."""

    layer: LayerConfig
    mask_kind: MaskKind
    """Keys that attention hides, if they are the same in all layers of the stack: later keys (`causal`) or no keys
    (`none`). Otherwise it is `other`, and all layers get masks."""

    def attribute(self, value: Value, name: str) -> Value:
        """Return the attribute `name` of `value`.

        The width of the site where a component is placed is the width of the layer, so that both use one constant.
        """
        is_width = isinstance(value, Known) and isinstance(value.value, Site) and name == "d_model"
        return super().attribute(Known(self.layer) if is_width else value, name)

    def replaced(self, function: Function | Class, arguments: list[Value], keywords: dict[str, Value]) -> Value | None:
        """Return the value that replaces a call. None means that the code of the function is evaluated."""
        match getattr(function.node, "name", ""), arguments:
            case "at_least_float32", [x]:
                return Code(ast.Call(ast.Attribute(lift(x), "float", ast.Load()), [], []))
            case "wide", _:
                return Code(parsed("torch.float32"))
            case "as_autocast", _:
                return Sequence(tuple(arguments))
            case "is_training_eagerly", _:
                return Known(False)
            case "_scan_in_chunks", _:
                return self.call(self.top("scan", module("archlab.model.mamba")), arguments, {})
            case "grouped_linear", _ if function.home is not module(SKELETON):
                return self.call(self.top("grouped_linear", module(SKELETON)), arguments, {})
            case "ends_for", [ends, *_]:
                return ends
            case "gathered", [x, rows, _]:
                gather = ast.Attribute(lift(x), "index_select", ast.Load())
                return Code(ast.Call(gather, [ast.Constant(0), lift(rows)], []))
            case "Projection", [d_in, d_out]:
                bias = [] if plain(keywords["bias"]) else [ast.keyword("bias", ast.Constant(False))]
                return Record("nn.Linear", creation=ast.Call(parsed("nn.Linear"), [lift(d_in), lift(d_out)], bias))
            case "is_plain_causal", _:
                return Known(self.mask_kind == "causal")
            case (("is_compiled_row" | "is_step" | "_refuses_cumsum"), _):
                return Known(False)
            case "has_format_of", _:
                return Known(True)
            case "Same", _:
                return Record("nn.Identity")
            case "_mask", [rule, query, key]:
                return self._mask(function, rule, query, key, is_biased=plain(keywords["is_biased"]))
            case "_cross", [source, positions, *_]:
                return self.call(self.top("cross_context", module(SKELETON)), [source, positions], {})
            case (("dense" | "TensorMask"), [mask]) | ("as_added", [mask, _]):
                return mask
            case "in_call", [Known(value=KernelNeeds() as needs), _, _, _, _, sinks]:
                return Known(dataclasses.replace(needs, sinks=not isinstance(sinks, Known)))
            case "choose_kernel", [_, Known(value=KernelNeeds() as needs)]:
                kernel = "reference" if needs.softcap or needs.sinks else "sdpa"
                return self.top(kernel, module("archlab.model.kernels"))
            case "_is_better_wide", [_, bias]:
                return Known(not isinstance(bias, Known))
            case "_fuses_equal_widths_only", _:
                return Known(False)
            case (("_combines_at_once" | "_has_rows"), _):
                return Known(False)
            case "_fuses_groups", _:
                return Known(True)
            case "_is_grouped", _:
                attention = self.layer.attention
                return Known(isinstance(attention, MultiHead) and attention.n_kv_heads != attention.n_heads)
            case _:
                return None

    def _mask(self, function: Function | Class, rule: Value, query: Value, key: Value, *, is_biased: bool) -> Value:
        """Return the mask of a layer's attention to its own tokens."""
        assert isinstance(function, Function)
        assert isinstance(function.owner, Record)
        if plain(function.owner.attributes["is_padded"]):
            return self.call(self.top("mask_with_padding", module(SKELETON)), [rule, query], {})
        masks = module("archlab.model.masks")
        if self.mask_kind == "none" and not is_biased:
            return self.call(self.top("NoMask", masks), [Known(None)] * 3, {})  # its size is not read
        call = parsed("visible(rule, query[:, :, None], key[:, None, :])")
        return self.evaluate(call, {"rule": rule, "query": query, "key": key}, masks)

    def torch_module(self, name: str, arguments: list[Value], keywords: dict[str, Value]) -> Record | None:
        if name == "nn.Identity" or (name == "nn.Dropout" and plain(arguments[0]) == 0):
            return Record("nn.Identity")
        return Record(name, creation=ast.Call(parsed(name), [lift(arguments[0])], [])) if name == "nn.Dropout" else None
