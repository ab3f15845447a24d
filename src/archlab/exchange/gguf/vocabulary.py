"""Export of tokenizers to GGUF files, and their import.

archlab supports byte-level BPE tokenizers if llama.cpp has a name for the rule by which they split a text into words.
"""

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

from archlab.errors import UserError
from archlab.hf.chat_template import DEFAULT, file_of, sources_in
from archlab.hf.folder import TOKENIZER, TOKENIZER_CONFIG
from archlab.hf.special_tokens import SpecialTokens, complete, put_before_text, several
from archlab.model.origin import Origin

if TYPE_CHECKING:
    from gguf import GGUFWriter

_CL100K = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|NUMBER| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_SINGLE, _PAIRS, _TRIPLES = (_CL100K.replace("NUMBER", number) for number in (r"\p{N}", r"\p{N}{1,2}", r"\p{N}{1,3}"))

_KNOWN: Mapping[tuple[str, ...], str] = {
    ("words",): "gpt-2", ("digits", "words"): "starcoder", (_SINGLE,): "qwen2", (_PAIRS,): "dbrx", (_TRIPLES,): "dbrx",
    (" ?[^(\\s|[.,!?…。，、।۔،])]+",): "bloom",
}  # fmt: skip
"""Value of `tokenizer.ggml.pre` by the pre-tokenizer's rules, from `llm_tokenizer_bpe` in llama-vocab.cpp."""
_WHOLE_WORDS_FIRST = {"dbrx": "llama-bpe"}
"""Replacement for a value of `tokenizer.ggml.pre` if the tokenizer has `ignore_merges`.

Such a tokenizer does not split words that are tokens themselves.
"""


_RULES_OF = {name: rules for rules, name in _KNOWN.items()}
_RULES_OF |= {
    "llama-bpe": _RULES_OF["dbrx"], **dict.fromkeys(("smollm", "refact", "command-r"), _RULES_OF["starcoder"]),
}  # fmt: skip
"""Rules of the pre-tokenizer by the value of `tokenizer.ggml.pre`. Some rules have several names."""
_ROLES = {
    "bos": "bos",
    "eos": "eos",
    "eot": "eot",
    "eom": "eom",
    "unk": "unknown",
    "pad": "padding",
    "sep": "seperator",
}
"""Names of special tokens in keys of a GGUF file, by role. One of them is misspelled there."""


def add_vocabulary(writer: "GGUFWriter", origin: Origin, vocab_size: int) -> list[str]:
    """Write the tokenizer and its chat templates to the GGUF file. Return notes for the user.

    If llama.cpp cannot reproduce the tokenizer, the file gets the tokenizer model "none". Raise UserError if a token id
    is not below `vocab_size`.
    """
    if templates := sources_in(origin.files):
        writer.add_chat_template([{"name": name, "template": source} for name, source in templates.items()])
    content = origin.files.get(TOKENIZER)
    parts = json.loads(content) if content else {}
    if content is None or (rule := _splitting_rule(parts)) is None:
        why = "missing" if content is None else "not a byte-level BPE that llama.cpp can reproduce"
        writer.add_tokenizer_model("none")
        return [f"{TOKENIZER}: {why}; the GGUF file has no tokenizer, so llama.cpp reads and writes token ids"]
    tokenizer = Tokenizer.from_str(content.decode())
    special = complete(tokenizer, origin.files, origin.special_ids)
    _check_ids(origin.special_ids, vocab_size)
    tokens, types = _tokens(tokenizer, vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(rule)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges([pair if isinstance(pair, str) else " ".join(pair) for pair in parts["model"]["merges"]])
    _add_special(writer, tokenizer, special)
    return list(_differences(parts, tokenizer, special))


def _splitting_rule(parts: Mapping[str, Any]) -> str | None:
    model = parts["model"]
    plain = not any(model.get(key) for key in ("continuing_subword_prefix", "end_of_word_suffix", "byte_fallback"))
    normalizer = (parts.get("normalizer") or {"type": None})["type"]
    if model.get("type") != "BPE" or not plain or normalizer not in (None, "NFC"):
        return None
    name = _KNOWN.get(tuple(_rules(parts.get("pre_tokenizer") or {})))
    return _WHOLE_WORDS_FIRST.get(name) if name and model.get("ignore_merges") else name


def _rules(step: Mapping[str, Any]) -> Iterator[str]:
    """Yield the pre-tokenizer's rules: a regular expression, "words" for GPT-2's rule, "digits", or "?" for any other
    rule."""
    match step:
        case {"type": "Sequence", "pretokenizers": steps}:
            for inner in steps:
                yield from _rules(inner)
        case {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}:
            yield pattern
        case {"type": "Digits", "individual_digits": True}:
            yield "digits"
        case {"type": "ByteLevel", "add_prefix_space": False}:
            if step.get("use_regex", True):
                yield "words"
        case _:
            yield "?"


def _tokens(tokenizer: Tokenizer, vocab_size: int) -> tuple[list[str], list[int]]:
    from gguf import TokenType

    names = {i: name for name, i in tokenizer.get_vocab(with_added_tokens=True).items()}
    if names and max(names) >= vocab_size:
        raise UserError(f"{TOKENIZER}: the largest token id is {max(names)}; allowed: below vocab_size ({vocab_size})")
    added = tokenizer.get_added_tokens_decoder()

    def type_of(i: int) -> TokenType:
        if i in added:
            return TokenType.CONTROL if added[i].special else TokenType.USER_DEFINED
        return TokenType.NORMAL if i in names else TokenType.UNUSED

    return [names.get(i, f"[PAD{i}]") for i in range(vocab_size)], [type_of(i) for i in range(vocab_size)]


_MAX_STOP_TOKENS = 3
"""Maximum number of stop tokens in a GGUF file: end of text, end of turn and end of message."""


def _check_ids(ids: Mapping[str, Any], vocab_size: int) -> None:
    for key, value in ids.items():
        for token in several(value):
            if not 0 <= token < vocab_size and (key, token) != ("pad_token_id", -1):
                raise UserError(f"config.json: {key} is {token}; allowed: 0 to {vocab_size - 1}")


def _add_special(writer: "GGUFWriter", tokenizer: Tokenizer, special: SpecialTokens) -> None:
    ends = list(special.ends)
    if special.eos in ends:  # first, because this token may be appended to a text
        ends = [special.eos, *(i for i in ends if i != special.eos)]
    if (bos := _bos(special)) is not None:
        writer.add_bos_token_id(bos)
    add_end = (writer.add_eos_token_id, writer.add_eot_token_id, writer.add_eom_token_id)
    for add, end in zip(add_end, ends, strict=False):
        add(end)
    if special.pad is not None:
        writer.add_pad_token_id(special.pad)
    with_special = tokenizer.encode("a").ids
    writer.add_add_bos_token(special.before == (bos,))
    writer.add_add_eos_token(with_special[-1:] == ends[:1])


def _bos(special: SpecialTokens) -> int | None:
    return special.model_bos if special.bos is None else special.bos


def _differences(parts: Mapping[str, Any], tokenizer: Tokenizer, special: SpecialTokens) -> Iterator[str]:
    if special.before not in ((), (_bos(special),)):
        names = " ".join(str(tokenizer.id_to_token(i)) for i in special.before)
        yield f"{TOKENIZER}: the tokenizer adds {names} at the start of a text, but llama.cpp does not"
    if more := special.ends[_MAX_STOP_TOKENS:]:
        ids = ", ".join(map(str, more))
        yield f"tokens {ids} also end a text, but a GGUF file can list only {_MAX_STOP_TOKENS} stop tokens"
    if tuple(_rules(parts["pre_tokenizer"])) == (_PAIRS,):
        yield (
            f"{TOKENIZER}: the tokenizer splits long numbers into pairs of digits, but llama.cpp supports only groups "
            "of three, so it tokenizes numbers of three or more digits differently"
        )
    if parts.get("normalizer"):
        yield f"{TOKENIZER}: the tokenizer normalizes a text to NFC, but llama.cpp does not"


def read_vocabulary(values: Mapping[str, Any], where: str) -> tuple[dict[str, bytes], dict[str, Any], list[str]]:
    """Return the tokenizer files, the special token ids of a config.json, and notes for the user, from the values of a
    GGUF file.

    A tokenizer that archlab does not know is left out, and a note says so. Error messages begin with `where`.
    """
    found = {role: values.get(f"tokenizer.ggml.{name}_token_id") for role, name in _ROLES.items()}
    ids = {role: i for role, i in found.items() if i is not None}
    ends = list(dict.fromkeys(ids[role] for role in ("eos", "eot", "eom") if role in ids))
    special: dict[str, Any] = {
        "bos_token_id": ids.get("bos"),
        "eos_token_id": ends[0] if len(ends) == 1 else ends or None,
    }
    special |= {"pad_token_id": ids["pad"]} if "pad" in ids else {}
    files = _template_files(values)
    kind, rule = values.get("tokenizer.ggml.model", "none"), values.get("tokenizer.ggml.pre", "default")
    if kind != "gpt2" or rule not in _RULES_OF:
        name = kind if kind != "gpt2" else f"{kind}, {rule}"
        return files, special, [f"archlab cannot read the tokenizer ({name}); put its {TOKENIZER} into the run folder"]
    try:
        tokenizer = _tokenizer(values, str(rule))
    except Exception as error:  # a value is missing or has another type, or the library refuses it
        raise UserError(f"{where}: its tokenizer is damaged: {error}") from None
    if odd := [role for role, i in ids.items() if tokenizer.id_to_token(i) is None]:
        raise UserError(f"{where}: tokenizer.ggml.{_ROLES[odd[0]]}_token_id is {ids[odd[0]]}, which is not a token")
    if values.get("tokenizer.ggml.add_bos_token", rule == "llama-bpe") and "bos" in ids:
        put_before_text(tokenizer, ids["bos"])
    names = {f"{role}_token": tokenizer.id_to_token(i) for role, i in ids.items() if role not in ("eot", "eom")}
    described = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False, **names}
    files |= {TOKENIZER: tokenizer.to_str().encode(), TOKENIZER_CONFIG: json.dumps(described, indent=2).encode()}
    return files, special, []


def _tokenizer(values: Mapping[str, Any], rule: str) -> Tokenizer:
    from gguf import TokenType

    tokens, types = values["tokenizer.ggml.tokens"], values["tokenizer.ggml.token_type"]
    ids = {token: i for i, (token, kind) in enumerate(zip(tokens, types, strict=True)) if kind != TokenType.UNUSED}
    merges = [tuple(pair.split(" ", 1)) for pair in values["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(ids, merges, ignore_merges=rule == "llama-bpe"))
    steps = [_step(each) for each in _RULES_OF[rule]]
    if "words" not in _RULES_OF[rule]:
        steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    tokenizer.decoder = decoders.ByteLevel()
    special = {TokenType.CONTROL: True, TokenType.USER_DEFINED: False}
    added = [(token, special[types[i]]) for token, i in ids.items() if types[i] in special]
    tokenizer.add_tokens([AddedToken(token, normalized=False, special=is_special) for token, is_special in added])
    return tokenizer


def _step(rule: str) -> pre_tokenizers.PreTokenizer:
    """Return the pre-tokenizer for a rule of `_rules`."""
    if rule == "words":
        return pre_tokenizers.ByteLevel(add_prefix_space=False)
    if rule == "digits":
        return pre_tokenizers.Digits(individual_digits=True)
    return pre_tokenizers.Split(Regex(rule), behavior="isolated")


def _template_files(values: Mapping[str, Any]) -> dict[str, bytes]:
    """Return the files of the chat templates in a GGUF file."""
    key = "tokenizer.chat_template"
    sources = {DEFAULT: values.get(key)}
    sources |= {name: values.get(f"{key}.{name}") for name in values.get(f"{key}s", ())}
    return {file_of(name): source.encode() for name, source in sources.items() if isinstance(source, str)}
