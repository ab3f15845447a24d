"""Attention: projections, norms and turns of queries and keys, then torch's fused softmax or one written out."""

from archlab.config.base import Base
from archlab.config.norm import NoNorm
from archlab.config.position import T5, Rope, Shaw
from archlab.flatten.bias import scale, t5_bucket
from archlab.flatten.kinds import Kind
from archlab.flatten.norms import norm
from archlab.flatten.page import Page, lines
from archlab.flatten.rotary import turn
from archlab.flatten.shared import Shared


def attention(page: Page, kind: Kind, shared: Shared) -> str:
    """The name of the class."""
    layer, config = kind.layer, kind.layer.multi_head
    D, H = page.constant("", "D_MODEL", layer.d_model), page.constant(kind.name, "N_HEADS", config.n_heads)
    C = page.constant(kind.name, "HEAD_DIM", config.head_dim)
    K = H if _is_mha(kind) else page.constant(kind.name, "N_KV_HEADS", config.n_kv_heads)
    V, w = (C, "C") if config.v_dim == config.head_dim else (page.constant(kind.name, "V_DIM", config.v_dim), "W")
    bias = "" if config.qkv_bias else ", bias=False"
    per_key_head = "K" if K != H else "H"
    q_norm, k_norm = (_head_norm(page, kind, heads) for heads in (H, K))
    sub_norm = norm(page, kind.name, layer.norm, f"{H} * {V}") if config.sub_norm else None
    table = _table(page, kind, H, C)
    return page.define(
        kind.name,
        "Attention",
        lines(
            "class <name>(nn.Module):",
            f'    """{_describe(kind)}"""',
            "",
            "    def __init__(self) -> None:",
            "        super().__init__()",
            f"        self.q = nn.Linear({D}, {H} * {C}{bias})",
            f"        self.k = nn.Linear({D}, {K} * {C}{bias})",
            f"        self.v = nn.Linear({D}, {K} * {V}{bias})",
            [f"        self.q_norm = {q_norm}", f"        self.k_norm = {k_norm}"] if q_norm else None,
            f"        self.position_bias = {table}" if table else None,
            f"        self.sub_norm = {sub_norm}" if sub_norm else None,
            f"        self.out = nn.Linear({H} * {V}, {D}{'' if config.out_bias else ', bias=False'})",
            "",
            f"    def forward({', '.join(['self', 'x_BTD: Tensor', *shared.parameters])}) -> Tensor:",
            '        """[B, T, D] -> [B, T, D]."""',
            _project(page, kind, "q_BTHC", H, C),
            _project(page, kind, f"k_BT{per_key_head}C", K, C),
            _project(page, kind, f"v_BT{per_key_head}{w}", K, V),
            _place(page, kind, "q_BTHC", "q", shared),
            _place(page, kind, f"k_BT{per_key_head}C", "k", shared),
            "        q_BHTC = q_BTHC.transpose(1, 2)",
            f"        k_B{per_key_head}SC = k_BT{per_key_head}C.transpose(1, 2)",
            f"        v_B{per_key_head}S{w} = v_BT{per_key_head}{w}.transpose(1, 2)",
            _own_bias(page, kind),
            _softmax(page, kind, per_key_head, w, H, K, shared),
            f"        mixed_BTE = mixed_BHT{w}.transpose(1, 2).flatten(-2)",
            "        mixed_BTE = self.sub_norm(mixed_BTE)  # BitNet (Wang 2023)" if sub_norm else None,
            "        return self.out(mixed_BTE)",
        ),
    )


def _is_mha(kind: Kind) -> bool:
    return kind.layer.multi_head.n_kv_heads == kind.layer.multi_head.n_heads


def _describe(kind: Kind) -> str:
    heads, kv_heads = kind.layer.multi_head.n_heads, kind.layer.multi_head.n_kv_heads
    if heads == kv_heads:
        return "Every head weighs the values it sees by softmax(q.k) (Vaswani 2017)."
    if kv_heads == 1:
        return "softmax(q.k) v per head; all share one key and value (MQA, Shazeer 2019)."
    return f"softmax(q.k) v per head; {heads // kv_heads} heads share a key and value (GQA, Ainslie 2023)."


def _numbers(norm: Base) -> dict[str, float]:
    """What the file has constants for."""
    return {name: value for name, value in norm if isinstance(value, float)}


def _head_norm(page: Page, kind: Kind, heads: str) -> str | None:
    """What makes the norm of queries or keys; None for none."""
    config = kind.layer.multi_head.qk_norm
    if isinstance(config, NoNorm):
        return None
    C = page.constant(kind.name, "HEAD_DIM", kind.layer.multi_head.head_dim)
    prefix = "" if _numbers(kind.layer.norm) == _numbers(config) else "QK_"
    shape = {"head": (C,), "each_head": ("heads", C), "width": (f"heads * {C}",)}[config.scope]
    made = norm(page, kind.name, config, *shape, prefix=prefix)
    needs_heads = config.scope != "head" and "heads" in str(made)
    about = {
        "head": "Normalises each head's query or key (QK-norm, Henry 2020).",
        "each_head": "Normalises each head's query or key, by weights of its own (Henry 2020).",
        "width": "Normalises the queries or keys of all heads at once (Henry 2020).",
    }[config.scope]
    name = page.define(
        kind.name,
        "HeadNorm",
        lines(
            "class <name>(nn.Module):",
            f'    """{about}"""',
            "",
            f"    def __init__(self{', heads: int' if needs_heads else ''}) -> None:",
            "        super().__init__()",
            f"        self.norm = {made}",
            "",
            "    def forward(self, x_BTHC: Tensor) -> Tensor:",
            '        """[B, T, H, C] -> [B, T, H, C]."""',
            "        return self.norm(x_BTHC.flatten(-2)).view_as(x_BTHC)"
            if config.scope == "width"
            else "        return self.norm(x_BTHC)",
        ),
    )
    return f"{name}({heads if needs_heads else ''})"


def _project(page: Page, kind: Kind, result: str, heads: str, width: str) -> list[str]:
    clip = kind.layer.multi_head.clip_qkv
    out = [f"        {result} = self.{result[0]}(x_BTD).unflatten(-1, ({heads}, {width}))"]
    if clip is not None:
        limit = page.constant(kind.name, "CLIP_QKV", clip, "queries, keys and values stay within +-")
        out.append(f"        {result} = {result}.clamp(-{limit}, {limit})")
    return out


def _place(page: Page, kind: Kind, x: str, name: str, shared: Shared) -> str | None:
    """Normalised and turned, in the config's order."""
    position = kind.layer.position
    normed = not isinstance(kind.layer.multi_head.qk_norm, NoNorm)
    if not shared.rope:
        return f"        {x} = self.{name}_norm({x})" if normed else None
    like = position if isinstance(position, Rope) else shared.rope
    function = turn(page, kind, like)
    if not normed:
        return f"        {x} = {function}({x}, *rotation)"
    if like.order == "before_qk_norm":
        return f"        {x} = self.{name}_norm({function}({x}, *rotation))"
    return f"        {x} = {function}(self.{name}_norm({x}), *rotation)"


def _table(page: Page, kind: Kind, H: str, C: str) -> str | None:
    """The layer's own learned table of distances, if it has one."""
    match kind.layer.position:
        case T5(shared=False) as config:
            return f"nn.Embedding({page.constant(kind.name, 'BUCKETS', config.buckets)}, {H})"
        case Shaw(max_distance=max_distance):
            furthest = page.constant(kind.name, "MAX_DISTANCE", max_distance, "further ones share a vector")
            return f"nn.Embedding({furthest} + 1, {C})"
        case _:
            return None


def _own_bias(page: Page, kind: Kind) -> list[str] | None:
    """Lines that make this layer's `bias` of the scores from its own table."""
    where = "        position_T = torch.arange(x_BTD.shape[1], device=x_BTD.device)"
    match kind.layer.position:
        case T5(shared=False) as config:
            function = t5_bucket(page, kind.name, config)
            return [where, f"        bias_HTS = self.position_bias({function}(position_T)).permute(2, 0, 1)"]
        case Shaw(max_distance=max_distance):
            furthest = page.constant(kind.name, "MAX_DISTANCE", max_distance)
            return [
                "        # q.(k + a), a a learned vector per distance (Shaw 2018)",
                where,
                f"        distance_TS = (position_T[:, None] - position_T).clamp(0, {furthest})",
                f"        by_distance_BHTN = q_BHTC @ self.position_bias.weight.T * {scale(page, kind)}",
                "        index_BHTS = distance_TS.expand(*q_BHTC.shape[:2], -1, -1)",
                "        bias_BHTS = by_distance_BHTN.gather(-1, index_BHTS)",
            ]
        case _:
            return None


def _softmax(page: Page, kind: Kind, letter: str, w: str, H: str, K: str, shared: Shared) -> list[str]:
    config, position = kind.layer.multi_head, kind.layer.position
    bias = "bias_BHTS" if isinstance(position, Shaw) else "bias_HTS" if shared.is_biased(kind) else None
    dropout = kind.layer.dropout.attention
    rate = page.constant(kind.name, "ATTENTION_DROPOUT", dropout) if dropout else None
    if config.softcap is None:
        factor = scale(page, kind)
        mask = ["        mask = " + f"{bias}.masked_fill(~seen_TS, -math.inf)"] if bias else []
        given = "attn_mask=mask.type_as(q_BHTC)" if bias else "attn_mask=seen_TS" if shared.masked else "is_causal=True"
        arguments = ["q_BHTC", f"k_B{letter}SC", f"v_B{letter}S{w}", given]
        arguments += [f"dropout_p={rate} * self.training"] if rate else []
        arguments += [] if "**-0.5" in factor else [f"scale={factor}"]
        arguments += [] if _is_mha(kind) else ["enable_gqa=True"]
        return [*mask, f"        mixed_BHT{w} = F.scaled_dot_product_attention({', '.join(arguments)})"]
    cap = page.constant(kind.name, "SOFTCAP", config.softcap, "of the scores")
    repeated = []
    if letter == "K":
        repeated = [f"        k_BHSC = k_BKSC.repeat_interleave({H} // {K}, dim=1)"]
        repeated += [f"        v_BHS{w} = v_BKS{w}.repeat_interleave({H} // {K}, dim=1)"]
    return [
        *repeated,
        f"        scores_BHTS = q_BHTC.float() @ k_BHSC.float().mT * {scale(page, kind)}",
        *([f"        scores_BHTS = scores_BHTS + {bias}"] if bias else []),
        f"        scores_BHTS = {cap} * torch.tanh(scores_BHTS / {cap})  # Gemma 2",
        "        scores_BHTS = scores_BHTS.masked_fill(~seen_TS, -math.inf)",
        f"        weights_BHTS = scores_BHTS.softmax(-1).type_as(v_BHS{w})",
        *([f"        weights_BHTS = F.dropout(weights_BHTS, {rate}, self.training)"] if rate else []),
        f"        mixed_BHT{w} = weights_BHTS @ v_BHS{w}",
    ]
