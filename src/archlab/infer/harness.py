"""lm_eval's interface to our models: importing this registers the model `archlab` (EleutherAI, Gao 2021)."""

import hashlib
import json
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from lm_eval.api.model import TemplateLM  # pyright: ignore[reportMissingImports]
from lm_eval.api.registry import register_model  # pyright: ignore[reportMissingImports]
from lm_eval.models.utils import normalize_gen_kwargs  # pyright: ignore[reportMissingImports]
from lm_eval.utils import (  # pyright: ignore[reportMissingImports]
    get_rolling_token_windows,
    make_disjoint_window,
)
from tokenizers import Tokenizer

from archlab.config.core.yaml_text import to_yaml
from archlab.config.training import check_next_token
from archlab.data.spelling import without_prefix
from archlab.errors import UserError
from archlab.exchange.configs import kind_of, load_config
from archlab.infer.answers import Answers, pair, sampling, shortened
from archlab.infer.load import find_folder, from_pretrained, load_codec
from archlab.model.decoder import Decoder
from archlab.training.device import resolve_device_type

_VERSION = 2
"""It is raised whenever an answer changes, because users keep answers under the fingerprint."""


@register_model("archlab")
class ArchlabLM(TemplateLM):
    """A run folder, a Hugging Face folder or a hub id; or a config, with weights that nobody trained."""

    def __init__(
        self,
        path: str,
        tokenizer: str | None = None,
        device: str | None = None,
        dtype: str | None = None,
        batch_size: int | str = "auto",
        max_batch_size: int | None = None,
        max_length: int | None = None,
        max_gen_toks: int = 256,
        add_bos_token: bool | None = None,
    ) -> None:
        """Names and meanings are those of lm_eval's own `hf` where it has them.

        `tokenizer`: a folder with a tokenizer.json; needed for a preset or a YAML file, whose weights are random.
        `batch_size`: texts of `max_length` that one pass reads; "auto": 8192 tokens. `max_batch_size` is not read.
        `max_length`: tokens that the model sees at once (default: model.max_seq_len). `add_bos_token`: whether the
        token that begins a text stands before each (default: as the tokenizer does it, as in `hf`).
        """
        super().__init__()
        device = None if device in (None, "auto") else device
        self._device = torch.device(device or resolve_device_type("auto", "device"))
        model, codec = _loaded(path, tokenizer, dtype, self._device)
        check_next_token(model.config)
        self.max_length = max_length or model.config.max_seq_len
        self.max_gen_toks, self.add_bos_token, self._path = max_gen_toks, add_bos_token, path
        first, stops = codec.special.first, codec.special.stops
        ends = tuple(token for token in stops if token < model.config.vocab_size)
        if first is None or not ends:
            raise UserError(f"{path}: no file names the tokens that begin and end a text (bos_token, eos_token)")
        self._first = first
        tokens = 8192 if batch_size == "auto" else int(batch_size) * self.max_length
        self.answers = Answers(model, codec.tokenizer, ends, tokens)

    @property
    def eot_token_id(self) -> int:
        """At which a text is over."""
        return self.answers.ends[0]

    @property
    def prefix_token_id(self) -> int:
        """Which stands before a text without a context."""
        return self._first

    @property
    def tokenizer_name(self) -> str:
        """For lm_eval's cache of requests."""
        return self._path.replace("/", "__")

    @property
    def fingerprint(self) -> str:
        """16 hex digits of what decides its answers: weights, architecture, tokenizer, and how texts begin and end."""
        digest, model = hashlib.sha256(), self.answers.model
        own = (_VERSION, self.max_length, self.max_gen_toks, self.add_bos_token, self._first, self.answers.ends)
        digest.update(json.dumps([to_yaml(model.config.model_dump(mode="json")), *own]).encode())
        digest.update(self.answers.tokenizer.to_str().encode())
        for name, weight in sorted(model.state_dict().items()):
            digest.update(f"{name} {weight.dtype} {list(weight.shape)}".encode())
            digest.update(weight.detach().cpu().contiguous().view(torch.uint8).numpy().data)
        return digest.hexdigest()[:16]

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        """Return the tokens of a text. What begins a text stands before it as `add_bos_token` says, but not twice."""
        wanted = self.add_bos_token if add_special_tokens is None else add_special_tokens
        if add_special_tokens is None and string.startswith(self.answers.tokenizer.id_to_token(self._first) or "\0"):
            wanted = False
        ids = self.answers.tokenizer.encode(string, add_special_tokens=wanted is not False).ids
        begins = add_special_tokens is None and self.add_bos_token and ids[:1] != [self._first]
        return [self._first, *ids] if begins else ids

    def loglikelihood(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """Return the log-likelihood of each continuation, and whether each of its tokens is the likeliest one.

        UserError for a continuation without tokens.
        """
        for asked in (request.args for request in requests):
            if not asked[0]:
                # With an empty context lm_eval reads continuation[0] without checking that there is one.
                pair(asked, (), self.tok_encode(asked[1], add_special_tokens=False), self.max_length)
        return super().loglikelihood(requests, disable_tqdm)

    def _encode_pair(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        """Encode both together and cut where the context ends, as lm_eval does.

        If a token spans the cut, so that nothing is left of the continuation, it is encoded alone, as in lm_eval's pull
        request 4055. If the context is blank, the token that begins a text is the context.
        """
        first, second = super()._encode_pair(context, continuation)
        if not second:
            blanks = context[len(context.rstrip()) :]
            second = self._goes_on.encode(blanks + continuation, add_special_tokens=False).ids
        return first or [self._first], second

    @cached_property
    def _goes_on(self) -> Tokenizer:
        """The tokenizer of a text that goes on, which puts no space before it."""
        return without_prefix(self.answers.tokenizer)

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[Any, list[int], list[int]]], disable_tqdm: bool = False, **_: Any
    ) -> list[tuple[float, bool]]:
        pairs = [pair(*request, self.max_length) for request in requests]
        found: dict[int, tuple[float, bool]] = {}
        for place, answer in self.answers.likelihoods(pairs):
            found[place] = answer
            if (asked := requests[place][0]) is not None:
                self.cache_hook.add_partial("loglikelihood", asked, answer)
        return [found[i] for i in range(len(requests))]

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        """Of each whole text, in windows that overlap by one token."""
        sums = list[float]()
        for (text,) in (request.args for request in requests):
            if not (tokens := self.tok_encode(text)):
                raise UserError(f"{shortened(text)}: the text has no tokens; remove it from the task")
            windows = get_rolling_token_windows(
                token_list=tokens, prefix_token=self._first, max_seq_len=self.max_length, context_len=1
            )
            found = self._loglikelihood_tokens([(None, *make_disjoint_window(window)) for window in windows])
            sums.append(sum(likely for likely, _ in found))
            self.cache_hook.add_partial("loglikelihood_rolling", (text,), sums[-1])
        return sums

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """What follows each text; those that are asked for in the same way are written side by side."""
        alike: dict[str, list[int]] = {}
        for i, request in enumerate(requests):
            alike.setdefault(json.dumps(request.args[1], sort_keys=True), []).append(i)
        found: dict[int, str] = {}
        for places in alike.values():
            how = normalize_gen_kwargs(requests[places[0]].args[1], self.max_gen_toks)
            most, stop, chosen = how.pop("max_gen_toks"), how.pop("until", []), sampling(how)
            room = self.max_length - most
            if room < 1:
                raise UserError(f"max_gen_toks: {most}; allowed: less than max_length = {self.max_length}")
            prompts = [(self.tok_encode(requests[i].args[0]) or [self._first])[-room:] for i in places]
            for at, text in self.answers.written(prompts, most, chosen, [one for one in stop if one]):
                found[places[at]] = text
                if not how.get("do_sample"):
                    self.cache_hook.add_partial("generate_until", requests[places[at]].args, text)
        return [found[i] for i in range(len(requests))]


def _loaded(path: str, tokenizer: str | None, dtype: str | None, device: torch.device) -> tuple[Decoder, Any]:
    """The model and its codec."""
    if kind_of(path) in ("run folder", "Hugging Face folder", "hub id"):
        folder = find_folder(path)
        return from_pretrained(folder, dtype, device), load_codec(Path(tokenizer) if tokenizer else folder)
    config = load_config(path)
    if tokenizer is None:
        raise UserError(
            f"{path}: is a config, whose weights nobody has trained; to ask random weights all the same, name a folder "
            "with a tokenizer.json: tokenizer=FOLDER"
        )
    model = Decoder(config.model, seed=config.train.seed).eval().to(device)
    return model, load_codec(Path(tokenizer))
