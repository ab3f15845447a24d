"""Files of models with an encoder and a decoder: copies of the embedding, missing tensors, tied heads, special tokens."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor

from archlab.config.io import build_config, overlay
from archlab.config.schema import Config
from archlab.errors import UserError
from archlab.exchange.hf_config import read_model_config
from archlab.exchange.load import check_hf, load_hf
from archlab.exchange.save import save_pretrained
from archlab.families.registry import FAMILIES
from archlab.hf.special_tokens import complete
from archlab.infer.beams import beam_search
from archlab.infer.generate import generate
from archlab.infer.load import load_codec
from archlab.infer.text import best_text, stream_text
from tests.parity.cases import CASES
from tests.parity.test_families import gap
from tests.parity.tiny import SOURCE, TOKENS, run_published, tiny_model

T5_KIN = ("t5", "mt5", "umt5")


def first_case(model_type: str) -> Any:
    return next(case for case in CASES if case.model_type == model_type)


def saved(model_type: str, folder: Path) -> Path:
    """Save the tiny model of a family's first case."""
    tiny_model(first_case(model_type)).save_pretrained(folder)
    return folder


def change_config(folder: Path, **changes: Any) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def change_tensors(folder: Path, change: Callable[[dict[str, Tensor]], object]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def check_logits(folder: Path) -> None:
    """Check that archlab and transformers read the same model from the folder."""
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder, attn_implementation="eager").eval()
    with torch.no_grad():
        assert gap(load_hf(folder)(TOKENS, source=SOURCE), run_published(theirs, TOKENS).logits) <= 1e-4


def refusal(folder: Path) -> str:
    (problem, *_) = check_hf(folder)
    with pytest.raises(UserError) as caught:
        load_hf(folder)
    assert problem in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("model_type", T5_KIN)
def test_copies_of_the_embedding_and_the_stray_bias_of_older_t5_files(model_type: str, tmp_path: Path) -> None:
    folder = saved(model_type, tmp_path)
    stray = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
    copies = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight")
    change_tensors(folder, lambda found: found.update({name: found["shared.weight"].clone() for name in copies}))
    change_tensors(folder, lambda found: found.update({stray: torch.ones(8, 4)}))
    check_logits(folder)
    assert load_hf(folder).config.head.tied
    change_tensors(folder, lambda found: found[copies[0]].add_(1))
    assert f"{copies[0]}  differs from the embedding, although the model class ties the two" in refusal(folder)


@pytest.mark.parametrize("model_type", T5_KIN)
@pytest.mark.parametrize("in_config", [True, False])
def test_the_weights_decide_whether_the_head_of_t5_is_tied(model_type: str, in_config: bool, tmp_path: Path) -> None:
    folder = saved(model_type, tmp_path)
    change_config(folder, tie_word_embeddings=in_config)
    change_tensors(folder, lambda found: found.pop("lm_head.weight", None))
    check_logits(folder)
    assert read_model_config(folder)[1].head.tied
    change_tensors(folder, lambda found: found.update({"lm_head.weight": found["shared.weight"].flip(0)}))
    check_logits(folder)
    assert not read_model_config(folder)[1].head.tied
    (folder / "model.safetensors").unlink()
    assert read_model_config(folder)[1].head.tied is in_config


@pytest.mark.parametrize(
    ("keys", "is_scaled"),
    [
        ({}, True),
        ({"tie_word_embeddings": None}, True),
        ({"tie_word_embeddings": False}, False),
        ({"tie_word_embeddings": True, "scale_decoder_outputs": False}, False),
        ({"tie_word_embeddings": False, "scale_decoder_outputs": True}, True),
    ],
)
def test_the_scale_of_t5_logits(keys: dict[str, Any], is_scaled: bool, tmp_path: Path) -> None:
    folder = saved("t5", tmp_path)
    values = json.loads((folder / "config.json").read_text())
    rest = {key: value for key, value in values.items() if key not in ("tie_word_embeddings", "scale_decoder_outputs")}
    (folder / "config.json").write_text(json.dumps({**rest, **keys}))
    assert read_model_config(folder)[1].head.scale == (32**-0.5 if is_scaled else 1.0)
    check_logits(folder)


def test_the_saved_activation_takes_precedence_over_the_one_it_was_derived_from(tmp_path: Path) -> None:
    folder = saved("mt5", tmp_path)
    change_config(folder, feed_forward_proj="gated-gelu", dense_act_fn="relu")
    assert read_model_config(folder)[1].dense.activation == "relu"
    check_logits(folder)
    change_config(folder, feed_forward_proj="gated-odd")
    assert "feed_forward_proj is 'gated-odd', which archlab cannot build" in refusal(folder)


@pytest.mark.parametrize("model_type", ["bart", "mbart", "pegasus", "marian", "plbart", "mvp", "blenderbot"])
def test_a_file_of_the_class_without_a_head(model_type: str, tmp_path: Path) -> None:
    """It has neither the prefix nor the bias of the logits, which is then 0."""
    theirs = tiny_model(first_case(model_type))
    theirs.get_submodule("model").save_pretrained(tmp_path)
    assert not any(name.startswith("model.") for name in load_file(tmp_path / "model.safetensors"))
    check_logits(tmp_path)
    assert not load_hf(tmp_path).head.bias.any()
    assert check_hf(tmp_path) == []


@pytest.mark.parametrize("model_type", ["pegasus", "marian", "roformer"])
def test_a_table_of_other_positions_is_refused(model_type: str, tmp_path: Path) -> None:
    folder, name = saved(model_type, tmp_path), f"{FAMILIES[model_type].prefix}encoder.embed_positions.weight"
    table = getattr(transformers, FAMILIES[model_type].architecture)(
        transformers.CONFIG_MAPPING[model_type](**first_case(model_type).hf)
    ).get_parameter(name)
    for dtype in (torch.float16, torch.bfloat16):
        change_tensors(folder, lambda found, dtype=dtype: found.update({name: table.detach().to(dtype)}))
        assert check_hf(folder) == []
    for other in (table.detach().roll(1, 0), table.detach() + 0.003):
        change_tensors(folder, lambda found, other=other: found.update({name: other}))
        assert f"{name}  differs from sines and cosines" in refusal(folder)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_long_table_of_positions_is_read(dtype: torch.dtype, tmp_path: Path) -> None:
    """The class computes the angles in float64. In float32, an angle of 4,096 has an error of 2e-4."""
    config = transformers.PegasusConfig(**first_case("pegasus").hf | {"max_position_embeddings": 4096})
    transformers.PegasusForConditionalGeneration(config).to(dtype).save_pretrained(tmp_path)
    table = transformers.PegasusForConditionalGeneration(config).model.encoder.embed_positions.weight
    change_tensors(
        tmp_path, lambda found: found.update({"model.encoder.embed_positions.weight": table.detach().to(dtype)})
    )
    assert check_hf(tmp_path) == []


@pytest.mark.parametrize(
    ("model_type", "change", "message"),
    [
        ("t5", {"is_encoder_decoder": False}, "is_encoder_decoder is False, which archlab cannot build; allowed: True"),
        ("bart", {"is_encoder_decoder": False}, "is_encoder_decoder is False"),
        ("bart", {"architectures": ["BartForCausalLM"]}, "BartForCausalLM, which has only an encoder or only a"),
        (
            "umt5",
            {"architectures": ["UMT5EncoderModel"]},
            "UMT5EncoderModel, which has only an encoder or only a decoder",
        ),
        ("bart", {"architectures": ["BartForSequenceClassification"]}, "a model for a task other than"),
        ("bart", {"tie_word_embeddings": False}, "tie_word_embeddings is False, which archlab cannot build"),
        ("marian", {"share_encoder_decoder_embeddings": False}, "share_encoder_decoder_embeddings is False"),
        ("marian", {"decoder_vocab_size": 50}, "decoder_vocab_size is 50, which archlab cannot build; allowed: vocab"),
        ("m2m_100", {"pad_token_id": -1}, "pad_token_id is -1"),
        ("t5", {"relative_attention_num_buckets": 7}, "  relative_attention_num_buckets  "),
    ],
)
def test_configs_that_archlab_refuses(model_type: str, change: dict[str, Any], message: str, tmp_path: Path) -> None:
    folder = saved(model_type, tmp_path)
    change_config(folder, **change)
    assert message in refusal(folder)


@pytest.mark.parametrize(
    ("model_type", "override", "field"),
    [
        ("t5", "model.encoder.mlp={d_ff: 40}", "model.encoder.layers.*.mlp.d_ff: 40 in this model, 48 if exported"),
        ("t5", "model.encoder.norm={eps: 0.1}", "model.encoder.norm.eps: 0.1 in this model"),
        ("t5", "model.encoder.cross={scale: 0.5}", "model.layers.*.cross.scale: 0.5 in this model, 1.0 if exported"),
        ("bart", "model.encoder.position={kind: none}", "model.encoder.layers.*.position.kind: none in this model"),
        ("bart", "model.encoder.cross={n_heads: 2}", "model.layers.*.cross.n_heads: 2 in this model, 4 if exported"),
        ("llama", "model.encoder={n_layers: 1}", "model.encoder.n_layers: 1 in this model, None if exported"),
    ],
)
def test_what_a_family_cannot_express_is_named(model_type: str, override: str, field: str) -> None:
    family, values = FAMILIES[model_type], first_case(model_type).hf
    published = json.loads(transformers.CONFIG_MAPPING[model_type](**values).to_json_string(use_diff=False))
    raw = {"model": family.model_config(published, "good").model_dump()}
    base = overlay(raw, {"train.seq_len": 1, "train.batch_tokens": 1}, Config)
    with pytest.raises(UserError) as caught:
        family.hf_config(build_config(base, [override]).model)
    assert field in str(caught.value)


FORCED = [
    {},
    {"forced_eos_token_id": 2},
    {"forced_bos_token_id": 7},
    {"forced_bos_token_id": 7, "forced_eos_token_id": 2},
]


def with_tokenizer(folder: Path, **generation: Any) -> Path:
    """Add a tokenizer whose words are t0, t1, ..., and a generation_config.json."""
    tokenizer = Tokenizer(models.WordLevel({f"t{i}": i for i in range(61)}, unk_token="t0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    ids = {"decoder_start_token_id": 5, "eos_token_id": 2, "bos_token_id": 1, "pad_token_id": 0}
    (folder / "generation_config.json").write_text(json.dumps(ids | generation))
    return folder


@pytest.mark.parametrize("forced", FORCED, ids=lambda forced: "-".join(forced) or "none")
@pytest.mark.parametrize("n_new", [1, 2, 9])
def test_tokens_that_generation_must_write_are_those_of_transformers(
    forced: dict[str, int], n_new: int, tmp_path: Path
) -> None:
    """The first token that a model must write is one of the new tokens. Beams have the same texts and scores."""
    folder = with_tokenizer(saved("mbart", tmp_path), **forced)
    theirs, ours = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder).eval(), load_hf(folder)
    source, start = SOURCE[:, :9], torch.full((2, 1), 5)
    chosen = {
        name.replace("_bos_token_id", "_first").replace("_eos_token_id", "_last"): i for name, i in forced.items()
    }
    greedy = theirs.generate(source, max_new_tokens=n_new, do_sample=False)
    ended = generate(ours, start, n_new, source=source, end_of_text=2, **chosen)
    after_end = (greedy == 2).cumsum(1) - (greedy == 2).long() > 0
    assert torch.equal(ended[:, : greedy.shape[1]].masked_fill(after_end, 0), greedy.masked_fill(after_end, 0))
    searched = theirs.generate(
        source, max_new_tokens=n_new, num_beams=4, num_return_sequences=4, length_penalty=0.0, do_sample=False,
        return_dict_in_generate=True, output_scores=True,
    )  # fmt: skip
    found = beam_search(ours, start, n_new, beams=4, alpha=0.0, end_of_text=2, source=source, **chosen)
    texts = [[i for i in row if i not in (0, 2)] for row in searched.sequences[:, 1:].tolist()]
    hypotheses = [hypothesis for of_row in found for hypothesis in of_row]
    kept = [n for n, score in enumerate(searched.sequences_scores.tolist()) if score > -1e8]  # impossible beams
    assert [list(h.tokens) for h in hypotheses] == [texts[n] for n in kept]
    assert [h.score for h in hypotheses] == pytest.approx([searched.sequences_scores[n].item() for n in kept], abs=1e-4)


@pytest.mark.parametrize("beams", [None, 3])
def test_the_new_text_has_as_many_tokens_as_in_transformers(beams: int | None, tmp_path: Path) -> None:
    folder = with_tokenizer(saved("bart", tmp_path), forced_bos_token_id=7, forced_eos_token_id=2)
    theirs, ours, codec = (
        transformers.AutoModelForSeq2SeqLM.from_pretrained(folder),
        load_hf(folder),
        load_codec(folder),
    )
    for prompt, written in (("", [5]), ("t9 t8", [5, 7, 9, 8])):
        begun = torch.tensor([written])
        new = theirs.generate(
            torch.tensor([[11, 12, 13]]), decoder_input_ids=begun, max_new_tokens=6, do_sample=False,
            num_beams=beams or 1, length_penalty=0.0,
        )[0, len(written) :].tolist()  # fmt: skip
        arguments = (ours, codec, prompt, 6)
        if beams is None:
            text = "".join(stream_text(*arguments, source="t11 t12 t13"))
        else:
            text = best_text(*arguments, source="t11 t12 t13", beams=beams, alpha=0.0)
        # the EOS token is not special in this tokenizer; beam search leaves it out
        assert text.split() == [f"t{i}" for i in new if i != 2 or beams is None]


def test_tokens_for_generation_survive_loading_and_saving(tmp_path: Path) -> None:
    folder = saved("m2m_100", tmp_path / "theirs")
    (folder / "generation_config.json").unlink()
    ids = {"decoder_start_token_id": 5, "forced_bos_token_id": 7, "forced_eos_token_id": [2, 8]}
    change_config(folder, **ids)
    (folder / "source.spm").write_bytes(b"pieces")
    model = load_hf(folder)
    save_pretrained(model, tmp_path / "ours")
    assert json.loads((tmp_path / "ours" / "config.json").read_text()).items() >= ids.items()
    assert (tmp_path / "ours" / "source.spm").read_bytes() == b"pieces"
    tokenizer = Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
    special = complete(tokenizer, {}, model.origin.special_ids)
    assert (special.decoder_start, special.forced_first, special.forced_last) == (5, 7, 2)
    generation = {"generation_config.json": b'{"decoder_start_token_id": 6, "forced_bos_token_id": 9}'}
    special = complete(tokenizer, generation, model.origin.special_ids)
    assert (special.decoder_start, special.forced_first, special.forced_last) == (6, 9, None)  # as in transformers
    assert complete(tokenizer, {}, {"bos_token_id": 3}).decoder_start == 3  # as in transformers


def test_a_model_with_two_sentencepiece_files_has_no_tokenizer_that_archlab_reads(tmp_path: Path) -> None:
    folder = saved("marian", tmp_path)
    (folder / "source.spm").write_bytes(b"")
    with pytest.raises(UserError, match=r"has no tokenizer.json, and archlab does not read its SentencePiece files"):
        load_codec(folder)
