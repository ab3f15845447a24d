"""Changes to the weights and the config of trained models."""

import torch
from torch import Tensor

from archlab.config.components.multi_head import MultiHead
from archlab.config.core.merge import expand
from archlab.config.io import build_config, overlay
from archlab.config.model_schema import ModelConfig
from archlab.config.schema import Config
from archlab.errors import UserError
from archlab.model.attention import MultiHeadAttention
from archlab.model.decoder import Decoder


def pool_kv_heads(model: Decoder, n_kv_heads: int) -> Decoder:
    """Return the model with fewer key/value heads, as in Ainslie 2023.

    Each new head is the mean of a group of adjacent heads, because adjacent query heads share a key/value head. If the
    number of heads stays the same, the model does not change. Raise UserError if `n_kv_heads` does not divide the
    number of heads of every layer.
    """
    attentions = {name: module for name, module in model.named_modules() if isinstance(module, MultiHeadAttention)}
    counts = {module.config.n_kv_heads for module in attentions.values()}
    wrong = sorted(n for n in counts if n_kv_heads < 1 or n % n_kv_heads)
    if wrong:
        allowed = ", ".join(str(k) for k in range(1, min(counts) + 1) if all(n % k == 0 for n in counts))
        raise UserError(f"n_kv_heads is {n_kv_heads}, which does not divide the model's {wrong[0]}; allowed: {allowed}")
    with torch.device("meta"):
        pooled = Decoder(_with_kv_heads(model.config, n_kv_heads), seed=None)
    weights, shapes = model.state_dict(), {name: tensor.shape for name, tensor in pooled.state_dict().items()}
    for place, module in attentions.items():
        for name in module.state_dict():
            full = f"{place}.{name}"
            weights[full] = _pooled(weights[full], shapes[full], module.config, name)
    pooled.load_state_dict(weights, assign=True)
    pooled.origin = model.origin
    return pooled.train(model.training)


def _pooled(tensor: Tensor, shape: torch.Size, attention: MultiHead, name: str) -> Tensor:
    if tensor.shape == shape:
        return tensor
    width = attention.v_dim if name.startswith("v.") else attention.head_dim
    if name == "k_norm.norm.weight" and tensor.dim() == 2:  # one row per head
        width = 1
    heads = tensor.unflatten(0, (-1, width))
    wide = heads.to(torch.promote_types(tensor.dtype, torch.float32))
    averages = wide.unflatten(0, (shape[0] // width, -1)).mean(1)
    return averages.flatten(0, 1).to(tensor.dtype)


def _with_kv_heads(config: ModelConfig, n_kv_heads: int) -> ModelConfig:
    kinds = config.layers.kinds if config.layers else {}
    changes = {"model.attention.n_kv_heads": n_kv_heads} | {
        f"model.layers.{kind}.attention.n_kv_heads": n_kv_heads
        for kind, change in kinds.items()
        if "n_kv_heads" in expand(change).get("attention", {})
    }
    if config.encoder is not None:
        overrides = expand(config.encoder.overrides).get("attention", {})
        changes |= {"model.encoder.attention.n_kv_heads": n_kv_heads} if "n_kv_heads" in overrides else {}
        changes |= {"model.encoder.cross.n_kv_heads": n_kv_heads} if "n_kv_heads" in config.encoder.cross else {}
    placeholder = {"train.seq_len": 1, "train.batch_tokens": 1}
    return build_config(overlay(overlay({"model": config.model_dump()}, placeholder, Config), changes, Config)).model
