"""Files of encoders: heads for other tasks, and older names of norms."""

from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from archlab.errors import UserError
from archlab.exchange.load import check_hf, load_hf
from tests.parity.test_encoder_decoder import first_case
from tests.parity.test_families import gap
from tests.parity.tiny import TOKENS, tiny_model


@pytest.mark.parametrize(
    ("model_type", "prefix", "names"),
    [
        ("bert", "bert", "weight and bias"), ("bert", "bert", "gamma and beta"), ("ernie", "ernie", "weight and bias"),
        ("ernie", "ernie", "gamma and beta"), ("megatron-bert", "bert", "weight and bias"),
    ],
)  # fmt: skip
def test_bert_with_its_pooler_and_the_head_for_the_next_sentence(
    model_type: str, prefix: str, names: str, tmp_path: Path
) -> None:
    masked = tiny_model(first_case(model_type))
    with_heads = getattr(transformers, type(masked).__name__.replace("MaskedLM", "PreTraining"))
    theirs = with_heads(masked.config).eval()
    theirs.load_state_dict(masked.state_dict(), strict=False)
    theirs.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    assert tensors.keys() >= {f"{prefix}.pooler.dense.weight", "cls.seq_relationship.weight"}
    if names == "gamma and beta":
        older = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
        for new, old in older.items():
            tensors = {name.replace(new, old): tensor for name, tensor in tensors.items()}
        save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    read = with_heads.from_pretrained(tmp_path).eval()
    assert check_hf(tmp_path) == []
    with torch.no_grad():
        assert gap(load_hf(tmp_path)(TOKENS), read(TOKENS).prediction_logits) <= 1e-4


def test_xlm_roberta_is_roberta_under_another_name(tmp_path: Path) -> None:
    config = transformers.XLMRobertaConfig(**tiny_model(first_case("roberta")).config.to_diff_dict())
    theirs = transformers.XLMRobertaForMaskedLM(config).eval()
    theirs.save_pretrained(tmp_path)
    with torch.no_grad():
        assert gap(load_hf(tmp_path)(TOKENS), theirs(TOKENS).logits) <= 1e-4


@pytest.mark.parametrize(
    ("model_type", "name"), [("bert", "BertForSequenceClassification"), ("electra", "ElectraForPreTraining")]
)
def test_encoders_without_a_head_for_masked_tokens_are_refused(model_type: str, name: str, tmp_path: Path) -> None:
    config = tiny_model(first_case(model_type)).config
    getattr(transformers, name)(config).save_pretrained(tmp_path)
    with pytest.raises(UserError, match=f"{name}, a model for a task other than the prediction of masked tokens"):
        load_hf(tmp_path)
