"""Changes to the weights and the config of trained models."""

import torch
from torch import Tensor

from archlab.config.core.merge import expand
from archlab.config.io import build_config, overlay
from archlab.config.layers import layer_configs
from archlab.config.model_schema import ModelConfig
from archlab.config.schema import Config
from archlab.errors import UserError
from archlab.model.decoder import Decoder


def pool_kv_heads(model: Decoder, n_kv_heads: int) -> Decoder:
    """Return the model with fewer key/value heads, as in Ainslie 2023.

    Each new head is the mean of a group of adjacent heads, because adjacent query heads share a key/value head. If the
    number of heads stays the same, the model does not change. Raise UserError if `n_kv_heads` does not divide the
    number of heads of every layer.
    """
    counts = {layer.multi_head.n_kv_heads for layer in layer_configs(model.config)}
    wrong = sorted(n for n in counts if n_kv_heads < 1 or n % n_kv_heads)
    if wrong:
        allowed = ", ".join(str(k) for k in range(1, min(counts) + 1) if all(n % k == 0 for n in counts))
        raise UserError(f"n_kv_heads is {n_kv_heads}, which does not divide the model's {wrong[0]}; allowed: {allowed}")
    with torch.device("meta"):
        pooled = Decoder(_with_kv_heads(model.config, n_kv_heads), seed=None)
    shapes = {name: tensor.shape for name, tensor in pooled.state_dict().items()}
    pooled.load_state_dict(
        {name: _pooled(tensor, shapes[name], model, name) for name, tensor in model.state_dict().items()}, assign=True
    )
    pooled.origin = model.origin
    return pooled.train(model.training)


def _pooled(tensor: Tensor, shape: torch.Size, model: Decoder, name: str) -> Tensor:
    if tensor.shape == shape:
        return tensor
    layer = model.layer_configs[int(name.split(".")[1])]
    width = 1 if name.endswith("k_norm.norm.weight") and tensor.dim() == 2 else layer.multi_head.head_dim
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
    placeholder = {"train.seq_len": 1, "train.batch_tokens": 1}
    return build_config(overlay(overlay({"model": config.model_dump()}, placeholder, Config), changes, Config)).model
