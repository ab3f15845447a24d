"""Detailed drawings of components: their projections and the steps between them, connected as in the PyTorch module."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from archlab.config.components.activation import activation_named
from archlab.config.components.component import Component
from archlab.config.components.dense import Dense, GatedMLP
from archlab.config.components.multi_head import MultiHead
from archlab.config.components.norm import AnyNorm, NoNorm
from archlab.config.components.position import Rope
from archlab.config.layers import Branch, LayerConfig
from archlab.config.problems import choose
from archlab.errors import UserError
from archlab.report.drawings.stacks import Boxed, Joined, Part, Unfolded
from archlab.report.drawings.svg import Words
from archlab.report.drawings.words import (
    component_words,
    norm_words,
    position_words,
    remaining_words,
    role_of,
    score_words,
)

UNFOLDED = {
    "attention": "multi-head attention of any number of KV heads",
    "mlp": "plain and gated MLPs",
    "cross": "the cross-attention of a model with an encoder",
}
"""Components that can be drawn in detail, by branch."""


def can_unfold(component: Component) -> bool:
    """Return whether the component can be drawn in detail."""
    return isinstance(component, Dense | MultiHead)


def unfolded(layer: LayerConfig, branch: Branch) -> Unfolded:
    """Return the detailed drawing of a branch's component, for which `can_unfold` must be true."""
    component, inside = branch.component, _Inside(branch, layer)
    assert isinstance(component, Dense | MultiHead)
    stack = inside.mlp(component) if isinstance(component, Dense) else inside.attention(component)
    return Unfolded(branch.name, role_of(branch), component_words(branch).title, stack)


class _Inside(NamedTuple):
    """Builder of the detailed drawing of one branch in one layer."""

    branch: Branch
    layer: LayerConfig

    @property
    def name(self) -> str:
        return self.branch.name

    def mlp(self, mlp: Dense) -> list[Part]:
        """Return the boxes of an MLP, which computes `down(act(up(x)))`, or `down(act(gate(x)) * up(x))` if it is
        gated."""
        d, d_ff = self.layer.d_model, mlp.d_ff
        up = self._projection("up", d, d_ff, bias=mlp.bias)
        activation = self._box(
            "activation", activation_named(mlp.activation).display_name, remaining_words(mlp, _IN_MLP)
        )
        ends = [*self._norm("sub norm", mlp.sub_norm), self._projection("down", d_ff, d, bias=mlp.bias)]
        if not isinstance(mlp, GatedMLP):
            return [up, activation, *ends]
        gate: list[Part] = [self._projection("gate", d, d_ff, bias=mlp.bias)]
        linear: list[Part] = [up]
        if mlp.clamp is not None:
            gate.append(self._box("gate clamp", f"at most {mlp.clamp:g}"))
            linear.append(self._box("up clamp", f"within ±{mlp.clamp:g}"))
        if mlp.up_offset is not None:
            linear.append(self._box("up offset", f"+ {mlp.up_offset:g}"))
        return [Joined([[*gate, activation], linear]), *ends]

    def attention(self, heads: MultiHead) -> list[Part]:
        """Return the boxes of attention, which computes `out(softmax(q k) v)` in each head. They include the steps that
        change queries and keys before the product. Cross-attention computes keys and values from the encoder's
        output."""
        d, n_of_source = self.layer.d_model, 2 if self.branch.site.reads_source else 0
        queries = self._into_heads("query", heads.n_heads, heads.head_dim, heads)
        keys = self._into_heads("key", heads.n_kv_heads, heads.head_dim, heads)
        values = self._into_heads("value", heads.n_kv_heads, heads.v_dim, heads)
        if heads.temperature is not None:
            queries.append(self._box("query temperature", "× grows with position"))
        shared = heads.n_heads // heads.n_kv_heads
        each = f"{heads.n_heads} heads" if shared == 1 else f"{heads.n_heads} heads, {shared} per KV head"
        mix = self._box("mix", "Values, by softmax of q · k", (each, *score_words(self.branch, _IN_ATTENTION)))
        mixed: list[Part] = [
            Joined([queries, keys, values], mix, n_of_source),
            *self._norm("sub norm", heads.sub_norm),
        ]
        out = self._projection("output", heads.out_width, d, bias=heads.out_bias)
        if heads.gate is None:
            return [*mixed, out]
        gate = self._projection("gate", d, heads.gate_width, bias=heads.gate.bias)
        activation = self._box(
            "gate activation", activation_named(heads.gate.activation).display_name, (f"per {heads.gate.per}",)
        )
        gates: list[Part] = [gate, activation]
        # The encoder's output comes in from the right, so cross-attention has its gate on the left.
        return [Joined([gates, mixed] if n_of_source else [mixed, gates]), out]

    def _into_heads(self, name: str, n: int, width: int, heads: MultiHead) -> list[Part]:
        projection = self._projection(name, self.layer.d_model, f"{n} × {width}", bias=heads.qkv_bias)
        if name == "value" and heads.keys_as_values:
            projection = self._box("value projection", "Key projection", ("the same matrix",))
        parts: list[Part] = [projection]
        if heads.clip_qkv is not None:
            parts.append(self._box(f"{name} clip", f"within ±{heads.clip_qkv:g}"))
        if name == "value":
            return [*parts, *self._norm("value norm", heads.value_norm)]
        norm = self._norm(f"{name} norm", heads.qk_norm)
        position = self.branch.site.position
        if not isinstance(position, Rope):
            return [*parts, *norm]
        rotation = Boxed(f"{self.name} {name} rotation", "position", Words("Rotation", (position_words(position),)))
        last = [*norm, rotation] if position.order == "after_qk_norm" else [rotation, *norm]
        return [*parts, *last]

    def _projection(self, name: str, n_in: int, n_out: int | str, *, bias: bool) -> Boxed:
        shape_out = f"{n_out:,}" if isinstance(n_out, int) else n_out
        lines = [f"{n_in:,} → {shape_out}", *(["bias"] if bias else [])]
        return self._box(f"{name} projection", f"{name.capitalize()} projection", lines)

    def _norm(self, name: str, norm: AnyNorm | bool) -> list[Part]:
        """Return the box of a norm, or an empty list if there is no norm. If `norm` is True, the norm is like the
        layer's other norms."""
        layer_norm = (self.layer.norm if norm else NoNorm()) if isinstance(norm, bool) else norm
        return (
            []
            if isinstance(layer_norm, NoNorm)
            else [Boxed(f"{self.name} {name}", "norm", norm_words(layer_norm).fitted())]
        )

    def _box(self, part: str, title: str, lines: Iterable[str] = ()) -> Boxed:
        return Boxed(f"{self.name} {part}", role_of(self.branch), Words(title, tuple(lines)).fitted())


_IN_MLP = ("activation", "d_ff", "bias", "sub_norm", "clamp", "up_offset")
_IN_ATTENTION = (
    "qkv_bias",
    "out_bias",
    "qk_norm",
    "clip_qkv",
    "temperature",
    "sub_norm",
    "gate",
    "v_norm",
    "keys_as_values",
)


def check_unfold(layers: Iterable[LayerConfig], unfold: Sequence[str]) -> None:
    """Raise UserError if `unfold` contains a name for which no layer has a branch that can be drawn in detail."""
    for name in unfold:
        if name not in UNFOLDED:
            raise UserError(f"unfold: {name!r}{choose(name, [*UNFOLDED])}")
        branch_by_kind = {
            branch.component.kind: branch for layer in layers for branch in layer.branches if branch.name == name
        }
        if not any(can_unfold(branch.component) for branch in branch_by_kind.values()):
            missing = "no cross-attention" if name == "cross" else f"no {name}"
            model_has = f"{name} of kind {' and '.join(branch_by_kind)}" if branch_by_kind else missing
            raise UserError(f"unfold: {name!r}; the model has {model_has}; only {UNFOLDED[name]} can be unfolded")
