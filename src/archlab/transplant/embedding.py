"""Changes of the matrices with one row per token, and of the table with one row per position."""

import torch
from torch import Tensor

from archlab.config.components.position import Learned
from archlab.errors import UserError
from archlab.model.arithmetic import at_least_float32
from archlab.transplant.transformation import Transformation
from archlab.transplant.weight_errors import relative_error
from archlab.transplant.weights import DECODER, Architecture, Weights, with_fields, with_value


def _untied(weights: Weights, target: Architecture) -> Weights:
    if not weights.model.head.tied or target.model.head.tied:
        return weights
    embedding = weights.tensors["embedding.weight"]
    head = embedding.then(UNTIED_HEAD.name, torch.clone, embedding.shape)
    change = UNTIED_HEAD.change("the head has a copy of the embedding")
    return weights.changed(change, tensors={"head.weight": head}, model=with_value(weights.model, "head.tied", False))


def _tied(weights: Weights, target: Architecture) -> Weights:
    if weights.model.head.tied or not target.model.head.tied:
        return weights
    matrix, embedding = weights.tensors["head.weight"], weights.tensors["embedding.weight"]
    change = TIED_HEAD.change(
        "the head's own matrix is dropped",
        errors=lambda: {"head.weight": relative_error(matrix.read(), embedding.read())},
    )
    return weights.changed(change, dropped=["head.weight"], model=with_value(weights.model, "head.tied", True))


def _larger_vocabulary(weights: Weights, target: Architecture) -> Weights:
    before, after = weights.model.vocab_size, target.model.vocab_size
    if before == after:
        return weights
    if after < before:
        raise UserError(
            f"model.vocab_size: {after}, but the trained weights have {before} tokens, and none of them can be left "
            f"out; allowed: {before} or more"
        )
    tensors = {
        name: tensor.then(LARGER_VOCABULARY.name, lambda rows: _with_rows(rows, after), (after, *tensor.shape[1:]))
        for name, tensor in weights.tensors.items()
        if name in ("embedding.weight", "head.weight", "head.bias")
    }
    change = LARGER_VOCABULARY.change(f"{before} tokens to {after}; the logits of the first {before} stay the same")
    return weights.changed(change, tensors=tensors, model=with_value(weights.model, "vocab_size", after))


def _with_rows(rows: Tensor, n: int) -> Tensor:
    """Append rows until there are `n`. They are the mean of all rows of a matrix, and 0 for a vector of biases."""
    if rows.ndim == 1:
        return torch.cat((rows, rows.new_zeros(n - len(rows))))
    rows = at_least_float32(rows)
    mean = rows.mean(0, keepdim=True)
    return torch.cat((rows, mean.expand(n - len(rows), -1)))


def _position_table(weights: Weights, target: Architecture) -> Weights:
    for stack in weights.architecture.stacks:
        weights = _positions_of(weights, target, stack)
    return weights


def _positions_of(weights: Weights, target: Architecture, stack: str) -> Weights:
    layers, wanted = weights.architecture.stacks[stack], target.stacks[stack][0].position
    own, before, after = layers[0].position, weights.model.max_seq_len, target.model.max_seq_len
    if not (isinstance(own, Learned) and isinstance(wanted, Learned)):
        return weights
    name = f"{stack.removesuffix(DECODER)}positions.weight"
    table = weights.tensors[name]
    n_rows = table.shape[0] - own.offset
    if (own.offset, n_rows) == (wanted.offset, after):
        return weights

    def resized(rows: Tensor) -> Tensor:
        unused = rows.new_zeros(wanted.offset, rows.shape[1])
        return torch.cat((unused, rows[own.offset :][torch.arange(after) % n_rows]))

    new = table.then(POSITION_TABLE.name, resized, (wanted.offset + after, table.shape[1]))
    change = POSITION_TABLE.change(
        f"{before} positions to {after}; exact in texts of up to {min(before, after)} tokens"
    )
    moved = {f"{stack}.{i}": with_fields(x, "position", offset=wanted.offset) for i, x in enumerate(layers)}
    return weights.changed(change, tensors={name: new}, layers=moved)


UNTIED_HEAD = Transformation(
    name="untied head",
    effect="exact",
    fields=("model.head.tied",),
    rule="The head gets a copy of the embedding. The logits stay the same.",
    paper="Press 2017, arXiv 1608.05859",
    apply=_untied,
)
TIED_HEAD = Transformation(
    name="tied head",
    effect="approximate",
    fields=("model.head.tied",),
    rule="The head's matrix is dropped, and the embedding takes its place. The less the two are alike, the more the "
    "logits change. The report states the relative error of the head.",
    paper="Press 2017, arXiv 1608.05859",
    apply=_tied,
)
LARGER_VOCABULARY = Transformation(
    name="larger vocabulary",
    effect="exact",
    fields=("model.vocab_size",),
    rule="Each new row of the embedding and of the head is the mean of all rows, and each new bias is 0. The logits of "
    "the old tokens stay the same, but probabilities fall by the share of the new tokens.",
    paper="Hewitt 2021, nlp.stanford.edu/~johnhew/vocab-expansion.html",
    apply=_larger_vocabulary,
)
POSITION_TABLE = Transformation(
    name="table of positions",
    effect="exact",
    fields=("model.max_seq_len", "model.position.offset"),
    rule="A longer table of learned positions repeats the trained rows from the first one on. A shorter table leaves "
    "out the last rows. Texts that fit both tables have the same logits.",
    paper="Beltagy 2020, arXiv 2004.05150",
    apply=_position_table,
)
