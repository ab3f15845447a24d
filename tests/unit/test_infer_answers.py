"""Answers to evaluation tasks: log-likelihoods and generated texts.

Log-likelihoods are compared with a full pass of each text alone in float64. Generated texts are compared with texts
that are generated one at a time. benchmarks/harness.py compares the whole interface with lm_eval's own models.
"""

import random

import pytest
import torch
from tokenizers import Tokenizer

from archlab.config.layers import sees_as
from archlab.data import tokenizer as bpe
from archlab.infer.answers import Answers, Pair
from archlab.infer.generate import generate
from archlab.infer.sampling import Sampling
from archlab.model.decoder import Decoder
from tiny import config

CHOICES = {
    "attention": (),
    "a ring of keys": ("model.attention.window=4",),
    "a prefix": ("model.attention.visibility=prefix",),
    "a prefix and a window": ("model.attention={visibility: prefix, window: 4}",),
    "mamba": (
        "model.mixer={kind: mamba2, n_heads: 4, head_dim: 8, d_state: 4}",
        "model.attention.kind=none",
        "model.position.kind=none",
    ),
    "learned positions": ("model.position.kind=learned", "model.max_seq_len=64"),
    "angles by length": (
        "model.position.scaling={kind: dynamic, factor: 4, original_max_seq_len: 8}",
        "model.max_seq_len=32",
    ),
}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return bpe.train(["the cat sat on a mat and saw one dog run far away from its old red house"] * 4, 300)


def answers(tokenizer: Tokenizer, *choices: str, **more) -> Answers:
    """Return a model whose weights are so large that no two tokens have nearly the same probability."""
    model = Decoder(config(*choices).model, seed=1).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)
    return Answers(model, tokenizer, bpe.document_tokens(tokenizer), **more)


def pairs(n_contexts: int = 6) -> list[Pair]:
    draw = random.Random(0)

    def some(least: int, most: int) -> tuple[int, ...]:
        return tuple(draw.randrange(300) for _ in range(draw.randint(least, most)))

    contexts = [some(1, 14) for _ in range(n_contexts)]
    drawn = [Pair(context, some(1, 6)) for context in contexts for _ in range(4)]
    drawn += [Pair(some(1, 14), some(1, 6)) for _ in range(5)]
    draw.shuffle(drawn)
    return drawn


def alone(model: Decoder, pair: Pair) -> tuple[float, bool]:
    prefix = torch.tensor([len(pair.context)]) if sees_as(model.config, "prefix") else None
    with torch.no_grad():
        rows = model(torch.tensor([pair.read]), prefix=prefix)[0].double()[len(pair.context) - 1 :]
    likely = rows - torch.log(torch.exp(rows - rows.max()).sum(-1, keepdim=True)) - rows.max()
    chosen = [float(row[token]) for row, token in zip(likely, pair.continuation, strict=True)]
    return sum(chosen), all(int(row.argmax()) == t for row, t in zip(rows, pair.continuation, strict=True))


@pytest.mark.parametrize("batch_tokens", [8192, 24])
@pytest.mark.parametrize("choices", CHOICES.values(), ids=CHOICES)
def test_a_likelihood_equals_that_of_the_text_alone(tokenizer, choices, batch_tokens):
    scorer = answers(tokenizer, *choices, batch_tokens=batch_tokens)
    found = dict(scorer.likelihoods(pairs()))
    assert sorted(found) == list(range(len(pairs())))
    for i, pair in enumerate(pairs()):
        likely, is_likeliest = alone(scorer.model, pair)
        # Batches of other shapes are rounded differently in float32: by 1.3e-6 of the sum on an Intel Xeon with AMX.
        assert found[i] == (pytest.approx(likely, rel=2e-6, abs=2e-4), is_likeliest)


def test_the_most_likely_continuation_is_recognized(tokenizer):
    scorer = answers(tokenizer)
    context = (5, 6, 7)
    written = tuple(generate(scorer.model, torch.tensor([context]), 4)[0, 3:].tolist())
    other = (*written[:3], (written[3] + 1) % 300)
    found = dict(scorer.likelihoods([Pair(context, written), Pair(context, other), Pair(context, written[:1])]))
    assert [found[i][1] for i in range(3)] == [True, False, True]


def test_a_context_of_several_continuations_is_read_once(tokenizer, monkeypatch):
    scorer, read = answers(tokenizer), []
    hidden = Decoder.hidden
    monkeypatch.setattr(
        Decoder, "hidden", lambda self, x_BT, *more: read.append(x_BT.shape) or hidden(self, x_BT, *more)
    )
    context = tuple(range(12))
    list(scorer.likelihoods([Pair(context, (20, 21, 22)), Pair(context, (30,)), Pair(context, (40, 41))]))
    assert read == [(1, 12), (3, 2)], "the context, and what else is read of each"
    read.clear()
    list(scorer.likelihoods([Pair(context, (20,)), Pair(context, (30,))]))
    assert read == [(1, 12)], "of single tokens nothing else is read"


@pytest.mark.parametrize("stop", [(), ("a",), ("ab", "t")])
def test_texts_in_a_batch_equal_those_generated_alone(tokenizer, stop):
    scorer = answers(tokenizer)
    prompts = [pair.context for pair in pairs()[:12]]
    found = dict(scorer.generated(prompts, 10, Sampling(), stop))
    for i, prompt in enumerate(prompts):
        new = generate(scorer.model, torch.tensor([prompt]), 10, end_of_text=scorer.ends)[0, len(prompt) :].tolist()
        new = new[: new.index(scorer.ends[0])] if scorer.ends[0] in new else new
        text = tokenizer.decode(new)
        assert found[i] == text[: min((at for string in stop if (at := text.find(string)) >= 0), default=len(text))]


def test_generated_text_has_no_tokens_that_the_tokenizer_lacks(tokenizer):
    scorer = answers(tokenizer)
    (free,) = (text for _, text in scorer.generated([(1, 2, 3)], 12, Sampling(), []))
    written = tokenizer.encode(free).ids
    excluding = answers(tokenizer, excluded=written)
    ((_, text),) = excluding.generated([(1, 2, 3)], 12, Sampling(), [])
    chosen = generate(scorer.model, torch.tensor([[1, 2, 3]]), 12, end_of_text=scorer.ends, excluded=written)
    assert text == tokenizer.decode(chosen[0, 3:].tolist(), skip_special_tokens=True) != free


def test_generation_ends_when_all_texts_have_stopped(tokenizer, monkeypatch):
    scorer, steps = answers(tokenizer), []
    monkeypatch.setattr(Answers, "_text", lambda self, tokens: steps.append(len(tokens)) or "x" * len(tokens))
    assert dict(scorer.generated([(1, 2), (3,)], 50, Sampling(), ["xxx"])) == {0: "", 1: ""}
    assert max(steps) == 3
