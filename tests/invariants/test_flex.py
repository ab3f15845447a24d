"""Compiled flex_attention on the CPU: forward only, in float32, on configs that differ in everything it handles.

test_grid.py tests its traced form on the whole grid, in float64 and with gradients.
"""

import shutil
from functools import partial
from typing import Any

import grid
import pytest
import torch
from torch._dynamo.backends.debugging import aot_eager
from torch._dynamo.utils import counters

from archlab.config.io import build_config
from archlab.errors import UserError
from archlab.infer.session import Session, left_pad
from archlab.measuring.clock import clocked
from archlab.model import flex, kernels, masks
from archlab.model.decoder import Decoder

CONFIGS = {
    "plain": "attention={n_heads: 4, head_dim: 8}",
    "grouped, window, soft cap": "attention={n_heads: 4, n_kv_heads: 2, head_dim: 8, window: 5, softcap: 1.5, scale: 0.6}",
    "alibi, stride": "attention={n_heads: 3, window: 3, stride: 4} model.position={kind: alibi}",
    "narrow values, chunks": "attention={n_heads: 4, head_dim: 8, v_dim: 5, blocks: {size: 4, summary: 0}}",
    "latent, soft cap": "attention={kind: latent, n_heads: 3, kv_rank: 9, nope_dim: 5, rope_dim: 8, v_dim: 7, softcap: 2}",
    "t5, global": "attention={n_heads: 4, window: 2, global_tokens: 2} model.position={kind: t5, max_distance: 40}",
    "transformer_xl, grouped": "attention={n_heads: 4, n_kv_heads: 2, head_dim: 8} model.position={kind: transformer_xl}",
    "shaw, blocks, soft cap": "attention={n_heads: 4, n_kv_heads: 1, blocks: {size: 4, summary: 1}, softcap: 2} model.position={kind: shaw}",
}


def decoder(overrides: str, kernel: str) -> Decoder:
    config = build_config(grid.BASE, [f"model.{o}" for o in overrides.split(" model.")] + ["model.n_layers=1"])
    return grid.randomized(config, kernel=kernel).float()


@pytest.fixture(autouse=True)
def fresh_compiler() -> None:
    assert shutil.which("g++") or shutil.which("clang++"), "flex compiles on CPU: install g++ or clang++"
    torch.compiler.reset()
    counters.clear()


@pytest.mark.parametrize("name", CONFIGS)
def test_flex_is_the_reference(name: str) -> None:
    tokens, documents = grid.tokens(2), torch.arange(grid.SEQ_LEN).div(9, rounding_mode="floor").expand(2, -1)
    with torch.no_grad():
        expected, got = (decoder(CONFIGS[name], k)(tokens, documents=documents) for k in ("reference", "flex"))
    assert (got - expected).abs().max() < 1e-5 * expected.abs().max()
    assert counters["stats"]["unique_graphs"] == 1, "it ran, but was not compiled"


@pytest.mark.parametrize(("name", "is_packed"), [("grouped, window, soft cap", True), ("alibi, stride", False)])
def test_texts_of_different_lengths_use_the_same_compiled_code(
    name: str, is_packed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU, lengths are padded to multiples of 128. Here, they are padded to multiples of 8."""
    for module in (flex, masks):
        monkeypatch.setattr(module, "padded_length", lambda length, device: -length % 8 + length)
    given = decoder(CONFIGS[name], "reference"), decoder(CONFIGS[name], "flex")
    for length in (17, 18, 21, 23):
        tokens = grid.tokens(2)[:, :length]
        documents = torch.arange(length).div(9, rounding_mode="floor").expand(2, -1) if is_packed else None
        with torch.no_grad():
            expected, got = (model(tokens, documents=documents) for model in given)
        assert (got - expected).abs().max() < 1e-5 * expected.abs().max()
    assert counters["stats"]["unique_graphs"] == 1


def test_flex_in_a_compiled_model_is_the_reference() -> None:
    tokens, documents = grid.tokens(2), torch.arange(grid.SEQ_LEN).div(9, rounding_mode="floor").expand(2, -1)
    name = "grouped, window, soft cap"
    with torch.no_grad():
        got = torch.compile(decoder(CONFIGS[name], "flex"))(tokens, documents=documents)
        expected = decoder(CONFIGS[name], "reference")(tokens, documents=documents)
    assert (got - expected).abs().max() < 1e-5 * expected.abs().max()


def test_the_clock_of_a_profile_times_compiled_flex_as_attention() -> None:
    model, tokens = decoder(CONFIGS["grouped, window, soft cap"], "flex"), grid.tokens(2)
    with torch.no_grad():
        times = clocked(model, lambda: model(tokens), 2, "cpu")
    assert times.by_kind["attention"].calls == 1
    assert counters["stats"]["unique_graphs"] == 1, "it ran, but was not compiled"


def test_flex_refuses_what_it_cannot_do() -> None:
    plain, tokens = CONFIGS["plain"], grid.tokens(1)
    with pytest.raises(
        UserError, match="flex does not support gradients on cpu; allowed: auto, blocked, products, sdpa, reference"
    ):
        decoder(plain, "flex")(tokens)
    with (
        torch.no_grad(),
        pytest.raises(
            UserError, match="flex does not support float64; allowed: auto, blocked, products, sdpa, reference"
        ),
    ):
        decoder(plain, "flex").double()(tokens)
    with (
        torch.no_grad(),
        pytest.raises(UserError, match="flex does not support sinks on cpu; allowed: auto, blocked, sdpa, reference"),
    ):
        decoder(plain.replace("}", ", sinks: true}"), "flex")(tokens)
    with pytest.raises(UserError, match="flex does not support dropout"):
        decoder("dropout.attention=0.1", "flex")


STEPS = {
    "plain": "attention={n_heads: 4, head_dim: 8}",
    "grouped, window, soft cap": CONFIGS["grouped, window, soft cap"],
    "sinks": "attention={n_heads: 4, n_kv_heads: 2, head_dim: 8, sinks: true}",
    "alibi, narrow values": "attention={n_heads: 4, head_dim: 8, v_dim: 5} model.position={kind: alibi}",
}


@pytest.mark.parametrize("lengths", [(9, 4), (7, 7)], ids=["padded", "one mask row"])
@pytest.mark.parametrize("name", STEPS)
def test_a_compiled_decoding_step_contains_flex(
    name: str, lengths: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU, `auto` chooses it. A CPU cannot compile it with a mask that is made in the graph, so it is traced here.

    The window is shorter than the texts.
    """
    model = decoder(STEPS[name], "reference")
    prompts, padding = left_pad([grid.tokens(2)[i, :n] for i, n in enumerate(lengths)])
    expected = _logits_while_writing(Session(model, prompts, 20, padding=padding))

    def choose(_: str, needs: kernels.KernelNeeds) -> kernels.Kernel:
        return flex.flex if needs.cache == "fixed" else kernels.reference

    monkeypatch.setattr(kernels, "choose_kernel", choose)
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=_with_flex))
    got = _logits_while_writing(Session(model, prompts, 20, padding=padding, compile=True))
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


def _logits_while_writing(session: Session) -> torch.Tensor:
    logits = list[torch.Tensor]()
    for _ in range(8):
        logits.append(session.logits())
        next(session.write(1))
    return torch.stack(logits)


def _with_flex(graph: torch.fx.GraphModule, inputs: list[Any]) -> Any:
    """Check that torch can divide the keys among the processors of a GPU: one tile is a unit of work."""
    calls = [node for node in graph.graph.nodes if "flex_attention" in str(node.target)]
    assert {call.args[4][-3:-1] for call in calls} == {(masks.TILE, masks.TILE)}
    return aot_eager(graph, inputs)


def test_a_step_on_a_cpu_cannot_contain_flex() -> None:
    with pytest.raises(
        UserError, match="kernel flex does not support compiled decoding on cpu; allowed: auto, blocked"
    ):
        Session(decoder(STEPS["plain"], "flex"), grid.tokens(1), 40, compile=True)
