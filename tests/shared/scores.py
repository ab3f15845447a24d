"""Scores of one model, as the code of training and of `archlab eval` computes them."""

from collections.abc import Sequence

from archlab.data.batch import HeldOut
from archlab.infer.score import HeldOutScore, score_all
from archlab.model.decoder import Decoder
from archlab.training.device import Device
from archlab.training.evaluate import Score, predict


def evaluate(model: Decoder, held_out: HeldOut, device: Device, batch_tokens: int = 8192) -> Score:
    """Return the score of a model on held-out data, as training computes it."""
    return predict(model, held_out, device, batch_tokens).score(held_out)


def score(source: str, overrides: Sequence[str], tokens: int | None) -> HeldOutScore:
    """Return the score of a run folder, published weights or a config, as `archlab eval` computes it."""
    return score_all([source], overrides, tokens)[0].score
