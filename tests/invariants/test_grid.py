"""Tests over a pairwise grid of all choices: visibility, kernels, packing, the cache, and counts made without
a model."""

from collections import Counter
from dataclasses import replace
from functools import cache

import grid
import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.attention import flex_attention

from archlab.config.components.component import Absent, Attention, Mixer
from archlab.config.components.kernel_choice import RULES
from archlab.config.components.visibility import visible, visible_pairs
from archlab.config.io import build_config
from archlab.config.layers import LayerConfig, layer_configs
from archlab.errors import UserError
from archlab.model import flex
from archlab.model.decoder import Decoder
from archlab.model.kernels import KERNELS, prefer_products
from archlab.model.roles import roles_of
from archlab.model.state import Cache
from archlab.pricing.memory import kv_cache_bytes, recurrent_bytes
from archlab.pricing.params import matrix_shapes, parameters
from schema_classes import without_a_row

T = grid.SEQ_LEN
every_config = pytest.mark.parametrize("index", range(len(grid.grid())))
decoding = [i for i, row in enumerate(grid.grid()) if "model.attention.visibility=two_sided" not in row]
every_decoding_config = pytest.mark.parametrize("index", decoding)


def test_the_grid_leaves_out_only_what_rules_forbid() -> None:
    assert len(grid.grid()) >= 300
    assert list(grid.grid()) == list(grid.stored()[0]), "run python tests/invariants/grid.py, which writes grid.json"
    # Each pair is shown below to be forbidden, 2 of them with Kimi delta attention. 36 are of latent attention, and 13 of attention without a norm in one
    # layer. 5 are of a norm on the output of the MLP, 7 of norms in a mixture, and 2 of values as wide as keys.
    assert len(grid.left_out()) <= 120
    for _, x, _, y in grid.left_out():
        overrides = [o for value in (x, y) for o in ((value,) if isinstance(value, str) else value)]
        with pytest.raises(UserError, match="problem"):
            build_config(grid.BASE, overrides)


def test_every_kind_is_in_the_grid() -> None:
    """Visibility, caches, kernels, counts and FLOPs are therefore tested for every kind."""
    assert without_a_row(grid.config(index) for index in range(len(grid.grid()))) == set()


# --- visibility -----------------------------------------------------------------------------------------------


def seen_by_hand(layer: LayerConfig, length: int, prefix: int) -> np.ndarray:
    """Return the mask [query, key], computed pair by pair."""
    return seen_by_attention(layer.attention, length, prefix) | seen_by_mixer(layer.mixer, length)


def seen_by_mixer(mixer: Mixer, length: int) -> np.ndarray:
    """Return the mask [query, key]. A recurrent state sees everything before it; a convolution sees only its taps."""
    reach = {"none": 0, "short_conv": getattr(mixer, "taps", 0)}.get(mixer.kind, length)
    return np.tri(length, dtype=bool) & ~np.tri(length, k=-reach, dtype=bool)


def seen_by_attention(a: Attention, length: int, prefix: int = 0) -> np.ndarray:
    """Return the mask [query, key]."""
    seen = np.zeros((length, length), dtype=bool)
    if isinstance(a, Absent):
        return seen
    for q in range(length):
        last_seen = {"causal": q, "prefix": max(q, prefix - 1), "two_sided": length - 1}[a.visibility]
        for k in range(last_seen + 1):
            if a.blocks is not None:
                last = range(a.blocks.size - a.blocks.summary, a.blocks.size)
                seen[q, k] = k // a.blocks.size == q // a.blocks.size or k % a.blocks.size in last
            elif a.window is None or abs(q - k) <= a.window - 1 or min(q, k) < a.global_tokens:
                seen[q, k] = True
            elif a.stride is not None:
                seen[q, k] = abs(q - k) % a.stride == 0
    return seen


ROUNDING = 3e-14
"""Bound relative to the largest logit. The noise is at most 1.5e-15; the smallest effect is 2.6e-13, through two
summary layers."""


PREFIX = 9


@cache
def effects(index: int) -> np.ndarray:
    """Return [changed token, position]: how far the logits move, relative to the largest logit."""
    model, tokens = grid.model(index), grid.tokens(1)
    changed = tokens.repeat(T, 1)
    at = torch.arange(T)
    changed[at, at] = (changed[at, at] + 1) % grid.VOCABULARY
    with torch.no_grad():
        logits = model(torch.cat((tokens, changed)), prefix=grid.prefix(grid.config(index), T + 1, PREFIX))
    return ((logits[1:] - logits[:1]).abs().amax(-1) / logits.abs().max()).cpu().numpy()


@every_decoding_config
def test_the_future_does_not_move_the_past(index: int) -> None:
    """Inside a prefix it may."""
    moved, start = effects(index), 0 if grid.prefix(grid.config(index), 1) is None else PREFIX
    later, earlier = np.tril_indices(T, -1)
    assert moved[later, earlier][later >= start].max() < ROUNDING


@every_config
def test_a_token_moves_exactly_those_that_see_it(index: int) -> None:
    """Information passes through all layers, so a token may be seen through other tokens."""
    reached = np.eye(T, dtype=bool)
    for layer in layer_configs(grid.config(index).model):
        reached = (seen_by_hand(layer, T, PREFIX).astype(int) @ reached) > 0
    moved = effects(index).T
    assert moved[~reached].max(initial=0) < ROUNDING < moved[reached].min()


@every_config
def test_visibility_is_counted_as_it_is_masked(index: int) -> None:
    for layer in layer_configs(grid.config(index).model):
        if isinstance(layer.attention, Absent):
            continue
        at = np.arange(T)
        for prefix in (PREFIX, 0):
            by_hand = seen_by_attention(layer.attention, T, prefix)
            assert np.array_equal(visible(layer.attention, at[:, None], at, prefix), by_hand)
        assert visible_pairs(layer.attention, T) == by_hand.sum()


@every_config
def test_packed_documents_are_as_if_alone(index: int) -> None:
    model, tokens = grid.model(index), grid.tokens(2)
    # The second row returns to an earlier number, which is a separate document.
    lengths = ((4, 9, 1, 12), (11, 2, 13))
    documents = [[n for n, length in enumerate(row) for _ in range(length)] for row in lengths]
    documents[1] = [n % 2 for n in documents[1]]
    packed, n_tokens = torch.tensor(documents), (20, 26)
    with torch.no_grad():
        both = model(tokens, documents=packed)
        padded = model(tokens, documents=packed, lengths=torch.tensor(n_tokens))
        assert_close(model(tokens[:1], documents=packed[:1]), both[:1])
        for row, pieces in enumerate(lengths):
            ends = np.cumsum(pieces)
            for start, end in zip(ends - pieces, ends, strict=True):
                assert_close(both[row : row + 1, start:end], model(tokens[row : row + 1, start:end]))
                if start < (end := min(end, n_tokens[row])):
                    assert_close(padded[row : row + 1, start:end], model(tokens[row : row + 1, start:end]))


@every_config
def test_padding_after_a_sequence_changes_nothing(index: int) -> None:
    """Whatever the padding tokens are, each row gives the same logits as alone."""
    model, lengths = grid.model(index), [T, 17, 1]
    prefix = None if grid.prefix(grid.config(index), 1) is None else torch.tensor([PREFIX, 4, 1])
    tokens = grid.tokens(3)
    with torch.no_grad():
        padded = model(tokens, lengths=torch.tensor(lengths), prefix=prefix)
        for row, n in enumerate(lengths):
            of_row = None if prefix is None else prefix[row : row + 1]
            assert_close(padded[row : row + 1, :n], model(tokens[row : row + 1, :n], prefix=of_row))


# --- kernels --------------------------------------------------------------------------------------------------


def assert_close(a: Tensor, b: Tensor, tolerance: float = 1e-10) -> None:
    """Compare relative to the largest value, because zeros next to large values have rounding errors."""
    assert a.shape == b.shape
    assert (a - b).abs().max() <= tolerance * b.abs().max().clamp(min=1e-3)


def forward_and_gradients(index: int, kernel: str) -> list[Tensor]:
    config = grid.config(index)
    model, tokens = grid.randomized(config, kernel="auto" if kernel == "products" else kernel), grid.tokens(2)
    prefer_products(
        model, T if kernel == "products" else 0
    )  # applies to layers that see everything before them and add nothing to scores
    logits = model(tokens, prefix=grid.prefix(config, 2))
    documents = torch.arange(T).div(10, rounding_mode="floor").expand(2, T)
    (logits.square().mean() + model(tokens, documents=documents).square().mean()).backward()
    return [logits.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]


@pytest.fixture
def traced_flex(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use flex in its traced form, before compilation.

    In this form, float64 and gradients work on a CPU, too. torch refuses them because its compiler does not support
    them. test_flex.py tests the compiled form.
    """
    torch.compiler.reset()  # torch 2.13 fails to explain why code of an earlier test does not fit
    monkeypatch.setitem(RULES, "flex", replace(RULES["flex"], lacks=lambda needs: None))
    monkeypatch.setattr(flex, "_compiled_flex", lambda: flex_attention.flex_attention)
    monkeypatch.setattr(flex_attention, "_validate_device", lambda *_: None)


OF_KERNELS = grid.covering("heads", "visibility", "bias", "sinks", "softcap", "scale")
"""Rows with every combination of the factors that a kernel sees: queries, keys, values, mask, biases, sinks
and scores."""
OF_FLEX = {*grid.covering("visibility", "bias", "sinks", "softcap", "scale", alone="heads")}
"""Rows for flex, which needs a second to trace each graph. The number of heads is only a size there, so it is
left out."""


@pytest.mark.parametrize("index", OF_KERNELS)
@pytest.mark.usefixtures("traced_flex")
def test_kernels_agree_forward_and_backward(index: int) -> None:
    able = ["sdpa", "blocked", "products"]  # `auto` picks one of these, flex or the reference
    able += ["flex"] * (index in OF_FLEX)
    model = grid.config(index).model
    if model.attention.softcap is not None:
        able.remove("sdpa")
        with pytest.raises(
            UserError, match=r"kernel sdpa does not support softcap; allowed: auto, flex, (blocked, )?reference"
        ):
            Decoder(model, kernel="sdpa")
    if any(layer.position.acts_on == "scores" for layer in layer_configs(model)):
        able.remove("blocked")
        with pytest.raises(
            UserError, match=r"kernel blocked does not support bias; allowed: auto, flex, (sdpa, )?reference"
        ):
            Decoder(model, kernel="blocked")
    expected = forward_and_gradients(index, "reference")
    for kernel in able:
        for a, b in zip(forward_and_gradients(index, kernel), expected, strict=True):
            assert_close(a, b)


# --- the cache ------------------------------------------------------------------------------------------------


def cached(
    index: int, tokens: Tensor, chunks: list[int], padding: Tensor | None = None, prefix: Tensor | None = None
) -> Tensor:
    """Return the logits of a forward pass in pieces."""
    model = grid.model(index)
    cache = Cache(model.config, len(tokens), tokens.shape[1], dtype=torch.float64, padding=padding)
    first, *rest = tokens.split(chunks, 1)
    with torch.no_grad():
        start = model(first, prefix=prefix, cache=cache)
        return torch.cat([start, *(model(piece, cache=cache) for piece in rest)], 1)


CHUNKS = {
    "whole": [T],
    "by token": [1] * T,
    "uneven": [10, 3, 1, 7, 1, 4],
}


@pytest.mark.parametrize(
    ("index", "chunks"), [(i, c) for c in CHUNKS for i in decoding[:: 3 if c == "by token" else 1]]
)
def test_cached_is_full(index: int, chunks: str) -> None:
    """ "by token" is slow and "uneven" has steps of one token, too; it therefore runs on every third config only."""
    tokens, first = grid.tokens(2), CHUNKS[chunks][0]
    prefix = grid.prefix(grid.config(index), 2, min(first, PREFIX))
    with torch.no_grad():
        full = grid.model(index)(tokens, prefix=prefix)
    pieces = cached(index, tokens, CHUNKS[chunks], prefix=prefix)
    if grid.turns_by_length(grid.config(index)) and first < T:
        with torch.no_grad():
            assert_close(pieces[:, :first], grid.model(index)(tokens[:, :first], prefix=prefix))
    else:
        assert_close(pieces, full)


DYNAMIC = "{kind: dynamic, factor: 2, original_max_seq_len: 8}"
LONGROPE = "{kind: longrope, factor: 4, original_max_seq_len: 8, short_factor: [1, 1, 1, 1], long_factor: [2, 3, 4, 5]}"


@pytest.mark.parametrize(
    ("scaling", "chunks", "is_full"),
    [
        (DYNAMIC, [1] * 8, True),
        (DYNAMIC, [12], True),
        (DYNAMIC, [1] * 12, False),
        (DYNAMIC, [10, 2], False),
        (LONGROPE, [1] * 8, True),
        (LONGROPE, [9, 1, 1, 1], True),
        (LONGROPE, [8, 4], False),
    ],
)
def test_only_angles_that_depend_on_the_length_make_cached_differ(scaling, chunks, is_full) -> None:
    """The documented exceptions: keys in the cache were rotated for the length of the text at that time."""
    config = build_config(grid.BASE, ["model.attention.head_dim=8", f"model.position.scaling={scaling}"])
    model, tokens = grid.randomized(config), grid.tokens(1, sum(chunks))
    cache = Cache(model.config, 1, sum(chunks), dtype=torch.float64)
    with torch.no_grad():
        pieces = torch.cat([model(piece, cache=cache) for piece in tokens.split(chunks, 1)], 1)
        difference = (pieces - model(tokens)).abs().max()
    assert difference < 1e-12 if is_full else difference > 1e-3


@every_decoding_config
def test_cached_is_full_for_prompts_of_unequal_length(index: int) -> None:
    """With padding on the left, each row gives the same logits as alone, however the padded prompts are split.

    The row alone is a text without padding. If angles depend on the length, it is the same row with another split.
    """
    lengths, longest = [14, 6, 1], 14
    texts = [grid.tokens(1, n + T - longest, seed=n) for n in lengths]
    padded = torch.cat([torch.nn.functional.pad(t, (T - t.shape[1], 0)) for t in texts])
    padding = torch.tensor([longest - n for n in lengths])
    prefix = None if grid.prefix(grid.config(index), 1) is None else torch.tensor([4, 0, 0])
    pieces = cached(index, padded, [5, 9, *[1] * (T - longest)], padding, prefix)
    if grid.turns_by_length(grid.config(index)):
        row, at_once = slice(1, 2), [longest, *[1] * (T - longest)]
        alone = cached(index, padded[row], at_once, padding[row], None if prefix is None else prefix[row])
        assert_close(alone, pieces[row])
        return
    for row, text in enumerate(texts):
        with torch.no_grad():
            of_row = None if prefix is None else prefix[row : row + 1]
            assert_close(pieces[row : row + 1, T - text.shape[1] :], grid.model(index)(text, prefix=of_row))


@every_decoding_config
def test_the_cache_is_as_large_as_predicted(index: int) -> None:
    model = grid.config(index).model
    for context in (1, 4, T):
        cache = Cache(model, 3, context, dtype=torch.bfloat16)
        predicted = kv_cache_bytes(model, context, batch=3, bytes_each=2) + recurrent_bytes(model, 3, bytes_each=2)
        assert cache.n_bytes == predicted
    attentions = [layer.attention for layer in layer_configs(model)]
    for states, attention in zip(cache.layers, attentions, strict=True):
        if isinstance(attention, Absent):
            continue
        # Check that the tests above go through each ring buffer at least twice.
        is_bounded = attention.window is not None and attention.stride is None and not attention.global_tokens
        is_chunked = attention.blocks is not None and not attention.blocks.summary
        slots = attention.blocks.size if is_chunked else attention.window if is_bounded else T
        assert states["attention"].slots == slots
        assert slots == T or 3 * slots < T


@every_config
def test_parameters_are_counted_as_they_are_allocated(index: int) -> None:
    roles = list(roles_of(grid.model(index)))
    counts = parameters(grid.config(index).model)
    assert counts.total == sum(p.numel() for _, p, _, _ in roles)
    assert counts.matrices == sum(p.numel() for _, p, role, _ in roles if role.group == "matrix")
    shapes = [p.shape for _, p, role, _ in roles if role.group == "matrix"]
    assert matrix_shapes(grid.config(index).model) == Counter((*shape[-2:], shape[:-2].numel()) for shape in shapes)


def test_a_cache_is_refused_if_later_tokens_change_earlier_ones() -> None:
    two_sided = [grid.config(i).model for i in range(len(grid.grid())) if i not in decoding]
    assert two_sided
    for model in two_sided:
        with pytest.raises(UserError, match=r"model\.attention\.visibility is two_sided"):
            Cache(model, 1, T)
        assert kv_cache_bytes(model, T) == recurrent_bytes(model) == 0


def test_every_kernel_is_in_these_tests() -> None:
    assert set(KERNELS) == set(RULES) == {"reference", "sdpa", "flex", "blocked", "products"}
