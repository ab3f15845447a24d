"""Configs and weights of Command A+ (Cohere2MoeForCausalLM in transformers): Command A with a mixture of experts in
parallel with attention.
"""

from dataclasses import dataclass

from archlab.config.components.dense import Dense
from archlab.config.components.position import Rope
from archlab.config.core.merge import Raw
from archlab.config.layers import LayerConfig, layer_configs, resolve
from archlab.config.model_schema import ModelConfig
from archlab.families.llama import AROUND, ATTENTION, SIZES, attention_biases
from archlab.families.mixtral import FUSED_EXPERTS, MIXTURE, TRAINING_ONLY
from archlab.families.qwen2_moe import EXPERTS
from archlab.hf.family import Family
from archlab.hf.fields import Always, ConfigReader, Key, Only, lookup
from archlab.hf.layer_types import FULL, SLIDING, LayerTypes
from archlab.hf.mixture import SharedExperts, mlp_layer_types
from archlab.hf.rope import RopeKeys
from archlab.hf.weight_map import Conversion, Row

ROPE = RopeKeys(pairing="interleaved")


@dataclass(frozen=True)
class Norm:
    """The keys `rms_norm_eps` and `layer_norm_eps`. The norms are layer norms if `rms_norm_eps` is null."""

    def read(self, hf: ConfigReader, ours: Raw) -> None:
        rms, layer = hf.or_null("rms_norm_eps", None, float), hf.get("layer_norm_eps", 1e-5)
        if rms is None:
            ours |= {"norm.kind": "layernorm", "norm.bias": False, "norm.eps": layer}
        else:
            ours |= {"norm.kind": "rmsnorm", "norm.cast": "before_weight", "norm.eps": rms}

    def write(self, model: ModelConfig, hf: Raw) -> None:
        hf["layer_norm_eps" if model.norm.kind == "layernorm" else "rms_norm_eps"] = lookup(model, "norm.eps")


@dataclass(frozen=True)
class Score:
    """The keys `expert_selection_fn` and `norm_topk_prob`. Weights from a softmax are always divided by their sum."""

    def read(self, hf: ConfigReader, ours: Raw) -> None:
        score, normalise = hf.get("expert_selection_fn", "softmax"), hf.get("norm_topk_prob", True)
        if score not in ("softmax", "sigmoid"):
            raise hf.refuse("expert_selection_fn", score, "softmax, sigmoid")
        ours |= {"mlp.router.score": score, "mlp.router.normalise": score == "softmax" or normalise}

    def write(self, model: ModelConfig, hf: Raw) -> None:
        """Write the keys. `Family.hf_config` refuses a softmax whose weights are not divided by their sum."""
        if lookup(model, "mlp.kind") == "moe":
            hf["expert_selection_fn"] = lookup(model, "mlp.router.score")
            hf["norm_topk_prob"] = lookup(model, "mlp.router.normalise")


@dataclass(frozen=True)
class Combination:
    """The key `shared_expert_combination_strategy`: the sum or the mean of the routed experts and the shared expert.

    For the mean, the factor of the router is 1/2, and the output projection of the shared expert is halved. This is
    exact, because floating-point numbers are binary.
    """

    hf_key: str = "shared_expert_combination_strategy"

    def read(self, hf: ConfigReader, ours: Raw) -> None:
        """Set the factor of the router. The width of the shared expert must already have been read."""
        how = hf.get(self.hf_key, "average")
        if how not in ("average", "sum"):
            raise hf.refuse(self.hf_key, how, "average, sum")
        ours["mlp.router.factor"] = 0.5 if how == "average" and "mlp.shared.d_ff" in ours else 1.0

    def write(self, model: ModelConfig, hf: Raw) -> None:
        hf[self.hf_key] = "average" if lookup(resolve(model), "mlp.router.factor") == 0.5 else "sum"


def _factor(layer: LayerConfig | None) -> float:
    assert layer is not None
    return lookup(layer, "mlp.router.factor")


SHARE = Conversion(
    lambda theirs, layer: [theirs * _factor(layer)],
    lambda ours, layer: ours[0] / _factor(layer),
)
"""Conversion for the output projection of the shared expert: archlab's has the factor of the router in it."""


def types_of(hf: ConfigReader, n_layers: int) -> list[str]:
    """Return the type of each layer. The first layers, which have dense MLPs, have a pattern of their own."""
    first = hf.get("first_k_dense_replace", 0)
    prefix, period = hf.get("prefix_dense_sliding_window_pattern", 1), hf.get("sliding_window_pattern", 4)
    places = [(i + 1, prefix) for i in range(first)] + [(i + 1, period) for i in range(n_layers - first)]
    return [SLIDING if place % n else FULL for place, n in places]


@dataclass(frozen=True)
class DenseRope:
    """RoPE in layers with full attention and a dense MLP. They have it if `prefix_dense_sliding_window_pattern` is 1.

    All other layers with full attention have no position encoding.
    """

    hf_key: str = "prefix_dense_sliding_window_pattern"

    def read(self, hf: ConfigReader, ours: Raw) -> None:
        """Set RoPE. The layer kinds must already have been read."""
        if hf.get(self.hf_key, 1) != 1:
            return
        rope: Raw = {}
        ROPE.read(hf, rope)
        common = {name: ours[name] for name in ("mlp.kind", "position")}
        kinds = [kind for name, kind in ours.get("layers", {}).items() if name != "pattern"]
        for kind in kinds or [ours]:
            its = {**common, **kind}
            if its["mlp.kind"] == "gated" and its["position"]["kind"] == "none":
                kind["position"] = rope["position"]

    def write(self, model: ModelConfig, hf: Raw) -> None:
        """Write 1 if all dense layers with full attention have RoPE, and 2 otherwise."""
        layers = [layer for layer in layer_configs(model) if isinstance(layer.mlp, Dense)]
        full = [layer.position for layer in layers if lookup(layer, "attention.window") is None]
        hf[self.hf_key] = 1 if all(isinstance(position, Rope) for position in full) else 2


FAMILY = Family(
    model_type="cohere2_moe",
    architecture="Cohere2MoeForCausalLM",
    default_max_seq_len=8192,
    fields=[
        *SIZES,
        Key("head_dim", "attention.head_dim", 128),
        Norm(),
        Always("block.parallel", "shared"),
        *attention_biases(),
        *MIXTURE,
        Key("num_experts", "mlp.experts", 8),
        Key("num_experts_per_tok", "mlp.active", 2),
        Score(),
        SharedExperts("num_shared_experts", 0),
        Combination(),
        Only("rope_scaling", None, "null, because the published code reads rope_parameters only", written=False),
        ROPE,
        LayerTypes(types_of, full={"position": {"kind": "none"}}, unused=4096),
        mlp_layer_types(n_dense=0, reads_first=True, width_key="prefix_dense_intermediate_size"),
        DenseRope(),
        Key("logit_scale", "head.scale", 0.0625),
        Key("tie_word_embeddings", "head.tied", True),
    ],
    weights=[
        *ATTENTION,
        *EXPERTS,
        Row("model.layers.{i}.mlp.shared_experts.gate_proj.weight", "layers.{i}.mlp.shared.gate.weight"),
        Row("model.layers.{i}.mlp.shared_experts.up_proj.weight", "layers.{i}.mlp.shared.up.weight"),
        Row("model.layers.{i}.mlp.shared_experts.down_proj.weight", "layers.{i}.mlp.shared.down.weight", SHARE),
        Row("model.layers.{i}.input_layernorm.weight", "layers.{i}.attention_norms.before.weight"),
        *AROUND,
    ],
    alternatives=FUSED_EXPERTS,
    prefix="model.",
    no_effect=TRAINING_ONLY,
    aliases={"num_local_experts": "num_experts"},
)
