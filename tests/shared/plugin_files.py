"""The files of docs/plugins.md, and configs that use them."""

import re
from pathlib import Path

import tiny
from archlab.config.core.yaml_text import to_yaml

DOCUMENT = (Path(__file__).parents[2] / "docs" / "plugins.md").read_text(encoding="utf-8")
FILES = {
    name: text for text in re.findall(r"^```\w+\n(.*?)^```", DOCUMENT, re.M | re.S) for name in re.findall(r"\A# (\S+)\n", text)
}  # fmt: skip

USED = {
    "power_norm.py": ["model.norm={kind: power_norm, power: 2.5}"],
    "mish.py": ["model.mlp.activation=mish"],
    "bell.py": ["model.position={kind: bell, width: 4}"],
    "relu_attention.py": ["model.attention.kind=relu"],
    "sigmoid.py": ["model.attention={kind: sigmoid}", "model.position.kind=none"],
    "average.py": ["model.mixer={kind: average}", "model.attention.kind=none", "model.position.kind=none"],
    "squared.py": ["model.mlp={kind: squared, d_ff: 48}"],
    "lion.py": ["train.optimizer={kind: lion, beta1: 0.8}", "train.lr=1e-3"],
    "root.py": ["train.schedule=root"],
    "smooth.py": ["train.objective={kind: smooth, amount: 0.2}"],
    "palindrome.py": ["data.task={kind: palindrome, reversed: 4}"],
}
"""Name of a file in docs/plugins.md -> settings of the tiny config that use what the file adds."""


def write(text: str, name: str = "own.py") -> Path:
    Path(name).write_text(text)
    return Path(name).resolve()


def written(*files: str) -> list[str]:
    """Write files of the document and a tiny config that uses them. Return the arguments of a command."""
    for file in files:
        write(FILES[file], file)
    if not Path("tiny.yaml").exists():
        base = tiny.config(data=tiny.write_text(Path()).resolve())
        write(to_yaml(base.model_dump(mode="json")), "tiny.yaml")
    return ["tiny.yaml", f"plugins=[{', '.join(files)}]", *(override for file in files for override in USED[file])]


POSITIONS = '''
from typing import ClassVar, Literal

import archlab
import torch
from torch import nn


class Added(archlab.Position):
    """A parameter for each feature of each position."""

    kind: Literal["added"] = "added"
    acts_on: ClassVar[str] = "embedding"

    def of_all_layers(self, d_model, max_seq_len, n_heads):
        return max_seq_len * d_model


@archlab.implements(Added)
class AddedModule(nn.Module):
    def __init__(self, config, d_model, max_seq_len):
        super().__init__()
        self.table = nn.Parameter(torch.empty(max_seq_len, d_model))
        self.roles = {"table": "embedding"}

    def forward(self, positions, dtype):
        return self.table[positions.clamp(min=0)].to(dtype)


class Flipped(archlab.Position):
    """Every other token has its queries and keys negated."""

    kind: Literal["flipped"] = "flipped"
    acts_on: ClassVar[str] = "queries"


@archlab.implements(Flipped)
class Flip:
    def __init__(self, config, width, positions, lengths, dtype):
        self.signs = (1 - 2 * (positions % 2)).to(dtype)[:, None, :, None]

    def rotate(self, x):
        return x * self.signs
'''
"""Positions on the embedding, and on queries and keys."""
