"""The mixture of experts against one written out token by token, and what it promises beside."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from archlab.config.layers import LayerConfig, layer_configs
from archlab.config.io import build_config
from archlab.config.moe import ResolvedMoE
from archlab.model.context import Context
from archlab.model.grouped import grouped_linear, grouped_outer
from archlab.model.moe import MoE
from tests.reference.moe import Choices, balance_loss, mixture, router_z_loss

D, T = 12, 20
RNG = np.random.default_rng(0)


def layer(text: str) -> LayerConfig:
    raw = {"vocab_size": 7, "d_model": D, "n_layers": 1, "attention": {"n_heads": 4}}
    return layer_configs(build_config({"model": raw}, [f"model.mlp={{kind: moe, {text}}}"]).model)[0]
