"""The whole decoder: order of its parts, initial values by role, and errors."""

import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from archlab.config.components.activation import Activation
from archlab.config.core.merge import Raw
from archlab.config.core.registry import kinds
from archlab.config.io import build_config
from archlab.config.model_schema import ModelConfig
from archlab.config.problems import ConfigError
from archlab.config.schema import Config
from archlab.errors import UserError
from archlab.exchange.configs import load_config
from archlab.model.context import Context
from archlab.model.decoder import Decoder
from archlab.model.init import normal
from archlab.model.norms import BranchNorms
from archlab.model.state import Cache

TINY: dict[str, Any] = {
    "model": {"vocab_size": 17, "d_model": 16, "n_layers": 2, "max_seq_len": 16, "attention": {"n_heads": 4}}
}


def tiny(*overrides: str) -> Config:
    return build_config(TINY, overrides)


def randomized(config: Config, **kwargs: Any) -> Decoder:
    """Return a float64 decoder with random parameters, because zero biases and unit norms would hide errors."""
    model = Decoder(config.model, **kwargs).double().eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.empty(parameter.shape).normal_(0, 0.1, generator=generator))
    return model


TOKENS = torch.randint(0, 17, (2, 12), generator=torch.Generator().manual_seed(0))


# --- order of the parts --------------------------------------------------------------------------------------


def block_input(model: Decoder) -> tuple[Tensor, Context]:
    """Return the inputs of the first layer."""
    captured: list[Any] = []
    hook = model.layers[0].register_forward_pre_hook(lambda _, args: captured.extend(args[:2]))
    model(TOKENS)
    hook.remove()
    return captured[0], captured[1]


@pytest.mark.parametrize("placement", ["pre", "post", "double", "output"])
def test_placements(placement: str) -> None:
    """Multipliers apply to the branch, after its own norm."""
    multipliers = "model.block={attention_multiplier: 0.5, mlp_multiplier: 0.7}"
    model = randomized(tiny(f"model.norm={{kind: layernorm, placement: {placement}}}", multipliers))
    block, (x, view) = model.layers[0], block_input(model)

    def added(x: Tensor, f: Callable[[Tensor], Tensor], n: BranchNorms, m: float) -> Tensor:
        match placement:
            case "pre":
                return x + m * f(n.before(x))
            case "post":
                return n.stream(x + m * f(x))
            case "double":
                return x + m * n.after(f(n.before(x)))
            case _:
                return x + m * n.after(f(x))

    middle = added(x, lambda y: block.attention(y, view), block.attention_norms, 0.5)
    expected = added(middle, block.mlp, block.mlp_norms, 0.7)
    torch.testing.assert_close(block(x, view), expected, rtol=1e-12, atol=1e-12)
    assert isinstance(model.norm, nn.Identity) == (placement == "post")


@pytest.mark.parametrize("parallel", ["shared", "separate"])
@pytest.mark.parametrize("placement", ["pre", "double"])
def test_parallel_blocks(parallel: str, placement: str) -> None:
    """x + attention(n(x)) + MLP(n'(x)); n' is n if the norm is shared."""
    shape = f"model.block={{parallel: {parallel}, mlp_multiplier: 0.7}}"
    model = randomized(tiny(shape, f"model.norm.placement={placement}"))
    block, (x, view) = model.layers[0], block_input(model)
    a, m = block.attention_norms, block.mlp_norms
    second = a.before if parallel == "shared" else m.before
    expected = x + a.after(block.attention(a.before(x), view)) + 0.7 * m.after(block.mlp(second(x)))
    torch.testing.assert_close(block(x, view), expected, rtol=1e-12, atol=1e-12)
    assert (parallel == "separate") == any("mlp_norms.before" in name for name, _ in model.named_parameters())


def test_embedding_scale_norm_then_positions() -> None:
    model = randomized(tiny("model.embedding={scale: 3.0, norm: true}", "model.position.kind=learned"))
    e = 3 * model.embedding.weight[TOKENS]
    normed = e / (e.square().mean(-1, keepdim=True) + 1e-5).sqrt() * model.embedding.norm.weight
    torch.testing.assert_close(block_input(model)[0], normed + model.positions.weight[:12])


def test_sqrt_d_model_is_the_scale_of_2017() -> None:
    """24 has no integer root."""
    scales = ("sqrt_d_model", str(24**0.5))
    a, b = (randomized(tiny("model.d_model=24", f"model.embedding.scale={s}"))(TOKENS) for s in scales)
    assert torch.equal(a, b)


@pytest.mark.parametrize("tied", ["true", "false"])
def test_head_product_bias_scale_cap(tied: str) -> None:
    model = randomized(tiny(f"model.head={{tied: {tied}, bias: true, scale: 0.5, softcap: 2.0}}"))
    matrix = model.embedding.weight if tied == "true" else model.head.weight
    scaled = 0.5 * (model.hidden(TOKENS) @ matrix.T + model.head.bias)
    torch.testing.assert_close(model(TOKENS), 2 * torch.tanh(scaled / 2))


def test_dropout_is_off_in_eval() -> None:
    model = Decoder(tiny("model.dropout=0.5").model).eval()
    assert torch.equal(model(TOKENS), model(TOKENS))


@pytest.mark.parametrize("place", ["embedding", "attention", "branch"])
def test_each_place_of_dropout_drops_in_training(place: str) -> None:
    model = Decoder(tiny(f"model.dropout.{place}=0.5").model).train()
    assert not torch.equal(model(TOKENS), model(TOKENS))


# --- layers that differ -------------------------------------------------------------------------------------


def test_layers_that_share_a_t5_table() -> None:
    """The table belongs to the model, regardless of its first layer."""
    layers = "model.layers={plain: {position.kind: none}, biased: {}, pattern: [plain, biased]}"
    model = randomized(tiny("model.position={kind: t5, buckets: 4, max_distance: 8}", layers))
    before = model(TOKENS)
    with torch.no_grad():
        model.position_bias.weight.mul_(3)
    assert not torch.allclose(before, model(TOKENS))


REFUSED_PER_LAYER = {
    "a table that is not the model's": ("a: {position.kind: t5}", "model.layers.a.position .*one table for all layers"),
    "a table for other heads": ("a: {attention: {n_heads: 2, head_dim: 4}}", "model.layers.a.position .*one table"),
    "embedded positions": ("a: {position.kind: learned}", "model.layers.a.position .*learned is added once"),
    "dropout of the embedding": ("a: {dropout: 0.5}", "model.layers.a.dropout.embedding .*before all layers"),
    "a rule of one layer": ("a: {attention.stride: 2}", "model.layers.a.attention.stride .*window is not set"),
}


@pytest.mark.parametrize("name", REFUSED_PER_LAYER)
def test_what_a_layer_cannot_have_alone(name: str) -> None:
    layer, message = REFUSED_PER_LAYER[name]
    position = "model.position.kind=t5" if "heads" in name else "model.position.kind=rope"
    with pytest.raises(UserError, match=message):
        tiny(position, f"model.layers={{{layer}, b: {{}}, pattern: [a, b]}}")


class Nothing(nn.Module):
    """Replacement of dropout that drops everything, and counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    def forward(self, x: Tensor) -> Tensor:
        self.asked += 1
        return x * 0


@pytest.mark.parametrize("parallel", ["none", "shared", "separate"])
@pytest.mark.parametrize("placement", ["pre", "double"])
def test_a_dropped_branch_adds_nothing(placement: str, parallel: str) -> None:
    model = randomized(tiny(f"model.norm.placement={placement}", f"model.block.parallel={parallel}"))
    streams: list[Tensor] = []
    for block in model.layers:
        block.dropout = Nothing()
        block.register_forward_hook(lambda _, inputs, output: streams.extend((inputs[0], output)))
    model(TOKENS)
    assert all(torch.equal(stream, streams[0]) for stream in streams)
    assert [block.dropout.asked for block in model.layers] == [2, 2]


@pytest.mark.parametrize("position", ["sinusoidal", "learned"])
def test_the_embedding_is_dropped_once_with_its_positions(position: str) -> None:
    model = randomized(tiny(f"model.position={position}"))
    model.summed.dropout, streams = Nothing(), []
    model.layers[0].register_forward_pre_hook(lambda _, inputs: streams.append(inputs[0]))
    model(TOKENS)
    assert not streams[0].any()
    assert model.summed.dropout.asked == 1


def test_a_narrow_embedding_is_scaled_too() -> None:
    model = randomized(tiny("model.embedding={width: 6, scale: 3.0}"))
    expected = model.embedding.widen(3.0 * model.embedding.weight[TOKENS])
    torch.testing.assert_close(model.embedding(TOKENS), expected)


@pytest.mark.parametrize("placement", ["double", "post", "carried"])
def test_the_stream_is_scaled_after_each_layer(placement: str) -> None:
    """A new model has the number 1, and training does not change it."""
    choice = f"model.norm.placement={placement}"
    scaled = randomized(tiny("model.block.stream_scale=true", choice))
    assert [tuple(layer.stream_scale) for layer in Decoder(scaled.config).all_layers] == [(1.0,)] * 2
    assert not [name for name, _ in scaled.named_parameters() if "stream_scale" in name]
    plain, factors = randomized(tiny(choice)), [0.3, -1.7]
    for layer, of_scaled, factor in zip(plain.layers, scaled.layers, factors, strict=True):
        of_scaled.stream_scale.fill_(factor)
        layer.register_forward_hook(lambda *call, factor=factor: factor * call[-1])
    torch.testing.assert_close(scaled(TOKENS), plain(TOKENS))


# --- initial values -----------------------------------------------------------------------------------------

CHANGES = [
    "model.mlp.kind=plain", "model.mlp.activation=relu", "model.mlp.activation=xielu", "model.norm.kind=layernorm",
    "model.norm.placement=post", "model.position.kind=none", "model.position.kind=learned",
    "model.position.kind=t5", "model.position.kind=shaw", "model.position.kind=transformer_xl",
    "model.attention.qkv_bias=true", "model.attention.n_kv_heads=1",
    "model.attention.qk_norm.kind=rmsnorm", "model.attention.sub_norm=true", "model.embedding.norm=true",
    "model.head.tied=true", "model.block.parallel=shared", "model.n_layers=3", "model.mlp.d_ff=24", "model.vocab_size=19",
]  # fmt: skip


@pytest.mark.parametrize("override", CHANGES)
def test_a_choice_leaves_all_other_initial_values_bit_identical(override: str) -> None:
    before, after = (dict(Decoder(c.model).named_parameters()) for c in (tiny(), tiny(override)))
    same = [name for name in before.keys() & after.keys() if before[name].shape == after[name].shape]
    assert len(same) >= 13
    for name in same:
        assert torch.equal(before[name], after[name]), name


def test_no_two_tensors_start_alike() -> None:
    model = Decoder(tiny("model.attention.n_kv_heads=4").model)
    drawn = [p for p in model.parameters() if p.ndim == 2]
    for i, a in enumerate(drawn):
        assert not any(a.shape == b.shape and torch.equal(a, b) for b in drawn[:i])


def test_initial_deviations_are_by_role() -> None:
    config = build_config(
        {"model": {"vocab_size": 512, "d_model": 128, "n_layers": 8, "attention": {"n_heads": 4}}},
        [
            "model.init={embedding: 0.5, input: 0.03, output: 0.04, head: 0.7, depth_scaled: true}",
            "model.mlp.bias=true",
        ],
    )
    model = Decoder(config.model)
    deviations = {"embedding.weight": 0.5, "head.weight": 0.7, "layers.1.attention.q.weight": 0.03,
                  "layers.1.mlp.gate.weight": 0.03, "layers.1.attention.out.weight": 0.01, "layers.1.mlp.down.weight": 0.01}  # fmt: skip
    values = dict(model.named_parameters())
    for name, deviation in deviations.items():
        # 16,384 draws or more: the deviation's own relative error is 1 / sqrt(2 n) < 0.6%.
        assert values[name].std().item() == pytest.approx(deviation, rel=0.03), name
    assert values["layers.1.mlp.up.bias"].abs().max() == 0
    assert torch.equal(values["norm.weight"], torch.ones(128))


def test_an_untied_head_has_the_default_deviation_whatever_that_of_the_embedding_is() -> None:
    config = tiny("model.head.tied=false", "model.init.embedding=0.5", "model.vocab_size=4096", "model.d_model=64")
    values = dict(Decoder(config.model).named_parameters())
    assert values["embedding.weight"].std().item() == pytest.approx(0.5, rel=0.03)
    assert values["head.weight"].std().item() == pytest.approx(1 / 8, rel=0.03)


def test_norms_start_as_the_identity_whatever_their_weights_mean() -> None:
    plain, offset = (
        Decoder(tiny(f"model.norm={{kind: layernorm, unit_offset: {o}}}").model)(TOKENS) for o in ("true", "false")
    )
    torch.testing.assert_close(plain, offset)


def test_seeds_differ() -> None:
    a, b = (Decoder(tiny().model, seed=seed).layers[0].attention.q.weight for seed in (0, 1))
    assert not torch.equal(a, b)


# --- errors ------------------------------------------------------------------------------------------------


def test_learned_positions_end() -> None:
    model = Decoder(tiny("model.position.kind=learned").model)
    with pytest.raises(UserError, match="max_seq_len = 16"):
        model(torch.zeros(1, 17, dtype=torch.int64))


def test_a_cache_ends_and_is_left_as_it_was() -> None:
    model = Decoder(tiny().model).eval()
    cache = Cache(model.config, 2, 14)
    with torch.no_grad():
        model(TOKENS, cache=cache)
        with pytest.raises(UserError, match="the cache has room for 14 tokens and holds 12; 3 more do not fit"):
            model(TOKENS[:, :3], cache=cache)
        assert cache.length == 12
        torch.testing.assert_close(model(TOKENS[:, :2], cache=cache), model(torch.cat((TOKENS, TOKENS[:, :2]), 1))[:, 12:])  # fmt: skip


@pytest.mark.parametrize("padding", [[0, -1], [1], [0, 1, 2]])
def test_padding_is_a_number_of_tokens_for_each_text(padding: list[int]) -> None:
    with pytest.raises(UserError, match=r"padding: .*; allowed: an integer >= 0 for each of 2 texts"):
        Cache(tiny().model, 2, 14, padding=padding)


def test_packed_documents_have_no_cache() -> None:
    model = Decoder(tiny().model)
    with pytest.raises(UserError, match="documents and cache"):
        model(TOKENS, documents=torch.zeros_like(TOKENS), cache=Cache(model.config, 2, 12))


@pytest.mark.parametrize(
    ("prefix", "more", "message"),
    [
        ([3], {}, r"prefix: \[1\] of torch.int64; allowed: \[2\] of int64 or int32"),
        ([1.0, 2.0], {}, "prefix: .* of torch.float32"),
        ([3, 13], {}, r"prefix: \[3, 13\] tokens in texts of \[12, 12\] tokens; allowed: 0 to the text's length"),
        ([3, -1], {}, r"prefix: \[3, -1\]"),
        (
            [3, 3],
            {"documents": torch.zeros_like(TOKENS)},
            "prefix and documents were both passed; allowed: one of them",
        ),
    ],
)
def test_a_prefix_that_cannot_be_is_refused(prefix: list[Any], more: dict[str, Any], message: str) -> None:
    model = randomized(tiny("model.attention.visibility=prefix"))
    with pytest.raises(UserError, match=message):
        model(TOKENS, prefix=torch.tensor(prefix), **more)


def test_a_prefix_is_read_at_the_start_of_a_text_and_in_one_pass() -> None:
    model, prefix = randomized(tiny("model.attention.visibility=prefix")), torch.tensor([3, 5])
    cache = Cache(model.config, 2, 12, padding=[0, 8], dtype=torch.float64)
    with pytest.raises(UserError, match=r"prefix: \[3, 5\] tokens in texts of \[12, 4\]"):
        model(TOKENS, prefix=prefix, cache=cache)
    model(TOKENS[:, :9], cache=cache)
    with pytest.raises(
        UserError, match="prefix: the cache already holds 9 tokens; a prefix is allowed only in the first pass"
    ):
        model(TOKENS[:, 9:], prefix=prefix, cache=cache)


@pytest.mark.parametrize("segment", [-1, 2])
def test_segments_that_the_model_does_not_have_are_refused(segment: int) -> None:
    model = Decoder(tiny("model.embedding.segments=2").model)
    with pytest.raises(UserError, match=rf"segments: {segment}; allowed: 0 to 1"):
        model(TOKENS, segments=torch.full_like(TOKENS, segment))


def test_a_prefix_that_no_layer_reads_is_refused() -> None:
    with pytest.raises(
        UserError, match=r"prefix: no layer reads it; it is allowed only if model\.attention\.visibility"
    ):
        randomized(tiny("model.attention.visibility=two_sided"))(TOKENS, prefix=torch.tensor([1, 2]))


def test_no_gradient_flows_through_a_cache() -> None:
    model = Decoder(tiny().model)
    cache = Cache(model.config, 2, 12)
    model(TOKENS[:, :6], cache=cache)
    model(TOKENS[:, 6:], cache=cache).sum().backward()
    assert not cache.layers[0]["attention"]["k"].requires_grad


def test_a_cache_that_a_broken_off_pass_left_torn_is_refused_until_it_is_cleared() -> None:
    model = Decoder(tiny("model.attention.window=3").model).eval()
    cache = Cache(model.config, 2, 12)
    model(TOKENS[:, :6], cache=cache)
    with model.layers[1].register_forward_pre_hook(lambda *_: {}["broken"]), pytest.raises(KeyError):
        model(TOKENS[:, 6:], cache=cache)
    with pytest.raises(UserError, match=r"a pass was interrupted.*clear\(\)"):
        model(TOKENS[:, 6:], cache=cache)
    cache.clear()
    torch.testing.assert_close(model(TOKENS, cache=cache), model(TOKENS))


def test_initial_values_do_not_depend_on_torchs_default_dtype() -> None:
    expected = Decoder(tiny().model).state_dict()
    torch.set_default_dtype(torch.float64)
    try:
        found = Decoder(tiny().model).state_dict()
    finally:
        torch.set_default_dtype(torch.float32)
    for name, value in expected.items():
        assert torch.equal(found[name], value.double())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"attention": {"n_heads": 4, "n_kv_heads": 3}}, "3 does not divide n_heads = 4; allowed: 1, 2, 4"),
        ({"layers": {"a": {}, "pattern": ["a", "c"]}}, "unknown layer kind c"),
        ({"embedding": {"norm": True}, "norm": {"kind": "none"}}, "model.norm.kind is none"),
    ],
)
def test_a_config_that_was_never_checked_is_refused(change: Raw, message: str) -> None:
    raw = {"vocab_size": 17, "d_model": 16, "n_layers": 2, "attention": {"n_heads": 4}, **change}
    with pytest.raises(ConfigError, match=message):
        Decoder(ModelConfig.model_validate(raw))


@pytest.mark.parametrize(
    ("section", "change"),
    [("attention", {"window": 0}), ("attention", {"n_kv_heads": 0}), ("mlp", {"kind": "foo"}), ("norm", {"eps": -1.0})],
)
def test_a_value_that_was_never_checked_is_refused(section: str, change: dict[str, Any]) -> None:
    model = tiny().model
    changed = model.model_copy(update={section: getattr(model, section).model_copy(update=change)})
    with pytest.raises(ConfigError, match=f"1 problem in ModelConfig\n  model.{section}.{next(iter(change))}"):
        Decoder(changed)


@pytest.mark.parametrize("config", [tiny(), {}])
def test_a_decoder_refuses_anything_but_a_model_config(config: Any) -> None:
    with pytest.raises(UserError, match=r"^config: .+; allowed: the `model` of a config$"):
        Decoder(config)


@pytest.mark.parametrize("activation", kinds(Activation))
def test_a_model_can_be_pickled(activation: str) -> None:
    model = randomized(tiny("model.mlp.kind=plain", f"model.mlp.activation={activation}"))
    assert torch.equal(pickle.loads(pickle.dumps(model))(TOKENS), model(TOKENS))


@pytest.mark.parametrize("position", ["none", "sinusoidal", "shaw", "transformer_xl", "t5", "alibi", "rope"])
def test_a_model_without_memory_says_its_shapes(position: str) -> None:
    with torch.device("meta"):
        model = Decoder(tiny(f"model.position.kind={position}", "model.attention.softcap=3").model, seed=None)
        assert model(torch.zeros(2, 9, dtype=torch.int64)).shape == (2, 9, 17)


@pytest.mark.parametrize("d_ff", [8, 9])
def test_a_mixture_without_memory_says_its_shapes(d_ff: int) -> None:
    """With and without torch's grouped kernel, which needs multiples of 8."""
    with torch.device("meta"):
        config = tiny(f"model.mlp={{kind: moe, experts: 3, active: 2, d_ff: {d_ff}}}").model
        model = Decoder(config, seed=None)
        assert model(torch.zeros(2, 9, dtype=torch.int64)).shape == (2, 9, 17)


@pytest.mark.parametrize("stream", ["0/embedding.weight", "1/embedding.weight"])
def test_initial_values_do_not_depend_on_the_default_device(stream: str) -> None:
    like = torch.empty(3, 5)
    with torch.device("meta"):
        drawn = normal(like, 0.02, stream)
    assert torch.equal(drawn, normal(like, 0.02, stream))


def test_no_values_are_drawn_for_a_model_without_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """The values of one layer of a large model would take several GB and most of a minute."""
    drawn = list[str]()
    monkeypatch.setattr("archlab.model.init.normal", lambda like, deviation, stream: drawn.append(stream))
    with torch.device("meta"):
        Decoder(tiny().model)
    assert drawn == []


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.float32])
def test_tokens_of_another_format_are_refused(dtype: torch.dtype) -> None:
    with pytest.raises(UserError, match=r"tokens: \[2, 12\] of torch.\w+; allowed: a tensor \[batch, seq\] of int64"):
        Decoder(tiny().model)(TOKENS.to(dtype))


def test_a_kernel_that_is_none() -> None:
    with pytest.raises(UserError, match="kernel 'flash'; allowed: auto, flex, blocked, products, sdpa, reference"):
        Decoder(tiny().model, kernel="flash")


@pytest.mark.parametrize("preset", ["tiny-llama", "tiny-transformer"])
def test_our_own_presets_start_with_a_stream_of_unit_scale(preset: str) -> None:
    """Branches with norms add outputs of unit scale. A stream of scale 1 / sqrt(d_model) would have no effect."""
    embedding = Decoder(load_config(preset).model).embedding
    assert embedding(torch.arange(2048)[None]).square().mean().sqrt().item() == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize(
    "attention",
    ["{n_heads: 4, head_dim: 6, gate: {}}", "{kind: latent, n_heads: 4, kv_rank: 8, nope_dim: 6, rope_dim: 4}"],
)
def test_under_autocast_what_several_products_read_is_converted_once(attention: str) -> None:
    """Each product keeps its input for the gradient. It must be the same tensor, not a copy."""
    model = Decoder(tiny("model.d_model=20", f"model.attention={attention}", "model.mlp={kind: gated, d_ff: 24}").model)
    kept: list[Tensor] = []
    keep = torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x) or x, lambda x: x)
    with keep, torch.autocast("cpu", torch.bfloat16):
        model.hidden(torch.zeros(1, 3, dtype=torch.int64))
    read = {x.data_ptr() for x in kept if x.dtype is torch.bfloat16 and x.shape[-1] == 20 and x.numel() == 3 * 20}
    assert len(read) == 2 * len(model.layers)
