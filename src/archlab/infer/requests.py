"""Requests of lm_eval as `Answers` takes them; refused by name if the answer could not be the one of lm_eval's `hf`.

Nothing here imports lm_eval.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from archlab.config.problems import nearest
from archlab.errors import UserError
from archlab.infer.answers import Pair
from archlab.infer.sampling import Sampling

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
