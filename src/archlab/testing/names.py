"""Names that hand-written models give to their parameters, and the roles that the names stand for."""

from collections.abc import Mapping
from typing import NamedTuple

from archlab.testing import Part


def _table(**names: str) -> Mapping[str, str]:
    return {name: role for role, row in names.items() for name in row.split()}


_ATTENTION = _table(
    q="q wq w_q q_proj query w_query query_proj to_q q_linear linear_q q_proj_weight",
    k="k wk w_k k_proj key w_key key_proj to_k k_linear linear_k k_proj_weight",
    v="v wv w_v v_proj value w_value value_proj to_v v_linear linear_v v_proj_weight",
    qkv="qkv wqkv w_qkv qkv_proj to_qkv c_attn in_proj in_proj_weight query_key_value",
    kv="kv wkv w_kv kv_proj to_kv",
    out="o wo w_o o_proj out out_proj output_proj w_out to_out o_linear linear_out out_linear fc_out dense c_proj proj "
    "output",
    q_norm="q_norm norm_q q_layernorm",
    k_norm="k_norm norm_k k_layernorm",
)
_GATED = _table(
    gate="gate w1 gate_proj w_gate w linear_gate fc_gate",
    up="up w3 up_proj w_up v linear_up fc_up",
    down="down w2 down_proj w_down linear_down fc_down c_proj proj out out_proj fc2",
    gate_up="gate_up gate_up_proj w13 w12",
)
_PLAIN = _table(
    up="up w1 up_proj fc1 fc c_fc linear1 lin1 dense_h_to_4h fc_in w_in",
    down="down w2 down_proj fc2 c_proj linear2 lin2 dense_4h_to_h fc_out w_out proj out_proj",
)
_AROUND = _table(
    attention_norm="attention_norms attention_norm attn_norm input_layernorm ln1 ln_1 norm1 norm_1 "
    "rms1 rms_1 rmsnorm1 ln_attn attn_ln norm_attn",
    mlp_norm="mlp_norms mlp_norm ffn_norm ff_norm post_attention_layernorm ln2 ln_2 norm2 norm_2 "
    "rms2 rms_2 rmsnorm2 ln_mlp ln_ffn norm_ffn norm_mlp",
    norm="norm ln_f norm_f final_norm ln_final final_layernorm norm_final final_ln ln_out rms_final norm_out",
    embedding="embedding embed embeddings token_embedding token_embeddings tok_embeddings tok_emb "
    "embed_tokens wte emb word_embeddings",
    head="head lm_head output unembed unembedding out_proj proj_out to_logits output_layer",
)
_OF_ATTENTION = {"attention", "attn", "self_attn", "self_attention", "mha", "sa", "att", "gqa", "mqa"}
_OF_MLP = {"mlp", "ffn", "ff", "feed_forward", "feedforward", "swiglu", "glu", "ffwd"}
_KINDS = _table(weight="weight weights w gamma g scale", bias="bias b beta")

FUSED: Mapping[str, tuple[str, ...]] = {"qkv": ("q", "k", "v"), "kv": ("k", "v"), "gate_up": ("gate", "up")}
"""Roles of matrices that hold several of archlab's matrices, one below the other."""


class Role(NamedTuple):
    """Role of a parameter in a model."""

    layer: int | None
    """Index of its layer. None outside layers, and if only one layer is compared."""
    name: str
    """`q`, `gate`, `attention_norm` and so on. Empty if only its kind is known."""
    kind: str
    """weight or bias."""

    @property
    def parts(self) -> tuple["Role", ...]:
        """The roles that one parameter with this role plays: several for a fused matrix, otherwise itself."""
        return tuple(self._replace(name=name) for name in FUSED.get(self.name, (self.name,)))


def role_of(name: str, part: Part, *, is_gated: bool) -> Role:
    """Return the role that a parameter's name stands for, such as that of `layers.0.attn.q_proj.weight`.

    `part` is the part of the model that the names belong to.
    """
    words = name.lower().split(".")
    kind = _KINDS.get(words[-1])
    if kind is not None and (len(words) > 1 or words[-1] not in "wb"):
        words = words[:-1]
    for suffix in ("weight", "bias"):
        if kind is None and words[-1].endswith(f"_{suffix}"):
            kind, words[-1] = suffix, words[-1].removesuffix(f"_{suffix}")
    layer = next((int(word) for word in words if word.isdigit()), None) if part == "model" else None
    section = part
    for word in words:
        section = "attention" if word in _OF_ATTENTION else "mlp" if word in _OF_MLP else section
    tables = {"attention": (_ATTENTION,), "mlp": (_GATED if is_gated else _PLAIN,), "norm": (), "rotary": ()}
    for word in reversed(words):
        for table in tables.get(section, (_AROUND, _ATTENTION, _GATED if is_gated else _PLAIN)):
            if word in table:
                return Role(layer, table[word], kind or "weight")
    return Role(layer, "", kind or "weight")
