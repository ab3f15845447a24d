"""Our models as Hugging Face folders: config.json, safetensors, tokenizer."""

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
from archlab.hf.weights import fixed, written
from archlab.model.decoder import Decoder

SHARD_BYTES = 5 * 10**9
"""Size from which on weights go into a further file."""

FIRST = ("llama", "gpt2", "gpt_neox", "gptj", "opt", "qwen2", "qwen3", "mistral")
"""Asked before the others, of which some (Granite, say) could express the same model."""


def save_pretrained(model: Decoder, folder: str | Path, family: str | None = None) -> str:
    """Write config.json, safetensors and tokenizer that transformers loads to the same logits; the family's name.

    `family` None: the one it was loaded as if that can express the model exactly, or else the first that can. UserError
    names the fields in the way.
    """
    dtype = next(model.parameters()).dtype
    wide = dtype in (torch.float32, torch.float64)
    chosen, config = expressed(model.config, family, model.origin.family, wide)
    config["dtype"] = format_name(dtype)
    # Where nothing is known, a class's own default would end texts at some token.
    config |= {"bos_token_id": None, "eos_token_id": None, **model.origin.special_ids}
    write_folder(Path(folder), config, _tensors(chosen, model), model.origin.files)
    return chosen.model_type


def expressed(
    config: ModelConfig, family: str | None, origin: str | None, wide: bool, among: Container[str] = FAMILIES
) -> tuple[Family, Raw]:
    """The family to write a model as, and its config.json; see `save_pretrained`, and for `wide` `hf_config`.

    `among`: which may be chosen where neither `family` nor `origin` says it.
    """
    refuse_users_kinds(config, "a published format")
    if family is not None:
        chosen = find_family(family, "family")
        return chosen, chosen.hf_config(config, wide=wide)
    refusals: dict[str, str] = {}
    asked: list[str] = [*([origin] if origin else []), *(name for name in (*FIRST, *FAMILIES) if name in among)]
    for name in dict.fromkeys(asked):
        try:
            return FAMILIES[name], FAMILIES[name].hf_config(config, wide=wide)
        except UserError as error:
            refusals[name] = str(error)
    if origin:
        raise UserError(refusals[origin])
    # Other refusals met a value that cannot even be read back: how much else differs is unknown.
    nearest = min(refusals.values(), key=lambda text: ("cannot express" not in text, text.count("\n")))
    raise UserError(f"no known family can express this model exactly; the nearest: {nearest}")


def _tensors(family: Family, model: Decoder) -> Iterator[tuple[str, Tensor]]:
    yield from written(family.weights, model.config, model.state_dict(), family.architecture)
    for name, value in fixed(family.constants, model.config).items():
        yield name, torch.tensor(value, dtype=next(model.parameters()).dtype)


def write_folder(
    folder: Path, config: Raw, tensors: Iterable[tuple[str, Tensor]], companions: Mapping[str, bytes]
) -> None:
    """Config, weights in files of at most SHARD_BYTES (with an index if several) and companions, all or nothing."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder}: exists; name a new or an empty folder")
    with _full_disk_named(folder), folder_atomic(folder) as temporary:
        (temporary / CONFIG).write_text(json.dumps(config, indent=2) + "\n")
        for name, content in companions.items():
            (temporary / name).write_bytes(content)
        _write_shards(temporary, tensors)


@contextmanager
def _full_disk_named(folder: Path) -> Iterator[None]:
    """What safetensors says of a full disk."""
    try:
        yield
    except SafetensorError as error:
        raise UserError(f"{folder}: cannot write: {error}") from None


def _write_shards(folder: Path, tensors: Iterable[tuple[str, Tensor]]) -> None:
    shards: list[list[str]] = []
    held: dict[str, Tensor] = {}
    total = 0

    def flush() -> None:
        save_file(held, folder / f"part-{len(shards)}", metadata={"format": "pt"})
        shards.append(list(held))
        held.clear()

    for name, tensor in tensors:
        size = tensor.numel() * tensor.element_size()
        if held and sum(t.numel() * t.element_size() for t in held.values()) + size > SHARD_BYTES:
            flush()
        held[name] = tensor.detach().contiguous().cpu()
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
