"""Profile of a step: every operation belongs to one kind, forward and backward."""

import json
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from torch import library

from archlab.cli import app
from archlab.errors import UserError
from archlab.exchange.configs import load_config
from archlab.measuring.clock import time_by_kind
from archlab.measuring.speed import decoding_speed, profile
from archlab.model.attention import MultiHeadAttention
from archlab.model.decoder import Head, TokenEmbedding
from archlab.model.mlp import MLP

SMALL = ("model.n_layers=2", "train.seq_len=64", "train.batch_tokens=128", "train.tokens=1K", "train.dtype=float32")


def times(*overrides):
    found = profile(load_config("tiny-llama", *SMALL, *overrides), steps=2)
    return {share.kind: share.time for share in found.shares}


def test_a_model_too_large_for_the_memory_is_refused_before_it_is_built():
    with pytest.raises(UserError, match=r"needs 1\.48 TiB for the float32 weights at the start"):
        decoding_speed(load_config("llama-3.1-405b"), 1, 16, 1, "bfloat16", compiled=False)


def test_shares_of_time_flops_and_bytes_each_add_up_to_1():
    found = profile(load_config("tiny-llama", *SMALL), steps=2)
    for part in ("flops", "n_bytes", "time"):
        assert sum(getattr(share, part) for share in found.shares) == pytest.approx(1)
    assert found.seconds > 0
    shown = {share.kind for share in found.shares if share.time}
    assert shown == {"products", "attention", "norms", "activations", "element-wise", "embedding", "loss", "optimiser"}


def test_norms_and_activations_are_known_by_the_module_that_computes_them(monkeypatch):
    """This holds for forward and backward: a norm that sleeps in both takes nearly all the time."""
    slow = library.custom_op("archlab_test::slow", lambda x: _slowly(x), mutates_args=(), schema="(Tensor x) -> Tensor")
    slow.register_autograd(lambda ctx, gradient: slow(gradient))
    from archlab.model.norms import RMSNorm

    forward = RMSNorm.forward
    monkeypatch.setattr(RMSNorm, "forward", lambda self, x: slow(forward(self, x)))
    both = times()["norms"]
    slow.register_autograd(lambda ctx, gradient: gradient * 1)
    assert both > 0.6


ENCODER = ("model.encoder={n_layers: 1, mlp: {d_ff: 32}}", "train.objective.kind=prefix")
PARTS = ("encoder", "cross-attention", "decoder", "around the layers")
SLOW = [
    ("encoder", MLP, lambda module: module.config.d_ff == 32),
    ("cross-attention", MultiHeadAttention, lambda module: module.reads_source),
    ("decoder", MLP, lambda module: module.config.d_ff != 32),
    ("around the layers", TokenEmbedding, lambda module: True),
    ("around the layers", Head, lambda module: True),
]


@pytest.mark.parametrize("is_backward", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize(("part", "module", "is_slow"), SLOW)
def test_the_time_of_a_part_is_that_of_its_modules(part, module, is_slow, is_backward, monkeypatch):
    """Let the time pass only in the modules of one part, in the forward or in the backward pass."""
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr("archlab.measuring.clock.time", SimpleNamespace(perf_counter=lambda: clock.now))

    def wait(x):
        clock.now += 1
        return x.clone()

    nap = library.custom_op("archlab_test::nap", wait, mutates_args=(), schema="(Tensor x) -> Tensor")
    nap.register_autograd(lambda ctx, gradient: gradient * 1)
    copy = library.custom_op("archlab_test::copy", lambda x: x.clone(), mutates_args=(), schema="(Tensor x) -> Tensor")
    copy.register_autograd(lambda ctx, gradient: nap(gradient))
    forward, slow = module.forward, copy if is_backward else nap

    def changed(self, *inputs):
        return slow(forward(self, *inputs)) if is_slow(self) else forward(self, *inputs)

    monkeypatch.setattr(module, "forward", changed)
    found = profile(load_config("tiny-llama", *SMALL, *ENCODER), steps=1).parts
    assert found == {other: float(other == part) for other in PARTS}


def test_a_model_without_an_encoder_has_no_parts():
    assert profile(load_config("tiny-llama", *SMALL), steps=1).parts == {}


def _slowly(x):
    import time

    time.sleep(0.05)  # long against all other work, even on a busy machine
    return x.clone()


def test_a_profiler_that_may_not_observe_the_gpu_gives_no_shares(monkeypatch):
    """It then records only the calls of the driver, which take no time on the GPU."""
    call = SimpleNamespace(key="cudaLaunchKernel", self_device_time_total=0.0)
    seen = SimpleNamespace(key_averages=lambda: [call])
    monkeypatch.setattr("archlab.measuring.clock.profile", lambda activities: nullcontext(seen))
    monkeypatch.setattr("torch.cuda.synchronize", lambda: None)
    assert time_by_kind(lambda: None, "cuda") == {}


def test_without_norms_none_take_time():
    assert times("model.norm.kind=none").get("norms", 0) == 0


def test_what_is_printed(capsys):
    assert app.main(["profile", "tiny-llama", *SMALL, "--steps", "1"]) == 0
    assert "kind of operation" in capsys.readouterr().out
    assert app.main(["profile", "tiny-llama", *SMALL, "--steps", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["dtype"] == "float32"
