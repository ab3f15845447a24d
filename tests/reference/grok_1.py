"""Grok-1 as the PyTorch port computes it, expert by expert. transformers has no class for it, so this one is registered.

The facts come from configuration_grok1.py and modeling_grok1.py in hpcai-tech/grok-1: the keys of config.json and their
defaults, the names of the tensors, and the formulas. Importing this module makes `grok-1` known to transformers.
"""

from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers import DynamicCache, GenerationMixin, PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast

THETA = 10000.0


class Grok1Config(PreTrainedConfig):
    """The keys that the port declares, with its defaults."""

    model_type = "grok-1"
    vocab_size: int = 32000
    hidden_size: int = 4096
    intermediate_size: int = 32768
    num_hidden_layers: int = 32
    num_attention_heads: int = 32
    num_key_value_heads: int | None = 32
    attn_output_multiplier: float = 1.0
    max_attn_value: float = 1.0
    max_position_embeddings: int = 4096
    embedding_multiplier_scale: float = 1.0
    output_multiplier_scale: float = 1.0
    rms_norm_eps: float = 1e-5
    use_cache: bool = True
    pad_token_id: int | None = None
    bos_token_id: int | None = 1
    eos_token_id: int | None = 2
    tie_word_embeddings: bool = True
    num_experts_per_tok: int = 2
    num_experts: int = 8
    output_router_logits: bool = False
    router_aux_loss_coef: float = 0.001


class ScaledNorm(nn.Module):
    """x / rms(x) * scale in at least float32, then cast to the type of x."""

    def __init__(self, config: Grok1Config) -> None:
        super().__init__()
        self.scale, self.eps = nn.Parameter(torch.ones(config.hidden_size)), config.rms_norm_eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        return (wide / (wide.square().mean(-1, keepdim=True) + self.eps).sqrt() * self.scale).to(x.dtype)


def rotated(x_BHTC: Tensor, first: int) -> Tensor:
    """Turn dimension c and dimension c + C / 2 of token t by (first + t) / theta^(2c / C)."""
    T, half = x_BHTC.shape[-2], x_BHTC.shape[-1] // 2
    angles = torch.arange(first, first + T)[:, None] * THETA ** (-torch.arange(half, dtype=torch.float64) / half)
    cos, sin = angles.cos().to(x_BHTC.dtype), angles.sin().to(x_BHTC.dtype)
    a, b = x_BHTC.split(half, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class Attention(nn.Module):
    """Causal attention whose scores are multiplied by `attn_output_multiplier`, then capped, then masked."""

    def __init__(self, config: Grok1Config, index: int) -> None:
        super().__init__()
        self.config, self.index, D = config, index, config.hidden_size
        self.head_dim = D // config.num_attention_heads
        kv_width = (config.num_key_value_heads or config.num_attention_heads) * self.head_dim
        self.q_proj = nn.Linear(D, D, bias=False)
        self.k_proj = nn.Linear(D, kv_width, bias=False)
        self.v_proj = nn.Linear(D, kv_width, bias=False)
        self.o_proj = nn.Linear(D, D, bias=False)

    def forward(self, x_BTD: Tensor, first: int, cache: DynamicCache | None) -> Tensor:
        q, k, v = (
            project(x_BTD).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        q, k = rotated(q, first), rotated(k, first)
        if cache is not None:
            k, v = cache.update(k, v, self.index)
        group = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        wide = torch.promote_types(q.dtype, torch.float32)
        scores = (q @ k.mT).to(wide) * self.config.attn_output_multiplier
        scores = self.config.max_attn_value * (scores / self.config.max_attn_value).tanh()
        is_later = torch.arange(k.shape[2]) > first + torch.arange(q.shape[2])[:, None]
        weights = scores.masked_fill(is_later, float("-inf")).softmax(-1).to(q.dtype)
        return self.o_proj((weights @ v).transpose(1, 2).flatten(2))


class Expert(nn.Module):
    """A gated MLP with the erf form of GELU."""

    def __init__(self, config: Grok1Config) -> None:
        super().__init__()
        D, F = config.hidden_size, config.intermediate_size
        self.linear, self.linear_v = nn.Linear(D, F, bias=False), nn.Linear(D, F, bias=False)
        self.linear_1 = nn.Linear(F, D, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        z = self.linear(x)
        return self.linear_1(z * (1 + (z / 2**0.5).erf()) / 2 * self.linear_v(x))


class Mixture(nn.Module):
    """The sum of the best experts' outputs, each multiplied by its softmax over all experts."""

    def __init__(self, config: Grok1Config) -> None:
        super().__init__()
        self.active = config.num_experts_per_tok
        self.gate = nn.Linear(config.hidden_size, config.num_experts, bias=False)
        self.experts = nn.ModuleList([Expert(config) for _ in range(config.num_experts)])

    def forward(self, x_BTD: Tensor) -> Tensor:
        x_ND = x_BTD.flatten(0, 1)
        logits_NE = self.gate(x_ND)
        shares_NE = logits_NE.softmax(-1, dtype=torch.promote_types(logits_NE.dtype, torch.float32)).to(x_ND.dtype)
        least_N1 = logits_NE.topk(self.active).values[:, -1:]
        y_ND = torch.zeros_like(x_ND)
        for e, expert in enumerate(self.experts):
            rows = (logits_NE[:, e] >= least_N1[:, 0]).nonzero()[:, 0]
            y_ND[rows] += expert(x_ND[rows]) * shares_NE[rows, e, None]
        return y_ND.view_as(x_BTD)


class Layer(nn.Module):
    """Attention and mixture, each with a norm before it and another one after it."""

    def __init__(self, config: Grok1Config, index: int) -> None:
        super().__init__()
        self.attn, self.moe_block = Attention(config, index), Mixture(config)
        self.pre_attn_norm, self.post_attn_norm = ScaledNorm(config), ScaledNorm(config)
        self.pre_moe_norm, self.post_moe_norm = ScaledNorm(config), ScaledNorm(config)

    def forward(self, x: Tensor, first: int, cache: DynamicCache | None) -> Tensor:
        x = x + self.post_attn_norm(self.attn(self.pre_attn_norm(x), first, cache))
        return x + self.post_moe_norm(self.moe_block(self.pre_moe_norm(x)))


class Body(nn.Module):
    """The modules whose tensors begin with `model.`."""

    def __init__(self, config: Grok1Config) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList([Layer(config, i) for i in range(config.num_hidden_layers)])
        self.norm = ScaledNorm(config)


class Grok1ModelForCausalLM(PreTrainedModel, GenerationMixin):
    """The whole model."""

    config_class = Grok1Config
    base_model_prefix = "model"
    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}  # noqa: RUF012 - transformers declares it so

    def __init__(self, config: Grok1Config) -> None:
        super().__init__(config)
        self.model, self.lm_head = Body(config), nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.model.embed_tokens

    def get_output_embeddings(self) -> nn.Module:
        return self.lm_head

    def forward(
        self,
        input_ids: Tensor,
        past_key_values: DynamicCache | None = None,
        use_cache: bool = False,
        **_: Any,
    ) -> CausalLMOutputWithPast:
        if use_cache and past_key_values is None:
            past_key_values = DynamicCache(config=self.config)
        first = 0 if past_key_values is None else past_key_values.get_seq_length()
        x = self.model.embed_tokens(input_ids) * self.config.embedding_multiplier_scale
        for layer in self.model.layers:
            x = layer(x, first, past_key_values)
        logits = self.lm_head(self.model.norm(x)) * self.config.output_multiplier_scale
        return CausalLMOutputWithPast(logits=logits, past_key_values=past_key_values)


transformers.AutoConfig.register("grok-1", Grok1Config, exist_ok=True)
transformers.AutoModelForCausalLM.register(Grok1Config, Grok1ModelForCausalLM, exist_ok=True)
