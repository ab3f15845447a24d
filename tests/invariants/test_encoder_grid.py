"""Rows of the pairwise grid as decoders that read an encoder: padding, visibility, kernels, the cache and flattened files.

Rows that contain every choice get an encoder, in one of several forms by turns. They lose the choices that a model with
an encoder does not allow: parallel blocks, other directions than causal, muP and segments.
"""

from copy import deepcopy
from functools import cache
from typing import Any

import grid
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from archlab.config.io import build_config
from archlab.config.schema import Config
from archlab.errors import UserError
from archlab.flatten.write import flatten_model
from archlab.model.decoder import Decoder
from archlab.model.kernels import KERNELS
from archlab.model.state import Cache

T, S = grid.SEQ_LEN, 17
ENCODERS = (
    "{n_layers: 1}",
    "{n_layers: 2, cross: {n_kv_heads: 1}}",
    "{n_layers: 1, attention.window: 5, norm.eps: 0.1}",
    "{n_layers: 1, mlp: {kind: plain, d_ff: 10}, cross: {n_heads: 2, head_dim: 4, n_kv_heads: 2, v_dim: 3}}",
    "{n_layers: 1, attention: {n_heads: 2, n_kv_heads: 1, head_dim: 8}, cross: {softcap: 3}}",
    "{n_layers: 1, cross: {qk_norm: {kind: rmsnorm}, qkv_bias: true, out_bias: true}}",
    "{n_layers: 1, block.stream_scale: true, cross: {keys_as_values: true, v_norm: {}, v_dim: null}}",
    "{n_layers: 1, cross: {sinks: true, gate: {per: head}, sub_norm: false}}",
)

NOT_ALLOWED = ("block.parallel", "attention.visibility", "mup", "segments")


@cache
def with_encoders() -> list[Config]:
    """Return the rows of the grid that can have an encoder, with one. All of them have multi-head attention."""
    made = list[Config]()
    for row in map(grid.grid().__getitem__, grid.rows_with_each_override(6)):
        kept = (override for override in row if not any(name in override for name in NOT_ALLOWED))
        try:
            made.append(build_config(grid.BASE, (*kept, f"model.encoder={ENCODERS[len(made) % len(ENCODERS)]}")))
        except UserError:
            continue
    return made


every_config = pytest.mark.parametrize("index", range(len(with_encoders())))


@cache
def model(index: int) -> Decoder:
    return grid.randomized(with_encoders()[index])


@torch.no_grad()
def logits(index: int, tokens: Tensor, source: Tensor, **more: Tensor) -> Tensor:
    return model(index)(tokens, source=source, **more)


def test_a_third_of_the_rows_can_have_an_encoder() -> None:
    assert len(with_encoders()) > len(grid.rows_with_each_override(6)) / 3


@every_config
def test_padding_of_source_and_target_changes_nothing(index: int) -> None:
    tokens, source = grid.tokens(3), grid.tokens(3, S, seed=1)
    lengths, source_lengths = torch.tensor([T, 9, 1]), torch.tensor([4, S, 1])
    padded = logits(index, tokens, source, lengths=lengths, source_lengths=source_lengths)
    for row, (n, m) in enumerate(zip(lengths.tolist(), source_lengths.tolist(), strict=True)):
        alone = logits(index, tokens[row : row + 1, :n], source[row : row + 1, :m])
        assert_close(padded[row : row + 1, :n], alone)


@every_config
def test_packed_pairs_are_as_if_alone(index: int) -> None:
    """Documents and sources of the second row are in different orders, and padding follows in both rows."""
    tokens, source = grid.tokens(2), grid.tokens(2, S, seed=1)
    pairs = [[("0", 4, 3), ("1", 9, 8), ("2", 1, 1)], [("5", 11, 2), ("7", 13, 10)]]
    order_of_sources = [[0, 1, 2], [1, 0]]
    documents, numbers = torch.full((2, T), 5), torch.full((2, S), 7)  # padding has the numbers of real documents
    places = dict[tuple[int, int], tuple[slice, slice]]()
    for row, of_row in enumerate(pairs):
        start = first = 0
        spans = dict[int, slice]()
        for i in order_of_sources[row]:
            spans[i] = slice(first, first := first + of_row[i][2])
            numbers[row, spans[i]] = int(of_row[i][0])
        for i, (number, n, _) in enumerate(of_row):
            places[row, i] = slice(start, start := start + n), spans[i]
            documents[row, places[row, i][0]] = int(number)
    lengths, source_lengths = (
        torch.tensor([sum(pair[side] for pair in of_row) for of_row in pairs]) for side in (1, 2)
    )
    packed = logits(
        index, tokens, source, documents=documents, lengths=lengths, source_documents=numbers,
        source_lengths=source_lengths,
    )  # fmt: skip
    assert packed.isfinite().all()
    for (row, _), (target, of_source) in places.items():
        alone = logits(index, tokens[row : row + 1, target], source[row : row + 1, of_source])
        assert_close(packed[row : row + 1, target], alone)


@every_config
def test_every_token_sees_the_whole_source_and_no_later_token(index: int) -> None:
    tokens, source = grid.tokens(1), grid.tokens(1, S, seed=1)
    before = logits(index, tokens, source)
    for i in (0, S // 2, S - 1):
        other = source.clone()
        other[0, i] = (other[0, i] + 1) % grid.VOCABULARY
        assert (
            (logits(index, tokens, other) - before).abs().amax(-1) > 1e-12
        ).all()  # a post-norm in every layer leaves little of the source
    changed = tokens.clone()
    changed[0, 11:] = (changed[0, 11:] + 1) % grid.VOCABULARY
    assert_close(logits(index, changed, source)[:, :11], before[:, :11])


@every_config
def test_cached_is_full(index: int) -> None:
    """The source is read in the first pass only, and prompts may be padded before the text."""
    config, tokens, source = with_encoders()[index], grid.tokens(2), grid.tokens(2, S, seed=1)
    source_lengths, padding = torch.tensor([S, 6]), torch.tensor([0, 7])
    store = Cache(config.model, 2, T, source=S, dtype=torch.float64, padding=padding)
    pieces = tokens.split([10, 3, *[1] * (T - 13)], 1)
    with torch.no_grad():
        first = model(index)(pieces[0], source=source, source_lengths=source_lengths, cache=store)
        out = torch.cat([first, *(model(index)(piece, cache=store) for piece in pieces[1:])], 1)
    if grid.turns_by_length(config):  # angles depend on the length of the text, as test_grid.py explains
        assert_close(out[:1, :10], logits(index, tokens[:1, :10], source[:1]))
        return
    assert_close(out[:1], logits(index, tokens[:1], source[:1]))
    assert_close(out[1:, 7:], logits(index, tokens[1:, 7:], source[1:, :6]))


@every_config
def test_kernels_agree(index: int) -> None:
    config, tokens, source = with_encoders()[index], grid.tokens(2), grid.tokens(2, S, seed=1)
    outputs = dict[str, Tensor]()
    for kernel in ("reference", "auto", *(name for name in KERNELS if name not in ("reference", "flex"))):
        try:
            other = grid.randomized(config, kernel=kernel)
            outputs[kernel] = other(tokens, source=source, source_lengths=torch.tensor([S, 6]))
        except UserError:  # the kernel cannot compute this attention
            continue
        assert_close(outputs[kernel], outputs["reference"])
    assert "auto" in outputs


@every_config
def test_every_parameter_has_a_gradient(index: int) -> None:
    own = grid.randomized(with_encoders()[index])
    own(grid.tokens(2), source=grid.tokens(2, S, seed=1)).square().mean().backward()
    without = [name for name, p in own.named_parameters() if p.grad is None]
    assert without == []


@pytest.mark.parametrize("index", range(0, len(with_encoders()), 8))
def test_the_flattened_file_gives_the_same_logits(index: int) -> None:
    names: dict[str, Any] = {}
    exec(compile(flatten_model(with_encoders()[index].model, title="grid", most_lines=1000), "grid", "exec"), names)
    own, flat = deepcopy(model(index)).float(), names["Decoder"]().eval()
    flat.load_state_dict(own.state_dict())
    tokens, source = grid.tokens(3), grid.tokens(3, S, seed=1)
    for lengths in ({}, {"source_lengths": torch.tensor([4, S, 1])}):
        with torch.no_grad():
            expected = own(tokens, source=source, **lengths)
            gap = (flat(tokens, source=source, **lengths) - expected).abs().max()
        assert gap < 1e-4 * (expected.std() + 1e-2 * expected.abs().max())
