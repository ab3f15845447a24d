"""Encoding of conversations into tokens, of which those of the responses count."""

import json
import re
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice, pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
from tokenizers import Encoding, Tokenizer

from archlab.data import tokenizer as bpe
from archlab.data.chat_limits import too_long
from archlab.data.corpus import Corpus
from archlab.data.encoding import Encoded, excerpts
from archlab.data.shards import BEGINS, COUNTS, ChatFacts, LongestText
from archlab.data.spelling import Spelling, not_spelled, prefix_after_special, special_tokens, spelling
from archlab.data.split import Piece
from archlab.errors import UserError
from archlab.hf.chat_template import ChatTemplate, ChatTemplateError

_BATCH = 256
"""Number of conversations that are encoded at once, in the threads of the tokenizers library."""


class _InvalidConversationError(Exception):
    """Raised for a conversation that cannot be encoded. The message is the reason."""


class _Rendered(NamedTuple):
    """Text of a conversation, and the places (begin, end) of its responses, in characters."""

    piece: Piece
    text: str
    places: Sequence[tuple[int, int]]


@dataclass
class ChatEncoder:
    """Encoder of the conversations of a corpus. It remembers facts about them for the manifest.

    The tokens are those of `apply_chat_template` in transformers. A message must not contain the name of a special
    token, because the tokenizer would read it as this token.
    """

    corpus: Corpus
    template: ChatTemplate
    tokenizer: Tokenizer
    seq_len: int | None
    """Length of the windows that every conversation must fit into; None if conversations may have any length."""
    unread: set[str] = field(default_factory=set)
    """Names of lists beside the messages, such as `tools`, that the template does not read."""
    _longest: LongestText = field(default_factory=lambda: LongestText(where="", tokens=0))
    _counted: int = 0
    _ends: set[int] = field(default_factory=set)

    def encode(self, pieces: Iterable[Piece]) -> Generator[Encoded, None, None]:
        """Yield the tokens of each conversation, with the flags COUNTS and BEGINS.

        Raise UserError for a conversation that cannot be encoded, unless the corpus leaves out invalid records.
        """
        reading, conversations = bpe.reading_special_tokens(self.tokenizer), iter(pieces)
        while batch := list(islice(conversations, _BATCH)):
            all_rendered = list[_Rendered]()
            for piece in batch:
                try:
                    all_rendered.append(self._rendered(piece))
                except (_InvalidConversationError, ChatTemplateError) as error:
                    self._leave_out(piece, error)
            with bpe.tokenizer_errors(bpe.CANNOT_ENCODE):
                encodings = reading.encode_batch([each.text for each in all_rendered], add_special_tokens=False)
            for rendered, encoding in zip(all_rendered, encodings, strict=True):
                try:
                    yield self._flagged(rendered, encoding)
                except _InvalidConversationError as error:
                    self._leave_out(rendered.piece, error)

    def facts(self, files: Mapping[str, str]) -> ChatFacts:
        """Return the facts for the manifest, after all conversations have been encoded. `files` is its own field."""
        return ChatFacts(
            fields=self.corpus.template.fields,
            counted=self._counted,
            longest=self._longest,
            ends=tuple(sorted(self._ends)),
            files=dict(files),
        )

    def _leave_out(self, piece: Piece, error: Exception) -> None:
        if not self.corpus.skip_invalid:
            raise UserError(f"{piece.name}: {error}\n`archlab data --skip-invalid` leaves out such conversations")
        self.corpus.omissions.invalid += 1
        self.corpus.omissions.add(Path(piece.name.rpartition(":")[0]), piece.name, str(error))

    def _rendered(self, piece: Piece) -> _Rendered:
        conversation = json.loads(piece.text)
        messages = conversation if isinstance(conversation, list) else conversation.pop("messages")
        beside = {} if isinstance(conversation, list) else conversation
        for n, message in enumerate(messages, 1):
            if name := self._special_names.search(message["content"]):
                raise _InvalidConversationError(
                    f"message {n} contains {name[0]}, a special token of the tokenizer; remove it from the text"
                )
        if name := self._special_names.search(json.dumps(beside, ensure_ascii=False)):
            raise _InvalidConversationError(
                f"{' or '.join(beside)} contain {name[0]}, a special token of the tokenizer; remove it from the text"
            )
        self.unread.update(name for name in beside if not self.template.reads(name))
        text, places = self.template.render_with_responses(messages, beside)
        if not any(begin < end for begin, end in places):
            raise _InvalidConversationError("the chat template writes no text for the responses")
        return _Rendered(piece, text, places)

    def _flagged(self, rendered: _Rendered, encoding: Encoding) -> Encoded:
        piece, text, places = rendered
        tokens = _Tokens(text, encoding, self._special)
        if self.seq_len and len(tokens.ids) > self.seq_len + 1:
            raise _InvalidConversationError(too_long(len(tokens.ids), self.seq_len))
        counts, inexact = np.zeros(len(tokens.ids), bool), self._not_spelled
        for begin, end in places:
            own = tokens.inside(begin, end) if self.template.has_tags else tokens.response(begin, end)
            counts[own] = True
            self._ends.update(tokens.ending(own))
            inexact = inexact or self._difference(piece, tokens, own)
        if counts[0]:
            raise _InvalidConversationError("its first token counts, but a model cannot predict it from nothing")
        self._counted += int(counts.sum())
        if len(tokens.ids) > self._longest.tokens:
            self._longest = LongestText(where=piece.name, tokens=len(tokens.ids))
        ids = tokens.ids | np.where(counts, COUNTS, np.uint32(0))
        ids[0] |= BEGINS
        return Encoded(piece.name, piece.fold, True, ids, len(text.encode()), inexact)

    def _difference(self, piece: Piece, tokens: "_Tokens", own: slice) -> str | None:
        """Return how the bytes of the tokens of a response differ from those of its text; None if they do not."""
        for run in tokens.between_special(own):
            text, decoded = tokens.text_of(run), self._spelling.bytes_of(tokens.ids[run])
            prefix = self._prefix if run.start == 0 or tokens.is_special[run.start - 1] else ""
            if decoded != (prefix + text).encode() or not self._spelling.sizes[tokens.ids[run]].all():
                changed = excerpts(text, decoded.decode(errors="replace").removeprefix(prefix))
                return f"{piece.name}: the tokenizer changes a response ({changed})"
        return None

    @cached_property
    def _special(self) -> np.ndarray:
        return special_tokens(self.tokenizer)

    @cached_property
    def _special_names(self) -> re.Pattern[str]:
        names = (self.tokenizer.id_to_token(int(i)) for i in self._special)
        longest_first = sorted((name for name in names if name), key=len, reverse=True)
        return re.compile("|".join(map(re.escape, longest_first)) or "(?!)")

    @cached_property
    def _not_spelled(self) -> str | None:
        return not_spelled(self.tokenizer)

    @cached_property
    def _spelling(self) -> Spelling:
        return spelling(self.tokenizer)

    @cached_property
    def _prefix(self) -> str:
        return prefix_after_special(self.tokenizer)


class _Tokens:
    """Tokens of a text, and the characters from which each was made."""

    def __init__(self, text: str, encoding: Encoding, special: np.ndarray) -> None:
        self.ids = np.array(encoding.ids, dtype=np.uint32)
        self.is_special = np.isin(self.ids, special)
        self._text = text
        self._begins, self._ends = np.array(encoding.offsets, dtype=np.int64).reshape(-1, 2).T

    def text_of(self, run: slice) -> str:
        """Return the text from which consecutive tokens were made."""
        return self._text[self._begins[run.start] : self._ends[run.stop - 1]]

    def inside(self, begin: int, end: int) -> slice:
        """Return the tokens of the characters from `begin` to `end`. A special token that takes whitespace from the
        beginning does not count."""
        own = (self._ends > begin) & (self._begins < end) & ~(self.is_special & (self._begins < begin))
        places = np.flatnonzero(own)
        if not len(places):
            raise _InvalidConversationError("the tokenizer makes no tokens of a response")
        return slice(int(places[0]), int(places[-1]) + 1)

    def response(self, begin: int, end: int) -> slice:
        """Return the tokens of a response, up to the special token that ends it, if there is one.

        Raise _InvalidConversationError if the first token also has text of the prompt. A model that reads the prompt
        could then never write it.
        """
        own = self.inside(begin, end)
        if self._begins[own.start] < begin:
            both = ascii(self.text_of(slice(own.start, own.start + 1)))
            raise _InvalidConversationError(f"the token {both} has text of a response and of the prompt before it")
        special = np.flatnonzero(self.is_special[own]) + own.start
        if len(special) and not self._text[self._ends[special[-1]] : end].strip():
            return slice(own.start, int(special[-1]) + 1)
        return own

    def ending(self, own: slice) -> list[int]:
        """Return the special token that ends a response, as a list, which is empty if text follows the last one."""
        special = np.flatnonzero(self.is_special[own]) + own.start
        if not len(special) or self._text[self._ends[special[-1]] : self._ends[own.stop - 1]].strip():
            return []
        return [int(self.ids[special[-1]])]

    def between_special(self, own: slice) -> Iterator[slice]:
        """Yield the runs of tokens that are not special."""
        borders = [own.start - 1, *(np.flatnonzero(self.is_special[own]) + own.start), own.stop]
        for before, after in pairwise(borders):
            if before + 1 < after:
                yield slice(int(before) + 1, int(after))
