"""Beam search against an exhaustive search over all continuations."""

from itertools import product

import pytest
import torch

from archlab.config.model_schema import ModelConfig
from archlab.errors import UserError
from archlab.infer.beams import beam_search, length_penalty
from archlab.infer.generate import generate
from archlab.model.decoder import Decoder
from tiny import config

END, LONGEST = 6, 4
SOURCE = torch.tensor([[1, 5, 2, 0, 3], [4, 4, 1, 0, 0]])
LENGTHS = torch.tensor([5, 3])


@pytest.fixture(scope="module")
def model():
    small: ModelConfig = config("model.vocab_size=7", "model.encoder.n_layers=2").model
    model, generator = Decoder(small).double().eval(), torch.Generator().manual_seed(1)
    for p in model.parameters():
        p.data = torch.randn(p.shape, generator=generator, dtype=p.dtype) * (
            p.shape[-1] ** -0.5 if p.dim() > 1 else 0.5
        )
    model.head.weight.data *= 3  # the probabilities of tokens then differ clearly
    return model


@torch.no_grad()
def all_scores(model, row, alpha):
    """Return (score, tokens) of every possible continuation, the best first."""
    source = SOURCE[row : row + 1, : LENGTHS[row]]

    def score(tokens):
        inputs = torch.tensor([[0, *tokens[:-1]]])
        log_p = model(inputs, source=source).log_softmax(-1)[0]
        return sum(log_p[i, t].item() for i, t in enumerate(tokens)) / ((5 + len(tokens)) / 6) ** alpha

    finished = [s for n in range(LONGEST) for s in product(range(END), repeat=n)]
    scores = [(score((*s, END)), s) for s in finished]
    return sorted(scores + [(score(s), s) for s in product(range(END), repeat=LONGEST)], reverse=True)


@pytest.mark.parametrize("alpha", [0.0, 0.6, 2.0])
def test_wide_enough_it_finds_the_best_of_all_continuations(model, alpha):
    tokens = torch.zeros(2, 1, dtype=torch.int64)
    beams = sum(END**n for n in range(LONGEST + 1))
    found = beam_search(
        model, tokens, LONGEST, beams=beams, alpha=alpha, end_of_text=END, source=SOURCE, source_lengths=LENGTHS
    )
    for row, hypotheses in enumerate(found):
        expected = all_scores(model, row, alpha)
        assert [h.tokens for h in hypotheses] == [tokens for _, tokens in expected]
        assert [h.score for h in hypotheses] == pytest.approx([score for score, _ in expected])


@pytest.mark.parametrize("beams", [2, 3])
def test_a_narrow_one_reports_true_scores(model, beams):
    """The cache of a beam follows the beam, so the scores are those of the tokens."""
    tokens = torch.zeros(2, 1, dtype=torch.int64)
    found = beam_search(model, tokens, LONGEST, beams=beams, end_of_text=END, source=SOURCE, source_lengths=LENGTHS)
    for row, hypotheses in enumerate(found):
        scores = {tokens: score for score, tokens in all_scores(model, row, 0.6)}
        assert len(hypotheses) == beams
        assert [h.score for h in hypotheses] == pytest.approx([scores[h.tokens] for h in hypotheses])


def test_one_beam_is_greedy_decoding(model):
    tokens = torch.zeros(2, 1, dtype=torch.int64)
    (one, two) = beam_search(model, tokens, 9, beams=1, source=SOURCE, source_lengths=LENGTHS)
    greedy = generate(model, tokens, 9, source=SOURCE, source_lengths=LENGTHS)
    assert [list(one[0].tokens), list(two[0].tokens)] == greedy[:, 1:].tolist()


def test_the_length_penalty_is_that_of_wu():
    assert length_penalty(7, 0.6) == pytest.approx(2**0.6)
    assert length_penalty(1, 0.6) == 1


@pytest.mark.parametrize("write", [generate, beam_search])
def test_learned_positions_are_checked_before_anything_is_computed(write, monkeypatch):
    learned = Decoder(config("model.position=learned").model)
    monkeypatch.setattr(learned, "through_layers", lambda *_: pytest.fail("computed"))
    with pytest.raises(UserError, match=r"max_new_tokens: 9; allowed: up to 8, because learned positions end at"):
        write(learned, torch.zeros(1, 9, dtype=torch.int64), 9)


@pytest.mark.parametrize("write", [generate, beam_search])
@pytest.mark.parametrize(
    "changed",
    [
        {"source": SOURCE + 3},
        {"tokens_BT": torch.full((2, 1), -1)},
        {"forced_last": 7},
        {"forced_first": 8},
        {"end_of_text": 7},
    ],
)
def test_tokens_that_are_not_in_the_vocabulary_are_refused(write, changed, model):
    arguments = {"tokens_BT": torch.zeros(2, 1, dtype=torch.int64), "source": SOURCE, **changed}
    with pytest.raises(UserError, match=r"token (7|8|-1): not in the model's vocabulary; allowed: 0 to 6"):
        write(model, arguments.pop("tokens_BT"), **arguments)


def test_a_pass_refuses_tokens_that_are_not_in_the_vocabulary(model):
    tokens = torch.zeros(2, 1, dtype=torch.int64)
    for arguments in ((tokens - 1, SOURCE), (tokens, SOURCE + 2)):
        with pytest.raises(UserError, match=r"token (7|-1): not in the model's vocabulary; allowed: 0 to 6"):
            model(arguments[0], source=arguments[1])


@pytest.mark.parametrize(
    ("setting", "value"),
    [("beams", 0), ("alpha", -1.0), ("alpha", float("nan")), ("alpha", 1e9), ("max_new_tokens", -1)],
)
def test_values_out_of_range_are_refused(model, setting, value):
    with pytest.raises(UserError, match="allowed"):
        beam_search(model, torch.zeros(2, 1, dtype=torch.int64), **{setting: value}, source=SOURCE)
