"""Loss curves of short training runs do not change: optimizations for speed must not change results.

In float32 they are equal bit by bit on the machine that made the record, and within 1e-4 on others, whose products
round differently. Compiled and bfloat16 curves stay within a bound. `python tests/invariants/test_golden.py` makes a
new record, for example after the order of a sum changed; docs/notebook.md then gives the reason.
"""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from archlab.config.training import resolve_train
from archlab.data.batch import next_token
from archlab.data.training_data import Windows
from archlab.exchange.configs import load_config
from archlab.model.decoder import Decoder
from archlab.model.kernels import prefer_products
from archlab.training.compiling import compile_layers
from archlab.training.device import Device
from archlab.training.optim import make_optimizer
from archlab.training.step import update

RECORD = Path(__file__).parent / "golden.json"
STEPS = 8

CONFIGS: dict[str, tuple[str, ...]] = {
    "llama": ("train.z_loss=1e-4", "train.micro_batch_tokens=128"),
    "gpt": (
        "model.norm={kind: layernorm, placement: post}", "model.position={kind: learned}",
        "model.mlp={kind: plain, activation: gelu}", "model.dropout=0.1",
    ),
    "gemma": ("model.attention={n_heads: 4, n_kv_heads: 2, softcap: 5.0, window: 16}", "model.head.softcap=3.0"),
    "packed": ("model.attention={n_heads: 4, n_kv_heads: 2, window: 24}", "train.document_mask=true"),
    "mixture": ("model.mlp={kind: moe, experts: 4, active: 2, balance: {loss: 0.01}}",),
    "latent": ("model.attention={kind: latent, n_heads: 4, kv_rank: 16, nope_dim: 8, rope_dim: 8}",),
    "mamba": ("model.attention={kind: none}", "model.position={kind: none}", "model.mixer={kind: mamba2, head_dim: 16, d_state: 8}"),
}  # fmt: skip

SIZE = (
    "model.vocab_size=97", "model.n_layers=2", "model.d_model=64", "model.mlp.d_ff=96", "model.max_seq_len=64",
    "train.seq_len=64", "train.batch_tokens=256", "train.lr=3e-3", "train.warmup=2",
)  # fmt: skip


def curve(
    name: str, dtype: torch.dtype = torch.float32, *, compiled: bool = False, products_up_to: int = 0
) -> list[float]:
    """Return the loss and the gradient norm of every step."""
    size = SIZE if "mixture" not in name else tuple(text for text in SIZE if "d_ff" not in text)
    config = load_config("tiny-llama", *size, *CONFIGS[name])
    train, device = resolve_train(config), Device("cpu", dtype)
    model = Decoder(config.model).train()
    prefer_products(model, products_up_to)
    if compiled:
        compile_layers(model)
    optimizer, draw, found = make_optimizer(model, train), np.random.default_rng(0), list[float]()
    for step in range(STEPS):
        # text with a pattern: each token is often the one before it plus 1
        windows = (draw.integers(0, 97, (4, 1)) + np.cumsum(draw.random((4, 65)) < 0.9, axis=1)) % 97
        batch = next_token(Windows(windows), 0 if train.document_mask else None)
        result = update(model, optimizer, batch, train, step, device, compiled=compiled)
        found += [result.loss, result.grad_norm]
    return found


def machine() -> dict[str, object]:
    """Return the properties of the machine on which the bits depend."""
    return {"torch": torch.__version__, "features": dict(torch.cpu.get_capabilities())}


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.mark.parametrize("name", CONFIGS)
def test_float32_curves_are_the_recorded_ones(name: str) -> None:
    record = json.loads(RECORD.read_text())
    found, golden = curve(name), record["curves"][name]
    assert found[-2] < found[0]
    if record["machine"] == machine():
        assert found == golden
    np.testing.assert_allclose(found, golden, rtol=1e-4)


@pytest.mark.parametrize("products_up_to", [0, 64])
@pytest.mark.parametrize("name", CONFIGS)
def test_bfloat16_curves_are_near_them(name: str, products_up_to: int) -> None:
    """Products have 8 bits: losses are within 1%, gradient norms within 10%."""
    golden = json.loads(RECORD.read_text())["curves"][name]
    found = curve(name, torch.bfloat16, products_up_to=products_up_to)
    np.testing.assert_allclose(found[::2], golden[::2], rtol=1e-2)
    np.testing.assert_allclose(found[1::2], golden[1::2], rtol=1e-1)


@pytest.mark.parametrize("products_up_to", [0, 64])
def test_compiled_curves_are_near_them(products_up_to: int) -> None:
    """Sums have another order, and exponentials come from another library."""
    found = curve("llama", compiled=True, products_up_to=products_up_to)
    np.testing.assert_allclose(found, json.loads(RECORD.read_text())["curves"]["llama"], 1e-4)


if __name__ == "__main__":
    torch.set_num_threads(1)
    curves = {name: curve(name) for name in CONFIGS}
    RECORD.write_text(json.dumps({"machine": machine(), "curves": curves}, indent=1) + "\n")
    sys.exit()
