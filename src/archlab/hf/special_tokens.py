"""Special tokens of a published model. Several files name special tokens; they are read in the order of precedence of
transformers 5.

- Tokens that may occur in a text: from `tokenizer.json`, then from the key `added_tokens_decoder` of
  `tokenizer_config.json`. If this key is missing, from `added_tokens.json` and `special_tokens_map.json`.
- Tokens that stop generation: from `generation_config.json`. If this file is missing, from `config.json`.
- Tokens that precede a text: from the post-processor in `tokenizer.json`.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, processors

from archlab.config.core.merge import Raw
from archlab.config.core.text import note_once
from archlab.errors import UserError
from archlab.files import parse_object
from archlab.hf.folder import (
    ADDED_TOKENS,
    CONFIG,
    GENERATION_CONFIG,
    SPECIAL_TOKENS_MAP,
    TOKENIZER,
    TOKENIZER_CONFIG,
    companions,
)
from archlab.hf.imported import IMPORTED, imported
from archlab.hf.towers import read_text_values

SPECIAL_IDS = (
    "bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id", "forced_bos_token_id",
    "forced_eos_token_id",
)  # fmt: skip


@dataclass(frozen=True)
class SpecialTokens:
    """Ids of a model's special tokens."""

    before: tuple[int, ...] = ()
    """Tokens that the post-processor in tokenizer.json prepends to a text."""
    bos: int | None = None
    eos: int | None = None
    """BOS token (`bos`) and EOS token (`eos`) of the tokenizer. None if the tokenizer has no such token."""
    model_bos: int | None = None
    """BOS token of the model: `bos_token_id` of generation_config.json or config.json."""
    pad: int | None = None
    """Padding token of the tokenizer. If the tokenizer has none, `pad_token_id` of the model."""
    mask: int | None = None
    """Mask token of the tokenizer, which stands for a token to predict."""
    ends: tuple[int, ...] = ()
    """Tokens at which `generate` stops: `eos_token_id` of the model.

    If the model has no `eos_token_id`, generation stops at the EOS token of the tokenizer.
    """
    decoder_start: int | None = None
    """Token with which the decoder of a model with an encoder starts: `decoder_start_token_id` of the model, otherwise
    its BOS token."""
    forced_first: int | None = None
    """Token that generation must write first, after `decoder_start`: `forced_bos_token_id` of the model. In
    translation models, it names the target language. It counts as a new token, as in transformers."""
    forced_last: int | None = None
    """Token that generation must write last, at the maximum length: `forced_eos_token_id` of the model. Of several
    tokens, transformers writes the one with the smallest id."""

    @property
    def document(self) -> tuple[int, ...]:
        """Tokens that precede a document: those that the tokenizer prepends to a text.

        If the tokenizer prepends no tokens, the BOS token precedes a document. Without a BOS token, the EOS token does.
        Empty if there is neither.
        """
        single = (self.bos, self.model_bos, self.eos, *self.ends)
        return self.before or tuple(i for i in single if i is not None)[:1]

    @property
    def first(self) -> int | None:
        """Token that precedes a text that has no context. The choice is that of lm_eval's class for transformers models
        (`hf`).

        lm_eval takes the tokenizer's BOS token, otherwise its EOS token. If the tokenizer has neither, archlab takes
        the first token that precedes a document.
        """
        return next((i for i in (self.bos, self.eos, *self.document) if i is not None), None)

    @property
    def stops(self) -> tuple[int, ...]:
        """Tokens at which generation stops in lm_eval's class for transformers models (`hf`): the EOS token of the
        tokenizer, and the EOS tokens of the model."""
        return tuple(dict.fromkeys(i for i in (self.eos, *self.ends) if i is not None))


def model_ids(folder: Path) -> dict[str, Any]:
    """Return `bos_token_id` and the other special token ids from config.json, or from imported.json in a run folder."""
    if origin := imported(folder):
        return checked_ids(origin.special_ids, str(folder / IMPORTED))
    return checked_ids(read_text_values(folder), str(folder / CONFIG)) if (folder / CONFIG).is_file() else {}


def checked_ids(values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the values of the keys in SPECIAL_IDS. Raise UserError if a value is not a token id, a list of token ids,
    or null."""
    ids = {key: values[key] for key in SPECIAL_IDS if key in values}
    for key, value in ids.items():
        if any(type(i) is not int for i in several(value)):
            raise UserError(f"{where}: {key} is {value!r}; allowed: a token id, a list of ids, or null")
    return ids


def complete_from(tokenizer: Tokenizer, folder: Path) -> SpecialTokens:
    """Call `complete` with the files of a folder, and return the special tokens. `tokenizer` may come from a file of
    any name."""
    names = (TOKENIZER_CONFIG, SPECIAL_TOKENS_MAP, ADDED_TOKENS, GENERATION_CONFIG)
    return complete(tokenizer, companions(folder, names), model_ids(folder), folder)


def complete(
    tokenizer: Tokenizer, files: Mapping[str, bytes], ids: Mapping[str, Any], folder: Path = Path()
) -> SpecialTokens:
    """Return the special tokens. Those that are only in other files than tokenizer.json are added to `tokenizer`.

    `files` maps file names to contents. `ids` contains `bos_token_id` and the other special token ids of config.json.
    Error messages name `folder`. Raise UserError for a damaged file. Also raise it if a file gives a token a different
    id than transformers would.
    """

    def parsed(name: str) -> Raw:
        return parse_object(files.get(name, b"{}"), str(folder / name))

    described = _described(parsed)
    _add(tokenizer, described, parsed(ADDED_TOKENS), folder)
    if described.get("split_special_tokens") is True:
        tokenizer.encode_special_tokens = True
    in_config = described.get("add_prefix_space")
    if isinstance(in_config, bool) and (in_tokenizer := _adds_prefix_space(tokenizer)) not in (None, in_config):
        difference = f"add_prefix_space is {in_config}, but {in_tokenizer} in {TOKENIZER}".lower()
        note_once(f"{folder / TOKENIZER_CONFIG}: {difference}; archlab follows {TOKENIZER}")

    def named(role: str) -> int | None:
        name = _name(described.get(f"{role}_token"))
        return None if name is None else tokenizer.token_to_id(name)

    model = (
        checked_ids(parsed(GENERATION_CONFIG), str(folder / GENERATION_CONFIG)) if GENERATION_CONFIG in files else ids
    )

    def numbered(role: str) -> Iterator[int]:
        return (i for source in (model, ids) for i in _possible(source.get(f"{role}_token_id")))

    bos, eos, pad, mask = (named(role) for role in ("bos", "eos", "pad", "mask"))
    ends = tuple(_possible(model.get("eos_token_id"))) or (() if eos is None else (eos,))
    return SpecialTokens(
        before=before_text(tokenizer),
        bos=bos,
        eos=eos,
        model_bos=next(numbered("bos"), None),
        pad=pad if pad is not None else next(numbered("pad"), None),
        mask=mask,
        ends=ends,
        decoder_start=next((i for role in ("decoder_start", "bos") for i in numbered(role)), None),
        forced_first=min(_possible(model.get("forced_bos_token_id")), default=None),
        forced_last=min(_possible(model.get("forced_eos_token_id")), default=None),
    )


def special_names(files: Mapping[str, bytes], folder: Path) -> dict[str, str]:
    """Return the special tokens that chat templates may write, by the names of their variables, such as `eos_token`.

    For the arguments, see `complete`.
    """
    described = _described(lambda name: parse_object(files.get(name, b"{}"), str(folder / name)))
    named = {f"{role}_token": _name(described.get(f"{role}_token")) for role in _ROLES}
    return {variable: name for variable, name in named.items() if name is not None}


def _adds_prefix_space(tokenizer: Tokenizer) -> bool | None:
    pre_tokenizer = json.loads(tokenizer.to_str())["pre_tokenizer"] or {}
    parts = (pre_tokenizer, *pre_tokenizer.get("pretokenizers", ()))
    return next((part["add_prefix_space"] for part in parts if part["type"] == "ByteLevel"), None)


def before_text(tokenizer: Tokenizer) -> tuple[int, ...]:
    encoded = tokenizer.encode("a")
    n_before = next((n for n, special in enumerate(encoded.special_tokens_mask) if not special), 0)
    return tuple(encoded.ids[:n_before])


def put_before_text(tokenizer: Tokenizer, token: int) -> None:
    name = tokenizer.id_to_token(token)
    special: Raw = {"SpecialToken": {"id": name, "type_id": 0}}
    text, second = ({"Sequence": {"id": which, "type_id": n}} for n, which in enumerate("AB"))
    state: Raw = {
        "type": "TemplateProcessing",
        "single": [special, text],
        "pair": [special, text, {"SpecialToken": {"id": name, "type_id": 1}}, second],
        "special_tokens": {name: {"id": name, "ids": [token], "tokens": [name]}},
    }
    # The constructor would split a name at a colon and at spaces.
    processor = processors.TemplateProcessing()
    processor.__setstate__(json.dumps(state).encode())
    tokenizer.post_processor = processor


def _described(parsed: Callable[[str], Raw]) -> Raw:
    config = parsed(TOKENIZER_CONFIG)
    return config if "added_tokens_decoder" in config else config | parsed(SPECIAL_TOKENS_MAP)


def _add(tokenizer: Tokenizer, described: Raw, legacy: Raw, folder: Path) -> None:
    """Add tokens in the order of transformers' `TokenizersBackend`, because the order determines their ids."""
    special = dict(_special(described, folder))
    is_legacy = "added_tokens_decoder" not in described
    file = folder / (ADDED_TOKENS if is_legacy else TOKENIZER_CONFIG)
    if is_legacy:
        plain = {name: AddedToken(name, normalized=name not in special, special=name in special) for name in legacy}
        numbered = {_number(i, file): plain[name] for name, i in legacy.items()}
        numbered |= tokenizer.get_added_tokens_decoder()
    else:
        listed = described["added_tokens_decoder"]
        if not isinstance(listed, dict):
            raise UserError(
                f"{file}: added_tokens_decoder is {listed!r}; allowed: an object that maps token ids to tokens"
            )
        numbered = {_number(i, file): _token(value, file) for i, value in listed.items()}
    present = tokenizer.get_added_tokens_decoder().values()
    known = {repr(token) for token in present}
    tokens = [token for _, token in sorted(numbered.items()) if repr(token) not in known]
    names = {token.content for token in (*present, *tokens)}
    tokens += [token for name, token in special.items() if name not in names]
    for token in tokens:
        token.special = token.special or token.content in special
    new = {i: token.content for i, token in numbered.items() if tokenizer.token_to_id(token.content) is None}
    tokenizer.add_tokens(tokens)
    for i, name in new.items():
        if (actual := tokenizer.token_to_id(name)) != i:
            raise UserError(f"{file}: {name!r} has id {i}, but the next free id of {TOKENIZER} is {actual}")


_ROLES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
"""Roles of special tokens, in the order in which transformers adds the tokens. Tokens with roles that are not listed
here follow, in the order of the file."""


def _special(described: Raw, folder: Path) -> Iterator[tuple[str, AddedToken]]:
    file = folder / TOKENIZER_CONFIG
    further = described.get("extra_special_tokens") or described.get("additional_special_tokens") or []
    named = [described.get(f"{role}_token") for role in _ROLES]
    named += [value for key, value in described.items() if key.endswith("_token") and key[:-6] not in _ROLES]
    listed = further.values() if isinstance(further, dict) else further if isinstance(further, list) else ()
    for value in (*named, *listed):
        if (name := _name(value)) is not None:
            yield name, AddedToken(name, special=True) if isinstance(value, str) else _token(value, file)


def _name(value: Any) -> str | None:
    name = value.get("content") if isinstance(value, dict) else value
    return name if isinstance(name, str) else None


def _number(value: Any, file: Path) -> int:
    try:
        return int(value)
    except (TypeError, ValueError):
        raise UserError(f"{file}: {value!r} is not a token id; allowed: an integer") from None


def _token(value: Any, file: Path) -> AddedToken:
    flags = ("single_word", "lstrip", "rstrip", "normalized", "special")
    try:
        return AddedToken(value["content"], **{flag: value[flag] for flag in flags if flag in value})
    except (TypeError, KeyError):
        raise UserError(f"{file}: {value!r} is not a token; allowed: an object with content and flags") from None


def _possible(value: Any) -> list[int]:
    return [i for i in several(value) if 0 <= i < 1 << 31]


def several(value: Any) -> list[Any]:
    return [i for i in (value if isinstance(value, list) else [value]) if i is not None]
