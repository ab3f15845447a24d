"""The decoder-only Transformer that a ModelConfig describes. Shapes: B batch, T tokens, D d_model, V vocabulary."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from archlab.config.layers import LayerConfig, layer_configs, resolve
from archlab.config.model_schema import ModelConfig, NoNorm, Rope
from archlab.model.attention import View
from archlab.model.block import Block
from archlab.model.init import Projection, Role, initialise
from archlab.model.norms import make_norm
from archlab.model.position_embed import make_positions
from archlab.model.rotary import rotation
from archlab.model.visibility import is_plain_causal, visible


class TokenEmbedding(nn.Module):
    """A row per token, times the config's scale."""

    role: Role = "embedding"

    def __init__(self, vocab_size: int, d_model: int, scale: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocab_size, d_model))
        self.scale = scale

    def forward(self, tokens_BT: Tensor) -> Tensor:
        """[B, T] int64 -> [B, T, D]."""
        return F.embedding(tokens_BT, self.weight) * self.scale


class Head(nn.Module):
    """Hidden states to logits, with a matrix of its own or the embedding's."""

    role: Role = "head"

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.weight = None if config.head.tied else nn.Parameter(torch.empty(config.vocab_size, config.d_model))
        self.bias = nn.Parameter(torch.empty(config.vocab_size)) if config.head.bias else None

    def forward(self, x_BTD: Tensor, embedding_VD: Tensor) -> Tensor:
        """[B, T, D] -> [B, T, V]."""
        return F.linear(x_BTD, embedding_VD if self.weight is None else self.weight, self.bias)


class Decoder(nn.Module):
    """tokens -> logits. `seed` decides the initial values; `kernel` is how attention is computed (see kernels.py)."""

    def __init__(self, config: ModelConfig, *, seed: int = 0, kernel: str = "sdpa") -> None:
        super().__init__()
        self.config = config
        self.layer_configs = layer_configs(config)
        self.embedding = TokenEmbedding(config.vocab_size, config.d_model, _scale(config))
        self.positions = make_positions(config)
        self.dropout = nn.Dropout(config.dropout.embedding)
        self.layers = nn.ModuleList(Block(layer, kernel) for layer in self.layer_configs)
        self.norm = make_norm(NoNorm() if _normed_by_last_block(config) else config.norm, config.d_model)
        self.head = Head(config)
        initialise(self, config, seed)

    def forward(self, tokens_BT: Tensor) -> Tensor:
        """[B, T] int64 -> [B, T, V] logits."""
        return self.head(self.hidden(tokens_BT), self.embedding.weight)

    def hidden(self, tokens_BT: Tensor) -> Tensor:
        """[B, T] int64 -> [B, T, D], after the final norm."""
        positions_T = torch.arange(tokens_BT.shape[1], device=tokens_BT.device)
        x_BTD = self.embedding(tokens_BT)
        if self.positions is not None:
            x_BTD = x_BTD + self.positions(positions_T).to(x_BTD.dtype)
        x_BTD = self.dropout(x_BTD)
        views = {layer: _view(layer, positions_T) for layer in dict.fromkeys(self.layer_configs)}
        for layer, block in zip(self.layer_configs, self.layers, strict=True):
            x_BTD = block(x_BTD, views[layer])
        return self.norm(x_BTD)


def _view(layer: LayerConfig, positions_T: Tensor) -> View:
    plain = is_plain_causal(layer.attention, len(positions_T))
    mask = None if plain else visible(layer.attention, positions_T[:, None], positions_T[None, :])
    turn = rotation(layer.position, layer.attention.head_dim, positions_T) if isinstance(layer.position, Rope) else None
    return View(mask, turn)


def _normed_by_last_block(config: ModelConfig) -> bool:
    return not isinstance(config.norm, NoNorm) and config.norm.placement == "post"


def _scale(config: ModelConfig) -> float:
    return float(resolve(config).embedding.scale)
