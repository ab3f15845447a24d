"""Hand-written code against archlab: right code passes, and each known mistake is named."""

import math
import sys

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import archlab
from archlab.config.core.text import note_once
from archlab.errors import UserError
from archlab.testing import compare, comparison
from archlab.testing.explanation import MOST_FOR_PAIRS
from archlab.testing.mistakes import MISTAKES
from handwritten import Attention, Block, LayerNorm, RMSNorm, RoPE, SwiGLU, TransformerLM

SMALL = {
    "model.vocab_size": 50, "model.d_model": 32, "model.n_layers": 2, "model.max_seq_len": 24,
    "model.attention.n_heads": 4, "model.attention.n_kv_heads": 2, "model.mlp.d_ff": 48,
}  # fmt: skip


def small(**changes):
    """The preset with small widths. Changes are written as in `position__pairing="half"`."""
    changed = {f"model.{name.replace('__', '.')}": value for name, value in changes.items()}
    return archlab.load_config("cs336", {**SMALL, **changed})


CONFIG, LAYERNORM = small(), small(norm__kind="layernorm", norm__bias=True)
OF_PART = {
    "norm": RMSNorm,
    "rotary": RoPE,
    "attention": Attention,
    "mlp": SwiGLU,
    "layer": Block,
    "model": TransformerLM,
}


def part_of(name):
    """The smallest part in which a mistake shows."""
    if name.startswith("rmsnorm"):
        return "norm"
    if name.startswith("rope"):
        return "attention" if name in ("rope-keys", "rope-values", "rope-before-split") else "rotary"
    if name.startswith(("gate", "activation", "mlp-adds")) or name == "no-up-projection":
        return "mlp"
    if name in ("tied", "no-final-norm", "embedding-scale", "layer-skipped") or name.endswith("softmax-in-model"):
        return "model"
    layer = (
        "post-norm",
        "output-norm",
        "residual-after-norm",
        "no-norms",
        "no-residual",
        "residual-twice",
        "residual-of-layer-input",
        "parallel",
        "mlp-first",
        "norms-swapped",
        "one-norm",
        "branch-without-norm",
    )
    return "layer" if name in layer else "attention"


def status(result):
    return {check.name: check.status for check in result.checks}


@pytest.mark.parametrize("part", OF_PART)
def test_right_code_passes(part):
    result = compare(OF_PART[part], part, CONFIG)
    assert result.equal, result
    assert result.mistakes == ()
    found = status(result)
    assert found["outputs"] == found["gradients"] == found["causality"] == "equal"
    assert found["bfloat16 error"] in ("equal", "note")
    assert found["shifted positions"] == ("equal" if part in ("rotary", "attention") else "not checked")


def test_right_layer_norm_passes():
    assert compare(LayerNorm, "norm", LAYERNORM).equal
    assert compare(nn.LayerNorm, "norm", LAYERNORM).equal


OTHER = ("activation-silu", "pre-norm", "causal-though-two-sided")
"""Mistakes with a test of their own, because the config must differ."""
BY_NAME = [
    mistake.name for mistake in MISTAKES if mistake.name not in OTHER and not mistake.name.startswith("layernorm")
]
OF_LAYERNORM = [mistake.name for mistake in MISTAKES if mistake.name.startswith("layernorm")]


@pytest.mark.parametrize("name", BY_NAME)
def test_a_mistake_is_named(name):
    part = part_of(name)
    result = compare(OF_PART[part], part, CONFIG, arguments={"bug": name})
    assert not result.equal
    assert [mistake.name for mistake in result.mistakes] == [name], result


@pytest.mark.parametrize("name", OF_LAYERNORM)
def test_a_mistake_in_a_layer_norm_is_named(name):
    result = compare(LayerNorm, "norm", LAYERNORM, arguments={"bug": name})
    assert [mistake.name for mistake in result.mistakes] == [name], result


@pytest.mark.parametrize(
    ("name", "part", "change"),
    [
        ("activation-silu", "mlp", {"mlp__activation": "gelu"}),
        ("pre-norm", "layer", {"norm__placement": "output"}),
        ("causal-though-two-sided", "attention", {"attention__visibility": "two_sided"}),
    ],
)
def test_a_config_that_the_code_does_not_follow_is_named(name, part, change):
    result = compare(OF_PART[part], part, small(**change))
    assert [mistake.name for mistake in result.mistakes] == [name], result


@pytest.mark.parametrize("name", ["rope-pairing", "rmsnorm-sum", "no-scale", "gate-and-up-swapped", "post-norm"])
def test_a_mistake_is_named_in_a_whole_model(name):
    result = compare(TransformerLM, "model", CONFIG, arguments={"bug": name})
    names = [mistake.name for mistake in result.mistakes]
    assert names == ([name] if name != "rmsnorm-sum" else []), result  # the final norm of this model is right
    assert "the streams first differ after layer 0" in result.checks[0].words


@pytest.mark.parametrize("name", ["mask-hides-own", "mask-inverted"])
def test_a_mask_that_hides_every_key_of_a_token_is_named(name):
    result = compare(Attention, "attention", CONFIG, arguments={"bug": name, "empty": 0.0})
    assert [mistake.name for mistake in result.mistakes] == [name], result


class Dropped(RMSNorm):
    def forward(self, x):
        return functional.dropout(super().forward(x), 0.1)


def noisy(x, weight):
    return x * weight + 1e-3 * torch.rand_like(x)


@pytest.mark.parametrize("code", [Dropped, noisy])
def test_random_code_is_refused(code):
    with pytest.raises(UserError, match=f"{code.__name__}: is not deterministic: two calls with the same weights and"):
        compare(code, "norm", CONFIG)


def test_code_that_changes_its_input_is_deterministic():
    class InPlace(RMSNorm):
        def forward(self, x):
            y = super().forward(x)
            x += 1
            return y

    assert status(compare(InPlace, "norm", CONFIG))["outputs"] == "equal"


def test_the_note_about_the_search_is_for_whole_models_and_printed_once(capsys, monkeypatch):
    monkeypatch.setattr(comparison, "mistakes_in", lambda *_: ())
    note_once.cache_clear()
    notes = []
    for part, bug in (("norm", "rmsnorm-sum"), *[("model", "softmax-in-model")] * 2):
        compare(OF_PART[part], part, CONFIG, arguments={"bug": bug})
        notes.append(capsys.readouterr().err.count("known mistakes are tried"))
    assert notes == [0, 1, 0]


def test_a_report_says_where_pairs_of_mistakes_were_not_tried():
    class Wrong(Attention):
        def forward(self, x, **given):
            return super().forward(x, **given) ** 3

    small, large = (compare(Wrong, "attention", config) for config in (CONFIG, archlab.load_config("cs336")))
    assert small.mistakes == large.mistakes == ()
    assert "Pairs of mistakes were not tried" not in str(small)
    assert f"with at most {MOST_FOR_PAIRS:,} parameters" in str(large)


def test_code_that_exits_python_is_not_reported_as_equal():
    class Exits(RMSNorm):
        def forward(self, x):
            sys.exit(0)

    with pytest.raises(UserError, match=r"Exits, line \d+ of test_testing\.py: exits Python when it is called"):
        compare(Exits, "norm", CONFIG)


def test_an_error_in_the_code_has_its_line():
    class Failing(RMSNorm):
        def forward(self, x):
            return x @ x

    with pytest.raises(UserError, match=r"Failing, line \d+ of test_testing\.py: RuntimeError"):
        compare(Failing, "norm", CONFIG)


def test_a_layer_that_is_never_called_is_counted():
    class Short(TransformerLM):
        def forward(self, in_indices):
            x = self.token_embeddings(in_indices)
            for layer in self.layers[:-1]:
                x = layer(x)
            return self.lm_head(self.ln_final(x))

    assert "your model calls 1 of its 2 layers; their outputs are right" in str(compare(Short, "model", CONFIG))


def test_nothing_is_said_of_layers_that_are_not_called_as_modules():
    class Unseen(TransformerLM):
        def forward(self, in_indices):
            x = self.token_embeddings(in_indices)
            for layer in self.layers:
                x = layer.forward(x)
            return 2 * self.lm_head(self.ln_final(x))

    result = str(compare(Unseen, "model", CONFIG))
    assert "differs" in result
    assert "streams" not in result
    assert "your model calls" not in result


def test_two_mistakes_are_named_together():
    class Both(Attention):
        def __init__(self, d_model, num_heads, num_kv_heads, max_seq_len, theta):
            super().__init__(d_model, num_heads, num_kv_heads, max_seq_len, theta, "no-scale")
            self.rope = RoPE(theta, self.C, max_seq_len, "rope-pairing")

    assert {mistake.name for mistake in compare(Both, "attention", CONFIG).mistakes} == {"no-scale", "rope-pairing"}


def test_an_unknown_difference_has_a_place():
    class LaterTokens(RMSNorm):
        def forward(self, x):
            y = super().forward(x).clone()
            y[1, 4:, 7] *= 3
            return y

    result = compare(LaterTokens, "norm", CONFIG)
    assert result.mistakes == ()
    assert "sequence 1, token 4, feature 7" in result.checks[0].words
    assert "No known mistake" in str(result)


def test_a_wrong_gradient_is_found():
    class Detached(RMSNorm):
        def forward(self, x):
            return x / torch.sqrt((x**2).mean(-1, keepdim=True) + self.eps).detach() * self.weight

    result = compare(Detached, "norm", CONFIG)
    assert status(result)["outputs"] == "equal"
    assert status(result)["gradients"] == "differs"
    assert "the input" in str(result)
    assert not result.equal


# --- functions, NumPy, masks and caches --------------------------------------------------------------------


def numpy_rms_norm(x, weight, eps=1e-5):
    return x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + eps) * weight


def numpy_rms_norm_over_tokens(x, weight, eps=1e-5):
    return x / np.sqrt(np.mean(x**2, axis=0, keepdims=True) + eps) * weight


def test_a_numpy_function():
    result = compare(numpy_rms_norm, "norm", CONFIG)
    assert result.equal
    assert status(result)["gradients"] == "not checked"
    wrong = compare(numpy_rms_norm_over_tokens, "norm", CONFIG)
    assert [mistake.name for mistake in wrong.mistakes] == ["rmsnorm-axis"]


def swiglu(x, w1_weight, w2_weight, w3_weight):
    return (torch.nn.functional.silu(x @ w1_weight.T) * (x @ w3_weight.T)) @ w2_weight.T


def test_a_function_of_weights():
    assert compare(swiglu, "mlp", CONFIG).equal


def test_square_matrices_stored_the_other_way_round():
    class Own(nn.Module):
        def __init__(self, d_model, num_heads, theta):
            super().__init__()
            self.H, self.theta = num_heads, theta
            self.wq, self.wk, self.wv, self.wo = (nn.Parameter(torch.zeros(d_model, d_model)) for _ in range(4))

        def forward(self, x):
            q, k, v = ((x @ w).unflatten(-1, (self.H, -1)).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
            rope = RoPE(self.theta, q.shape[-1], x.shape[1])
            y = torch.nn.functional.scaled_dot_product_attention(rope(q).to(x), rope(k).to(x), v, is_causal=True)
            return y.transpose(1, 2).flatten(-2) @ self.wo

    assert compare(Own, "attention", small(attention__n_kv_heads=4)).equal


class Masked(nn.Module):
    """Attention with one fused matrix, a mask as argument, and a cache that it returns."""

    def __init__(self, d_model, n_heads, scale=None, forgets=False):
        super().__init__()
        self.c_attn, self.c_proj = nn.Linear(d_model, 3 * d_model), nn.Linear(d_model, d_model)
        self.n_heads, self.forgets = n_heads, forgets

    def forward(self, x, mask=None, past=None):
        q, k, v = (t.unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for t in self.c_attn(x).chunk(3, -1))
        if past is not None:
            k, v = torch.cat((past[0], k), 2), torch.cat((past[1], v), 2)
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        y = scores.masked_fill(mask == 0, float("-inf")).softmax(-1) @ v
        return self.c_proj(y.transpose(1, 2).flatten(-2)), ((k[:, :, :-1], v[:, :, :-1]) if self.forgets else (k, v))


PLAIN = small(attention__n_kv_heads=4, attention__qkv_bias=True, attention__out_bias=True, position__kind="none")


def test_masks_and_caches():
    result = compare(Masked, "attention", PLAIN)
    assert result.equal, result
    assert status(result)["padding"] == status(result)["cached = full"] == "equal"
    assert result.parameters["c_attn.weight"] == ("q.weight", "k.weight", "v.weight")


def test_a_cache_that_forgets_a_token_is_found():
    result = compare(Masked, "attention", PLAIN, arguments={"forgets": True})
    assert status(result)["cached = full"] == "differs"
    assert "your code fails" in str(result)  # the mask has one key more than the cache


def test_positions_that_are_not_read_are_found():
    class Ignoring(RoPE):
        def forward(self, x, token_positions=None):
            return super().forward(x)

    result = compare(Ignoring, "rotary", CONFIG)
    assert status(result)["outputs"] == "equal"
    assert status(result)["shifted positions"] == "differs"
    assert "your code ignores the positions that it is given" in str(result)


def test_a_cache_in_place_with_positions_from_the_start_again_is_found():
    class Cached(Attention):
        def __init__(self, d_model, num_heads, num_kv_heads, max_seq_len, theta, restarts=False):
            super().__init__(d_model, num_heads, num_kv_heads, max_seq_len, theta)
            self.restarts = restarts

        def forward(self, x, cache=None):
            earlier = [] if cache is None else cache
            T = x.shape[1]
            first = sum(t.shape[1] for t in earlier)
            earlier.append(x)
            if self.restarts:
                return super().forward(x)
            return super().forward(torch.cat(earlier, 1))[:, first : first + T]

    for restarts in (False, True):
        result = compare(Cached, "attention", CONFIG, arguments={"restarts": restarts}, make_cache=list)
        assert status(result)["outputs"] == "equal"
        assert status(result)["cached = full"] == ("differs" if restarts else "equal")


def test_a_mask_with_the_opposite_meaning_is_named():
    assert [m.name for m in compare(Masked, "attention", PLAIN, mask="hidden").mistakes] == ["mask-inverted"]


def test_the_attention_of_transformers():
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaForCausalLM

    settings = LlamaConfig(vocab_size=50, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
                           num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=24, rms_norm_eps=1e-5,
                           rope_theta=1e4, tie_word_embeddings=False, attn_implementation="eager")  # fmt: skip
    llama = small(position__pairing="half")
    right = compare(LlamaForCausalLM(settings), "model", llama, mask="none")
    assert right.equal, right
    wrong = compare(LlamaForCausalLM(settings), "model", CONFIG, mask="none")
    assert [mistake.name for mistake in wrong.mistakes] == ["rope-pairing"]


# --- bad input ---------------------------------------------------------------------------------------------


class Odd(nn.Module):
    def __init__(self, d_model):
        super().__init__()
        self.alpha, self.beta_ = nn.Parameter(torch.ones(d_model)), nn.Parameter(torch.ones(d_model))

    def forward(self, x):
        return x * self.alpha


def test_the_error_of_a_class_with_unnamed_arguments_says_that_they_need_names():
    class Unnamed(RMSNorm):
        def __init__(self, *sizes):
            super().__init__(sizes[0])

    with pytest.raises(UserError, match=r"IndexError.*; archlab passes arguments by name"):
        compare(Unnamed, "norm", CONFIG)


def test_parameters_that_do_not_match_show_both_lists():
    with pytest.raises(UserError) as error:
        compare(Odd, "norm", CONFIG)
    assert all(text in str(error.value) for text in ("alpha [32]", "beta_ [32]", "weight [32]", "mapping"))


def test_a_mapping_decides():
    class Named(RMSNorm):
        def __init__(self, d_model):
            super().__init__(d_model)
            self.size = nn.Parameter(torch.ones(d_model))
            del self.weight

        def forward(self, x):
            self.__dict__["weight"] = self.size
            return super().forward(x)

    assert compare(Named, "norm", CONFIG, mapping={"size": "weight"}).equal
    with pytest.raises(UserError, match=r"no parameter 'sise'; did you mean size"):
        compare(Named, "norm", CONFIG, mapping={"sise": "weight"})
    with pytest.raises(UserError, match=r"mapping\.size: archlab has no parameter 'w'"):
        compare(Named, "norm", CONFIG, mapping={"size": "w"})


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: compare(RMSNorm, "norms", CONFIG), "part: 'norms'; did you mean norm"),
        (lambda: compare(3, "norm", CONFIG), "target: 3; allowed: a module or a function"),
        (lambda: compare(RMSNorm, "norm", CONFIG, layer=2), "layer: is 2; allowed: 0 to 1"),
        (lambda: compare(lambda x, weight: 1 / 0, "norm", CONFIG), "ZeroDivisionError"),
        (
            lambda: compare(RoPE, "rotary", archlab.load_config("gpt-2")),
            "model.position.kind is learned; allowed: rope",
        ),
        (lambda: compare(RMSNorm, "model", archlab.load_config("t5-small")), "model.encoder: is set"),
    ],
)
def test_bad_input_is_one_message(call, message):
    with pytest.raises(UserError, match=message):
        call()


LONG = small(max_seq_len=256)


class _Changed(Attention):
    """Attention whose scores or mask are changed."""

    def forward(self, x, token_positions=None):
        q, k, v = (
            self.split(self.q_proj(x), self.H),
            self.split(self.k_proj(x), self.K),
            self.split(self.v_proj(x), self.K),
        )
        q, k = self.rope(q, token_positions), self.rope(k, token_positions)
        k, v = (y.repeat_interleave(self.H // self.K, 1) for y in (k, v))
        T = x.shape[1]
        scores = self.changed(q @ k.transpose(-2, -1) / self.C**0.5)
        seen = torch.ones(T, T, dtype=torch.bool).tril() & self.seen(T)
        y = scores.masked_fill(~seen, float("-inf")).softmax(-1) @ v
        return self.o_proj(y.transpose(1, 2).flatten(2))

    def changed(self, scores):
        return scores

    def seen(self, T):
        return torch.ones(T, T, dtype=torch.bool)


def test_the_changed_attention_is_right_if_nothing_is_changed():
    assert compare(_Changed, "attention", LONG).equal


def test_a_soft_cap_that_the_config_lacks_is_not_called_rounding():
    class Capped(_Changed):
        def changed(self, scores):
            return 50 * torch.tanh(scores / 50)

    result = compare(Capped, "attention", LONG)
    assert status(result)["outputs"] == "differs"


@pytest.mark.parametrize("first", [32, 64])
def test_a_mask_that_is_wrong_only_in_longer_texts_is_found(first):
    class Window(_Changed):
        def seen(self, T):
            return torch.ones(T, T, dtype=torch.bool).triu(1 - first)

    class Late(_Changed):
        def seen(self, T):
            query, key = torch.arange(T)[:, None], torch.arange(T)
            return (query < first) | (key > 0)

    for wrong in (Window, Late):
        result = compare(wrong, "attention", LONG)
        assert status(result)["outputs"] == "equal"
        assert status(result)["a longer sequence"] == "differs"
        assert not result.equal


def test_a_norm_over_all_tokens_is_not_called_causal():
    class OverAll(RMSNorm):
        def forward(self, x):
            return x / (x.square().mean() + self.eps).sqrt() * self.weight

    assert status(compare(OverAll, "norm", CONFIG))["causality"] == "differs"


@pytest.mark.parametrize("axis", [-2, 1])
def test_a_rotation_that_is_wrong_is_not_called_missing(axis):
    def rotate(x, theta):
        C, T = x.shape[-1], x.shape[axis]
        angles = torch.arange(T, dtype=x.dtype)[:, None] * theta ** (torch.arange(0, C, 2) / C)
        cos, sin = (y if axis == -2 else y[:, None] for y in (angles.cos(), angles.sin()))
        a, b = x[..., 0::2], x[..., 1::2]
        return torch.stack((a * cos - b * sin, b * cos + a * sin), -1).flatten(-2)

    assert [mistake.name for mistake in compare(rotate, "rotary", CONFIG).mistakes] == ["rope-exponent-sign"]


def test_functions_with_the_signatures_of_cs336():
    def run_rmsnorm(d_model, eps, weights, in_features):
        return in_features / (in_features.square().mean(-1, keepdim=True) + eps).sqrt() * weights

    def run_swiglu(d_model, d_ff, w1_weight, w2_weight, w3_weight, in_features):
        gate = torch.nn.functional.silu(in_features @ w1_weight.T)
        return (gate * (in_features @ w3_weight.T)) @ w2_weight.T

    def run_rope(d_k, theta, max_seq_len, in_query_or_key, token_positions):
        return RoPE(theta, d_k, max_seq_len)(in_query_or_key, token_positions)

    for function, part in ((run_rmsnorm, "norm"), (run_swiglu, "mlp"), (run_rope, "rotary")):
        result = compare(function, part, CONFIG)
        assert result.equal, result


def test_a_name_that_the_code_does_not_take_is_refused() -> None:
    with pytest.raises(UserError, match=r"arguments: RMSNorm has no argument 'bugs'; did you mean bug\?"):
        compare(RMSNorm, "norm", CONFIG, arguments={"bugs": "rmsnorm-no-eps"})


def test_a_compiled_module_is_compared_as_the_module() -> None:
    module = RMSNorm(32)
    assert compare(torch.compile(module, backend="eager"), "norm", CONFIG) == compare(module, "norm", CONFIG)
