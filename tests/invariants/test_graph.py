"""A forward pass is one graph. It reads no values back, and makes no unused [T, T] tensors."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch._dynamo.testing import CompileCounter

from archlab.config.components import query_blocks
from archlab.config.layers import layer_configs
from archlab.config.model_schema import ModelConfig
from archlab.exchange.configs import load_config
from archlab.model import masks, products
from archlab.model.context import start_pass
from archlab.model.decoder import Decoder
from archlab.model.inputs import Inputs
from archlab.model.state import Cache

TOKENS = torch.randint(0, 17, (2, 12), generator=torch.Generator().manual_seed(0))


def tiny(*overrides: str) -> ModelConfig:
    """Return a config with two layers and a vocabulary of 17 tokens."""
    size = ("model.vocab_size=17", "model.n_layers=2", "model.d_model=32", "model.mlp.d_ff=16", "model.max_seq_len=32")
    heads = () if any("attention=" in text for text in overrides) else ("model.attention.n_kv_heads=2",)
    return load_config("tiny-llama", *size, *heads, *overrides).model


MIXTURE = "model.mlp={kind: moe, experts: 4, router: {correction: {}}, shared: {}}"

ATTENTIONS = (
    "model.attention={n_heads: 4, n_kv_heads: 2, sinks: true, v_dim: 6, gate: {}, temperature: {beta: 0.5, length: 4}}",
    "model.attention={n_heads: 4, sinks: true, blocks: {size: 5, summary: 0}}",
    "model.attention={kind: latent, n_heads: 4, kv_rank: 8, nope_dim: 6, rope_dim: 4}",
    "model.attention={kind: latent, n_heads: 4, q_rank: 9, kv_rank: 8, nope_dim: 6, rope_dim: 4, window: 6}",
)
MIXERS = (
    "model.mixer={kind: mamba, d_state: 4, inner_norm: {kind: rmsnorm}}",
    "model.mixer={kind: mamba2, head_dim: 8, d_state: 4}",
    "model.mixer={kind: gated_delta, key_dim: 8}",
    "model.mixer={kind: kimi_delta, key_dim: 8}",
    "model.mixer={kind: rglru}",
    "model.mixer={kind: short_conv}",
)


@pytest.mark.parametrize(
    "override",
    [
        "model.attention={n_heads: 4, window: 3, softcap: 2.0}",
        "model.position={kind: alibi}",
        "model.position={kind: t5}",
        "model.position={kind: learned}",
        "model.embedding={scale: sqrt_d_model, round_scale: true}",
        "model.position={kind: rope, scaling: {kind: dynamic, factor: 2, original_max_seq_len: 4}}",
        MIXTURE,
        *ATTENTIONS,
        *MIXERS,
    ],
)
def test_a_forward_pass_is_one_graph(override: str) -> None:
    """torch.compile (train.compile) captures the whole pass; here it raises an error if it cannot.

    The scan of Mamba 1 is compiled by itself, because a graph of all tokens would take minutes to compile.
    """
    torch.compiler.reset()  # torch stops compiling after eight versions of a function, counted over all models
    model = Decoder(tiny(override))
    compiled = torch.compile(model, fullgraph="kind: mamba," not in override, backend="eager")
    for documents in (None, torch.arange(TOKENS.shape[1]).div(3, rounding_mode="floor").expand_as(TOKENS)):
        torch.testing.assert_close(compiled(TOKENS, documents=documents), model(TOKENS, documents=documents))
    # no value is read, which would wait for a GPU: the pass runs with shapes alone
    assert copy.deepcopy(model).to("meta")(TOKENS.to("meta")).shape == (*TOKENS.shape, model.config.vocab_size)


BLOCKS = (
    "model.attention={n_heads: 4, n_kv_heads: 2, window: 5}",
    "model.attention={n_heads: 4, sinks: true, blocks: {size: 5, summary: 0}}",
    "model.attention={n_heads: 4, softcap: 2.0, window: 5, global_tokens: 3}",
    "model.attention={n_heads: 4, blocks: {size: 8, summary: 1}}",
)


@pytest.mark.parametrize("override", BLOCKS)
def test_blocks_of_queries_are_one_graph_for_all_layers(override: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """This holds for the whole model and for single layers: later layers reuse what the first one made."""
    torch.compiler.reset()
    monkeypatch.setattr(query_blocks, "BLOCK", 4)
    model, tokens, by_layer = Decoder(tiny(override)), TOKENS.repeat(1, 2), CompileCounter()
    with monkeypatch.context() as refusing:
        refusing.setattr(masks.Visible, "dense", property(lambda mask: pytest.fail("a square was made")))
        expected = model(tokens)
        torch.testing.assert_close(torch.compile(model, fullgraph=True, backend="eager")(tokens), expected)
        for layer in model.layers:
            layer.compile(backend=by_layer, fullgraph=True)
        torch.testing.assert_close(model(tokens), expected)
    assert by_layer.frame_count == 1


@pytest.mark.parametrize(("kernel", "override"), [("blocked", BLOCKS[0]), ("products", "model.norm.kind=rmsnorm")])
def test_gradients_of_attention_in_pieces_compile(kernel: str, override: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.compiler.reset()
    monkeypatch.setattr(query_blocks, "BLOCK", 4)
    monkeypatch.setattr(products, "BLOCK", 5)
    model, tokens = Decoder(tiny(override), kernel=kernel).double(), TOKENS.repeat(1, 2)

    def gradients(run: Callable[[torch.Tensor], torch.Tensor]) -> list[torch.Tensor]:
        return list(torch.autograd.grad(run(tokens).square().sum(), list(model.parameters())))

    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    for got, expected in zip(gradients(compiled), gradients(model), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-10)


def addresses(cache: Cache) -> list[int]:
    return [t.data_ptr() for layer in cache.layers for state in layer.values() for t in state.tensors.values()]


STEPS = (
    "model.attention={n_heads: 4, window: 6}",
    "model.position={kind: alibi}",
    "model.position={kind: learned}",
    MIXTURE,
    *ATTENTIONS,
    *MIXERS,
)


@pytest.mark.parametrize("override", STEPS)
def test_a_decoding_step_compiles_once_whatever_the_length(override: str) -> None:
    """Its output is that of the full pass. The state has a fixed shape, is written in place, and its length is a tensor."""
    torch.compiler.reset()
    model, tokens = Decoder(tiny(override)).double().eval(), TOKENS.repeat(1, 2)
    counter = CompileCounter()
    step = torch.compile(model.through_layers, backend=counter, fullgraph=True)
    cache = Cache(model.config, len(tokens), tokens.shape[1], dtype=torch.float64)
    storage = addresses(cache)
    with torch.no_grad():
        hidden = [model.hidden(tokens[:, :8], Inputs(cache=cache))]
        for token_B1 in tokens[:, 8:].split(1, 1):
            cache.begin(1)
            hidden.append(step(token_B1, Inputs(cache=cache)))
            cache.end(1)
        torch.testing.assert_close(torch.cat(hidden, 1), model.hidden(tokens), rtol=1e-10, atol=1e-10)
    assert counter.frame_count == 1
    assert storage == addresses(cache)


@pytest.mark.parametrize("position", ["rope", "alibi"])
def test_plain_causal_attention_makes_no_square_of_positions(position: str) -> None:
    """[T, T] would be 1.25 GB of int64 per kind of layer."""
    (layer, *_) = layer_configs(tiny(f"model.position.kind={position}"))
    tokens = torch.zeros(1, 12_500, dtype=torch.int64)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        view = start_pass(tokens, None, None, None, None, torch.float32).context(layer)
    most = max(event.self_cpu_memory_usage for event in profile.key_averages())
    assert view.mask_BTS is None
    assert (most > 1e9) == (position == "alibi")  # the only one that reads it
