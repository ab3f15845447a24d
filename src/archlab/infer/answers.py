"""What evaluations on tasks ask of a model: how likely continuations of a text are, and what it writes.

Shapes: B texts, T tokens, N tokens that are scored, D d_model, V vocabulary.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor

from archlab.config.components.position import DynamicNTK, Longrope, Rope
from archlab.config.pieces import rows_at_once
from archlab.config.problems import nearest
from archlab.errors import UserError
from archlab.infer.generate import Session, left_pad
from archlab.infer.sampling import Sampling
from archlab.infer.text import StopStrings
from archlab.model.decoder import Decoder
from archlab.model.state import Cache


class Pair(NamedTuple):
    """A text of one token or more, and one token or more to score after it."""

    context: tuple[int, ...]
    continuation: tuple[int, ...]

    @property
    def read(self) -> tuple[int, ...]:
        """What the model reads: all but the last token, which is only predicted."""
        return (*self.context, *self.continuation[:-1])


Likelihood = tuple[float, bool]
"""Of a continuation: the sum of its tokens' log-likelihoods in nats, and whether each is the likeliest one."""


@dataclass(frozen=True)
class Answers:
    """Of one model, which is not trained meanwhile."""

    model: Decoder
    tokenizer: Tokenizer
    ends: tuple[int, ...]
    """Tokens at which a text is over."""
    batch_tokens: int = 8192
    """That one pass reads, padding included; a longer text is read alone."""

    @torch.no_grad()
    def likelihoods(self, pairs: Sequence[Pair]) -> Iterator[tuple[int, Likelihood]]:
        """Place among the pairs -> how likely it is, in any order. A context of several pairs is read once."""
        of_context: dict[object, list[int]] = {}
        for i, pair in enumerate(pairs):
            of_context.setdefault(pair.context if self._can_share else i, []).append(i)
        alone = [places[0] for places in of_context.values() if len(places) == 1]
        for some in self._batches(alone, [len(pair.read) for pair in pairs]):
            yield from zip(some, self._together([pairs[i] for i in some]), strict=True)
        for places in of_context.values():
            if len(places) > 1:
                yield from self._after(pairs[places[0]].context, places, pairs)

    @cached_property
    def _can_share(self) -> bool:
        """Whether a text in pieces is what it is in one; where RoPE's angles depend on the length it is not."""
        ropes = (layer.position for layer in self.model.layer_configs if isinstance(layer.position, Rope))
        return not any(isinstance(rope.scaling, DynamicNTK | Longrope) for rope in ropes)

    def _batches(self, places: Sequence[int], lengths: Sequence[int]) -> Iterator[list[int]]:
        """Texts of about one length together, of exactly one where angles depend on it. The longest come first, so that
        what does not fit in memory shows at once."""
        some = list[int]()
        for i in sorted(places, key=lambda i: -lengths[i]):
            is_full = bool(some) and (len(some) + 1) * lengths[some[0]] > self.batch_tokens
            if is_full or (some and not self._can_share and lengths[i] != lengths[some[0]]):
                yield some
                some = []
            some.append(i)
        if some:
            yield some

    def _together(self, pairs: Sequence[Pair]) -> list[Likelihood]:
        """In one pass, padded on the right, where no token sees it."""
        hidden_BTD = self.model.hidden(self._padded([pair.read for pair in pairs]))
        return self._of_hidden(hidden_BTD, [len(pair.context) - 1 for pair in pairs], pairs)

    def _after(
        self, context: tuple[int, ...], places: Sequence[int], pairs: Sequence[Pair]
    ) -> Iterator[tuple[int, Likelihood]]:
        """The continuations of one context: it is read once, and each goes on from a copy of what was kept of it."""
        lengths = [len(pairs[i].continuation) for i in range(len(pairs))]
        longest = max(lengths[i] for i in places)
        read_1T = torch.tensor([context], device=self._device)
        kept = self._cache(1, len(context) + longest)
        last_1D = self.model.hidden(read_1T, cache=kept)[:, -1]
        for some in self._batches(places, [len(context) + n for n in lengths]):
            chosen = [pairs[i] for i in some]
            hidden_BTD = last_1D.expand(len(some), 1, -1)
            if any(len(pair.continuation) > 1 for pair in chosen):
                cache = _copied(kept, self._cache(len(some), kept.capacity))
                more_BT = self._padded([pair.continuation[:-1] for pair in chosen])
                hidden_BTD = torch.cat((hidden_BTD, self.model.hidden(more_BT, cache=cache)), 1)
            yield from zip(some, self._of_hidden(hidden_BTD, [0] * len(some), chosen), strict=True)

    def _of_hidden(self, hidden_BTD: Tensor, starts: Sequence[int], pairs: Sequence[Pair]) -> list[Likelihood]:
        """`starts`: where, in each text, the first token of the continuation is predicted."""
        lengths = [len(pair.continuation) for pair in pairs]
        hidden_ND = torch.cat([row[at : at + n] for row, at, n in zip(hidden_BTD, starts, lengths, strict=True)])
        targets_N = torch.tensor([token for pair in pairs for token in pair.continuation], device=self._device)
        rows = rows_at_once(self.model.config.vocab_size, self._device.type)
        likely, likeliest = list[Tensor](), list[Tensor]()
        for some_ND, some_N in zip(hidden_ND.split(rows), targets_N.split(rows), strict=True):
            logits_NV = self.model.head(some_ND, self.model.embedding.weight)
            logits_NV = logits_NV.to(torch.promote_types(logits_NV.dtype, torch.float32))
            likely.append(-F.cross_entropy(logits_NV, some_N, reduction="none"))
            likeliest.append(logits_NV.argmax(-1) == some_N)
        sums = [float(x.double().sum()) for x in torch.cat(likely).split(lengths)]
        return list(zip(sums, [bool(x.all()) for x in torch.cat(likeliest).split(lengths)], strict=True))

    def written(
        self, prompts: Sequence[Sequence[int]], most: int, sampling: Sampling, stop: Sequence[str]
    ) -> Iterator[tuple[int, str]]:
        """Place among the prompts -> what follows, up to a stop string, the text's end or `most` tokens."""
        for some in self._batches(range(len(prompts)), [len(prompt) + most for prompt in prompts]):
            yield from zip(some, self._written([prompts[i] for i in some], most, sampling, stop), strict=True)

    def _written(
        self, prompts: Sequence[Sequence[int]], most: int, sampling: Sampling, stop: Sequence[str]
    ) -> list[str]:
        tokens_BT, padding_B = left_pad([torch.tensor(prompt, device=self._device) for prompt in prompts])
        session = Session(self.model, tokens_BT, tokens_BT.shape[1] + most, padding=padding_B)
        new, is_over = [list[int]() for _ in prompts], [False] * len(prompts)
        for token_B in session.write(most, sampling, self.ends):
            for i, token in enumerate(token_B.tolist()):
                if not is_over[i]:
                    new[i].append(token)
                    is_over[i] = token in self.ends or bool(stop and _stopped(self._text(new[i]), stop)[1])
            if all(is_over):
                break
        return [_stopped(self._text(tokens), stop)[0] for tokens in new]

    def _text(self, tokens: Sequence[int]) -> str:
        """Without special tokens, and without a token that ends the text, special or not."""
        kept = tokens[:-1] if tokens and tokens[-1] in self.ends else tokens
        return self.tokenizer.decode(list(kept), skip_special_tokens=True)

    def _padded(self, texts: Sequence[Sequence[int]]) -> Tensor:
        """[B, T], with token 0 behind the shorter ones."""
        longest = max(map(len, texts))
        return torch.tensor([[*text, *[0] * (longest - len(text))] for text in texts], device=self._device)

    def _cache(self, batch: int, capacity: int) -> Cache:
        weight = self.model.embedding.weight
        return Cache(self.model.config, batch, capacity, dtype=weight.dtype, device=weight.device)

    @property
    def _device(self) -> torch.device:
        return self.model.embedding.weight.device


def _copied(kept: Cache, into: Cache) -> Cache:
    """The cache of one text, for each of several."""
    into.begin(kept.length)
    for here, there in zip(kept.layers, into.layers, strict=True):
        for name, state in here.items():
            for tensor, copy in zip(state.tensors.values(), there[name].tensors.values(), strict=True):
                copy.copy_(tensor.expand_as(copy))
    into.end(kept.length)
    return into


def _stopped(text: str, stop: Sequence[str]) -> tuple[str, bool]:
    """The text before the first stop string, and whether there is one."""
    until = StopStrings(stop)
    before = until.certain(text)
    return (before, True) if until.found else (before + until.rest(), False)


_SAMPLING = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed")
_ONLY_IN_DRAWS = ("top_k", "top_p", "min_p", "top_h", "typical_p", "epsilon_cutoff", "eta_cutoff")
"""Arguments that change nothing when the likeliest token is taken."""
_NEVER = (
    "use_cache", "return_dict_in_generate", "output_attentions", "output_hidden_states", "output_logits",
    "output_scores", "length_penalty", "early_stopping",
)  # fmt: skip
"""Arguments of transformers' `generate` that change no text here: what it keeps and returns, and how it ranks beams."""
_NEUTRAL: dict[str, Any] = {
    "num_beams": 1, "num_beam_groups": 1, "num_return_sequences": 1, "diversity_penalty": 0, "penalty_alpha": 0,
    "top_k": 0, "typical_p": 1, "epsilon_cutoff": 0, "eta_cutoff": 0, "top_h": None, "encoder_repetition_penalty": 1,
    "no_repeat_ngram_size": 0, "encoder_no_repeat_ngram_size": 0, "min_length": 0, "min_new_tokens": 0,
    "guidance_scale": 1, "renormalize_logits": False, "remove_invalid_values": False, "low_memory": False,
    "bad_words_ids": None, "force_words_ids": None, "constraints": None, "sequence_bias": None,
    "forced_bos_token_id": None, "forced_eos_token_id": None, "suppress_tokens": None, "begin_suppress_tokens": None,
    "exponential_decay_length_penalty": None, "max_time": None, "stop_strings": None, "watermarking_config": None,
    "token_healing": False, "dola_layers": None, "prompt_lookup_num_tokens": None,
}  # fmt: skip
"""Arguments of transformers' `generate` -> the value at which they change nothing. None changes nothing for any."""


def pair(asked: object, context: Sequence[int], continuation: Sequence[int], length: int) -> Pair:
    """Return what the model can see at once: of a longer context its end. `asked` is the request, for messages.

    UserError for a continuation without tokens, or with more than `length`.
    """
    if not 0 < len(continuation) <= length:
        found = f"the continuation has {len(continuation)} tokens"
        raise UserError(f"{shortened(asked)}: {found}; allowed: 1 to max_length = {length}")
    return Pair(tuple(context)[-(length + 1 - len(continuation)) :], tuple(continuation))


def shortened(asked: object, most: int = 100) -> str:
    """A request for a message: its beginning and its end."""
    shown = ascii(asked)
    return f"request {shown if len(shown) <= most else f'{shown[: most // 2]} ... {shown[-most // 2 :]}'}"


def sampling(arguments: Mapping[str, Any]) -> Sampling:
    """Return how tokens are chosen. UserError for an argument that could change the text and is not supported."""
    unused = {"do_sample", *_NEVER, *(_ONLY_IN_DRAWS if arguments.get("do_sample") is False else ())}
    asked = {name: value for name, value in arguments.items() if name not in unused and not _is_neutral(name, value)}
    if refused := sorted(set(asked) - set(_SAMPLING)):
        allowed = ("until", "max_gen_toks", "do_sample", *_SAMPLING)
        found = "; ".join(_refusal(name, asked[name], allowed) for name in refused)
        raise UserError(f"generation_kwargs: {found}; archlab has {', '.join(allowed)}")
    return Sampling(**asked)


def _is_neutral(name: str, value: Any) -> bool:
    known = name in _NEUTRAL or name in _SAMPLING
    return known and (value is None or (name in _NEUTRAL and value == _NEUTRAL[name]))


def _refusal(name: str, value: Any, allowed: Sequence[str]) -> str:
    if name not in _NEUTRAL:
        return f"{name} is not supported{nearest(name, [*allowed, *_NEUTRAL])}"
    return f"{name} is {value!r}, which is not supported; allowed: {_NEUTRAL[name]!r}"
