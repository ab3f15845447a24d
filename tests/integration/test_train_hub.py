"""Trained weights with a hub id, from a local stand-in for the hub, and what still works when the hub is gone."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from transformers import LlamaConfig, LlamaForCausalLM

from archlab.data import tokenizer as bpe
from archlab.hf.imported import imported
from archlab.training.run_folder import RunFolder
from hub import COMMIT, MODEL, serving
from tiny import TRAIN, losses, write_text

SHARED = Path(__file__).parents[1] / "shared"
SETTINGS = [f"train.{key}={value}" for key, value in TRAIN.items()] + [
    "train.seq_len=16", "train.eval_seq_len=16", "train.checkpoint_every=5", "data.path=text.txt",
]  # fmt: skip

ONLINE = f"""
from contextlib import suppress
from archlab.cli.app import main
from archlab.exchange.configs import load_config
from archlab.study.executors.local import Local
from archlab.training.train import train
from tiny import Killed, run_here

settings = {SETTINGS}
assert main(["inspect", "{MODEL}"]) == 0
assert main(["train", "{MODEL}", *settings, "--out", "whole"]) == 0
assert main(["data", "text.txt", "--tokenizer", "whole", "--out", "data"]) == 0
assert main(["eval", "{MODEL}", "data.path=data", "train.eval_seq_len=16", "train.device=cpu"]) == 0
assert main(["convert", "{MODEL}", "model.attention.n_kv_heads=1", "--out", "pooled"]) == 0
with suppress(RuntimeError):
    train(load_config("{MODEL}", "train.start={MODEL}", *settings), "killed", Killed())
Local.run_all = run_here
assert main(["study", "run", "study.yaml", "--out", "study"]) == 0
"""

OFFLINE = f"""
from archlab.cli.app import main

assert main(["train", "{MODEL}", *{SETTINGS}, "--out", "killed"]) == 0
assert main(["inspect", "{MODEL}"]) == 0
"""

ALONE = f"""
from archlab.cli.app import main

assert main(["train", "copy", "--out", "copy"]) == 0
assert main(["eval", "copy"]) == 0
assert main(["export", "copy", "--out", "exported"]) == 0
assert main(["train", "{MODEL}", *{SETTINGS}, "--out", "new"]) == 2
"""

STUDY = {
    "question": "Do pooled heads recover?",
    "start": MODEL,
    "set": {"data.path": "text.txt", **{f"train.{name}": value for name, value in TRAIN.items() if name != "tokens"}},
    "arms": {"gqa": {}, "mqa": {"model.attention.n_kv_heads": 1}},
    "budget": {"tokens": 640},
    "seeds": 2,
}


@pytest.fixture
def hub(tmp_path):
    """Write a model of several bfloat16 files, its tokenizer, and a text. Return the folder of the model."""
    folder, text = tmp_path / "hub", write_text(tmp_path)
    sizes = {"vocab_size": 300, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 16}
    model = LlamaForCausalLM(LlamaConfig(**sizes, **heads, bos_token_id=0, eos_token_id=0)).bfloat16()
    model.save_pretrained(folder, max_shard_size="20KB")
    assert len([*folder.glob("*.safetensors")]) > 1
    bpe.train([text.read_text()], 300).save(str(folder / "tokenizer.json"))
    described = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|endoftext|>",
        "eos_token": "<|endoftext|>",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(described))
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates/short.jinja").write_text("{{ messages[0].content }}")
    (folder / "pytorch_model.bin").write_bytes(b"not needed")
    (tmp_path / "study.yaml").write_text(json.dumps(STUDY))
    return folder


def done(script, home, endpoint):
    """Run a Python script in a new process, whose hub has the address `endpoint`. Return its output."""
    paths = os.pathsep.join([str(SHARED), *sys.path])
    own = {"HF_ENDPOINT": endpoint, "HF_HOME": str(home / "hf-home"), "ARCHLAB_CACHE": str(home / "cache")}
    ended = subprocess.run(
        [sys.executable, "-c", script], cwd=home, env={**os.environ, "PYTHONPATH": paths, **own}, capture_output=True,
        text=True, timeout=900,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    return ended.stdout + ended.stderr


@pytest.mark.slow
def test_a_hub_id_is_a_start_and_a_run_outlives_the_hub(tmp_path, hub):
    with serving(hub) as (endpoint, requested):
        online = done(ONLINE, tmp_path, endpoint)
    assert "pytorch_model.bin" not in requested
    assert len(requested) == len(set(requested)), "each file is downloaded once"
    assert f"weights: from {MODEL} (published); tensors: 21 kept" in online
    assert "fewer key/value heads (approximate)" in " ".join(online.split())
    whole = tmp_path / "whole"
    assert imported(whole).source == f"{MODEL}@{COMMIT}"
    assert (whole / "additional_chat_templates/short.jinja").is_file()
    assert json.loads((tmp_path / "pooled/config.json").read_text())["num_key_value_heads"] == 1
    assert RunFolder(tmp_path / "killed").summary() is None
    shutil.copytree(tmp_path / "killed", tmp_path / "copy")
    done(OFFLINE, tmp_path, endpoint)
    shutil.rmtree(tmp_path / "hf-home")
    alone = done(ALONE, tmp_path, endpoint)
    assert f"{MODEL}: no such file or folder, and the download from the Hugging Face hub failed" in " ".join(
        alone.split()
    )
    for name in ("killed", "copy"):
        assert losses(tmp_path / name) == losses(whole)
        assert RunFolder(tmp_path / name).summary().loss == RunFolder(whole).summary().loss
    first = [run / "metrics.jsonl" for run in (tmp_path / "study/runs").iterdir()]
    begun = {json.loads(file.read_text().splitlines()[0])["held_out_loss"] for file in first}
    published = json.loads((whole / "metrics.jsonl").read_text().splitlines()[0])["held_out_loss"]
    assert len(first) == 4
    assert published in begun
