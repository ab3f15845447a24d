"""Adapter with which lm_eval, EleutherAI's evaluation harness (Gao 2021), runs archlab's models.

Importing this module registers the model type `archlab` in lm_eval.
"""

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
from archlab.config.layers import sees_as
from archlab.config.objective import NextToken, Prefix
from archlab.config.training import check_objective
from archlab.data.spelling import without_prefix
from archlab.errors import UserError
from archlab.exchange.configs import find_folder, folder_first, load_config, source_kind
from archlab.infer.answers import Answers, pair, sampling, shortened
from archlab.infer.load import from_pretrained, load_codec
from archlab.infer.text import Codec, unknown_tokens
from archlab.model.decoder import Decoder
from archlab.training.device import resolve_device_type

_VERSION = 2
"""Version of the code that computes answers. It is part of the fingerprint.

Increase it when any answer changes. Otherwise lm_eval would use cached answers of the old version.
"""


@register_model("archlab")
class ArchlabLM(TemplateLM):
    """A model for lm_eval: a run folder, a Hugging Face folder or hub id, or a config with random weights."""

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
        """Load a model. Arguments have the same meaning as in lm_eval's `hf` model.

        - `tokenizer`: folder with a tokenizer.json. Required if `path` is a preset or a YAML file. The model's weights
          are then random.
        - `batch_size`: size of a forward pass, as a number of sequences of `max_length` tokens. "auto" means 8192
          tokens in total.
        - `max_batch_size`: ignored.
        - `max_length`: maximum number of tokens per sequence (default: model.max_seq_len).
        - `add_bos_token`: whether to put the BOS token before each text (default: as the tokenizer does).

        Raise UserError if no file defines the BOS and EOS tokens.
        """
        super().__init__()
        device = None if device in (None, "auto") else device
        self._device = torch.device(device or resolve_device_type("auto", "device"))
        model, codec = _loaded(path, tokenizer, dtype, self._device)
        check_objective(model.config, Prefix() if sees_as(model.config, "prefix") else NextToken())
        self.max_length = max_length or model.config.max_seq_len
        self.max_gen_toks, self.add_bos_token, self._path = max_gen_toks, add_bos_token, path
        first, stops = codec.special.first, codec.special.stops
        ends = tuple(token for token in stops if token < model.config.vocab_size)
        if first is None or not ends:
            raise UserError(f"{path}: no file defines bos_token and eos_token, which begin and end a text")
        self._first = first
        tokens = 8192 if batch_size == "auto" else int(batch_size) * self.max_length
        self.answers = Answers(model, codec.tokenizer, ends, unknown_tokens(model, codec), tokens)

    @property
    def eot_token_id(self) -> int:
        """EOS token, which ends a text."""
        return self.answers.ends[0]

    @property
    def prefix_token_id(self) -> int:
        """Token that precedes a text without a context."""
        return self._first

    @property
    def tokenizer_name(self) -> str:
        """Name under which lm_eval caches the requests that this model's tokenizer has encoded."""
        return self._path.replace("/", "__")

    @property
    def fingerprint(self) -> str:
        """Hash, 16 hex digits, of everything that affects answers: weights, config, tokenizer and special tokens."""
        digest, model = hashlib.sha256(), self.answers.model
        own = (_VERSION, self.max_length, self.max_gen_toks, self.add_bos_token, self._first, self.answers.ends)
        digest.update(json.dumps([to_yaml(model.config.model_dump(mode="json")), *own]).encode())
        digest.update(self.answers.tokenizer.to_str().encode())
        for name, weight in sorted(model.state_dict().items()):
            digest.update(f"{name} {weight.dtype} {list(weight.shape)}".encode())
            digest.update(weight.detach().cpu().contiguous().view(torch.uint8).numpy().data)
        return digest.hexdigest()[:16]

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        """Return the tokens of a text, with at most one BOS token, as `add_bos_token` says."""
        is_special = self.add_bos_token if add_special_tokens is None else add_special_tokens
        if add_special_tokens is None and string.startswith(self.answers.tokenizer.id_to_token(self._first) or "\0"):
            is_special = False
        ids = self.answers.tokenizer.encode(string, add_special_tokens=is_special is not False).ids
        lacks_first = add_special_tokens is None and self.add_bos_token and ids[:1] != [self._first]
        return [self._first, *ids] if lacks_first else ids

    def loglikelihood(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """Return the log-likelihood of each continuation, and whether greedy decoding would generate it.

        Raise UserError for a continuation without tokens.
        """
        for arguments in (request.args for request in requests):
            if not arguments[0]:
                # With an empty context, lm_eval would read continuation[0] even if the continuation has no tokens.
                pair(arguments, (), self.tok_encode(arguments[1], add_special_tokens=False), self.max_length)
        return super().loglikelihood(requests, disable_tqdm)

    def _encode_pair(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        """Encode context and continuation together, then split the tokens at the end of the context, as lm_eval does.

        If a token contains the end of the context, the continuation may be left without tokens. It is then encoded
        alone, as in lm_eval's pull request 4055. If the context has no tokens, `prefix_token_id` replaces it.
        """
        first, second = super()._encode_pair(context, continuation)
        if not second:
            blanks = context[len(context.rstrip()) :]
            second = self._without_space.encode(blanks + continuation, add_special_tokens=False).ids
        return first or [self._first], second

    @cached_property
    def _without_space(self) -> Tokenizer:
        return without_prefix(self.answers.tokenizer)

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[Any, list[int], list[int]]], disable_tqdm: bool = False, **_: Any
    ) -> list[tuple[float, bool]]:
        pairs = [pair(*request, self.max_length) for request in requests]
        answers: dict[int, tuple[float, bool]] = {}
        for i, answer in self.answers.likelihoods(pairs):
            answers[i] = answer
            if (strings := requests[i][0]) is not None:
                self.cache_hook.add_partial("loglikelihood", strings, answer)
        return [answers[i] for i in range(len(requests))]

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        """Return the log-likelihood of each text. A long text is read in windows that overlap by one token."""
        sums = list[float]()
        for (text,) in (request.args for request in requests):
            if not (tokens := self.tok_encode(text)):
                raise UserError(f"{shortened(text)}: the text has no tokens; remove it from the task")
            windows = get_rolling_token_windows(
                token_list=tokens, prefix_token=self._first, max_seq_len=self.max_length, context_len=1
            )
            answers = self._loglikelihood_tokens([(None, *make_disjoint_window(window)) for window in windows])
            sums.append(sum(log_likelihood for log_likelihood, _ in answers))
            self.cache_hook.add_partial("loglikelihood_rolling", (text,), sums[-1])
        return sums

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """Return the continuation of each text. Requests with the same settings are processed together."""
        by_settings: dict[str, list[int]] = {}
        for i, request in enumerate(requests):
            by_settings.setdefault(json.dumps(request.args[1], sort_keys=True), []).append(i)
        texts: dict[int, str] = {}
        for indices in by_settings.values():
            settings = normalize_gen_kwargs(requests[indices[0]].args[1], self.max_gen_toks)
            most, stop, chosen = settings.pop("max_gen_toks"), settings.pop("until", []), sampling(settings)
            room = self.max_length - most
            if room < 1:
                raise UserError(f"max_gen_toks: {most}; allowed: less than max_length = {self.max_length}")
            prompts = [(self.tok_encode(requests[i].args[0]) or [self._first])[-room:] for i in indices]
            for i, text in self.answers.generated(prompts, most, chosen, [string for string in stop if string]):
                texts[indices[i]] = text
                if not settings.get("do_sample"):
                    self.cache_hook.add_partial("generate_until", requests[indices[i]].args, text)
        return [texts[i] for i in range(len(requests))]


def _loaded(path: str, tokenizer: str | None, dtype: str | None, device: torch.device) -> tuple[Decoder, Codec]:
    path = folder_first(path)
    if source_kind(path) in ("run folder", "Hugging Face folder", "hub id"):
        folder = find_folder(path)
        return from_pretrained(folder, dtype, device), load_codec(Path(tokenizer) if tokenizer else folder)
    config = load_config(path)
    if tokenizer is None:
        raise UserError(
            f"{path}: this is a config, so the model's weights would be random; to evaluate it nevertheless, name a "
            "folder with a tokenizer.json: tokenizer=FOLDER"
        )
    model = Decoder(config.model, seed=config.train.seed).eval().to(device)
    return model, load_codec(Path(tokenizer))
