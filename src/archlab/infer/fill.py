"""Predictions for the mask tokens of a text by a bidirectional model (Devlin 2018)."""

from typing import NamedTuple

import torch
from tokenizers import Tokenizer

from archlab.config.layers import sees_as
from archlab.data import tokenizer as bpe
from archlab.errors import UserError, check_at_least
from archlab.infer.load import folder_of, load_codec
from archlab.infer.text import PublishedCodec, unknown_tokens
from archlab.model.decoder import Decoder
from archlab.model.inputs import check_is_model


class Guess(NamedTuple):
    """Token that a model predicts for a mask token."""

    token: int
    text: str
    """Text of the token, without spaces around it unless it has nothing else."""
    probability: float


@torch.no_grad()
def fill(model: Decoder, text: str, top: int = 5) -> list[list[Guess]]:
    """Return the `top` most likely tokens for each mask token of a text, the most likely first.

    `model` is an encoder such as BERT that `from_pretrained` loaded with its tokenizer. The tokenizer adds the tokens
    that begin and end a text. Each mask token is predicted from the whole text, in which the other mask tokens stay
    masked. Only tokens of the tokenizer are returned. The probabilities are those of the whole vocabulary of the model,
    which may be larger.

    Raise UserError if the model is not an encoder, if its tokenizer has no mask token, or if the text has none.

    >>> [guesses] = archlab.fill(archlab.from_pretrained("runs/encoder"), "the <mask> sat", top=2)
    >>> len(guesses), guesses[0].probability >= guesses[1].probability
    (2, True)
    """
    check_is_model(model)
    check_at_least(1, top=top)
    if not sees_as(model.config, "two_sided"):
        raise UserError(
            "model.attention.visibility is causal or prefix, so the model predicts a token from earlier ones only; "
            "allowed: two_sided (`archlab generate` continues a text)"
        )
    codec = load_codec(folder_of(model))
    if codec.special.mask is None:
        raise UserError(
            "the tokenizer has no mask token; allowed: a folder whose tokenizer_config.json names a mask_token, or a "
            "run with train.objective.kind=masked"
        )
    tokenizer = codec.tokenizer if isinstance(codec, PublishedCodec) else bpe.reading_special_tokens(codec.tokenizer)
    with bpe.tokenizer_errors(bpe.CANNOT_ENCODE):
        encoded = tokenizer.encode(text)
    masked = [i for i, token in enumerate(encoded.ids) if token == codec.special.mask]
    if not masked:
        mask = codec.tokenizer.id_to_token(codec.special.mask)
        raise UserError(f"the text has no mask token; write {mask} where the model shall fill in a token")
    device = model.embedding.weight.device
    tokens_1T, segments_1T = (torch.tensor([ids], device=device) for ids in (encoded.ids, encoded.type_ids))
    segments = segments_1T if model.config.embedding.segments else None
    logits_MV = model(tokens_1T, segments=segments)[0, masked].float()
    unknown = unknown_tokens(model, codec)
    p_MV = logits_MV.softmax(-1).index_fill(1, torch.tensor(unknown, dtype=torch.int64, device=device), -1)
    most_likely = p_MV.topk(min(top, p_MV.shape[1] - len(unknown)))
    return [
        [Guess(token, _text_of(codec.tokenizer, token), p) for token, p in zip(tokens, p_of, strict=True)]
        for tokens, p_of in zip(most_likely.indices.tolist(), most_likely.values.tolist(), strict=True)
    ]


def _text_of(tokenizer: Tokenizer, token: int) -> str:
    text = tokenizer.decode([token], skip_special_tokens=False)
    return text.strip() or text
