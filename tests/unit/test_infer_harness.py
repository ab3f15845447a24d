"""The model for lm_eval, with continuations that have no tokens of their own. Needs the extra `lm-eval`."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tokenizers import Tokenizer, processors

from archlab.data.tokenizer import train
from archlab.errors import UserError
from archlab.hf.folder import TOKENIZER
from subwords import llama_2

pytest.importorskip("lm_eval")
from lm_eval.api.instance import Instance  # pyright: ignore[reportMissingImports]

from archlab.infer.harness import ArchlabLM

TEXT = "the quick brown fox jumps over the lazy dog "


def folder(path: Path, tokenizer: Tokenizer) -> tuple[ArchlabLM, Any]:
    """Return a tiny model with this tokenizer, and the same model of transformers in float64."""
    torch.manual_seed(0)
    shape = transformers.LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(), hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=4, max_position_embeddings=128, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(shape).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.copy_(torch.randn_like(parameter) * 0.3)
    model.save_pretrained(path)
    tokenizer.save(str(path / TOKENIZER))
    return ArchlabLM(str(path), device="cpu"), model.double()


def likely(model: Any, context: list[int], continuation: list[int]) -> float:
    with torch.no_grad():
        logits = model(torch.tensor([context + continuation])).logits[0, len(context) - 1 : -1].log_softmax(-1)
    return logits.gather(-1, torch.tensor(continuation)[:, None]).sum().item()


def loglikelihoods(harness: ArchlabLM, *pairs: tuple[str, str]) -> list[tuple[float, bool]]:
    instances = [Instance("loglikelihood", {}, pair, n) for n, pair in enumerate(pairs)]
    return harness.loglikelihood(instances, disable_tqdm=True)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[ArchlabLM, Any]:
    return folder(tmp_path_factory.mktemp("hf"), train([TEXT * 20], 320))


@pytest.mark.parametrize(("context", "continuation", "alone"), [("the qu", "ick", "ick"), ("th ", "", " ")])
def test_a_continuation_within_a_token_is_encoded_alone(context: str, continuation: str, alone: str, made: Any) -> None:
    harness, model = made
    encode = harness.answers.tokenizer.encode
    ids, rest = encode(context.rstrip()).ids, encode(alone).ids
    expected = pytest.approx(likely(model, ids, rest), abs=1e-4)
    assert loglikelihoods(harness, (context, continuation))[0][0] == expected
    assert loglikelihoods(harness, ("the", " fox"), (context, continuation), (context, " dog"))[1][0] == expected


def test_a_continuation_alone_has_no_space_before_it(tmp_path: Path) -> None:
    """Llama 2's tokenizer would add a space, which changes the text."""
    harness, model = folder(tmp_path, llama_2())
    number = harness.answers.tokenizer.token_to_id
    context, whole = (harness.answers.tokenizer.encode(text).ids for text in ("qui", "quick"))
    assert context == [number("▁"), number("qu"), number("i")]
    assert whole == [number("▁"), number("qu"), number("ick")]
    [(found, _)] = loglikelihoods(harness, ("qui", "ck"))
    assert found == pytest.approx(likely(model, context, [number("ck")]), abs=1e-4)


def test_a_blank_context_is_the_token_that_begins_a_text(made: Any) -> None:
    harness, model = made
    ids = harness.answers.tokenizer.encode(" the fox").ids
    assert loglikelihoods(harness, (" ", "the fox"))[0][0] == pytest.approx(likely(model, [1], ids), abs=1e-4)


@pytest.mark.parametrize("pair", [("the", ""), ("", ""), ("", "<|endoftext|>")])
def test_a_continuation_without_tokens_is_refused_by_name(pair: tuple[str, str], made: Any) -> None:
    harness, _ = made
    harness._first = harness.answers.tokenizer.encode("<|endoftext|>").ids[0]
    with pytest.raises(UserError, match=r"^request \(.*: the continuation has 0 tokens; allowed: 1 to max_length"):
        loglikelihoods(harness, ("the", " fox"), pair)
    harness._first = 1


def test_whole_texts_need_tokens_too(made: Any) -> None:
    harness, model = made
    with pytest.raises(UserError, match=r"^request '': the text has no tokens"):
        harness.loglikelihood_rolling([Instance("loglikelihood_rolling", {}, ("",), 0)])
    [special] = harness.answers.tokenizer.encode("<|endoftext|>").ids
    [found] = harness.loglikelihood_rolling([Instance("loglikelihood_rolling", {}, ("<|endoftext|>",), 0)])
    assert found == pytest.approx(likely(model, [1], [special]), abs=1e-4)


def test_a_text_that_names_its_first_token_has_it_once(tmp_path: Path) -> None:
    tokenizer = llama_2()
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    harness, _ = folder(tmp_path, tokenizer)
    assert harness.tok_encode("<s>the") == tokenizer.encode("<s>the", add_special_tokens=False).ids
    assert harness.tok_encode("<s>the").count(1) == harness.tok_encode("the").count(1) == 1


def test_arguments_without_effect_are_accepted(made: Any) -> None:
    harness, _ = made
    plain = {"until": ["\n"], "max_gen_toks": 6, "do_sample": False}

    def write(arguments: dict[str, Any]) -> list[str]:
        return harness.generate_until([Instance("generate_until", {}, ("the", arguments), 0)])

    assert write(plain) == write(plain | {"num_beams": 1, "top_k": 0, "use_cache": True})
    with pytest.raises(UserError, match="num_beams is 4"):
        write(plain | {"num_beams": 4})
