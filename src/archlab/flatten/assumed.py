"""Assumptions under which a flattened file is written. `flatten` evaluates the code of archlab.model, and some calls
there have a fixed result under these assumptions.

A flattened file computes a forward pass over whole sequences, without cache, padding, document boundaries or autocast.
Operations that need at least float32 use float32. Attention is a call of torch's fused kernel, or plain tensor
operations if that kernel does not support the config.
"""

import ast
import dataclasses

from archlab.config.components.component import Site
from archlab.config.components.kernel_choice import KernelNeeds
from archlab.config.components.multi_head import MultiHead
from archlab.config.layers import LayerConfig
from archlab.flatten.operations import lift, plain
from archlab.flatten.specialize import Specializer
from archlab.flatten.values import Class, Code, Function, Known, Record, Sequence, Value, module


def parsed(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


class Assumed(Specializer):
    """Evaluator that replaces a call with its result, if the result follows from the assumptions."""

    layer: LayerConfig
    masked: bool
    """Whether masks are needed, because at least one layer has attention that is not plain causal attention. All layers
    then get masks."""

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
            case "grouped_linear", _ if function.home is not module("archlab.flatten.skeleton"):
                return self.call(self.top("grouped_linear", module("archlab.flatten.skeleton")), arguments, {})
            case "Projection", [d_in, d_out]:
                bias = [] if plain(keywords["bias"]) else [ast.keyword("bias", ast.Constant(False))]
                return Record("nn.Linear", creation=ast.Call(parsed("nn.Linear"), [lift(d_in), lift(d_out)], bias))
            case "is_plain_causal", _:
                return Known(not self.masked)
            case (("is_compiled_row" | "is_step"), _):
                return Known(False)
            case "has_format_of", _:
                return Known(True)
            case "Same", _:
                return Record("nn.Identity")
            case "_mask", [attention, query, key]:
                call = parsed("visible(rule, query[:, :, None], key[:, None, :])")
                names = {"rule": attention, "query": query, "key": key}
                return self.evaluate(call, names, module("archlab.model.masks"))
            case "hides_nothing", _:  # a flattened file reads such a mask like any other
                return Known(False)
            case ("dense", [mask]) | ("as_added", [mask, _]):
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
            case "_fuses_groups_with_masks", _:
                return Known(True)
            case "_is_grouped", _:
                attention = self.layer.attention
                return Known(isinstance(attention, MultiHead) and attention.n_kv_heads != attention.n_heads)
            case _:
                return None

    def torch_module(self, name: str, arguments: list[Value], keywords: dict[str, Value]) -> Record | None:
        if name == "nn.Identity" or (name == "nn.Dropout" and plain(arguments[0]) == 0):
            return Record("nn.Identity")
        return Record(name, creation=ast.Call(parsed(name), [lift(arguments[0])], [])) if name == "nn.Dropout" else None
