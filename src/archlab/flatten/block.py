"""One block: two branches around the residual stream, with norms in the slots that the placement names."""

from typing import NamedTuple

from archlab.config.layers import NORM_SLOTS
from archlab.config.moe import ResolvedMoE
from archlab.config.norm import NoNorm
from archlab.flatten.attention import attention
from archlab.flatten.kinds import Kind
from archlab.flatten.mlp import mlp
from archlab.flatten.moe import moe
from archlab.flatten.norms import norm
from archlab.flatten.page import Page, lines
from archlab.flatten.shared import Shared

ABOUT = {
    "pre": "x + f(norm(x)), first attention, then MLP (pre-norm, Xiong 2020).",
    "post": "norm(x + f(x)), first attention, then MLP (post-norm, Vaswani 2017).",
    "double": "x + norm(f(norm(x))), first attention, then MLP (norms before and after).",
    "output": "x + norm(f(x)), first attention, then MLP (norms on the branches' output).",
    "carried": "n + f(n) with n = norm(x), first attention, then MLP (BLOOM's option).",
    "none": "x + f(x), first attention, then MLP, without norms.",
    "shared": "Attention and MLP side by side behind one norm (GPT-J, PaLM).",
    "separate": "Attention and MLP side by side, each behind a norm (GPT-NeoX).",
}


class Blocks(NamedTuple):
    """What makes the layers."""

    classes: dict[str, str]
    """Kind -> the name of its block's class."""
    parts: dict[str, dict[str, str]]
    """Branch -> kind -> the class that the block's class is given for it; branches alike in all kinds are not here."""


def blocks(page: Page, kinds: list[Kind], shared: Shared) -> Blocks:
    """One class, if kinds differ in nothing but their branches, whose classes it is then given; else one for each."""
    branches = {
        "attention": {kind.name: attention(page, kind, shared) for kind in kinds},
        "mlp": {kind.name: _mlp(page, kind) for kind in kinds},
    }
    parts = {name: classes for name, classes in branches.items() if len(set(classes.values())) > 1}
    if len({_block(page, kind, shared, branches, tuple(parts)) for kind in kinds}) > 1:
        parts = {}
    texts = {kind.name: _block(page, kind, shared, branches, tuple(parts)) for kind in kinds}
    return Blocks({kind: page.define(kind, "Block", text) for kind, text in texts.items()}, parts)


def _mlp(page: Page, kind: Kind) -> str:
    config = kind.layer.mlp
    return moe(page, kind, config) if isinstance(config, ResolvedMoE) else mlp(page, kind, kind.layer.dense)


def _block(page: Page, kind: Kind, shared: Shared, branches: dict[str, dict[str, str]], given: tuple[str, ...]) -> str:
    """The class's text; it is given the classes of those branches."""
    layer, parallel = kind.layer, kind.layer.block.parallel
    placement = "none" if isinstance(layer.norm, NoNorm) else layer.norm.placement
    slots = () if isinstance(layer.norm, NoNorm) else NORM_SLOTS[layer.norm.placement]
    mlp_slots = tuple(slot for slot in slots if not (slot == "before" and parallel == "shared"))
    made = norm(page, kind.name, layer.norm, page.constant("", "D_MODEL", layer.d_model))
    classes = {name: name if name in given else per_kind[kind.name] for name, per_kind in branches.items()}
    x = "normed_BTD" if "before" in slots else "x_BTD"
    mix, mixed = _branch(page, kind, "attention", ", ".join([x, *shared.names]), slots)
    bend, bent = _branch(page, kind, "mlp", x, mlp_slots)
    stay = "normed_BTD" if placement == "carried" else "x_BTD"
    if parallel == "none":
        body = [
            *_before("attention", slots),
            *mix,
            f"x_BTD = {_on_stream('attention', f'{stay} + {mixed}', slots)}",
            *_before("mlp", slots),
            *bend,
            f"return {_on_stream('mlp', f'{stay} + {bent}', slots)}",
        ]
    else:
        mix, mixed = (mix, mixed) if mix else ([f"mixed_BTD = {mixed}"], "mixed_BTD")
        body = [*_before("attention", slots), *mix, *_before("mlp", mlp_slots), *bend]
        body.append(f"return x_BTD + {mixed} + {bent}")
    return lines(
        "class <name>(nn.Module):",
        f'    """{ABOUT[placement if parallel == "none" else parallel]}"""',
        "",
        f"    def __init__({', '.join(['self', *(f'{name}: type[nn.Module]' for name in given)])}) -> None:",
        "        super().__init__()",
        _slots("attention", slots, made),
        f"        self.attention = {classes['attention']}()",
        _slots("mlp", mlp_slots, made),
        f"        self.mlp = {classes['mlp']}()",
        "",
        f"    def forward({', '.join(['self', 'x_BTD: Tensor', *shared.parameters])}) -> Tensor:",
        '        """[B, T, D] -> [B, T, D]."""',
        [f"        {line}" for line in body],
    )


def _slots(branch: str, slots: tuple[str, ...], made: str | None) -> list[str]:
    if not slots:
        return []
    return [
        f"        self.{branch}_norms = nn.ModuleDict()",
        *(f'        self.{branch}_norms["{slot}"] = {made}' for slot in slots),
    ]


def _before(branch: str, slots: tuple[str, ...]) -> list[str]:
    return [f'normed_BTD = self.{branch}_norms["before"](x_BTD)'] if "before" in slots else []


def _on_stream(branch: str, total: str, slots: tuple[str, ...]) -> str:
    return f'self.{branch}_norms["stream"]({total})' if "stream" in slots else total


def _branch(page: Page, kind: Kind, branch: str, arguments: str, slots: tuple[str, ...]) -> tuple[list[str], str]:
    """Steps, if it takes any, and the expression of what a branch adds to the stream."""
    value, name = f"self.{branch}({arguments})", "mixed_BTD" if branch == "attention" else "inner_BTD"
    steps = []
    if "after" in slots:
        steps.append(f'{name} = self.{branch}_norms["after"]({name})')
    factor, rate = getattr(kind.layer.block, f"{branch}_multiplier"), kind.layer.dropout.branch
    if factor != 1:
        steps.append(f"{name} = {page.constant(kind.name, f'{branch.upper()}_MULTIPLIER', factor)} * {name}")
    if rate:
        steps.append(f"{name} = F.dropout({name}, {page.constant(kind.name, 'BRANCH_DROPOUT', rate)}, self.training)")
    return ([f"{name} = {value}", *steps], name) if steps else ([], value)
