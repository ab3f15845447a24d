"""Every registered family against transformers 5.23.0: logits, greedy tokens, cache, and the way back."""

from pathlib import Path

import pytest
import torch
import transformers
from torch import Tensor

from archlab.config.io import build_config, overlay
from archlab.config.model_schema import ModelConfig
from archlab.config.schema import Config
from archlab.families.family import differing
from archlab.families.load import load_hf
from archlab.families.registry import families
from archlab.families.save import save_pretrained
from archlab.infer.generate import generate
from archlab.model.decoder import Decoder
from tests.parity.cases import CASES
from tests.parity.tiny import Case, tiny_model

TOKENS = torch.randint(3, 61, (2, 40), generator=torch.Generator().manual_seed(1))
EVERY_CASE = pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.model_type}-{case.name}")


def gap(ours: Tensor, theirs: Tensor) -> float:
    """Largest difference in units of the logits' deviation."""
    return ((ours - theirs).abs().max() / theirs.std()).item()


def saved(case: Case, folder: Path) -> tuple[torch.nn.Module, Tensor]:
    model = tiny_model(case)
    model.save_pretrained(folder, safe_serialization=True)
    with torch.no_grad():
        return model, model(TOKENS).logits


def test_every_family_has_a_case_and_something_that_breaks_it() -> None:
    assert {case.model_type for case in CASES if case.breaks} == set(families())


@EVERY_CASE
def test_logits_are_the_published_ones(case: Case, tmp_path: Path) -> None:
    theirs, logits = saved(case, tmp_path / "hf")
    ours = load_hf(tmp_path / "hf")
    with torch.no_grad():
        assert gap(ours(TOKENS), logits) <= 1e-4
        recomputed = TOKENS
        for _ in range(12):
            recomputed = torch.cat((recomputed, ours(recomputed)[:, -1].argmax(-1, keepdim=True)), dim=1)
    greedy = [
        theirs.generate(TOKENS, max_new_tokens=12, do_sample=False, eos_token_id=None, pad_token_id=0, use_cache=cached)
        for cached in (False, True)
    ]
    assert torch.equal(recomputed, greedy[False])
    if case.cached:  # else a dynamic NTK past its original length, where a cache means other logits by design
        assert torch.equal(generate(ours, TOKENS, max_new_tokens=12), greedy[True])


@EVERY_CASE
def test_saving_gives_transformers_the_same_logits_and_the_same_file_again(case: Case, tmp_path: Path) -> None:
    _, logits = saved(case, tmp_path / "hf")
    ours = load_hf(tmp_path / "hf")
    save_pretrained(ours, tmp_path / "ours", case.model_type)
    back = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "ours", attn_implementation=case.attention
    ).eval()
    with torch.no_grad():
        assert gap(back(TOKENS).logits, logits) <= 1e-4
    again = load_hf(tmp_path / "ours")
    assert not differing(again.config, ours.config)
    for (name, a), (_, b) in zip(ours.named_parameters(), again.named_parameters(), strict=True):
        assert torch.equal(a, b), name


@pytest.mark.parametrize(
    ("case", "override"), [(case, o) for case in CASES for o in case.breaks],
    ids=lambda value: value if isinstance(value, str) else f"{value.model_type}-{value.name}",
)  # fmt: skip
def test_the_comparison_would_see_it(case: Case, override: str, tmp_path: Path) -> None:
    _, logits = saved(case, tmp_path)
    ours = load_hf(tmp_path)
    broken = Decoder(_changed(ours.config, override), seed=None).eval()
    broken.load_state_dict(ours.state_dict(), strict=False)
    with torch.no_grad():
        assert (
            gap(broken(TOKENS), logits) > 3e-4
        )  # three times the bar; erf against tanh gelu moves logits by 5e-4 only


def _changed(config: ModelConfig, override: str) -> ModelConfig:
    base = overlay({"model": config.model_dump()}, {"train.seq_len": 1, "train.batch_tokens": 1}, Config)
    return build_config(base, [override]).model
