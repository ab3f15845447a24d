"""The same Llama-shaped model in archlab and in three training libraries."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import AdamW


@dataclass(frozen=True)
class Shape:
    """Shape of a model with SwiGLU, RMSNorm, RoPE and no biases."""

    vocab_size: int
    d_model: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    d_ff: int
    seq_len: int
    batch: int

    @property
    def tokens(self) -> int:
        """Number of tokens per step."""
        return self.seq_len * self.batch


SHAPES = {
    "1.3m": Shape(2048, 128, 6, 4, 2, 344, 128, 8),
    "15.7m": Shape(8192, 384, 6, 6, 2, 1024, 256, 8),
    "243m": Shape(32768, 1024, 16, 16, 8, 2816, 512, 2),
    "1b": Shape(32768, 2048, 16, 32, 8, 8192, 2048, 4),
}


def transformers_config(shape: Shape) -> Any:
    """Return the config of transformers' Llama."""
    from transformers.models.llama.configuration_llama import LlamaConfig

    return LlamaConfig(
        vocab_size=shape.vocab_size, hidden_size=shape.d_model, intermediate_size=shape.d_ff,
        num_hidden_layers=shape.n_layers, num_attention_heads=shape.n_heads, num_key_value_heads=shape.n_kv_heads,
        max_position_embeddings=max(shape.seq_len, 4096), tie_word_embeddings=False,
    )  # fmt: skip


def build_transformers(shape: Shape) -> nn.Module:
    from transformers.models.llama.modeling_llama import LlamaForCausalLM

    return LlamaForCausalLM(transformers_config(shape))


def build_litgpt(shape: Shape) -> nn.Module:
    from litgpt import GPT, Config  # pyright: ignore[reportMissingImports]

    return GPT(
        Config(
            vocab_size=shape.vocab_size, padded_vocab_size=shape.vocab_size, n_embd=shape.d_model,
            n_layer=shape.n_layers, n_head=shape.n_heads, n_query_groups=shape.n_kv_heads, block_size=shape.seq_len,
            intermediate_size=shape.d_ff, norm_class_name="RMSNorm", mlp_class_name="LLaMAMLP", bias=False,
            parallel_residual=False, rotary_percentage=1.0,
        )
    )  # fmt: skip


def build_x_transformers(shape: Shape) -> nn.Module:
    from x_transformers import Decoder, TransformerWrapper  # pyright: ignore[reportMissingImports]

    width = shape.d_model // shape.n_heads
    return TransformerWrapper(
        num_tokens=shape.vocab_size, max_seq_len=shape.seq_len, use_abs_pos_emb=False,
        attn_layers=Decoder(
            dim=shape.d_model, depth=shape.n_layers, heads=shape.n_heads, attn_kv_heads=shape.n_kv_heads,
            attn_dim_head=width, rotary_pos_emb=True, rotary_emb_dim=width, use_rmsnorm=True, ff_glu=True,
            ff_swish=True, ff_no_bias=True, ff_mult=shape.d_ff / shape.d_model, attn_flash=True,
        ),
    )  # fmt: skip


PEERS = {"transformers": build_transformers, "litgpt": build_litgpt, "x-transformers": build_x_transformers}


def logits_of(output: Any) -> Tensor:
    """Return the logits, which transformers wraps in an object."""
    return output if isinstance(output, Tensor) else output.logits


def loss_of(run: Callable[[Tensor], Any], text_BT: Tensor, format_: str) -> Tensor:
    """Return the cross-entropy of each token given the tokens before it."""
    with torch.autocast(text_BT.device.type, torch.bfloat16, enabled=format_ == "bfloat16"):
        logits = logits_of(run(text_BT[:, :-1]))
        return F.cross_entropy(logits.flatten(0, 1).float(), text_BT[:, 1:].flatten())


def textbook_step(model: nn.Module, run: Callable[[Tensor], Any], text_BT: Tensor, format_: str) -> Callable[[], None]:
    """Return one step of a plain training loop around a library's model; `run` is the model or its compiled form."""
    optimizer = AdamW(model.parameters(), lr=1e-4, fused=True)

    def step() -> None:
        loss = loss_of(run, text_BT, format_)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        loss.item()

    return step


def archlab_overrides(shape: Shape) -> list[str]:
    """Return the overrides that give the preset tiny-llama this shape."""
    return [
        f"model.vocab_size={shape.vocab_size}", f"model.d_model={shape.d_model}", f"model.n_layers={shape.n_layers}",
        f"model.attention={{n_heads: {shape.n_heads}, n_kv_heads: {shape.n_kv_heads}}}",
        f"model.mlp.d_ff={shape.d_ff}", f"model.max_seq_len={max(shape.seq_len, 4096)}", "model.head.tied=false",
        "model.embedding.scale=1.0", f"train.seq_len={shape.seq_len}", f"train.batch_tokens={shape.tokens}",
    ]  # fmt: skip
