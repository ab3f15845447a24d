"""Loading trained models from run folders and Hugging Face folders."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from tokenizers import Tokenizer

from archlab.config.model_schema import ModelConfig
from archlab.config.tasks import Task
from archlab.data import tokenizer as bpe
from archlab.errors import UserError
from archlab.exchange.configs import find_folder, is_run_folder, load_config
from archlab.exchange.load import load_hf, read_origin
from archlab.files import parse_object
from archlab.hf.folder import GENERATION_CONFIG, TOKENIZER, TOKENIZER_CONFIG, companions
from archlab.hf.imported import Imported, imported
from archlab.hf.special_tokens import before_text, complete, put_before_text, several
from archlab.infer.text import Codec, PublishedCodec, RunCodec
from archlab.model.decoder import Decoder
from archlab.model.origin import Origin
from archlab.training.checkpoint import load_weights
from archlab.training.device import torch_device
from archlab.training.run_folder import RunFolder
from archlab.training.trained_weights import newest_weights


def from_pretrained(
    folder_or_hub_id: str | Path, dtype: torch.dtype | str | None = None, device: torch.device | str | None = None
) -> Decoder:
    """Load a trained model for inference.

    - `folder_or_hub_id`: a run folder (its last checkpoint is loaded), a Hugging Face folder, or a hub id
      (`organization/name` or `organization/name@revision`). A hub id needs a network connection and the extra `hub`.
      The matrices of a run with LoRA are merged into the weights.
    - `dtype`: a dtype such as `torch.bfloat16`, or its name. None or "auto" means the dtype of the stored weights.
    - `device`: a device such as "cuda:1". None means the CPU.

    Raise UserError if the model cannot be loaded.

    >>> model = archlab.from_pretrained("runs/a", dtype="bfloat16")
    >>> model.embedding.weight.dtype
    torch.bfloat16
    """
    dtype = None if dtype == "auto" else dtype
    torch_dtype = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if dtype is not None and not (isinstance(torch_dtype, torch.dtype) and torch_dtype.is_floating_point):
        raise UserError(f"dtype: {dtype!r}; allowed: auto, float32, bfloat16, float16, float64")
    target = torch_device("cpu" if device is None else device)
    folder = find_folder(folder_or_hub_id)
    model = load_model(folder) if is_run_folder(folder) else load_hf(folder, torch_dtype)
    model.origin = replace(model.origin, folder=folder)
    return model.to(device=target, dtype=torch_dtype)


def load_model(folder: Path, config: ModelConfig | None = None) -> Decoder:
    """Load the model of a run folder or Hugging Face folder.

    `config` may replace the folder's model config if the model keeps the same parameters.
    """
    if not is_run_folder(folder):
        return load_hf(folder, config=config)
    return load_run(folder, config)[1]


def load_run(folder: Path, config: ModelConfig | None = None) -> tuple[int, Decoder]:
    """Return (steps trained, model) from a run's newest undamaged checkpoint. The run may still be training."""
    RunFolder(folder).verify()
    step, checkpoint = newest_weights(folder)
    of_run = load_config(folder)
    model = Decoder(config or of_run.model)
    try:
        load_weights(checkpoint, model, of_run.train.lora)
    except (UserError, FileNotFoundError):
        if checkpoint.exists():
            raise
        return load_run(folder, config)  # the training process has replaced the checkpoint in the meantime
    record = imported(folder)
    if record and record.dtype and step == 0:  # not trained yet: use the published dtype
        model.to(getattr(torch, record.dtype))
    model.origin = _origin(folder, record)
    return step, model.eval()


def _origin(run: Path, record: Imported | None) -> Origin:
    folder = RunFolder(run)
    files, env = companions(run), folder.environment()
    ends = env.get("response_ends", [])
    if record:
        origin = Origin(record.family, record.special_ids, files)
        document_token = env.get("document_token")
        return origin if document_token is None else _ending_also_at(origin, [document_token, *ends], run)
    if TOKENIZER not in files:
        return Origin()
    tokenizer = load_tokenizer(run)
    first, *_ = before_text(tokenizer)
    described = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": tokenizer.id_to_token(first),
        "eos_token": tokenizer.id_to_token(first),
        "clean_up_tokenization_spaces": False,
    }
    described |= parse_object(files.get(TOKENIZER_CONFIG, b"{}"), str(run / TOKENIZER_CONFIG))  # if it has a template
    ids = {"bos_token_id": first, "eos_token_id": list(dict.fromkeys([first, *ends])) if ends else first}
    written = {TOKENIZER: tokenizer.to_str().encode(), TOKENIZER_CONFIG: json.dumps(described, indent=2).encode()}
    return Origin(None, ids, files | written)


def _ending_also_at(origin: Origin, tokens: Sequence[int], run: Path) -> Origin:
    generation = parse_object(origin.files.get(GENERATION_CONFIG, b"{}"), str(run / GENERATION_CONFIG))
    named = (generation if GENERATION_CONFIG in origin.files else origin.special_ids).get("eos_token_id")
    ends = list(dict.fromkeys([*several(named), *tokens]))
    files = {**origin.files, GENERATION_CONFIG: json.dumps(generation | {"eos_token_id": ends}, indent=2).encode()}
    return replace(origin, special_ids={**origin.special_ids, "eos_token_id": ends}, files=files)


def load_tokenizer(source: str | Path | Decoder) -> Tokenizer:
    """Return the tokenizer of a model that `from_pretrained` loaded, of a run folder or Hugging Face folder, or of a
    hub id.

    It is a tokenizer of the library `tokenizers`: `encode(text).ids` are the tokens of a text, and `decode(ids)` is the
    text of tokens. The tokenizer begins each text with the token that precedes documents. Raise UserError if the model
    was not loaded from a folder, or if its run was trained on a task, whose tokens do not represent text.

    >>> tokenizer = archlab.load_tokenizer("runs/a")
    >>> tokenizer.decode(tokenizer.encode("the cat").ids)
    'the cat'
    """
    folder = folder_of(source) if isinstance(source, Decoder) else find_folder(source)
    _check_reads_text(folder)
    tokenizer = RunFolder(folder).tokenizer() if is_run_folder(folder) else bpe.load(folder)
    if not before_text(tokenizer):
        put_before_text(tokenizer, bpe.document_tokens(tokenizer)[0])
    return tokenizer


def _check_reads_text(folder: Path) -> None:
    if isinstance(task := load_config(folder).data.task, Task):
        raise UserError(f"{folder}: was trained on a task ({task.describe()}), so its tokens do not represent text")


def folder_of(model: Decoder) -> Path:
    """Return the folder from which a model was loaded. Raise UserError if there is none."""
    if model.origin.folder is None:
        raise UserError(
            "the model has no tokenizer, because it was not loaded from a folder; load it with "
            "archlab.from_pretrained, or use token ids"
        )
    return model.origin.folder


def load_codec(folder: Path) -> Codec:
    RunFolder(folder).verify()
    if is_run_folder(folder):
        _check_reads_text(folder)
    if (folder / "source.spm").is_file() and not (folder / TOKENIZER).is_file():
        raise UserError(
            f"{folder} has no {TOKENIZER}, and archlab does not read its SentencePiece files (source.spm, target.spm); "
            "use the model from Python, with token ids"
        )
    record = imported(folder)
    if is_run_folder(folder) and not record:
        ends = RunFolder(folder).environment().get("response_ends", ())
        objective = load_config(folder).train.objective
        return RunCodec(load_tokenizer(folder), reads_pairs=_reads_pairs(folder), ends=ends, objective=objective)
    origin = _origin(folder, record) if record else read_origin(folder)
    tokenizer, _ = bpe.read(folder)
    return PublishedCodec(tokenizer, complete(tokenizer, origin.files, origin.special_ids, folder))


def _reads_pairs(run: Path) -> bool:
    config = load_config(run)
    is_known = config.train.objective.needs_pairs or config.data.pairs is not None
    return is_known or RunFolder(run).environment().get("pairs", False)  # a data folder may be gone
