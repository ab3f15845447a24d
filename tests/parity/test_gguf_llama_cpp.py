"""GGUF files in llama.cpp itself (b9190). `make install-dev` takes it from the package cyllama (tests/checkpoints.txt).

Each model runs in a process of its own, because llama.cpp ends the process if a condition of its code is not met.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from archlab.exchange.gguf.write import save_gguf
from tests.parity.test_gguf import NAMED, named, ours
from tests.parity.tiny import Case

PACKAGES = Path(sys.prefix) / "checkpoints"
GELU = {
    "bloom", "falcon", "gemma", "gemma2", "gemma3_text", "gemma4_text", "gemma4_unified_text", "gpt2", "gpt_bigcode",
    "gpt_neox", "mpt", "phi", "starcoder2",
}  # fmt: skip
"""Families with a GELU, which llama.cpp reads from a float16 table."""

CASES = [case for case in NAMED if case.model_type != "mamba2"]
"""Cases that b9190 can load. Its reader of Mamba 2 takes the number of heads from `attention.head_count`, which is 0 in
the files of llama.cpp's converter. Other versions take it from `ssm.time_step_rank`."""

RUN = """
import json, sys
import cyllama.llama.llama_cpp as cpp

class Model(cpp.LlamaModel):
    n_vocab = 61  # of the tests' models; cyllama asks for it, and its own class lacks it

file, tokens = sys.argv[1], json.loads(sys.argv[2])
cpp.disable_logging()
cpp.ggml_backend_load_all()
of_model, of_context = cpp.LlamaModelParams(), cpp.LlamaContextParams()
of_model.n_gpu_layers = 0
of_context.n_ctx = of_context.n_batch = of_context.n_ubatch = 64
of_context.type_k = of_context.type_v = 0  # float32
of_context.flash_attn_type = 0
of_context.n_threads = of_context.n_threads_batch = 1
context = cpp.LlamaContext(Model(file, of_model), of_context)
batch = cpp.LlamaBatch(n_tokens=64, embd=0, n_seq_max=1)
for i, token in enumerate(tokens):
    batch.add(token, i, [0], True)
context.decode(batch)
print(json.dumps([list(context.get_logits_ith(i)) for i in range(len(tokens))]))
"""


@pytest.mark.parametrize("case", CASES, ids=named)
def test_llama_cpp_computes_the_same_logits(case: Case, tmp_path: Path) -> None:
    model = ours(case, tmp_path / "hf")
    save_gguf(model, tmp_path / "model.gguf", case.model_type)
    tokens = torch.randint(3, 61, (1, 60), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        logits = model(tokens)[0]
    command = [sys.executable, "-c", RUN, str(tmp_path / "model.gguf"), json.dumps(tokens[0].tolist())]
    assert (PACKAGES / "cyllama").is_dir(), f"{PACKAGES} has no cyllama; `make install-dev` puts it there"
    environment = {**os.environ, "PYTHONPATH": str(PACKAGES), "GGML_NO_BACKTRACE": "1"}
    run = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert run.returncode == 0, run.stderr[-500:]
    found = torch.tensor(json.loads(run.stdout.splitlines()[-1]))
    tolerance = 4e-3 if case.model_type in GELU else 5e-5
    assert (found - logits).abs().max() <= tolerance * logits.std()
    assert torch.equal(found.argmax(-1), logits.argmax(-1))
