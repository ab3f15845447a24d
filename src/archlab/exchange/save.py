"""Export of models as Hugging Face folders: config.json, safetensors and tokenizer files."""

import json
from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from archlab.config.core.merge import Raw
from archlab.config.model_schema import ModelConfig
from archlab.config.sources import refuse_users_kinds
from archlab.errors import UserError
from archlab.families.registry import FAMILIES, find_family
from archlab.files import folder_atomic
from archlab.hf.family import Family
from archlab.hf.folder import CONFIG, INDEX, WEIGHTS
from archlab.hf.tensors import format_name
from archlab.hf.weight_map import constant_values, published_tensors
from archlab.model.decoder import Decoder

SHARD_BYTES = 5 * 10**9
"""Maximum size of a weights file in bytes. Larger models are split into several files."""

FIRST = ("llama", "gpt2", "gpt_neox", "gptj", "opt", "qwen2", "qwen3", "mistral")
"""Families to try first, because other families, such as Granite, can express the same models."""


def save_pretrained(model: Decoder, folder: str | Path, family: str | None = None) -> str:
    """Save a model as a Hugging Face folder with which transformers computes the same logits.

    The folder contains config.json, safetensors and tokenizer files. `family` is the `model_type` to save as. None
    means the family that the model was loaded from. If the model was not loaded, None means the first family that can
    express it. Return the name of the family. Raise a UserError that names the fields that the family cannot express.

    >>> archlab.save_pretrained(archlab.from_pretrained("runs/a"), "exported")
    'llama'
    """
    dtype = next(model.parameters()).dtype
    wide = dtype in (torch.float32, torch.float64)
    chosen, config = choose_family(model.config, family, model.origin.family, wide)
    config["dtype"] = format_name(dtype)
    # Without these nulls, a class's default would end texts at an arbitrary token.
    config |= {"bos_token_id": None, "eos_token_id": None, **model.origin.special_ids}
    write_folder(Path(folder), config, _tensors(chosen, model), model.origin.files)
    return chosen.model_type


def choose_family(
    config: ModelConfig, family: str | None, origin: str | None, wide: bool, candidates: Container[str] = FAMILIES
) -> tuple[Family, Raw]:
    """Return the family to save a model as, and the content of its config.json.

    See `save_pretrained` for `family`, and `Family.hf_config` for `wide`. `origin` is the family that the model was
    loaded from. `candidates` are the families to try if `family` is None.
    """
    refuse_users_kinds(config, "a published format")
    if family is not None:
        chosen = find_family(family, "family")
        return chosen, chosen.hf_config(config, wide=wide)
    refusals: dict[str, str] = {}
    names: list[str] = [*([origin] if origin else []), *(name for name in (*FIRST, *FAMILIES) if name in candidates)]
    for name in dict.fromkeys(names):
        try:
            return FAMILIES[name], FAMILIES[name].hf_config(config, wide=wide)
        except UserError as error:
            refusals[name] = str(error)
    if origin:
        raise UserError(refusals[origin])
    # Other refusals come from values that could not be read back, so the number of differences is unknown.
    nearest = min(refusals.values(), key=lambda text: ("cannot express" not in text, text.count("\n")))
    raise UserError(f"no known family can express this model exactly; the nearest: {nearest}")


def _tensors(family: Family, model: Decoder) -> Iterator[tuple[str, Tensor]]:
    yield from published_tensors(family.weights, model.config, model.state_dict(), family.architecture)
    for name, value in constant_values(family.constants, model.config).items():
        yield name, torch.tensor(value, dtype=next(model.parameters()).dtype)


def check_new(folder: Path) -> None:
    """Raise UserError unless the path is that of a new or an empty folder, other than the current one."""
    if not folder.name or (folder.exists() and (not folder.is_dir() or any(folder.iterdir()))):
        raise UserError(f"{folder}: already exists; name a new or an empty folder")


def write_folder(
    folder: Path, config: Raw, tensors: Iterable[tuple[str, Tensor]], companions: Mapping[str, bytes]
) -> None:
    """Write the config, the weights and the companion files, either completely or not at all.

    Weights of more than SHARD_BYTES are split into several files, with an index.
    """
    check_new(folder)
    with _full_disk_named(folder), folder_atomic(folder) as temporary:
        (temporary / CONFIG).write_text(json.dumps(config, indent=2) + "\n")
        for name, content in companions.items():
            (temporary / name).parent.mkdir(exist_ok=True)
            (temporary / name).write_bytes(content)
        _write_shards(temporary, tensors)


@contextmanager
def _full_disk_named(folder: Path) -> Iterator[None]:
    try:
        yield
    except SafetensorError as error:
        raise UserError(f"{folder}: cannot write: {error}") from None


def _write_shards(folder: Path, tensors: Iterable[tuple[str, Tensor]]) -> None:
    shards: list[list[str]] = []
    shard: dict[str, Tensor] = {}
    total = 0

    def flush() -> None:
        save_file(shard, folder / f"part-{len(shards)}", metadata={"format": "pt"})
        shards.append(list(shard))
        shard.clear()

    for name, tensor in tensors:
        size = tensor.numel() * tensor.element_size()
        if shard and sum(t.numel() * t.element_size() for t in shard.values()) + size > SHARD_BYTES:
            flush()
        shard[name] = tensor.detach().contiguous().cpu()
        total += size
    flush()
    if len(shards) == 1:
        (folder / "part-0").rename(folder / WEIGHTS)
        return
    index: dict[str, Any] = {"metadata": {"total_size": total}, "weight_map": {}}
    for number, names in enumerate(shards):
        file = f"model-{number + 1:05d}-of-{len(shards):05d}.safetensors"
        (folder / f"part-{number}").rename(folder / file)
        index["weight_map"] |= dict.fromkeys(names, file)
    (folder / INDEX).write_text(json.dumps(index, indent=2))
