"""Text in, text out, piece by piece: never part of a character, never part of a stop string."""

from collections.abc import Callable, Iterator, Sequence

import torch
from tokenizers import Tokenizer
from torch import Tensor

from archlab.errors import UserError
from archlab.infer.codec import Codec, RunCodec
from archlab.infer.generate import Session
from archlab.infer.sampling import Sampling
from archlab.model.decoder import Decoder


def stream_text(
    model: Decoder,
    tokenizer: Tokenizer | Codec,
    prompt: str,
    max_new_tokens: int = 128,
    sampling: Sampling | None = None,
    stop: str | Sequence[str] = (),
    *,
    compile: bool = False,
) -> Iterator[str]:
    """The continuation of a prompt in pieces, each as soon as it is certain; greedy where `sampling` is None.

    With our own tokenizers an end-of-text token stands before the text, so the prompt may be empty; a `Codec` decides
    itself what stands there. The text ends after max_new_tokens, at the next end-of-text token, where learned positions
    end, or before the first stop string in the new text. `compile`: see `Session`.
    A last character is dropped if its bytes are not complete; bytes that can be no character become U+FFFD.
    A UserError comes before anything is computed.
    """
    try:
        prompt.encode()
    except UnicodeEncodeError:
        raise UserError("prompt: not valid UTF-8") from None
    codec = RunCodec(tokenizer) if isinstance(tokenizer, Tokenizer) else tokenizer
    ids = codec.encode(prompt)
    if max(ids) >= model.config.vocab_size:
        raise UserError(f"prompt: has token {max(ids)}; the model's vocabulary ends at {model.config.vocab_size - 1}")
    prompt_1T = torch.tensor([ids])
    until = StopStrings(stop)
    session = Session(model, prompt_1T, capacity=prompt_1T.shape[1] + max(max_new_tokens, 0), compile=compile)
    if session.room == 0:
        allowed = model.config.max_seq_len - 1
        raise UserError(
            f"prompt: {prompt_1T.shape[1] - 1} tokens; allowed: up to {allowed}, for an end-of-text token is "
            f"before them and learned positions end at max_seq_len = {allowed + 1}"
        )
    room = max_new_tokens if session.room is None else min(max_new_tokens, session.room)
    ends = [token for token in codec.special.ends if token < model.config.vocab_size]  # it can write no others
    return filter(None, _pieces(session.write(room, sampling, ends), codec.decoder(ids), until))


def _pieces(tokens: Iterator[Tensor], decode: Callable[[int], str], until: "StopStrings") -> Iterator[str]:
    """The end-of-text token adds nothing, as no special token does."""
    for token_1 in tokens:
        yield until.certain(decode(int(token_1)))
        if until.found:
            return
    yield until.rest()


class StopStrings:
    """Passes text on up to the first stop string, and holds back what may still become one.

    The first stop string is the one that is complete first; of several that are complete at the same character, it is
    the longest. How the text was cut into pieces does not matter.
    """

    def __init__(self, stop: str | Sequence[str]) -> None:
        self.stop = (stop,) if isinstance(stop, str) else tuple(stop)
        if "" in self.stop:
            raise UserError("stop: ''; allowed: strings of one character or more")
        self.found = False
        self._held = ""

    def certain(self, piece: str) -> str:
        """The text that is certain with this piece and was not before. Sets `found` at a stop string."""
        certain = ""
        for character in piece:
            self._held += character
            ends = [len(stop) for stop in self.stop if self._held.endswith(stop)]
            if ends:
                self.found = True
                return certain + self._held[: -max(ends)]
            sure = len(self._held) - self._may_be_stop()
            certain, self._held = certain + self._held[:sure], self._held[sure:]
        return certain

    def rest(self) -> str:
        """What was held back, now that nothing follows."""
        return self._held

    def _may_be_stop(self) -> int:
        """Characters at the end of what is held with which a stop string begins."""
        ends = (self._held[start:] for start in range(len(self._held)))
        return next((len(end) for end in ends if any(stop.startswith(end) for stop in self.stop)), 0)
