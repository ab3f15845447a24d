"""Configs and weights of Kimi Linear (KimiLinearForCausalLM in transformers): latent attention without position
encoding in some layers, Kimi delta attention in the others, and the mixture of experts of DeepSeek V3.
"""

from collections.abc import Mapping

from archlab.config.core.merge import Raw
from archlab.config.model_schema import ModelConfig
from archlab.families.deepseek_v3 import UNREAD_KEYS
from archlab.families.glm4_moe import SIGMOID
from archlab.families.llama import AROUND, MLP, PRE_NORMS, WIDTHS, rms_norm
from archlab.families.mixtral import CORRECTION, EXPERTS, FUSED_EXPERTS, MIXTURE
from archlab.families.olmo_hybrid import conv_in_parts
from archlab.families.qwen3_next import LAYER, ConvolutionSilu
from archlab.hf.family import Family
from archlab.hf.fields import NEVER_TIED, Always, ConfigReader, Flag, Key, Only
from archlab.hf.latent import LATENT, LATENT_WEIGHTS, LatentHeads
from archlab.hf.layer_types import FULL, LINEAR, MixerLayers
from archlab.hf.mixture import GroupKeys, SharedExperts, mlp_layer_types, shared_expert
from archlab.hf.weight_map import Conversion, Row, linear

MIXER = f"{LAYER}.self_attn"
NESTED = "linear_attn_config"
"""Key of the published files that contains the layers and sizes of Kimi delta attention."""
KNOWN = ("full_attn_layers", "kda_layers", "num_heads", "head_dim", "short_conv_kernel_size")


def nested_of(hf: ConfigReader) -> Raw:
    """Return the values inside `linear_attn_config`. Raise UserError if there are unknown ones, because they belong to
    later models of another architecture."""
    nested: Raw = hf.get(NESTED, {})
    if unknown := sorted(nested.keys() - {*KNOWN}):
        raise hf.refuse(f"{NESTED}.{unknown[0]}", nested[unknown[0]], f"the keys {', '.join(KNOWN)}")
    return nested


def types_of(hf: ConfigReader, n_layers: int) -> list[str]:
    """Return the type of each layer. The published files list the layers of both types, counted from 1. Without lists,
    every fourth layer after the first has attention."""
    nested = nested_of(hf)
    if "full_attn_layers" not in nested or "kda_layers" not in nested:
        return [FULL if i and i % 4 == 0 else LINEAR for i in range(n_layers)]
    full, recurrent = (nested[key] for key in ("full_attn_layers", "kda_layers"))
    if sorted([*full, *recurrent]) != list(range(1, n_layers + 1)):
        raise hf.refuse(NESTED, nested, f"each of the layers 1 to {n_layers} in one of the two lists")
    return [FULL if i + 1 in full else LINEAR for i in range(n_layers)]


class DeltaSizes:
    """Keys for the number and width of the heads, and for the kernel size. Queries, keys and values have equal sizes.

    The published files have these values inside `linear_attn_config`.
    """

    hf_keys: Mapping[str, str] = {
        "mixer.n_key_heads": "linear_num_heads", "mixer.key_dim": "linear_head_dim",
        "mixer.taps": "linear_conv_kernel_dim",
    }  # fmt: skip

    def read(self, hf: ConfigReader, ours: Raw) -> None:
        nested = nested_of(hf)
        heads = nested.get("num_heads", hf.get("linear_num_heads", 32))
        width = nested.get("head_dim", hf.get("linear_head_dim", 128))
        ours |= {"mixer.n_key_heads": heads, "mixer.n_value_heads": heads}
        ours |= {"mixer.key_dim": width, "mixer.value_dim": width}
        ours["mixer.taps"] = nested.get("short_conv_kernel_size", hf.get("linear_conv_kernel_dim", 4))

    def write(self, model: ModelConfig, hf: Raw) -> None:
        for field, key in self.hf_keys.items():
            Key(key, field).write(model, hf)


LAYERS = MixerLayers(
    LINEAR,
    (Always("mixer.kind", "kimi_delta"), DeltaSizes(), Key("rms_norm_eps", "mixer.norm_eps", 1e-5)),
    types_of,
)

A_LOG = Conversion(lambda theirs, _: [theirs.flatten()], lambda ours, _: ours[0][None, None, :, None])
"""Conversion for one number per head, in a tensor [1, 1, heads, 1]."""


def decay_rows(module: str) -> list[Row]:
    """Return the rows for the parameters from which the decays are computed."""
    return [
        *linear(f"{module}.f_a_proj", "layers.{i}.mixer.decay.down"),
        *linear(f"{module}.f_b_proj", "layers.{i}.mixer.decay.up"),
        Row(f"{module}.A_log", "layers.{i}.mixer.A_log", A_LOG),
        Row(f"{module}.dt_bias", "layers.{i}.mixer.dt_bias"),
    ]


MOE = f"{LAYER}.block_sparse_moe"

FAMILY = Family(
    model_type="kimi_linear",
    architecture="KimiLinearForCausalLM",
    default_max_seq_len=1_048_576,
    fields=[
        *(part for part in WIDTHS if part.hf_key != "max_position_embeddings"),
        Key("model_max_length", "max_seq_len"),
        *LATENT,
        Key("q_lora_rank", "attention.q_rank", None, nullable=True),
        LatentHeads(kv_heads=32, reads_head_dim=False),
        Always("position.kind", "none"),
        *rms_norm(1e-5),
        *MIXTURE,
        *SIGMOID,
        Key("num_experts", "mlp.experts", 256),
        Key("num_experts_per_token", "mlp.active", 8),
        Key("moe_intermediate_size", "mlp.d_ff", 1024),
        Flag("moe_renormalize", "mlp.router.normalise", True),
        Key("routed_scaling_factor", "mlp.router.factor", 2.446, from_hf=float),
        GroupKeys(n_key="num_expert_group"),
        SharedExperts("num_shared_experts", 1),
        LAYERS,
        ConvolutionSilu(LAYERS),
        mlp_layer_types(reads_first=True),
        NEVER_TIED,
        # Keys that only the code beside the published files reads.
        Only("mla_use_nope", True, written=False),
        Only("moe_layer_freq", 1, written=False),
        Only("moe_router_activation_func", "sigmoid", written=False),
        Only("use_grouped_topk", True, written=False),
    ],
    weights=[
        *LATENT_WEIGHTS,
        *(
            row
            for theirs, ours in (
                ("q_proj", "q"), ("k_proj", "k"), ("v_proj", "v"), ("b_proj", "beta"), ("g_a_proj", "gate.down"),
                ("g_b_proj", "gate.up"), ("o_norm", "norm"), ("o_proj", "out"),
            )
            for row in linear(f"{MIXER}.{theirs}", f"layers.{{i}}.mixer.{ours}")
        ),
        *decay_rows(MIXER),
        conv_in_parts(MIXER),
        *linear(f"{LAYER}.input_layernorm", "layers.{i}.mixer_norms.before"),
        *EXPERTS,
        Row(f"{MOE}.gate.e_score_correction_bias", CORRECTION),
        *shared_expert(f"{MOE}.shared_experts"),
        *MLP,
        *PRE_NORMS,
        *AROUND,
    ],
    alternatives=[
        # transformers saves the dense MLP, too, under the name of the mixtures.
        *(row for part in ("gate", "up", "down") for row in linear(f"{MOE}.{part}_proj", f"layers.{{i}}.mlp.{part}")),
        # names of transformers in memory
        *decay_rows(f"{MIXER}.forget_gate"),
        *linear(f"{MIXER}.conv1d", "layers.{i}.mixer.conv"),
        *FUSED_EXPERTS,
        Row(f"{LAYER}.mlp.gate.e_score_correction_bias", CORRECTION),
        *shared_expert(f"{LAYER}.mlp.shared_experts"),
    ],
    has_mtp_layers=True,
    prefix="model.",
    no_effect=UNREAD_KEYS | {"rope_theta", "rope_scaling", "rope_parameters"},
    aliases={
        "max_position_embeddings": "model_max_length", "num_experts_per_tok": "num_experts_per_token",
        "norm_topk_prob": "moe_renormalize", "n_group": "num_expert_group", "num_local_experts": "num_experts",
        "n_shared_experts": "num_shared_experts",
    },
)  # fmt: skip
