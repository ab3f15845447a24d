"""A model's answers to the requests of evaluation tasks: log-likelihoods of continuations, and generated text.

Shapes: B sequences, T tokens, N scored tokens, D d_model, V vocabulary.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor

from archlab.config.components.position import Rope
from archlab.config.components.rope_scaling import DynamicNTK, Longrope
from archlab.config.layers import sees_as
from archlab.config.pieces import rows_at_once
from archlab.config.problems import nearest
from archlab.errors import UserError
from archlab.infer.sampling import Sampling
from archlab.infer.session import Session, checked_every, left_pad
from archlab.infer.stop_strings import StopStrings
from archlab.model.decoder import Decoder
from archlab.model.inputs import Inputs
from archlab.model.state import Cache


class Pair(NamedTuple):
    """A context, and a continuation whose likelihood is asked for. Each has at least one token."""

    context: tuple[int, ...]
    continuation: tuple[int, ...]

    @property
    def read(self) -> tuple[int, ...]:
        """Tokens that the model reads: all except the last one, which the model only has to predict."""
        return (*self.context, *self.continuation[:-1])


Likelihood = tuple[float, bool]
"""Log-likelihood of a continuation in nats, and whether greedy decoding would generate the continuation."""


@dataclass(frozen=True)
class Answers:
    """A model's answers to scoring and generation requests. Do not train the model while this object is in use.

    If the model has layers with a visible prefix, the prefix is the context or the prompt of a request.
    """

    model: Decoder
    tokenizer: Tokenizer
    ends: tuple[int, ...]
    """Tokens that end a sequence (EOS tokens)."""
    excluded: Sequence[int] = ()
    """Tokens that generated text never contains, because the tokenizer lacks them."""
    batch_tokens: int = 8192
    """Maximum number of tokens per forward pass, including padding.

    A sequence with more tokens than this is processed alone.
    """

    @torch.no_grad()
    def likelihoods(self, pairs: Sequence[Pair]) -> Iterator[tuple[int, Likelihood]]:
        """Yield (index of the pair, likelihood) in no particular order.

        If several pairs have the same context, the model reads this context only once, unless RoPE's angles depend on
        the sequence length.
        """
        by_context: dict[object, list[int]] = {}
        for i, pair in enumerate(pairs):
            by_context.setdefault(pair.context if self._can_share else i, []).append(i)
        single = [indices[0] for indices in by_context.values() if len(indices) == 1]
        for batch in self._batches(single, [len(pair.read) for pair in pairs]):
            yield from zip(batch, self._in_one_pass([pairs[i] for i in batch]), strict=True)
        for indices in by_context.values():
            if len(indices) > 1:
                yield from self._after(pairs[indices[0]].context, indices, pairs)

    @cached_property
    def _can_share(self) -> bool:
        """Whether the model may read a context first and its continuations later.

        This would change the results if RoPE's angles depend on the sequence length.
        """
        ropes = (layer.position for layer in self.model.layer_configs if isinstance(layer.position, Rope))
        return not any(isinstance(rope.scaling, DynamicNTK | Longrope) for rope in ropes)

    def _batches(self, indices: Sequence[int], lengths: Sequence[int]) -> Iterator[list[int]]:
        """Group sequences of similar length into batches.

        If RoPE's angles depend on the sequence length, all sequences of a batch have the same length. The longest
        sequences come first, so that a lack of memory shows immediately.
        """
        batch = list[int]()
        for i in sorted(indices, key=lambda i: -lengths[i]):
            is_full = bool(batch) and len(batch) >= self._batch_size(lengths[batch[0]])
            if is_full or (batch and not self._can_share and lengths[i] != lengths[batch[0]]):
                yield batch
                batch = []
            batch.append(i)
        if batch:
            yield batch

    def _batch_size(self, length: int) -> int:
        """Return the maximum number of sequences of this length per forward pass.

        On a GPU, it is a power of two, so that kernels are compiled for few sizes.
        """
        n = max(1, self.batch_tokens // max(1, length))
        return 1 << (n.bit_length() - 1) if self._device.type == "cuda" else n

    def _in_one_pass(self, pairs: Sequence[Pair]) -> list[Likelihood]:
        inputs = Inputs(prefix=self._prefix([pair.context for pair in pairs]))
        hidden_BTD = self.model.hidden(self._padded([pair.read for pair in pairs]), inputs)
        return self._scored(hidden_BTD, [len(pair.context) - 1 for pair in pairs], pairs)

    def _after(
        self, context: tuple[int, ...], indices: Sequence[int], pairs: Sequence[Pair]
    ) -> Iterator[tuple[int, Likelihood]]:
        lengths = [len(pairs[i].continuation) for i in range(len(pairs))]
        longest = max(lengths[i] for i in indices)
        read_1T = torch.tensor([context], device=self._device)
        context_cache = self._cache(1, len(context) + longest)
        last_1D = self.model.hidden(read_1T, Inputs(prefix=self._prefix([context]), cache=context_cache))[:, -1]
        for batch in self._batches(indices, [len(context) + n for n in lengths]):
            chosen = [pairs[i] for i in batch]
            hidden_BTD = last_1D.expand(len(batch), 1, -1)
            if any(len(pair.continuation) > 1 for pair in chosen):
                cache = _copied(context_cache, self._cache(len(batch), context_cache.capacity))
                more_BT = self._padded([pair.continuation[:-1] for pair in chosen])
                hidden_BTD = torch.cat((hidden_BTD, self.model.hidden(more_BT, Inputs(cache=cache))), 1)
            yield from zip(batch, self._scored(hidden_BTD, [0] * len(batch), chosen), strict=True)

    def _scored(self, hidden_BTD: Tensor, starts: Sequence[int], pairs: Sequence[Pair]) -> list[Likelihood]:
        """Return the likelihood of each continuation, given the hidden states.

        `starts` holds, for each sequence, the index of the hidden state that predicts the continuation's first token.
        """
        lengths = [len(pair.continuation) for pair in pairs]
        hidden_ND = torch.cat([row[at : at + n] for row, at, n in zip(hidden_BTD, starts, lengths, strict=True)])
        targets_N = torch.tensor([token for pair in pairs for token in pair.continuation], device=self._device)
        rows = rows_at_once(self.model.config.vocab_size, self._device.type)
        log_likelihoods, is_greedy = list[Tensor](), list[Tensor]()
        for part_ND, part_N in zip(hidden_ND.split(rows), targets_N.split(rows), strict=True):
            logits_NV = self.model.head(part_ND, self.model.embedding.weight)
            logits_NV = logits_NV.to(torch.promote_types(logits_NV.dtype, torch.float32))
            log_likelihoods.append(-F.cross_entropy(logits_NV, part_N, reduction="none"))
            is_greedy.append(logits_NV.argmax(-1) == part_N)
        sums = [float(x.double().sum()) for x in torch.cat(log_likelihoods).split(lengths)]
        return list(zip(sums, [bool(x.all()) for x in torch.cat(is_greedy).split(lengths)], strict=True))

    def generated(
        self, prompts: Sequence[Sequence[int]], max_new_tokens: int, sampling: Sampling, stop: Sequence[str]
    ) -> Iterator[tuple[int, str]]:
        """Yield (index of the prompt, generated text) in no particular order.

        A text ends before a stop string, at an EOS token, or after `max_new_tokens` tokens.
        """
        for batch in self._batches(range(len(prompts)), [len(prompt) + max_new_tokens for prompt in prompts]):
            texts = self._generated([prompts[i] for i in batch], max_new_tokens, sampling, stop)
            yield from zip(batch, texts, strict=True)

    def _generated(
        self, prompts: Sequence[Sequence[int]], max_new_tokens: int, sampling: Sampling, stop: Sequence[str]
    ) -> list[str]:
        tokens_BT, padding_B = left_pad([torch.tensor(prompt, device=self._device) for prompt in prompts])
        session = Session(self.model, tokens_BT, tokens_BT.shape[1] + max_new_tokens, padding=padding_B)
        new, is_over = [list[int]() for _ in prompts], [False] * len(prompts)
        every = checked_every(self._device.type)
        written = session.write(max_new_tokens, sampling, self.ends, excluded=self.excluded, checked_every=every)
        while piece := list(islice(written, every)):
            for i, tokens in enumerate(torch.stack(piece, 1).tolist()):
                for token in tokens:
                    if is_over[i]:
                        break
                    new[i].append(token)
                    is_over[i] = token in self.ends or bool(stop and _stopped(self._text(new[i]), stop)[1])
            if all(is_over):
                break
        return [_stopped(self._text(tokens), stop)[0] for tokens in new]

    def _text(self, tokens: Sequence[int]) -> str:
        kept = tokens[:-1] if tokens and tokens[-1] in self.ends else tokens
        return self.tokenizer.decode(list(kept), skip_special_tokens=True)

    def _prefix(self, contexts: Sequence[Sequence[int]]) -> Tensor | None:
        """Return the length of each context, [B], if the model has layers with a visible prefix."""
        has_prefix = sees_as(self.model.config, "prefix")
        return torch.tensor([len(context) for context in contexts], device=self._device) if has_prefix else None

    def _padded(self, texts: Sequence[Sequence[int]]) -> Tensor:
        longest = max(map(len, texts))
        return torch.tensor([[*text, *[0] * (longest - len(text))] for text in texts], device=self._device)

    def _cache(self, batch: int, capacity: int) -> Cache:
        weight = self.model.embedding.weight
        return Cache(self.model.config, batch, capacity, dtype=weight.dtype, device=weight.device)

    @property
    def _device(self) -> torch.device:
        return self.model.embedding.weight.device


def _copied(source: Cache, target: Cache) -> Cache:
    target.begin(source.length)
    for source_layer, target_layer in zip(source.layers, target.layers, strict=True):
        for name, state in source_layer.items():
            for tensor, copy in zip(state.tensors.values(), target_layer[name].tensors.values(), strict=True):
                copy.copy_(tensor.expand_as(copy))
    target.end(source.length)
    return target


def _stopped(text: str, stop: Sequence[str]) -> tuple[str, bool]:
    until = StopStrings(stop)
    before = until.certain(text)
    return (before, True) if until.found else (before + until.rest(), False)


_SAMPLING = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed")
_ONLY_IN_DRAWS = ("top_k", "top_p", "min_p", "top_h", "typical_p", "epsilon_cutoff", "eta_cutoff")
"""Arguments of transformers' `generate` that have no effect in greedy decoding."""
_NEVER = (
    "use_cache", "return_dict_in_generate", "output_attentions", "output_hidden_states", "output_logits",
    "output_scores", "length_penalty", "early_stopping",
)  # fmt: skip
"""Arguments of transformers' `generate` that do not change the text.

They affect what `generate` caches and returns, and how it ranks beams.
"""
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
"""Arguments of transformers' `generate` that are accepted only with this value or None.

Both values have no effect on the text.
"""


def pair(request: object, context: Sequence[int], continuation: Sequence[int], length: int) -> Pair:
    """Return a context and a continuation for which the model reads at most `length` tokens.

    A context that is too long loses its first tokens. Raise UserError if the continuation has no tokens or more than
    `length` tokens. The message shows `request`.
    """
    if not 0 < len(continuation) <= length:
        problem = f"the continuation has {len(continuation)} tokens"
        raise UserError(f"{shortened(request)}: {problem}; allowed: 1 to max_length = {length}")
    return Pair(tuple(context)[-(length + 1 - len(continuation)) :], tuple(continuation))


def shortened(request: object) -> str:
    shown = ascii(request)
    return f"request {shown if len(shown) <= 100 else f'{shown[:50]} ... {shown[-50:]}'}"


def sampling(arguments: Mapping[str, Any]) -> Sampling:
    """Return the sampling settings that correspond to arguments of transformers' `generate`.

    Raise UserError for an unsupported argument that could change the text.
    """
    unused = {"do_sample", *_NEVER, *(_ONLY_IN_DRAWS if arguments.get("do_sample") is False else ())}
    relevant = {name: value for name, value in arguments.items() if name not in unused and not _is_neutral(name, value)}
    if refused := sorted(set(relevant) - set(_SAMPLING)):
        allowed = ("until", "max_gen_toks", "do_sample", *_SAMPLING)
        problems = "; ".join(_refusal(name, relevant[name], allowed) for name in refused)
        raise UserError(f"generation_kwargs: {problems}; archlab supports {', '.join(allowed)}")
    return Sampling(**relevant)


def _is_neutral(name: str, value: Any) -> bool:
    known = name in _NEUTRAL or name in _SAMPLING
    return known and (value is None or (name in _NEUTRAL and value == _NEUTRAL[name]))


def _refusal(name: str, value: Any, allowed: Sequence[str]) -> str:
    if name not in _NEUTRAL:
        return f"{name} is not supported{nearest(name, [*allowed, *_NEUTRAL])}"
    return f"{name} is {value!r}, which is not supported; allowed: {_NEUTRAL[name]!r}"
