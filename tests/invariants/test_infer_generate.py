"""Generation is the same with and without the cache, in chunks, with padding, and in one call or several."""

import copy
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._dynamo.testing import CompileCounter
from torch.fx import GraphModule

import archlab
from archlab.config.io import build_config
from archlab.errors import UserError
from archlab.infer.beams import beam_search
from archlab.infer.sampling import Sampling
from archlab.infer.session import Session, _compiled_step, left_pad  # pyright: ignore[reportPrivateUsage]
from archlab.model.decoder import Decoder
from archlab.model.state import Cache

CHOICES: dict[str, tuple[str, ...]] = {
    "plain": (),
    "gqa, window": ("model.attention={n_heads: 4, n_kv_heads: 2, window: 4}",),
    "window and full": ("model.layers={a: {attention.window: 3}, b: {position.kind: none}, pattern: [a, b]}",),
    "alibi, window": ("model.attention.window=4", "model.position={kind: alibi}"),
    "t5, soft cap": ("model.position={kind: t5, buckets: 8, max_distance: 20}", "model.attention.softcap=2"),
    "shaw": ("model.position={kind: shaw, max_distance: 5}",),
    "transformer_xl, gqa": ("model.position={kind: transformer_xl}", "model.attention.n_kv_heads=2"),
    "transformer_xl, window": ("model.position={kind: transformer_xl}", "model.attention.window=4"),
    "learned": ("model.position={kind: learned, offset: 2}",),
    "sinusoidal, post": ("model.position={kind: sinusoidal}", "model.norm={kind: rmsnorm, placement: post}"),
    "dilated, global": ("model.attention={n_heads: 4, window: 3, stride: 4, global_tokens: 2}",),
    "blocks": ("model.attention.blocks={size: 5, summary: 2}",),
    "qk-norm, yarn": (
        "model.attention.qk_norm={kind: rmsnorm, scope: width}",
        "model.position={kind: rope, scaling: {kind: yarn, factor: 4, original_max_seq_len: 16}}",
    ),
}


def tiny(*overrides: str) -> Decoder:
    """Return a float64 decoder with random parameters, because zero biases and norms of 1 could hide errors."""
    raw: dict[str, Any] = {
        "model": {
            "vocab_size": 19,
            "d_model": 16,
            "n_layers": 2,
            "max_seq_len": 64,
            "attention": {"n_heads": 4},
        }
    }
    model = Decoder(build_config(raw, overrides).model).double().eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.empty(parameter.shape).normal_(0, 0.4, generator=generator))
    return model


def text(length: int, seed: int = 0, batch: int = 1) -> Tensor:
    return torch.randint(1, 19, (batch, length), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("chunk", [None, 2])
def test_with_a_prefix_the_cache_changes_nothing(chunk: int | None) -> None:
    model = tiny("model.layers={a: {attention.visibility: prefix}, b: {attention.window: 3}, pattern: [a, b]}")
    prompt, prefix = text(7, batch=2), torch.tensor([7, 6])
    written = archlab.generate(model, prompt, 5, prefix=prefix, prefill_chunk=chunk)
    expected = prompt
    for _ in range(5):
        expected = torch.cat((expected, model(expected, prefix=prefix)[:, -1:].argmax(-1)), 1)
    assert torch.equal(written, expected)
    without, within = (Session(model, prompt, 7, prefix=n).logits() for n in ([0, 0], prefix))
    assert (within - without).abs().amax(-1).min() > 1e-3, "the prefix of each text is read"


def recomputed(model: Decoder, tokens: Tensor, n: int, prefix: Tensor | None = None) -> Tensor:
    """Generate greedily, with a full pass over the whole text for every token."""
    for _ in range(n):
        tokens = torch.cat((tokens, model(tokens, prefix=prefix)[:, -1].argmax(-1, keepdim=True)), dim=1)
    return tokens


PREFIXED: dict[str, tuple[str, ...]] = {
    "rope": ("model.attention.visibility=prefix",),
    "window": ("model.attention={n_heads: 4, n_kv_heads: 2, window: 4, visibility: prefix}",),
    "learned": ("model.attention.visibility=prefix", "model.position.kind=learned"),
    "alibi": ("model.attention.visibility=prefix", "model.position.kind=alibi"),
    "one layer": ("model.layers={a: {attention.visibility: prefix}, b: {attention.window: 3}, pattern: [a, b]}",),
    "longrope": (
        "model.attention.visibility=prefix",
        "model.position.scaling={kind: longrope, factor: 4, original_max_seq_len: 12, short_factor: [1, 1.5], "
        "long_factor: [2, 3]}",
    ),
}


@pytest.mark.parametrize("choices", PREFIXED.values(), ids=PREFIXED)
def test_the_prompt_is_the_prefix_unless_another_one_is_given(choices: tuple[str, ...]) -> None:
    model, texts = tiny(*choices), [text(length, seed=length) for length in (9, 5, 1)]
    expected = [recomputed(model, prompt, 8, torch.tensor([prompt.shape[1]])) for prompt in texts]
    causal = [recomputed(model, prompt, 8) for prompt in texts]
    within, without = (Session(model, texts[0], 9, prefix=prefix).logits() for prefix in (None, [0]))
    assert (within - without).abs().max() > 1e-3, "the prefix changes what follows"
    tokens, padding = left_pad([prompt[0] for prompt in texts])
    padded = archlab.generate(model, tokens, 8, padding=padding, prefill_chunk=2)
    padded_causal = archlab.generate(model, tokens, 8, padding=padding, prefix=[0, 0, 0])
    best = beam_search(model, tokens, 8, beams=1, padding=padding)
    for row, (prompt, p) in enumerate(zip(texts, padding.tolist(), strict=True)):
        assert torch.equal(archlab.generate(model, prompt, 8), expected[row])
        assert torch.equal(padded[row, p:], expected[row][0])
        assert torch.equal(padded_causal[row, p:], causal[row][0])
        assert best[row][0].tokens == tuple(expected[row][0, prompt.shape[1] :].tolist())


@pytest.mark.parametrize("choices", PREFIXED.values(), ids=PREFIXED)
@pytest.mark.parametrize("is_read_first", [True, False])
def test_tokens_after_the_prompt_are_read_causally(choices: tuple[str, ...], is_read_first: bool) -> None:
    """It makes no difference whether the model has read the prompt when more tokens are appended."""
    model, more = tiny(*choices), text(4, seed=1, batch=2)
    session, prefix = Session(model, text(6, batch=2), 16), torch.tensor([6, 6])
    if is_read_first:
        torch.testing.assert_close(session.logits(), model(session.tokens_BT, prefix=prefix)[:, -1])
    session.read(more)
    for _ in session.write(5):
        torch.testing.assert_close(session.logits(), model(session.tokens_BT, prefix=prefix)[:, -1])


def test_reordered_sequences_keep_their_prefixes() -> None:
    """LongRoPE reads the whole sequence again when it exceeds its original length."""
    model = tiny(*PREFIXED["longrope"])
    session, prefix = Session(model, text(11, batch=2), 16, prefix=[11, 3]), torch.tensor([3, 11])
    session.logits()
    session.reorder(torch.tensor([1, 0]))
    session.read(text(2, seed=1, batch=2))
    torch.testing.assert_close(session.logits(), model(session.tokens_BT, prefix=prefix)[:, -1])


def test_sequences_that_are_reordered_before_they_are_read_keep_their_sources() -> None:
    model = tiny("model.encoder.n_layers=2")
    prompts, source, lengths = text(3, batch=2), text(7, seed=1, batch=2), torch.tensor([4, 7])
    session = Session(model, prompts, 16, source=source, source_lengths=lengths)
    session.reorder(torch.tensor([1, 0]))
    expected = model(prompts.flip(0), source=source.flip(0), source_lengths=lengths.flip(0))
    torch.testing.assert_close(session.logits(), expected[:, -1])


@pytest.fixture(params=CHOICES.values(), ids=CHOICES.keys())
def model(request: pytest.FixtureRequest) -> Decoder:
    return tiny(*request.param)


def test_greedy_with_the_cache_is_greedy_without(model: Decoder) -> None:
    prompts = text(15, batch=3)
    expected = recomputed(model, prompts, 25)
    assert torch.equal(archlab.generate(model, prompts, 25), expected)
    assert len(expected[:, 15:].unique()) > 3


def test_prefill_in_chunks_changes_nothing(model: Decoder) -> None:
    """This includes ten more tokens, which move every window and ring."""
    prompts = text(15, batch=2)
    logits, expected = model(prompts)[:, -1], archlab.generate(model, prompts, 10)
    for chunk in (None, 1, 2, 7, 14, 15, 99):
        session = Session(model, prompts, capacity=25, prefill_chunk=chunk)
        torch.testing.assert_close(session.logits(), logits, rtol=0, atol=1e-10, msg=f"in chunks of {chunk}")
        list(session.write(10))
        assert torch.equal(session.tokens_BT, expected), f"in chunks of {chunk}"


def test_logits_of_every_step_are_those_of_the_full_pass(model: Decoder) -> None:
    session = Session(model, text(5, batch=2), capacity=30)
    for _ in session.write(25):
        torch.testing.assert_close(session.logits(), model(session.tokens_BT)[:, -1], rtol=0, atol=1e-10)


@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_unequal_prompts_side_by_side_are_each_alone(model: Decoder, temperature: float) -> None:
    texts = [text(length, seed=length)[0] for length in (13, 6, 1, 9)]
    tokens, padding = left_pad(texts)
    write = partial(archlab.generate, model, max_new_tokens=10, temperature=temperature, seed=3, repetition_penalty=1.2)
    whole, pieces = (write(tokens, padding=padding, prefill_chunk=chunk) for chunk in (None, 4))
    assert whole.shape == (4, 23)
    for row, (alone, p) in enumerate(zip(texts, padding.tolist(), strict=True)):
        # It must be the same row of the batch, because each row has its own random numbers.
        expected = write(alone.expand(row + 1, -1))[row]
        assert torch.equal(whole[row, p:], expected)
        assert torch.equal(pieces[row, p:], expected)


def test_one_padded_prompt_is_the_prompt(model: Decoder) -> None:
    prompt = text(6)
    padded = torch.cat((text(4, seed=5), prompt), dim=1)
    expected = archlab.generate(model, prompt, 12)
    assert torch.equal(archlab.generate(model, padded, 12, padding=[4])[:, 4:], expected)


def test_going_on_from_a_kept_cache_is_one_go(model: Decoder) -> None:
    prompts, question = text(5, batch=2), text(4, seed=7, batch=2)
    session = Session(model, prompts, capacity=60, prefill_chunk=3)
    new = [*session.write(6), *session.write(7)]
    expected = recomputed(model, prompts, 13)
    assert torch.equal(torch.cat((prompts, torch.stack(new, 1)), 1), expected)
    session.read(question)
    list(session.write(9))
    assert torch.equal(session.tokens_BT, recomputed(model, torch.cat((expected, question), 1), 9))


def test_a_drawn_text_in_several_goes_is_the_one_in_one() -> None:
    model, sampling = tiny(), Sampling(temperature=2.0, seed=5)
    parts, whole = (Session(model, text(5, batch=2), capacity=40) for _ in range(2))
    for n in (1, 0, 12, 7):
        list(parts.write(n, sampling))
    list(whole.write(20, sampling))
    assert torch.equal(parts.tokens_BT, whole.tokens_BT)


def test_seeds() -> None:
    model, prompts = tiny(), text(5).expand(2, -1)
    same = [archlab.generate(model, prompts, 20, 1.5, seed=s) for s in (0, 0, 1)]
    assert torch.equal(same[0], same[1])
    assert not torch.equal(same[0], same[2])
    assert not torch.equal(same[0][0], same[0][1])
    torch.manual_seed(0)
    free = [archlab.generate(model, prompts, 20, 1.5) for _ in range(2)]
    torch.manual_seed(0)
    assert not torch.equal(free[0], free[1])
    assert torch.equal(archlab.generate(model, prompts, 20, 1.5), free[0])


def test_a_text_that_is_over_is_filled_and_the_others_go_on() -> None:
    model, prompts = tiny(), text(5, batch=3)
    free = archlab.generate(model, prompts, 20)
    end = int(free[0, 12])
    first = [(row[5:] == end).nonzero().flatten().tolist()[:1] for row in free]
    assert first[0]
    assert [] in first
    expected = free.clone()
    for row, at in enumerate(first):
        if at:
            expected[row, 5 + at[0] :] = end
    assert torch.equal(archlab.generate(model, prompts, 20, end_of_text=end), expected)


def test_when_all_texts_are_over_nothing_is_computed() -> None:
    model, prompt = tiny(), text(5)
    end = int(archlab.generate(model, prompt, 1)[0, -1])
    session = Session(model, prompt, capacity=6)
    assert len(list(session.write(1000, end_of_text=end))) == 1
    assert archlab.generate(model, prompt, 9, end_of_text=end)[0, 5:].tolist() == [end] * 9


def test_repetition_penalty_counts_prompt_and_new_text() -> None:
    model, prompt = tiny("model.vocab_size=64"), text(8)
    out = archlab.generate(model, prompt, 30, repetition_penalty=1e9)[0].tolist()
    assert len(set(out[8:])) == 30
    assert not set(out[8:]) & set(out[:8])


def test_the_model_is_left_as_it_was() -> None:
    model = tiny("model.dropout=0.5").train()
    expected = recomputed(model.eval(), text(5), 8)
    assert torch.equal(archlab.generate(model.train(), text(5), 8), expected)
    assert model.training
    assert all(parameter.grad is None for parameter in model.parameters())


def test_the_cache_has_the_models_dtype_and_dropped_nothing() -> None:
    session = Session(tiny().bfloat16(), text(5), capacity=9)
    assert session.cache.layers[0]["attention"]["k"].dtype is torch.bfloat16
    assert torch.stack(list(session.write(4))).shape == (4, 1)


def test_int32_prompts_and_no_new_tokens() -> None:
    model, prompt = tiny(), text(5)
    assert torch.equal(archlab.generate(model, prompt, 0), prompt)
    assert torch.equal(archlab.generate(model, prompt.int(), 4), archlab.generate(model, prompt, 4))


def gaps_to_the_full_pass(scaling: str) -> list[float]:
    """Return the logits of each of ten steps that cross the original length of 8."""
    model = tiny(f"model.position={{kind: rope, scaling: {scaling}}}")
    session = Session(model, text(5), capacity=30)
    full = [(session.logits() - model(session.tokens_BT)[:, -1]).abs().max().item() for _ in session.write(10)]
    assert len(full) == 10
    return full


def test_dynamic_ntk_is_the_exception() -> None:
    """This is documented: each key keeps the rotation that it got when it was read."""
    gaps = gaps_to_the_full_pass("{kind: dynamic, factor: 4, original_max_seq_len: 8}")
    assert max(gaps[:3]) < 1e-10
    assert min(gaps[3:]) > 1e-4


@pytest.mark.parametrize("chunk", [None, 3, 9])
def test_dynamic_ntk_reads_a_prompt_as_the_full_pass_does_however_it_is_cut(chunk: int | None) -> None:
    model = tiny("model.position={kind: rope, theta: 50, scaling: {kind: dynamic, factor: 4, original_max_seq_len: 8}}")
    for length in (7, 8, 9, 20):
        session = Session(model, text(length), capacity=length, prefill_chunk=chunk)
        torch.testing.assert_close(session.logits(), model(text(length))[:, -1], rtol=0, atol=1e-10)


def test_longrope_reads_everything_again_when_its_factors_change() -> None:
    factors = "short_factor: [1, 1], long_factor: [2, 3]"
    gaps = gaps_to_the_full_pass(f"{{kind: longrope, factor: 4, original_max_seq_len: 8, {factors}}}")
    assert max(gaps) < 1e-10


@pytest.mark.parametrize("read_at_once", [1, 2, 6])
@pytest.mark.parametrize("chunk", [None, 1, 3])
def test_longrope_logits_are_exact_however_tokens_are_read_when_its_factors_change(
    read_at_once: int, chunk: int | None
) -> None:
    """The texts have different lengths, so the shorter one crosses the original length of 8 later."""
    scaling = "{kind: longrope, factor: 4, original_max_seq_len: 8, short_factor: [1, 1], long_factor: [2, 3]}"
    model = tiny(f"model.position={{kind: rope, scaling: {scaling}}}")
    texts = [text(18)[0], text(16)[0]]
    prompts, padding = left_pad([row[: len(row) - 12] for row in texts])
    session = Session(model, prompts, capacity=18, padding=padding, prefill_chunk=chunk)
    for read in range(0, 13, read_at_once):
        for row, whole in zip(session.logits(), texts, strict=True):
            end = len(whole) - 12 + read
            torch.testing.assert_close(row, model(whole[None, :end])[0, -1], rtol=0, atol=1e-10)
        more = [whole[len(whole) - 12 + read :][:read_at_once] for whole in texts]
        if len(more[0]) == read_at_once:
            session.read(torch.stack(more))


def test_learned_positions_end() -> None:
    model = tiny("model.position={kind: learned}", "model.max_seq_len=16")
    assert archlab.generate(model, text(10), 7).shape == (1, 17)
    with pytest.raises(UserError, match="max_new_tokens: 8; allowed: up to 7, because learned positions end at max"):
        archlab.generate(model, text(10), 8)
    tokens, padding = left_pad([text(10)[0], text(12)[0]])
    assert archlab.generate(model, tokens, 5, padding=padding).shape == (2, 17)
    with pytest.raises(UserError, match="allowed: up to 5"):
        archlab.generate(model, tokens, 6, padding=padding)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_new_tokens": -3}, "max_new_tokens: -3; allowed: 0 or more"),
        ({"temperature": -1}, "temperature: -1; allowed"),
        ({"prefill_chunk": 0}, "prefill_chunk: 0; allowed: at least 1"),
        ({"padding": [1]}, r"padding: \[1\]; allowed: 2 integers, one per text, each from 0 to 4"),
        ({"end_of_text": 99}, "token 99: not in the model's vocabulary; allowed: 0 to 18"),
        ({"padding": [0.5, 0]}, r"padding: \[0.5, 0\]; allowed"),
        ({"padding": [0, 5]}, r"padding: \[0, 5\]; allowed"),
        ({"padding": [-1, 0]}, r"padding: \[-1, 0\]; allowed"),
    ],
)
def test_what_cannot_be_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        archlab.generate(tiny(), text(5, batch=2), **settings)


def test_empty_prompts_are_refused() -> None:
    with pytest.raises(UserError, match="at least one token each"):
        archlab.generate(tiny(), text(0))
    with pytest.raises(UserError, match="no texts to pad"):
        left_pad([])
    for wrong in (text(3), text(3)[0].float()):
        with pytest.raises(UserError, match=r"texts: item 1 is \[.*3\] of torch\..*; allowed: token ids of one text"):
            left_pad([text(3)[0], wrong])
    tokens, padding = left_pad([text(3)[0], text(0)[0]])
    with pytest.raises(UserError, match=r"padding: \[0, 3\]"):
        archlab.generate(tiny(), tokens, padding=padding)


def test_a_full_cache_says_so() -> None:
    session = Session(tiny(), text(5), capacity=7)
    with pytest.raises(UserError, match="the cache has room for 7 tokens"):
        list(session.write(4))


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        (torch.tensor([1, 2]), r"prompt: \[2\] of torch.int64; allowed: \[batch, seq\]"),
        (torch.zeros(1, 2), r"prompt: \[1, 2\] of torch.float32"),
        (torch.zeros(1, 0, dtype=torch.int64), r"prompt: \[1, 0\] of"),
        (torch.tensor([[1, 10_000]]), "token 10000: not in the model's vocabulary; allowed: 0 to "),
        (torch.tensor([[-1]]), "token -1: not in the model's vocabulary; allowed"),
    ],
)
def test_a_prompt_that_is_none_is_refused(prompt: torch.Tensor, message: str) -> None:
    with pytest.raises(UserError, match=message):
        archlab.generate(tiny(), prompt)


def test_tokens_documents_and_cache_must_agree() -> None:
    model = tiny()
    for given, message in (
        (
            {"documents": torch.zeros(1, 4)},
            r"documents: \[1, 4\] of torch.float32; allowed: the shape of tokens, \[1, 5\]",
        ),
        ({"cache": Cache(model.config, 2, 9)}, "cache: made for a batch of 2; the tokens are a batch of 1"),
        ({"cache": Cache(tiny("model.d_model=32").config, 1, 9)}, "cache: made for a model with another config"),
    ):
        with pytest.raises(UserError, match=message):
            model(text(5), **given)
    with pytest.raises(UserError, match=r"tokens: \[5\] of torch.int64; allowed: a tensor \[batch, seq\]"):
        model(text(5)[0])


def test_a_text_ends_at_any_of_several_tokens() -> None:
    model = tiny()
    written = archlab.generate(model, text(5), 12)[0, 5:].tolist()
    ends = [written[7], written[4]]
    over = min(written.index(end) for end in ends)
    found = archlab.generate(model, text(5), 12, end_of_text=ends)[0, 5:].tolist()
    assert found == [*written[: over + 1], *[ends[0]] * (11 - over)]


@pytest.mark.parametrize("end", [True, "a", [1.5], [[1]]])
def test_the_end_of_text_is_a_token_or_several(end: Any) -> None:
    with pytest.raises(UserError, match=r"end_of_text: .*; allowed: .*integer"):
        archlab.generate(tiny(), text(5), 2, end_of_text=end)


def test_a_refusal_leaves_a_session_as_it_was() -> None:
    session = Session(tiny(), text(7), capacity=8)
    for _ in range(2):
        with pytest.raises(UserError, match="the cache has room for 8 tokens and holds 8; 1 more do not fit"):
            list(session.write(4))


@pytest.mark.parametrize("padding", [[True, False], [0.0, 1.0]])
def test_padding_is_of_whole_numbers(padding: list[Any]) -> None:
    with pytest.raises(UserError, match=r"padding: .*; allowed: .*integer"):
        archlab.generate(tiny(), text(5, batch=2), 2, padding=padding)


@pytest.mark.parametrize("tokens", [torch.ones(3, 1).long(), torch.tensor([1, 2]), torch.ones(2, 1)])
def test_a_session_goes_on_with_tokens_for_every_text(tokens: torch.Tensor) -> None:
    with pytest.raises(UserError, match=r"tokens: .*; allowed: \[2, n\] of integers"):
        Session(tiny(), text(5, batch=2), capacity=9).read(tokens)


def test_a_pass_that_breaks_off_leaves_a_session_whole() -> None:
    model = tiny("model.attention.window=3")
    session, whole = Session(model, text(5), capacity=20), text(12)
    session.logits()
    session.read(whole[:, 5:])

    def broken(*_: object) -> None:
        raise KeyboardInterrupt

    hook = model.layers[1].register_forward_pre_hook(broken)
    with pytest.raises(KeyboardInterrupt):
        session.logits()
    hook.remove()
    torch.testing.assert_close(session.logits(), model(session.tokens_BT)[:, -1], rtol=0, atol=1e-10)


def test_the_cache_is_used_under_autocast_too() -> None:
    model = tiny().float()
    with torch.autocast("cpu", torch.bfloat16):
        written = archlab.generate(model, text(5), 6)
        assert torch.equal(written, recomputed(model, text(5), 6))


@pytest.mark.parametrize("choice", ["gqa, window", "learned", "alibi, window"])
def test_a_compiled_session_writes_what_an_uncompiled_one_does(choice: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is tested with and without padding, over several sessions, and with reading in between.

    The step is traced once. It is not compiled to C++ in this test.
    """
    torch.compiler.reset()
    counter = CompileCounter()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=counter))
    model, prompts = tiny(*CHOICES[choice]), text(5, batch=2)
    for seed in range(2):
        plain, compiled = (Session(model, prompts, 40 + seed, padding=[0, 2], compile=on) for on in (False, True))
        for n in (3, 4):
            expected, found = (torch.stack(list(session.write(n)), 1) for session in (plain, compiled))
            assert torch.equal(expected, found)
            plain.read(prompts[:, :2])
            compiled.read(prompts[:, :2])
        torch.testing.assert_close(compiled.logits(), plain.logits())
    assert counter.frame_count == 1


def test_a_compiled_step_finds_the_cache_at_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise torch would make no CUDA graph of it, because it writes to the cache."""
    torch.compiler.reset()
    kinds: list[dict[str, str | None]] = []

    def backend(graph: GraphModule, _: Any) -> GraphModule:
        inputs = [node for node in graph.graph.nodes if node.op == "placeholder"]
        kinds.append({node.name: node.meta.get("tensor_dict", {}).get("_dynamo_static_input_type") for node in inputs})
        return graph

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    for _ in range(2):  # the second cache has other addresses, and shares the graph
        list(Session(tiny(), torch.tensor([[5, 6, 7]]), 9, compile=True).write(3))
    (of_inputs,) = kinds
    of_cache = {kind for name, kind in of_inputs.items() if name.startswith(("l_cache_layers", "l_cache_length"))}
    assert of_cache == {"unguarded"}


def test_on_a_gpu_a_compiled_step_is_replayed_and_its_output_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    modes, steps, output = list[str | None](), list[str](), torch.zeros(1, 3)
    monkeypatch.setattr(torch, "compile", lambda _, mode=None, **how: modes.append(mode) or (lambda *args: output))
    monkeypatch.setattr(torch.compiler, "cudagraph_mark_step_begin", lambda: steps.append("begins"))
    monkeypatch.setattr("archlab.infer.session.check_compiler", lambda _: None)
    logits = _compiled_step(torch.device("cuda"))(None, None, None)  # pyright: ignore[reportArgumentType]
    output.fill_(1)  # the next replay
    assert (modes, steps, logits.tolist()) == (["reduce-overhead"], ["begins"], [[0, 0, 0]])
    _compiled_step(torch.device("cpu"))
    assert modes[-1] is None


@pytest.mark.parametrize("every", [2, 16])
def test_looking_less_often_changes_no_text(every: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model, prompts = tiny(), torch.tensor([[5, 6, 7], [8, 9, 10]])
    first, second = archlab.generate(model, prompts, 9)[:, 3:].tolist()
    ends = [first[3], second[1]]
    expected = archlab.generate(model, prompts, 9, end_of_text=ends)
    monkeypatch.setattr("archlab.infer.generate.checked_every", lambda _: every)
    assert torch.equal(archlab.generate(model, prompts, 9, end_of_text=ends), expected)


def test_looking_less_often_still_finds_what_is_not_finite(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("archlab.infer.generate.checked_every", lambda _: 4)
    model, finite, calls = tiny(), Session.logits, list[int]()

    def damaged(session: Session) -> Tensor:
        calls.append(1)
        return finite(session) * (torch.nan if len(calls) == 3 else 1)

    monkeypatch.setattr(Session, "logits", damaged)
    with pytest.raises(UserError, match="NaN or infinite"):
        archlab.generate(model, torch.tensor([[5, 6, 7]]), 9)
    assert len(calls) == 4


def test_a_compiled_step_of_one_text_sums_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """This is for bfloat16 on a CPU, where torch's product of one row is slow. The error is not larger than torch's."""
    torch.compiler.reset()
    used = list[Counter[str]]()

    def counting(graph: GraphModule, _: list[Tensor]) -> Callable[..., Any]:
        used.append(Counter(getattr(node.target, "__name__", node.target) for node in graph.graph.nodes))
        return graph.forward

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=counting))
    exact = tiny("model.mlp.bias=true", "model.head.tied=false", "model.attention={n_heads: 4, n_kv_heads: 2}")
    for dtype, batch in ((torch.bfloat16, 1), (torch.bfloat16, 2), (torch.float32, 1)):
        model, prompts = copy.deepcopy(exact).to(dtype), text(5, batch=batch)
        session = Session(model, prompts, 9, compile=True)
        next(session.write(1))
        error = session.logits() - exact(session.tokens_BT)[:, -1]
        uncompiled = Session(model, prompts, 9)
        uncompiled.read(session.tokens_BT[:, 5:])
        own_error = uncompiled.logits() - exact(session.tokens_BT)[:, -1]
        assert error.square().mean() <= 4 * own_error.square().mean()
    n_products = 2 * 7 + 1
    assert [(n["sum"], n["linear"]) for n in used] == [(n_products, 0), (0, n_products), (0, n_products)]


def test_tokens_are_written_behind_the_prompt_in_place() -> None:
    """Texts are not copied for every token. Only the cache refuses to read beyond its capacity."""
    session = Session(tiny(), text(5), 9)
    (address,) = {session.tokens_BT.data_ptr() for _ in session.write(5)}
    assert session.tokens_BT.shape == (1, 10)
    session.read(text(30))
    assert torch.equal(session.tokens_BT[:, 10:], text(30))
    assert session.tokens_BT.data_ptr() != address
    with pytest.raises(UserError, match="the cache has room for 9 tokens"):
        session.logits()


def test_an_uncompiled_step_reads_the_slots_that_are_filled_and_makes_one_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    """This holds for any capacity, but a ring is read completely. A boolean mask would be converted in every layer."""
    layers = "model.layers={a: {attention.window: 3}, b: {}, pattern: [a, b, b]}"
    session = Session(tiny(layers, "model.n_layers=3"), text(5), 50)
    session.logits()
    calls = list[tuple[int, torch.dtype, int]]()
    fused = F.scaled_dot_product_attention

    def watched(q: Tensor, k: Tensor, v: Tensor, *, attn_mask: Tensor, **more: Any) -> Tensor:
        calls.append((k.shape[2], attn_mask.dtype, attn_mask.data_ptr()))
        return fused(q, k, v, attn_mask=attn_mask, **more)

    monkeypatch.setattr(F, "scaled_dot_product_attention", watched)
    list(session.write(2))
    assert [(keys, dtype) for keys, dtype, _ in calls] == [(3, torch.float64), (6, torch.float64), (6, torch.float64)]
    assert len({address for _, _, address in calls[1:]}) == 1
