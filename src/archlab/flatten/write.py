"""Write a model config as a single PyTorch file with constants, functions and classes."""

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from archlab.config.components.visibility import Visibility
from archlab.config.core.base import Base
from archlab.config.layers import layer_configs, resolve, stacks
from archlab.config.model_schema import ModelConfig
from archlab.config.problems import Problem, raise_problems
from archlab.config.sources import refuse_users_kinds
from archlab.errors import UserError, check_at_least
from archlab.exchange.configs import ConfigSource, config_of, name_of
from archlab.flatten.decoder import decoder, kinds_of
from archlab.flatten.text import WIDTH, Page, lines

MOST_LINES = 350
"""Default limit of the number of lines for each stack of layers."""

ORDER = (
    "VOCAB_SIZE", "EMBEDDING_WIDTH", "D_MODEL", "N_ENCODER_LAYERS", "N_LAYERS", "MAX_SEQ_LEN", "N_HEADS", "N_KV_HEADS",
    "HEAD_DIM", "V_DIM", "D_FF", "N_EXPERTS", "ACTIVE_EXPERTS", "D_EXPERT", "D_LATENT", "D_SHARED", "NORM_EPS",
    "QK_NORM_EPS",
)  # fmt: skip
"""Names of the constants that come first in the file.

Other constants follow in the order of their first use. The pattern of layers comes last.
"""

LEGEND = {
    "B": "batch", "T": "tokens", "Q": "tokens as queries", "S": "tokens as keys", "D": "d_model", "H": "heads",
    "K": "key/value heads or a token's experts", "C": "head_dim", "V": "v_dim or vocabulary",
    "E": "experts or all heads side by side", "F": "d_ff", "N": "all tokens of the batch",
    "R": "a token and one of its experts", "G": "groups", "O": "features out",
}  # fmt: skip
"""Meaning of each letter in the suffixes of tensor names, such as `x_BTD`. Each letter stands for a dimension."""


KNOWN: dict[type[Base], str] = {
    ModelConfig: "vocab_size d_model n_layers max_seq_len embedding block attention mixer position mlp norm dropout "
    "head init layers encoder",
    Visibility: "visibility window stride global_tokens blocks",
}
"""Fields that `flatten_model` supports, by config class. They are written, or they have an effect only in training.

`flatten_model` refuses other fields of these classes if they differ from their defaults. Components, norms and position
encodings are not listed, because `flatten_model` writes them from their code in archlab.model.
"""


def title_of(config: str, overrides: Sequence[str]) -> str:
    """Return the title of the file for a preset or a path with these overrides."""
    return " ".join((Path(config).name.removesuffix(".yaml"), *overrides))


def flatten_model(model: ModelConfig | ConfigSource, *, title: str = "", most_lines: int | None = None) -> str:
    """Return the text of a Python file that contains exactly this architecture and needs only torch.

    `model` is `config.model` of a config, the config, or its name, as for `archlab.load_config`. The class `Decoder` in
    the file can load the state dict of archlab's Decoder. The docstring of the file begins with `title`, by default the
    name of the config. The file has at most `most_lines` lines, by default 350, or 700 with an encoder.

    Raise UserError if the file would have more lines, or if the config has a setting that a flattened
    file does not support.

    >>> model = archlab.load_config("mine.yaml").model
    >>> exec(archlab.flatten_model(model), file := {})
    >>> file["Decoder"]().load_state_dict(archlab.Decoder(model).state_dict())
    <All keys matched successfully>
    """
    check_at_least(1, most_lines=most_lines)
    if not isinstance(model, ModelConfig):
        title, model = title or name_of(model, ""), config_of(model).model
    _refuse_unknown(model)
    most_lines = most_lines or MOST_LINES * len(stacks(model))
    title = re.sub(r"[^\w .,+=/-]", "_", title or "A model")[:40]
    n_kinds = sum(len(kinds_of(stack)[0]) for stack in stacks(model))
    layers_differ = n_kinds > 1
    page = Page(layers_differ)
    decoder(page, model)
    if layers_differ and page.clashes:  # again, because now all names that need the layer kind in them are known
        page = Page(layers_differ, clashes=page.clashes)
        decoder(page, model)
    body = "\n\n\n".join(page.definitions.values())
    constants = "\n".join(_constants(page))
    text = lines(
        _docstring(title, body), "", _imports(body), "", constants, "", "",
        body,
    ) + "\n"  # fmt: skip
    length = text.count("\n")
    if length > most_lines:
        raise UserError(
            f"model.layers: {n_kinds} different kinds of layers need {length} lines; a flattened file "
            f"may have at most {most_lines}"
        )
    return text


def _refuse_unknown(model: ModelConfig) -> None:
    refuse_users_kinds(model, "a flattened file")
    paths = ("model.encoder", "model") if model.encoder else ("model",)
    problems = [problem for path, stack in zip(paths, stacks(model), strict=True) for problem in _problems(stack, path)]
    raise_problems(list(dict.fromkeys(problems)), "the config to flatten")


def _problems(model: ModelConfig, path: str) -> Iterator[Problem]:
    yield from _unknown(resolve(model), ModelConfig, path)
    for layer in dict.fromkeys(layer_configs(model)):
        if isinstance(layer.attention, Visibility):
            yield from _unknown(layer.attention, Visibility, f"{path}.attention")
            if layer.attention.visibility == "prefix":  # the length of the prefix would be an argument of `forward`
                yield Problem(f"{path}.attention.visibility", "prefix; allowed in a flattened file: causal, two_sided")


def _unknown(section: Base, schema: type[Base], path: str) -> Iterator[Problem]:
    for name, field in schema.model_fields.items():
        value, default = getattr(section, name), field.get_default(call_default_factory=True)
        if name not in KNOWN[schema].split() and value != default and name != "kind":
            yield Problem(f"{path}.{name}", f"{_text(value)}; allowed in a flattened file: {_text(default)}")


def _text(value: Any) -> str:
    return json.dumps(value.model_dump() if isinstance(value, Base) else value).replace('"', "")


def _constants(page: Page) -> list[str]:
    def order(item: tuple[int, str]) -> tuple[int, int]:
        first_use, name = item
        base = next((i for i, known in enumerate(ORDER) if name == known or name.startswith(f"{known}_")), len(ORDER))
        return (len(ORDER) + 1 if name in ("PATTERN", "LAYERS") else base, first_use)

    named = [name for _, name in sorted(enumerate(page.constants), key=order)]
    out: list[str] = []
    for name in named:
        value, comment = page.constants[name]
        line = f"{name} = {value}"
        if comment and len(line) + len(comment) + 4 > WIDTH:
            out += [f"# {comment}", line]
        else:
            out.append(f"{line}  # {comment}" if comment else line)
    return out


def _imports(body: str) -> list[str]:
    math = ["import math", ""] if "math." in body else []
    functional = ["import torch.nn.functional as F"] if re.search(r"\bF\.", body) else []
    return [*math, "import torch", *functional, "from torch import Tensor, nn"]


def _docstring(title: str, body: str) -> list[str]:
    suffixes = set("".join(re.findall(r"\b[a-z_]+_([A-Z1]+)\b", body)))
    letters = [f"{letter} {meaning}" for letter, meaning in LEGEND.items() if letter in suffixes]
    rows, row = list[str](), "A tensor's suffix is its shape:"
    for i, word in enumerate(letters):
        text = f" {word}{',' if i < len(letters) - 1 else '.'}"
        if len(row) + len(text) > WIDTH:
            rows, row = [*rows, row], ""
        row += text if row else text.strip()
    return [
        f'"""{title}: only this architecture, in one file.',
        "",
        "Written by `archlab flatten`. `Decoder().load_state_dict` loads archlab's weights.",
        *rows,
        row,
        '"""',
    ]
