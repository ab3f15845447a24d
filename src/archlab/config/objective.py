"""Training objectives: which tokens of a window a model reads, and which it has to predict."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import Field, field_validator

from archlab.config.components.visibility import VisibilityName
from archlab.config.core.base import Settings, kind_of
from archlab.config.core.registry import Registered, Section, is_users, kinds
from archlab.config.reserve import MASK, MODE, SENTINELS, Mode

Rate = Annotated[float, Field(gt=0, lt=1)]
"""Fraction of the tokens."""
DataForm = Literal["text", "task", "pairs", "conversations"]
"""Form of the data: plain text, a task with answers, pairs of a source and a target (also as a task), or conversations
with responses."""


class TokensRead(NamedTuple):
    """Numbers of tokens that a model reads for one window."""

    stack: int
    """Number of tokens of the one stack, or of the decoder."""
    source: int = 0
    """Number of tokens of the encoder."""


class Objective(Registered):
    """Base class of the objectives that training minimizes. The z-loss and the losses of routers are added to the
    objective. An objective of your own predicts the next token, unless its class derives from another objective."""

    section: ClassVar[Section] = "objective"
    default_kind: ClassVar[str | None] = "next_token"

    visibility: ClassVar[VisibilityName] = "causal"
    """Visibility that the attention of a model without an encoder needs."""
    fits_encoder: ClassVar[bool] = False
    """Whether the objective can train a model with an encoder, which reads a source text of each window."""
    fits_data: ClassVar[frozenset[DataForm]] = frozenset({"text", "task", "pairs", "conversations"})
    """Forms of data from which the objective can make batches."""
    continues_text: ClassVar[bool] = True
    """Whether training teaches the model to continue a text from its beginning. `ever_continues_text` also looks at the
    parts of a mixture."""
    hides_tokens: ClassVar[bool] = False
    """Whether the model restores hidden tokens. The score is then the loss per hidden token. Bits per byte would have
    no meaning, because the other tokens of the text have no loss. `ever_hides_tokens` also looks at the parts of a
    mixture."""

    @property
    def needs_pairs(self) -> bool:
        """Whether each window must have a source and a target."""
        return self.fits_data == {"pairs"}

    def by_field(self) -> Mapping[str, "Objective"]:
        """Return the objectives that make batches, by their fields in a config: the objective itself, or the parts of
        a mixture."""
        return {"train.objective": self}

    def reserved(self, n_tokens: int) -> tuple[str, ...]:
        """Return the special tokens that windows of `n_tokens` tokens need, as in `data.reserve`."""
        return ()

    def tokens_read(self, n_tokens: int, *, has_encoder: bool = False) -> TokensRead:
        """Return the numbers of tokens that the model reads for a window of `n_tokens` tokens."""
        return TokensRead(n_tokens, n_tokens if has_encoder else 0)

    def tokens_predicted(self, n_tokens: int, n_answers: float | None = None) -> float | None:
        """Return the mean number of tokens that count in the loss of a window of `n_tokens` tokens, of which
        `n_answers` are answers of a task. Training computes logits only for them. None: all tokens of the stack or of
        the decoder."""
        return n_answers


def score_meaning(objective: Objective) -> dict[str, Any]:
    """Return everything that decides which tokens of held-out text count, and what the model reads to predict them.

    An objective of a plug-in has the meaning of archlab's objective from which its class derives. Its own fields affect
    only the loss. `seq2seq` has the meaning of `next_token`: in data of pairs, both predict the target from the source.
    """
    base = next(kind for kind in type(objective).__mro__ if issubclass(kind, Objective) and not is_users(kind))
    base = NextToken if base is Seq2Seq else base
    fields = {name: getattr(objective, name) for name in base.model_fields}
    return fields | {"kind": kind_of(base) or base.default_kind}


def ever_hides_tokens(objective: Objective) -> bool:
    """Return whether the model restores hidden tokens in any window, also if only one part of a mixture hides tokens.

    The score is then the loss per predicted token. Otherwise, all predicted tokens are tokens of the text, so the score
    is in bits per byte of these tokens.
    """
    return any(own.hides_tokens for own in objective.by_field().values())


def ever_continues_text(objective: Objective) -> bool:
    """Return whether training teaches the model to continue a text from its beginning in any window."""
    return any(own.continues_text for own in objective.by_field().values())


class Mixable(Objective):
    """Base class of the objectives that can be parts of a mixture. They predict tokens of any text in order."""


class NextToken(Mixable):
    """Cross-entropy of each token, given the tokens before it."""

    kind: Literal["next_token"] = "next_token"


class Masked(Objective):
    """Cross-entropy of masked tokens, given the tokens on both sides (BERT, Devlin 2018). Every step masks other
    tokens. BERT's next-sentence prediction is left out."""

    kind: Literal["masked"] = "masked"
    rate: Rate = 0.15
    """Fraction of the tokens of a window that are predicted, at least one."""
    mask: Annotated[float, Field(ge=0, le=1)] = 0.8
    """Fraction of the predicted tokens that the mask token replaces."""
    random: Annotated[float, Field(ge=0, le=1)] = 0.1
    """Fraction of the predicted tokens that a random token replaces. The model reads the other predicted tokens as they
    are."""

    visibility: ClassVar[VisibilityName] = "two_sided"
    fits_data: ClassVar[frozenset[DataForm]] = frozenset({"text", "task"})
    continues_text: ClassVar[bool] = False
    hides_tokens: ClassVar[bool] = True

    def reserved(self, n_tokens: int) -> tuple[str, ...]:
        return (MASK,)

    def tokens_predicted(self, n_tokens: int, n_answers: float | None = None) -> float:
        return max(round(self.rate * (n_tokens if n_answers is None else n_answers)), 1)


class Prefix(Mixable):
    """Cross-entropy of the tokens after a visible prefix, whose tokens see each other in both directions (prefix
    language model, Raffel 2020). An encoder, if the model has one, reads the prefix, and the decoder writes the other
    tokens."""

    kind: Literal["prefix"] = "prefix"
    rate: Annotated[float, Field(gt=0, le=0.5)] = 0.5
    """Mean fraction of the tokens of a window that are predicted."""
    drawn: bool = True
    """Whether the number of predicted tokens is drawn uniformly for each window, from 1 to almost twice its mean. If
    not, all windows have the same number, and an encoder and a decoder read no padding."""

    visibility: ClassVar[VisibilityName] = "prefix"
    fits_encoder: ClassVar[bool] = True
    fits_data: ClassVar[frozenset[DataForm]] = frozenset({"text"})

    def most_predicted(self, n_tokens: int) -> int:
        """Return the largest number of predicted tokens in a window of `n_tokens` tokens."""
        return max(round(2 * self.rate * n_tokens) - 1, 1) if self.drawn else max(round(self.rate * n_tokens), 1)

    def longest_prefix(self, n_tokens: int) -> int:
        """Return the largest number of tokens of a prefix, including the token before the window."""
        return n_tokens if self.drawn else n_tokens + 1 - self.most_predicted(n_tokens)

    def tokens_read(self, n_tokens: int, *, has_encoder: bool = False) -> TokensRead:
        if not has_encoder:
            return TokensRead(n_tokens)
        return TokensRead(self.most_predicted(n_tokens), self.longest_prefix(n_tokens))

    def tokens_predicted(self, n_tokens: int, n_answers: float | None = None) -> float:
        most = self.most_predicted(n_tokens)
        return (1 + most) / 2 if self.drawn else most


class SpanCorruption(Mixable):
    """Cross-entropy of hidden spans, given the text in which a sentinel stands for each span (T5, Raffel 2020). One
    stack reads this text as a visible prefix, and then the sentinels with the spans that they stand for (UL2, Tay
    2022). The stack reads more tokens than a window has: two for each span, and one. In a model with an encoder, as in
    T5 itself, the encoder reads the text with sentinels, and the decoder writes the spans."""

    kind: Literal["span_corruption"] = "span_corruption"
    rate: Rate = 0.15
    """Fraction of the tokens of a window that are hidden."""
    mean_span: Annotated[float, Field(ge=1)] = 3.0
    """Mean number of tokens of a hidden span. The spans of a window have random lengths with this mean."""

    visibility: ClassVar[VisibilityName] = "prefix"
    fits_encoder: ClassVar[bool] = True
    fits_data: ClassVar[frozenset[DataForm]] = frozenset({"text"})
    continues_text: ClassVar[bool] = False
    hides_tokens: ClassVar[bool] = True

    def spans(self, n_tokens: int) -> tuple[int, int]:
        """Return how many tokens of a window are hidden, and in how many spans, as T5 computes them."""
        n_hidden = min(max(round(n_tokens * self.rate), 1), n_tokens - 1)
        return n_hidden, max(round(n_hidden / self.mean_span), 1)

    def reserved(self, n_tokens: int) -> tuple[str, ...]:
        return (f"{SENTINELS}{self.spans(n_tokens)[1]}",)

    def tokens_read(self, n_tokens: int, *, has_encoder: bool = False) -> TokensRead:
        n_hidden, n_spans = self.spans(n_tokens)
        hidden, text = n_hidden + n_spans + 1, n_tokens - n_hidden + n_spans + 1
        return TokensRead(hidden, text) if has_encoder else TokensRead(text + hidden - 1)

    def tokens_predicted(self, n_tokens: int, n_answers: float | None = None) -> float:
        return sum(self.spans(n_tokens)) + 1


class Seq2Seq(Objective):
    """Cross-entropy of a target, given its source (sequence to sequence, Sutskever 2014). The data consists of pairs of
    a source and a target. One stack reads the source as a visible prefix. An encoder, if the model has one, reads the
    source, and the decoder writes the target."""

    kind: Literal["seq2seq"] = "seq2seq"

    visibility: ClassVar[VisibilityName] = "prefix"
    fits_encoder: ClassVar[bool] = True
    fits_data: ClassVar[frozenset[DataForm]] = frozenset({"pairs"})

    def tokens_read(self, n_tokens: int, *, has_encoder: bool = False) -> TokensRead:
        half = longest_side(n_tokens)
        return TokensRead(half, half) if has_encoder else TokensRead(n_tokens)

    def tokens_predicted(self, n_tokens: int, n_answers: float | None = None) -> float:
        return longest_side(n_tokens) if n_answers is None else n_answers


def longest_side(n_tokens: int) -> int:
    """Return the largest number of tokens of a source, and of a target, in a window of `n_tokens` tokens. The source
    includes the separator, and the target includes its end."""
    return max(n_tokens // 2, 1)


# --- mixtures ---------------------------------------------------------------------------------------------------------


class Part(Settings):
    """One objective of a mixture, and its share of the windows."""

    objective: Mixable
    """Objective of the windows of this part: `next_token`, `prefix` or `span_corruption`."""
    share: Annotated[float, Field(ge=1e-6, le=1e6)] = 1.0
    """Weight of this part. The part gets share / (sum of all shares) of the windows."""
    mode: Mode | None = None
    """Name of the mode token that precedes the input of these windows: the token `[R]` for R. null: no token."""

    @field_validator("objective")
    @classmethod
    def _has_no_own_loss(cls, objective: Mixable) -> Mixable:
        if is_users(type(objective)):
            allowed = ", ".join(name for name, kind in kinds(Mixable).items() if not is_users(kind))
            raise ValueError(f"{objective.kind} comes from a plug-in and may have its own loss; allowed: {allowed}")
        return objective

    def tokens_read(self, n_tokens: int, *, has_encoder: bool = False) -> TokensRead:
        """Return the numbers of tokens that the model reads for a window, including the mode token."""
        stack, source = self.objective.tokens_read(n_tokens, has_encoder=has_encoder)
        n_modes = int(self.mode is not None)
        return TokensRead(stack, source + n_modes) if has_encoder else TokensRead(stack + n_modes)


class Mixture(Objective):
    """Several objectives, each for its share of the windows (mixture of denoisers, UL2, Tay 2022). Each window has one
    objective. A mode token may tell the model which one it is. All windows are padded to the same length. In one stack,
    `next_token` has a visible prefix of one token."""

    kind: Literal["mixture"] = "mixture"
    parts: Annotated[dict[str, Part], Field(min_length=1)]
    """Objectives and their shares, by name."""

    visibility: ClassVar[VisibilityName] = "prefix"
    fits_encoder: ClassVar[bool] = True
    fits_data: ClassVar[frozenset[DataForm]] = frozenset({"text"})

    @property
    def continuing(self) -> Part:
        """Part whose input format is used when the model continues a text. It has the largest share of all parts that
        train the model to continue a text, or of all parts if none of them does."""
        parts = [part for _, part in self.in_order]
        return max([part for part in parts if part.objective.continues_text] or parts, key=lambda part: part.share)

    @property
    def in_order(self) -> list[tuple[str, Part]]:
        """Parts sorted by name, because the order of keys in a config must not change a run."""
        return sorted(self.parts.items())

    def by_field(self) -> Mapping[str, Objective]:
        return {f"train.objective.parts.{name}.objective": part.objective for name, part in self.in_order}

    def reserved(self, n_tokens: int) -> tuple[str, ...]:
        entries = [entry for _, part in self.in_order for entry in part.objective.reserved(n_tokens)]
        most = max((int(entry.removeprefix(SENTINELS)) for entry in entries if entry.startswith(SENTINELS)), default=0)
        modes = [f"{MODE}{part.mode}" for _, part in self.in_order if part.mode]
        return ((f"{SENTINELS}{most}",) if most else ()) + tuple(dict.fromkeys(modes))

    def tokens_read(self, n_tokens: int, *, has_encoder: bool = False) -> TokensRead:
        read = [part.tokens_read(n_tokens, has_encoder=has_encoder) for part in self.parts.values()]
        return TokensRead(*(max(numbers) for numbers in zip(*read, strict=True)))

    def tokens_predicted(self, n_tokens: int, n_answers: float | None = None) -> float:
        shares = sum(part.share for part in self.parts.values())
        predicted = ((part.share, part.objective.tokens_predicted(n_tokens)) for part in self.parts.values())
        return sum(share * (n_tokens if mean is None else mean) for share, mean in predicted) / shares


def reads_hidden_spans(objective: Objective, mode: str | None) -> bool:
    """Return whether the model reads a text in which sentinels replace spans, and writes the spans.

    `mode` is the name of the mode token before the text. In a mixture, it selects the part; without a mode token, it is
    the part that continues a text.
    """
    if isinstance(objective, Mixture):
        own = (part for part in objective.parts.values() if mode is not None and part.mode == mode)
        objective = next(own, objective.continuing).objective
    return isinstance(objective, SpanCorruption)
