"""Attention in blocks of queries: every visible pair once, the numbers of unblocked attention, and no [T, T] tensors."""

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from archlab.config.components import query_blocks
from archlab.config.components.visibility import BlockSparse, Visibility, visible
from archlab.model.kernels import blocked, reference
from archlab.model.masks import Visible, stretches
from archlab.model.softmax import Softmax


@pytest.fixture(autouse=True, params=[3, 8])
def short_blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query_blocks, "BLOCK", request.param)


def rules(n: int) -> Iterator[Visibility]:
    """Yield random rules."""
    draw = random.Random(0)
    for _ in range(n):
        sides = draw.choice(("causal", "causal", "causal", "prefix", "two_sided"))
        if draw.random() < 0.3:
            size = draw.randint(1, 9)
            yield Visibility(
                visibility=sides,
                blocks=BlockSparse(size=size, summary=draw.choice((0, draw.randint(0, size)))),
            )
            continue
        yield Visibility(
            visibility=sides,
            window=draw.choice((None, draw.randint(1, 20), draw.randint(1, 5))),
            global_tokens=draw.choice((0, 0, 1, draw.randint(2, 12))),
            stride=draw.choice((None, None, draw.randint(2, 9))),
        )


RULES = list(rules(60))


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_every_visible_pair_is_computed_once(rule: Visibility) -> None:
    for length in (1, 2, 7, 16, 33):
        computed = np.zeros((length, length), dtype=int)
        at = 0
        for stretch in stretches(rule, length, torch.device("cpu")):
            blocks, shared = stretch.blocks, [] if stretch.shared is None else stretch.shared.tolist()
            assert (blocks.shared.count if blocks.shared else 0) == len(shared)
            assert blocks.first == at
            at += blocks.count * blocks.size
            for n in range(blocks.count):
                first = blocks.first_key + n * blocks.size
                keys = [*shared, *range(first, first + blocks.n_keys)]
                seen = (
                    np.tri(blocks.size)
                    if stretch.mask is None
                    else stretch.mask.dense[min(n, len(stretch.mask.dense) - 1)].numpy()
                )
                for i, query in enumerate(range(blocks.first + n * blocks.size, blocks.first + (n + 1) * blocks.size)):
                    np.add.at(computed[query], keys, seen[i].astype(int))
        assert at == length
        positions = np.arange(length)
        assert np.array_equal(computed, visible(rule, positions[:, None], positions))


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_runs_of_a_text_compute_what_the_whole_does(rule: Visibility) -> None:
    """Processes that divide the tokens of a text cut a rule's blocks at any place."""
    T, H, C = 36, 2, 4
    own = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, n, T, C, generator=own, dtype=torch.float64, requires_grad=True) for n in (H, 1, 1))
    softmax, index_1T = Softmax(0.5), torch.arange(T)[None]
    expected = reference(q, k, v, Visible(rule, index_1T, index_1T, is_whole=True), None, softmax)
    weight = torch.randn(expected.shape, generator=own, dtype=torch.float64)
    gradients = torch.autograd.grad((expected * weight).sum(), (q, k, v))
    summed = [torch.zeros_like(x) for x in (q, k, v)]
    for runs in ((range(9), range(27, 36)), (range(9, 18), range(18, 27))):
        at = torch.tensor([*runs[0], *runs[1]])
        mask = Visible(rule, index_1T[:, at], index_1T, runs=runs)
        assert mask.can_be_cut
        mixed = blocked(q[:, :, at], k, v, mask, None, softmax)
        torch.testing.assert_close(mixed, expected[:, :, at])
        for total, x in zip(summed, torch.autograd.grad((mixed * weight[:, :, at]).sum(), (q, k, v)), strict=True):
            total += x
    for ours, theirs in zip(summed, gradients, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("n", [2, 4, 8])
def test_opposite_pieces_of_a_causal_text_compare_as_many_pairs(n: int) -> None:
    length, rule = 64 * n, Visibility()
    of_all = query_blocks.query_blocks(rule, length)
    assert of_all is not None
    pieces = [range(32 * i, 32 * (i + 1)) for i in range(2 * n)]
    pairs = {
        sum(blocks.pairs for blocks in query_blocks.blocks_in_runs(of_all, (pieces[i], pieces[-1 - i])))
        for i in range(1, n)
    }
    assert len(pairs) == 1
    assert pairs.pop() == 32 * 32 * (2 * n + 1)


def drawn_mask(rule: Visibility, B: int, T: int, *, packed: bool) -> Visible:
    """Return a mask of whole texts, or of documents that are mostly short."""
    index_1T = torch.arange(T)[None]
    if not packed:
        return Visible(rule, index_1T, index_1T, is_whole=True)
    is_first_BT = (torch.rand(B, T) < 0.15) | (index_1T == 0)
    starts_BT = (index_1T * is_first_BT).cummax(-1).values
    return Visible(rule, index_1T - starts_BT, index_1T - starts_BT, starts_BQ=starts_BT, is_whole=True)


@pytest.mark.parametrize("rule", RULES[::2], ids=str)
@pytest.mark.parametrize("packed", [False, True])
def test_blocks_are_the_whole_forward_and_backward(rule: Visibility, packed: bool) -> None:
    draw = random.Random(str(rule))
    torch.manual_seed(draw.randrange(1000))
    B, T, (H, K) = draw.choice((1, 2)), draw.choice((29, 64)), draw.choice(((2, 2), (4, 2), (3, 1)))
    # the memory layout of projections, and another one
    made = (torch.randn(B, T, heads, width, dtype=torch.float64) for heads, width in ((H, 4), (K, 4), (K, 3)))
    q, k, v = (x.transpose(1, 2) if draw.random() < 0.7 else x.transpose(1, 2).contiguous() for x in made)
    sinks = torch.randn(H, dtype=torch.float64, requires_grad=True)
    sunk = draw.random() < 0.5
    how = Softmax(0.7, draw.choice((None, 1.5)), sinks_H=sinks if sunk else None)
    mask, inputs = (
        drawn_mask(rule, B, T, packed=packed),
        [x.requires_grad_() for x in (q, k, v, *([sinks] if sunk else []))],
    )
    weights = torch.randn(B, H, T, 3, dtype=torch.float64)
    got, expected = (kernel(q, k, v, mask, None, how) for kernel in (blocked, reference))
    torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-12)
    backward = (torch.autograd.grad((x * weights).sum(), inputs) for x in (got, expected))
    for got_back, expected_back in zip(*backward, strict=True):
        torch.testing.assert_close(got_back, expected_back, rtol=1e-9, atol=1e-11)


def causal(**fields: object) -> Visibility:
    return Visibility.model_validate(fields)


WINDOW, CHUNKS = causal(window=16), causal(blocks={"size": 16, "summary": 0})


@pytest.mark.parametrize("rule", [WINDOW, CHUNKS, causal(window=16, global_tokens=2)], ids=str)
def test_what_is_computed_grows_with_the_length(rule: Visibility, monkeypatch: pytest.MonkeyPatch) -> None:
    """Count pairs in the calls of torch's kernel, where a causal call computes half. The count without torch agrees."""
    fused, calls = torch.nn.functional.scaled_dot_product_attention, list[int]()

    def counted(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, is_causal: bool, **more: Any) -> torch.Tensor:
        n, heads, queries, _ = q.shape
        calls.append(n * heads * (queries * (queries + 1) // 2 if is_causal else queries * k.shape[2]))
        return fused(q, k, v, is_causal=is_causal, **more)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", counted)
    computed = {}
    for length in (256, 512, 1024):
        calls.clear()
        q, k, v = (torch.randn(2, 3, length, 8) for _ in range(3))
        blocked(q, k, v, drawn_mask(rule, 2, length, packed=False), None, Softmax(1.0))
        computed[length], rest = divmod(sum(calls), 2 * 3)
        assert rest == 0
        assert computed[length] == sum(blocks.pairs for blocks in query_blocks.query_blocks(rule, length) or [])
    assert computed[1024] - computed[512] == pytest.approx(2 * (computed[512] - computed[256]), rel=0.02)
    assert computed[1024] < 1024**2 / 16


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.slow
def test_nothing_as_large_as_the_square_is_made(packed: bool) -> None:
    """Neither forward nor backward allocates even one byte per pair, of which there are 512^2."""
    q, k, v = (torch.randn(1, 1, 512, 4, requires_grad=True) for _ in range(3))
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        mask = drawn_mask(WINDOW, 1, 512, packed=packed)
        blocked(q, k, v, mask, None, Softmax(1.0)).sum().backward()
    assert max(abs(event.self_cpu_memory_usage) for event in seen.events()) < 2**17


@pytest.mark.parametrize(
    ("rule", "length", "is_worth"),
    [
        (causal(window=512), 2048, True),
        (causal(window=512), 768, False),
        (causal(window=64), 512, True),
        (causal(blocks={"size": 64, "summary": 0}), 128, True),
        (causal(blocks={"size": 64, "summary": 64}), 1024, False),
        (causal(window=8, stride=64), 4096, False),
        (causal(window=64, visibility="two_sided"), 2048, True),
        (causal(window=64, visibility="two_sided", global_tokens=1), 2048, False),
    ],
)
def test_a_text_is_cut_if_that_halves_the_work(rule, length, is_worth, monkeypatch) -> None:
    monkeypatch.setattr(query_blocks, "BLOCK", 192)
    mask = drawn_mask(rule, 1, length, packed=False)
    assert mask.is_worth_cutting == is_worth
    assert not replace(mask, is_whole=False).is_worth_cutting
    prefix = replace(mask, rule=rule.model_copy(update={"visibility": "prefix"}), prefix_B11=torch.ones(1, 1, 1))
    assert not prefix.is_worth_cutting


def test_a_mask_is_cut_only_if_its_rows_are_declared_whole():
    positions = torch.arange(4)[None]
    whole, unsaid = (Visible(Visibility(), positions, positions, **said) for said in ({"is_whole": True}, {}))
    assert (whole.can_be_cut, unsaid.can_be_cut) == (True, False)
