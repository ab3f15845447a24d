"""Requests of lm_eval: which are refused, and that ignored arguments have no effect in transformers either."""

from typing import Any

import pytest
import torch
import transformers

from archlab.errors import UserError
from archlab.infer import answers as requests
from archlab.infer.answers import Pair, pair, sampling
from archlab.infer.sampling import Sampling


def test_a_continuation_without_tokens_is_refused_by_name() -> None:
    with pytest.raises(
        UserError, match=r"^request \('the', ''\): the continuation has 0 tokens; allowed: 1 to .* = 4$"
    ):
        pair(("the", ""), [5], [], 4)
    with pytest.raises(UserError, match=r"^request \('aaa.* \.\.\. .*bbb'\): the continuation has 5 tokens; allowed"):
        pair(("a" * 90, "b" * 90), [5], [1, 2, 3, 4, 5], 4)


def test_a_long_context_is_cut_at_its_beginning() -> None:
    assert pair(None, [1, 2, 3, 4, 5, 6], [7, 8], 4) == Pair((4, 5, 6), (7, 8))
    assert pair(None, [1], [7, 8], 4) == Pair((1,), (7, 8))


@pytest.fixture(scope="module")
def written() -> Any:
    """Return a function that generates tokens with a tiny model of transformers and given arguments."""
    torch.manual_seed(0)
    shape = transformers.LlamaConfig(
        vocab_size=40, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        max_position_embeddings=64, bos_token_id=1, eos_token_id=2, pad_token_id=0,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(shape).eval()
    with torch.no_grad():
        model.lm_head.weight.mul_(40)

    def write(**arguments: Any) -> list[int]:
        torch.manual_seed(1)
        options = {"max_new_tokens": 12, "eos_token_id": None, "pad_token_id": 0, "top_k": 0} | arguments
        found = model.generate(torch.tensor([[1, 7, 9]]), attention_mask=torch.ones(1, 3), **options)
        return (found if isinstance(found, torch.Tensor) else found.sequences)[0].tolist()

    return write


@pytest.mark.parametrize("do_sample", [False, True])
@pytest.mark.parametrize("name", requests._NEUTRAL)
def test_a_neutral_value_changes_nothing(name: str, do_sample: bool, written: Any) -> None:
    neutral = {name: requests._NEUTRAL[name]}
    plain = written(do_sample=do_sample)
    assert written(do_sample=do_sample, **neutral) == plain
    temperature = {"temperature": 1.0 if do_sample else 0.0}
    assert sampling({"do_sample": do_sample, **temperature, **neutral}) == Sampling(**temperature)


@pytest.mark.parametrize(
    ("arguments"),
    [
        {"use_cache": False}, {"return_dict_in_generate": True, "output_scores": True}, {"length_penalty": 0.3},
        {"early_stopping": True}, {"do_sample": False, "top_k": 3, "top_p": 0.1, "min_p": 0.5, "typical_p": 0.2},
        {"do_sample": False, "epsilon_cutoff": 0.01, "eta_cutoff": 0.01, "top_h": 0.4},
    ],
    ids=str,
)  # fmt: skip
def test_an_argument_for_something_else_changes_nothing(arguments: dict[str, Any], written: Any) -> None:
    """They concern what `generate` returns, beams although there is one, or draws although decoding is greedy."""
    assert written(**{"do_sample": False} | arguments) == written(do_sample=False)
    assert sampling({"temperature": 0.0, **arguments}) == Sampling()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_beams": 4}, r"num_beams is 4, which is not supported; allowed: 1; archlab supports until, "),
        ({"no_repeat_ngram_size": 2}, r"no_repeat_ngram_size is 2.*allowed: 0"),
        ({"num_beam": 1}, r"num_beam is not supported; did you mean num_beams\?"),
        ({"do_sample": True, "typical_p": 0.5}, r"typical_p is 0.5.*allowed: 1"),
        ({"eos_token_id": 5, "num_beams": 2}, r"eos_token_id is not supported; .*; num_beams is 2"),
        ({"unheard_of": None}, r"unheard_of is not supported"),
    ],
)
def test_an_argument_that_could_change_the_text_is_refused_by_name(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=rf"^generation_kwargs: {message}"):
        sampling(arguments)


def test_arguments_that_are_null_are_left_out() -> None:
    asked = {"do_sample": True, "temperature": 0.7, "top_p": None, "repetition_penalty": None, "num_beams": None}
    assert sampling(asked) == Sampling(temperature=0.7)
