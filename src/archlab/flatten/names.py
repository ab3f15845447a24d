"""What a file calls the numbers of a config."""

import ast
import math

from archlab.config.components import position
from archlab.config.core.base import Base

NAMES = {
    "vocab_size": "VOCAB_SIZE", "Embedding.width": "EMBEDDING_WIDTH", "Embedding.scale": "EMBEDDING_SCALE",
    "Head.scale": "LOGIT_SCALE", "Head.softcap": "LOGIT_SOFTCAP", "Dropout.embedding": "EMBEDDING_DROPOUT",
    "Dropout.attention": "ATTENTION_DROPOUT", "Dropout.branch": "BRANCH_DROPOUT",
    "eps": "NORM_EPS", "norm_eps": "NORM_EPS",
    "DynamicTanh.alpha": "NORM_ALPHA", "Rope.theta": "ROPE_THETA", "Sinusoidal.theta": "WAVE_THETA",
    "Sinusoidal.offset": "FIRST_POSITION", "Learned.offset": "FIRST_POSITION", "original_max_seq_len": "ORIGINAL_LEN",
    "MoE.experts": "N_EXPERTS", "MoE.active": "ACTIVE_EXPERTS", "MoE.d_ff": "D_EXPERT",
    "Router.factor": "EXPERT_FACTOR", "Groups.n": "N_GROUPS", "Groups.kept": "KEPT_GROUPS",
    "BlockSparse.size": "BLOCK_SIZE", "Temperature.beta": "TEMPERATURE_BETA",
    "Temperature.length": "TEMPERATURE_LENGTH",
    "Temperature.offset": "TEMPERATURE_OFFSET", "d_ff": "D_FF",
    **{f"{cls.__name__}.factor": "ROPE_FACTOR" for cls in vars(position).values()
       if isinstance(cls, type) and "factor" in getattr(cls, "model_fields", {})},
}  # fmt: skip
"""Field, of any section or of one -> constant. Others are called as their field is."""

COMMENTS = {
    "LAST_KEPT": "pairs up to here rotate as without YaRN",
    "FIRST_SLOWED": "from here on they rotate ROPE_FACTOR times slower", "ROTARY_DIM": "of each head; the others stay",
    "SLOPES": "of the heads",
    "WINDOW": "keys that a query sees, its own included", "SOFTCAP": "of the scores",
    "ACTIVE_EXPERTS": "that each token passes through", "D_EXPERT": "of each expert",
    "EXPERT_FACTOR": "on the weights of experts", "KEPT_GROUPS": "whose experts a token may choose",
    "SUMMARY": "last keys of a block that later ones see", "MAX_DISTANCE": "further ones are alike",
    "STRIDE": "beyond the window, one key in so many is seen", "GLOBAL_TOKENS": "at the start, seen by all",
    "CLIP_QKV": "queries, keys and values stay within +-", "MAX_SEQ_LEN": "learned positions end here",
}  # fmt: skip
"""Constant -> what it says."""

SAME = {"v_dim": "head_dim", "n_kv_heads": "n_heads"}
"""Fields that go by the name of another where both are equal."""


def constant_name(owner: Base, field: str) -> str:
    """What the file calls a field's number."""
    same = SAME.get(field, "")
    field = same if getattr(owner, same, None) == getattr(owner, field) else field
    return NAMES.get(f"{type(owner).__name__}.{field}") or NAMES.get(field) or field.upper()


def constant(name: str, value: object) -> ast.Name:
    """Where the file reads a constant; it stands at the top if anything does."""
    node = ast.Name(name, ast.Load())
    node.constant = value  # pyright: ignore[reportAttributeAccessIssue]
    return node


def root(value: float, width: int) -> str:
    """How a file says a number that is the root of a width, or one over it; empty for another number."""
    return {math.sqrt(width): "math.sqrt(width)", 1 / math.sqrt(width): "1 / math.sqrt(width)"}.get(value, "")
