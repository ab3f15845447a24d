"""Import of published models as run folders, and export of run folders to published formats."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import torch

from archlab.config.core.yaml_text import to_yaml
from archlab.config.io import build_config
from archlab.config.schema import Config
from archlab.data import tokenizer as bpe
from archlab.digests import write_with_digests
from archlab.errors import UserError
from archlab.exchange.configs import find_folder, is_gguf, is_run_folder, why_no_run_folder
from archlab.exchange.gguf.read import read_gguf
from archlab.exchange.gguf.write import Format, save_gguf
from archlab.exchange.hf_config import read_raw_config
from archlab.exchange.load import imported_record, load_hf
from archlab.exchange.save import check_new, save_pretrained
from archlab.files import folder_atomic, real_path
from archlab.hf.folder import TOKENIZER
from archlab.hf.imported import IMPORTED, Imported, imported
from archlab.hf.tensors import format_name
from archlab.infer.load import load_model
from archlab.model.decoder import Decoder
from archlab.training.saving import save_checkpoint
from archlab.training.trained_weights import check_finite


class ImportedModel(NamedTuple):
    """Result of an import."""

    family: str
    """Name of the model family."""
    notes: list[str]
    """Notes about the parts of a GGUF file that were not imported exactly."""


def import_model(source: str | Path, out: str | Path) -> ImportedModel:
    """Make a run folder from a published model. It can then be trained, evaluated and sampled from, like any other.

    - `source`: a Hugging Face folder with config.json and weights, a hub id, or a GGUF file. The last needs the extra
      `gguf`.
    - `out`: the run folder to write, which must be new or empty. Its checkpoint is in float32, because training needs
      this dtype.

    Raise UserError if the source is something else, if archlab cannot load it, or if a weight is NaN or infinite.

    >>> family = archlab.save_pretrained(archlab.from_pretrained("runs/a"), "published")
    >>> archlab.import_model("published", "runs/imported").family == family
    True
    """
    source, out = str(source), Path(out)
    if is_gguf(source):
        return _import_gguf(Path(source), out)
    folder = find_folder(source)
    if is_run_folder(folder):
        raise UserError(f"{folder}: already a run folder; name a Hugging Face folder or a hub id")
    check_new(out)
    model = load_hf(folder)
    check_finite(source, model.state_dict().items())
    dtypes = {format_name(parameter.dtype) for parameter in model.parameters()}
    origin = model.origin
    record = imported_record(folder, source, dtypes.pop() if len(dtypes) == 1 else None)
    config = build_config(read_raw_config(folder), (), str(folder))
    write_untrained(out, config, model, {IMPORTED: record.model_dump_json(indent=2).encode(), **origin.files})
    return ImportedModel(record.family, [])


def _import_gguf(file: Path, out: Path) -> ImportedModel:
    check_new(out)
    model, notes = read_gguf(file)
    check_finite(str(file), model.state_dict().items())
    origin, config = model.origin, build_config({"model": model.config.model_dump(mode="json")}, (), str(file))
    assert origin.family is not None
    record = Imported(
        family=origin.family, special_ids=dict(origin.special_ids), dtype="float32", source=str(real_path(file))
    )
    write_untrained(out, config, model, {IMPORTED: record.model_dump_json(indent=2).encode(), **origin.files})
    return ImportedModel(origin.family, notes)


def write_untrained(out: Path, config: Config, model: Decoder, files: Mapping[str, bytes]) -> None:
    """Create a run folder at step 0 with the weights of `model` in float32, and other files."""
    with folder_atomic(out) as temporary:
        write_with_digests(temporary, {"config.yaml": to_yaml(config.model_dump(mode="json")), **files})
        (temporary / "checkpoints").mkdir()
        save_checkpoint(temporary / "checkpoints", 0, model.to(torch.float32), optimizer=None)


def export_model(run: Path, out: Path, family: str | None = None, dtype: Format | None = None) -> str:
    """Write a run's last checkpoint and its tokenizer as a Hugging Face folder. Return the name of the model family.

    `dtype` is the dtype of the stored weights; None means the run's dtype.
    """
    if not is_run_folder(run):
        raise UserError(f"{why_no_run_folder(run)}; name a folder that `archlab train` created")
    model = _complete(run)
    return save_pretrained(model.to(getattr(torch, dtype)) if dtype else model, out, family)


def export_gguf(
    folder: Path, out: Path, family: str | None = None, dtype: Format | None = None
) -> tuple[str, list[str]]:
    """Write a run's last checkpoint, or a published model, as a GGUF file for llama.cpp. See `save_gguf`."""
    return save_gguf(_complete(find_folder(folder)), out, family, dtype)


def _complete(folder: Path) -> Decoder:
    model = load_model(folder)
    check_finite(str(folder), model.state_dict().items())
    if TOKENIZER in model.origin.files:
        bpe.read(folder / TOKENIZER)
    if is_run_folder(folder) and TOKENIZER not in model.origin.files and not imported(folder):
        raise UserError(f"{folder / TOKENIZER}: missing; restore this file of the run")
    return model
