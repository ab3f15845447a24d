"""Export of tokenizers to GGUF files.

archlab can export a byte-level BPE tokenizer if llama.cpp has a name for its rule that splits a text into words.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tokenizers import Tokenizer

from archlab.errors import UserError
from archlab.files import parse_object
from archlab.hf.folder import TOKENIZER
from archlab.hf.special_tokens import SpecialTokens, complete, several
from archlab.model.origin import Origin

if TYPE_CHECKING:
    from gguf import GGUFWriter

ITS_CONFIG, CHAT_TEMPLATE = "tokenizer_config.json", "chat_template.jinja"

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


def add_vocabulary(writer: "GGUFWriter", origin: Origin, vocab_size: int) -> list[str]:
    """Write the tokenizer to the GGUF file. Return notes for the user.

    If llama.cpp cannot reproduce the tokenizer, the file gets the tokenizer model "none". Raise UserError if a token id
    is not below `vocab_size`.
    """
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
    if template := _chat_template(origin.files):
        writer.add_chat_template(template)
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


def _chat_template(files: Mapping[str, bytes]) -> str | Sequence[Mapping[str, str]] | None:
    if CHAT_TEMPLATE in files:
        try:
            return files[CHAT_TEMPLATE].decode()
        except UnicodeDecodeError as error:
            raise UserError(f"{CHAT_TEMPLATE}: not valid UTF-8 (byte {error.start})") from None
    match template := parse_object(files.get(ITS_CONFIG, b"{}"), ITS_CONFIG).get("chat_template"):
        case None | str():
            return template
        case [*templates] if all(isinstance(t, dict) and {*map(type, t.values())} == {str} for t in templates):
            return template
    raise UserError(f"{ITS_CONFIG}: chat_template is {template!r:.60}; allowed: text, or a list of names and templates")


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
