"""Configs and weights of Nemotron-H and Nemotron 3 (NemotronHForCausalLM in transformers): each layer has one branch,
which is Mamba 2, attention, an MLP or a mixture of experts.
"""

from collections.abc import Mapping, Sequence

from archlab.config.components.component import Absent
from archlab.config.components.moe import MoE
from archlab.config.core.merge import Raw
from archlab.config.layers import LayerConfig, layer_configs
from archlab.config.model_schema import ModelConfig
from archlab.families.deepseek_v3 import UNREAD_KEYS
from archlab.families.glm4_moe import SIGMOID
from archlab.families.mamba2 import mamba2_weights
from archlab.families.mixtral import CORRECTION, ROUTER
from archlab.hf.family import Family
from archlab.hf.fields import (
    NEVER_TIED,
    ActivationKey,
    Always,
    ConfigReader,
    Field,
    Key,
    all_hf_keys,
    silu_of_mixer,
)
from archlab.hf.layer_types import FULL, LINEAR, layer_types
from archlab.hf.mixture import GroupKeys, each_expert, is_mixture, shared_expert
from archlab.hf.weight_map import Row, linear

SPARSE, DENSE = "moe", "mlp"
LETTERS = {"M": LINEAR, "*": FULL, "-": DENSE, "E": SPARSE}
NAMES = {LINEAR: "recurrent", FULL: "full", DENSE: "dense", SPARSE: "sparse"}
"""Name of the layer kind by layer type."""


class LatentKeys:
    """Key `moe_latent_size`: the width of the routed experts' latent space, or null if they have none.

    `mlp_bias` turns on the biases of its projections, and those of the shared expert and of dense MLPs.
    """

    hf_keys: Mapping[str, str] = {"mlp.latent.width": "moe_latent_size", "mlp.latent.bias": "mlp_bias"}

    def read(self, hf: ConfigReader, ours: Raw) -> None:
        width = hf.get("moe_latent_size", kind=int)
        ours["mlp.latent"] = None if width is None else {"width": width, "bias": hf.get("mlp_bias", False)}

    def write(self, model: ModelConfig, hf: Raw) -> None:
        """Write the width. `Family.hf_config` reads the keys back, and refuses biases that differ from the others."""
        latent = model.mlp.latent if isinstance(model.mlp, MoE) else None
        hf["moe_latent_size"] = latent and latent.width


BRANCHES: Mapping[str, Sequence[Field]] = {
    LINEAR: (
        Always("mixer.kind", "mamba2"),
        Key("mamba_num_heads", "mixer.n_heads", 128),
        Key("mamba_head_dim", "mixer.head_dim", 64),
        Key("ssm_state_size", "mixer.d_state", 128),
        Key("n_groups", "mixer.n_groups", 8),
        Key("conv_kernel", "mixer.taps", 4),
        Key("use_conv_bias", "mixer.conv_bias", True),
        Key("use_bias", "mixer.in_bias", False),
        Key("use_bias", "mixer.out_bias", False),
        Key("layer_norm_epsilon", "mixer.norm.eps", 1e-5),
        Key("time_step_min", "mixer.dt_min", 1e-3),
    ),
    FULL: (
        Always("attention.kind", "multihead"),
        Key("num_attention_heads", "attention.n_heads", 32),
        Key("num_key_value_heads", "attention.n_kv_heads", 8),
        Key("head_dim", "attention.head_dim", 128),
    ),
    DENSE: (
        Always("mlp.kind", "plain"),
        ActivationKey("mlp_hidden_act", "relu2"),
        Key("intermediate_size", "mlp.d_ff", 21504),
        Key("mlp_bias", "mlp.bias", False),
    ),
    SPARSE: (
        Always("mlp.kind", "moe"),
        Always("mlp.gated", False),
        *SIGMOID,
        ActivationKey("mlp_hidden_act", "relu2"),
        Key("n_routed_experts", "mlp.experts", 8),
        Key("num_experts_per_tok", "mlp.active", 2),
        Key("moe_intermediate_size", "mlp.d_ff", 7688),
        Key("moe_shared_expert_intermediate_size", "mlp.shared.d_ff", 7688),
        Key("mlp_bias", "mlp.shared.bias", False),
        Key("norm_topk_prob", "mlp.router.normalise", True),
        Key("routed_scaling_factor", "mlp.router.factor", 1.0, from_hf=float),
        GroupKeys(),
        LatentKeys(),
    ),
}
"""Steps that translate the keys of the branch, by layer type."""

NONE = {"attention.kind": "none", "mixer.kind": "none", "mlp.kind": "none"}


def type_of(layer: LayerConfig) -> str:
    if not isinstance(layer.mixer, Absent):
        return LINEAR
    if not isinstance(layer.attention, Absent):
        return FULL
    return SPARSE if is_mixture(layer) else DENSE


class OneBranch:
    """Key `layers_block_type`, the branch of each layer, and the keys of the branches. Older files have one letter per
    layer in `hybrid_override_pattern`.
    """

    @property
    def hf_keys(self) -> Mapping[str, str]:
        return all_hf_keys(part for parts in BRANCHES.values() for part in parts)

    def read(self, hf: ConfigReader, ours: Raw) -> None:
        """Set the branch of the first layer, one layer kind per type of layer that the model has, and their pattern."""
        letters = hf.get("hybrid_override_pattern", "ME*-")
        if unknown := sorted(set(letters) - LETTERS.keys()):
            raise hf.refuse("hybrid_override_pattern", unknown[0], f"the letters {', '.join(LETTERS)}")
        implied = [LETTERS[letter] for letter in letters]
        n_layers = hf.get("num_hidden_layers", len(hf.get("layers_block_type", implied)))
        types = layer_types(hf, implied, set(NAMES), n_layers, key="layers_block_type")
        kinds: dict[str, Raw] = {kind: dict(NONE) for kind in BRANCHES}
        for kind, parts in BRANCHES.items():
            for part in parts:
                part.read(hf, kinds[kind])
        ours |= {"n_layers": n_layers, **kinds[types[0]]}
        if len({*types}) > 1:
            layers = {NAMES[kind]: {} if kind == types[0] else kinds[kind] for kind in BRANCHES if kind in types}
            ours["layers"] = {**layers, "pattern": [NAMES[kind] for kind in types]}

    def write(self, model: ModelConfig, hf: Raw) -> None:
        """Write the type of each layer, and the keys of the first branch of each type."""
        layers = layer_configs(model)
        types = [type_of(layer) for layer in layers]
        hf |= {"layers_block_type": types, "num_hidden_layers": len(types)}
        for kind in {*types}:
            first = layers[types.index(kind)]
            parts = {"attention": first.attention, "mixer": first.mixer, "mlp": first.mlp}
            for part in BRANCHES[kind]:
                part.write(model.model_copy(update=parts), hf)


LAYER = "backbone.layers.{i}"
MIXER = f"{LAYER}.mixer"

FAMILY = Family(
    model_type="nemotron_h",
    architecture="NemotronHForCausalLM",
    fields=[
        Key("vocab_size", "vocab_size"),
        Key("hidden_size", "d_model"),
        Key("max_position_embeddings", "max_seq_len", 4096),
        Always("norm.kind", "rmsnorm"),
        Always("norm.cast", "after_weight"),
        Key("layer_norm_epsilon", "norm.eps", 1e-5),
        Always("position.kind", "none"),
        OneBranch(),
        silu_of_mixer("mamba_hidden_act"),
        NEVER_TIED,
    ],
    weights=[
        Row("backbone.embeddings.weight", "embedding.weight"),
        *linear(f"{LAYER}.norm", "layers.{i}.mixer_norms.before"),
        *linear(f"{LAYER}.norm", "layers.{i}.attention_norms.before"),
        *linear(f"{LAYER}.norm", "layers.{i}.mlp_norms.before"),
        *mamba2_weights(MIXER),
        *linear(f"{MIXER}.q_proj", "layers.{i}.attention.q"),
        *linear(f"{MIXER}.k_proj", "layers.{i}.attention.k"),
        *linear(f"{MIXER}.v_proj", "layers.{i}.attention.v"),
        *linear(f"{MIXER}.o_proj", "layers.{i}.attention.out"),
        *linear(f"{MIXER}.up_proj", "layers.{i}.mlp.up"),
        *linear(f"{MIXER}.down_proj", "layers.{i}.mlp.down"),
        Row(f"{MIXER}.gate.weight", ROUTER),
        Row(f"{MIXER}.gate.e_score_correction_bias", CORRECTION),
        *linear(f"{MIXER}.fc1_latent_proj", "layers.{i}.mlp.latent_down"),
        *each_expert(f"{MIXER}.experts"),
        *linear(f"{MIXER}.fc2_latent_proj", "layers.{i}.mlp.latent_up"),
        *shared_expert(f"{MIXER}.shared_experts"),
        *linear("backbone.norm_f", "norm"),
        Row("lm_head.weight", "head.weight"),
    ],
    alternatives=[
        Row(f"{MIXER}.experts.up_proj", "layers.{i}.mlp.experts.up", when=is_mixture),
        Row(f"{MIXER}.experts.down_proj", "layers.{i}.mlp.experts.down", when=is_mixture),
    ],
    has_mtp_layers=True,
    prefix="backbone.",
    no_effect=UNREAD_KEYS | {
        # keys of the layers for multi-token prediction
        "mtp_layers_block_type", "mtp_hybrid_override_pattern",
        # keys for the initialization of parameters
        "time_step_max", "time_step_floor", "rescale_prenorm_residual",
        # keys that affect rounding, speed or generation only
        "chunk_size", "mamba_ssm_cache_dtype", "use_mamba_kernels", "num_logits_to_keep", "moe_shared_expert_overlap",
        # keys that the published code does not read
        "attention_bias", "expand", "mamba_proj_bias", "n_shared_experts", "residual_in_fp32", "sliding_window",
        "time_step_limit",
    },
    aliases={
        "layer_types": "layers_block_type", "num_local_experts": "n_routed_experts", "attention_head_dim": "head_dim",
    },
)  # fmt: skip
