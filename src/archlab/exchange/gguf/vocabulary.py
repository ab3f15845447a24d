"""A tokenizer.json as llama.cpp reads it: byte-level BPE, with the name of the rule that cuts a text into words."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tokenizers import Tokenizer

from archlab.errors import UserError
from archlab.files import parse_object
from archlab.hf.special_tokens import SpecialTokens, complete, several
from archlab.model.origin import Origin

if TYPE_CHECKING:
    from gguf import GGUFWriter

TOKENIZER, ITS_CONFIG, CHAT_TEMPLATE = "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"

_CL100K = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|NUMBER| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_SINGLE, _PAIRS, _TRIPLES = (_CL100K.replace("NUMBER", number) for number in (r"\p{N}", r"\p{N}{1,2}", r"\p{N}{1,3}"))

_KNOWN: Mapping[tuple[str, ...], str] = {
    ("words",): "gpt-2", ("digits", "words"): "starcoder", (_SINGLE,): "qwen2", (_PAIRS,): "dbrx", (_TRIPLES,): "dbrx",
    (" ?[^(\\s|[.,!?…。，、।۔،])]+",): "bloom",
}  # fmt: skip
"""What cuts a text, rule after rule -> its `tokenizer.ggml.pre`, as `llm_tokenizer_bpe` in llama-vocab.cpp has it."""
_WHOLE_WORDS_FIRST = {"dbrx": "llama-bpe"}
"""The same rule, where a word that is a token is not put together from others (`ignore_merges`)."""


def add_vocabulary(writer: "GGUFWriter", origin: Origin, vocab_size: int) -> list[str]:
    """Write the tokenizer, or that there is none; what a user should know of it, in words.

    UserError where it has more tokens than the model.
    """
    content = origin.files.get(TOKENIZER)
    parts = json.loads(content) if content else {}
    if content is None or (cut := _cut(parts)) is None:
        why = "missing" if content is None else "no byte-level BPE whose words llama.cpp would cut alike"
        writer.add_tokenizer_model("none")
        return [f"{TOKENIZER}: {why}; so the file has none, and llama.cpp takes and gives numbers of tokens"]
    tokenizer = Tokenizer.from_str(content.decode())
    special = complete(tokenizer, origin.files, origin.special_ids)
    _check_ids(origin.special_ids, vocab_size)
    tokens, types = _tokens(tokenizer, vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(cut)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges([pair if isinstance(pair, str) else " ".join(pair) for pair in parts["model"]["merges"]])
    _add_special(writer, tokenizer, special)
    if template := _chat_template(origin.files):
        writer.add_chat_template(template)
    return list(_differences(parts, tokenizer, special))


def _cut(parts: Mapping[str, Any]) -> str | None:
    """llama.cpp's name for how this tokenizer cuts a text into words; None where it has none."""
    model = parts["model"]
    plain = not any(model.get(key) for key in ("continuing_subword_prefix", "end_of_word_suffix", "byte_fallback"))
    normalizer = (parts.get("normalizer") or {"type": None})["type"]
    if model.get("type") != "BPE" or not plain or normalizer not in (None, "NFC"):
        return None
    name = _KNOWN.get(tuple(_rules(parts.get("pre_tokenizer") or {})))
    return _WHOLE_WORDS_FIRST.get(name) if name and model.get("ignore_merges") else name


def _rules(step: Mapping[str, Any]) -> Iterator[str]:
    """Regular expressions, GPT-2's `words`, single `digits`; `?` for anything else."""
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
    """Each token's name and type; rows of the embedding that stand for none are unused."""
    from gguf import TokenType

    names = {i: name for name, i in tokenizer.get_vocab(with_added_tokens=True).items()}
    if names and max(names) >= vocab_size:
        raise UserError(f"{TOKENIZER}: has a token {max(names)}; allowed: below {vocab_size}, which is vocab_size")
    added = tokenizer.get_added_tokens_decoder()

    def type_of(i: int) -> TokenType:
        if i in added:
            return TokenType.CONTROL if added[i].special else TokenType.USER_DEFINED
        return TokenType.NORMAL if i in names else TokenType.UNUSED

    return [names.get(i, f"[PAD{i}]") for i in range(vocab_size)], [type_of(i) for i in range(vocab_size)]


_MOST_ENDS = 3
"""A GGUF file names an end of text, of a turn and of a message; llama.cpp stops at each of them."""


def _check_ids(ids: Mapping[str, Any], vocab_size: int) -> None:
    """Raise UserError for a number that the model's vocabulary does not have; -1 means that there is no padding."""
    for key, value in ids.items():
        for token in several(value):
            if not 0 <= token < vocab_size and (key, token) != ("pad_token_id", -1):
                raise UserError(f"config.json: {key} is {token}; allowed: 0 to {vocab_size - 1}")


def _add_special(writer: "GGUFWriter", tokenizer: Tokenizer, special: SpecialTokens) -> None:
    """Write which tokens begin, end and pad a text, and whether they are put around it."""
    ends = list(special.ends)
    if special.eos in ends:  # the one that is put after a text
        ends = [special.eos, *(i for i in ends if i != special.eos)]
    if (bos := _bos(special)) is not None:
        writer.add_bos_token_id(bos)
    add_end = (writer.add_eos_token_id, writer.add_eot_token_id, writer.add_eom_token_id)
    for add, end in zip(add_end, ends, strict=False):
        add(end)
    if special.pad is not None:
        writer.add_pad_token_id(special.pad)
    around = tokenizer.encode("a").ids
    writer.add_add_bos_token(special.before == (bos,))
    writer.add_add_eos_token(around[-1:] == ends[:1])


def _bos(special: SpecialTokens) -> int | None:
    """The tokenizer's token that begins a text, or else the model's."""
    return special.model_bos if special.bos is None else special.bos


def _chat_template(files: Mapping[str, bytes]) -> str | Sequence[Mapping[str, str]] | None:
    if CHAT_TEMPLATE in files:
        try:
            return files[CHAT_TEMPLATE].decode()
        except UnicodeDecodeError as error:
            raise UserError(f"{CHAT_TEMPLATE}: not a text file in UTF-8 (byte {error.start})") from None
    match found := parse_object(files.get(ITS_CONFIG, b"{}"), ITS_CONFIG).get("chat_template"):
        case None | str():
            return found
        case [*templates] if all(isinstance(t, dict) and {*map(type, t.values())} == {str} for t in templates):
            return found
    raise UserError(f"{ITS_CONFIG}: chat_template is {found!r:.60}; allowed: text, or a list of names and templates")


def _differences(parts: Mapping[str, Any], tokenizer: Tokenizer, special: SpecialTokens) -> Iterator[str]:
    if special.before not in ((), (_bos(special),)):
        names = " ".join(str(tokenizer.id_to_token(i)) for i in special.before)
        yield f"{TOKENIZER}: puts {names} before a text, which llama.cpp does not"
    if more := special.ends[_MOST_ENDS:]:
        yield f"texts also end at tokens {', '.join(map(str, more))}; the file has room for {_MOST_ENDS} ends"
    if tuple(_rules(parts["pre_tokenizer"])) == (_PAIRS,):
        yield (
            f"{TOKENIZER}: cuts long numbers into pairs of digits, and llama.cpp has triples only: "
            "it reads numbers of three digits and more as other tokens than archlab"
        )
    if parts.get("normalizer"):
        yield f"{TOKENIZER}: normalises a text (NFC) first, which llama.cpp does not"
