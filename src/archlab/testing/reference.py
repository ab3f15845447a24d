"""archlab's own version of the part that hand-written code replaces.

Shapes: B batch, T tokens, D d_model, C head_dim, V vocabulary.
"""

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor, nn

from archlab.config.components.any_attention import AnyAttention
from archlab.config.layers import LayerConfig, layer_configs
from archlab.config.model_schema import ModelConfig
from archlab.errors import UserError
from archlab.model.attention import MultiHeadAttention
from archlab.model.context import Context, start_pass
from archlab.model.decoder import Decoder
from archlab.model.layer import Layer
from archlab.model.norms import make_norm
from archlab.model.positions import make_shared_bias
from archlab.model.rotary import Rotation
from archlab.testing import Part

BATCH, LONGEST = 2, 12
"""Number of sequences, and largest number of tokens of each, in the inputs of a comparison."""


class Reference(nn.Module):
    """One part of a model, with random parameters in float64.

    All parameters are random, also those that training would begin at 0 or 1, because code that leaves them out must
    give a different output.
    """

    turn: Callable[[Context], Rotation | None]
    """Function that returns the rotation of queries and keys. A planted mistake replaces it."""

    def __init__(self, config: ModelConfig, part: Part, layer: int = 0) -> None:
        super().__init__()
        layers = layer_configs(config)
        _check(config, part, layers, layer)
        self.config, self.part = config, part
        self.layer_config = layers[layer]
        self.shared_bias = make_shared_bias(config)
        self.turn = lambda context: context.rotation
        if part == "model":
            self.body: nn.Module = Decoder(config, seed=None, kernel="reference")
        elif part == "layer":
            self.body = Layer(self.layer_config, "reference")
        elif part == "norm":
            self.body = make_norm(self.layer_config.norm, config.d_model)
        elif part == "rotary":
            self.body = nn.Module()
        else:
            self.body = getattr(Layer(self.layer_config, "reference"), part)
        self.double()
        _randomize(self)

    @property
    def weights(self) -> dict[str, nn.Parameter]:
        """Parameters by the names that a report shows, such as `attention.q.weight`."""
        return dict(self.body.named_parameters())

    @property
    def layers(self) -> list[tuple[nn.Module, LayerConfig]]:
        """Modules that hold a layer's components, each with the config of its layer."""
        if isinstance(self.body, Decoder):
            return list(zip(self.body.layers, self.body.layer_configs, strict=True))
        return [(self.body, self.layer_config)]

    @property
    def is_causal(self) -> bool:
        """Whether no output depends on later tokens."""
        kinds = [config.attention for _, config in self.layers]
        return all(not isinstance(kind, AnyAttention) or kind.visibility == "causal" for kind in kinds)

    def copy(self) -> "Reference":
        """Return a copy whose modules can be changed. Its parameters are those of this reference."""
        return deepcopy(self, {id(parameter): parameter for parameter in self.parameters()})

    def inputs(self, longest: int = LONGEST, seed: int = 1) -> Tensor:
        """Return random inputs: token ids [B, T] for a model, [B, T, C] for the rotation, otherwise [B, T, D]. T is
        `longest` or the model's maximum, if that is smaller.

        In the first sequence, the values of all tokens have a variance of 1, so that attention's scores are as large as
        those of a model. In the second one, tokens are smaller by a factor of up to 100, so that the epsilon of a norm
        matters.
        """
        random, device = torch.Generator().manual_seed(seed), torch.get_default_device()
        T = min(longest, self.config.max_seq_len)
        if self.part == "model":
            return torch.randint(self.config.vocab_size, (BATCH, T), generator=random, device="cpu").to(device)
        width = self.rotary_width if self.part == "rotary" else self.config.d_model
        sizes = 10 ** -(2 * torch.rand(BATCH, T, 1, generator=random, dtype=torch.float64, device="cpu"))
        sizes[: BATCH if self.part == "rotary" else 1] = 1
        x = torch.randn(BATCH, T, width, generator=random, dtype=torch.float64, device="cpu") * sizes
        return x.to(device)

    @property
    def rotary_width(self) -> int:
        return cast(AnyAttention, self.layer_config.attention).rotary_width

    def forward(self, x: Tensor, positions_T: Tensor | None = None, lengths_B: Tensor | None = None) -> Tensor:
        """Return the output of the part. `positions_T` replaces the positions 0, 1, 2 and so on of the tokens."""
        if isinstance(self.body, Decoder):
            return self.body(x, lengths=lengths_B)
        context = self.context(x, positions_T, lengths_B)
        if self.part == "rotary":
            turned = x[:, None] if x.ndim == 3 else x
            return cast(Rotation, self.turn(context)).rotate(turned).reshape(x.shape)
        return self.body(x) if self.part == "norm" else self.body(x, context)

    def context(self, x: Tensor, positions_T: Tensor | None = None, lengths_B: Tensor | None = None) -> Context:
        """Return the context of the layer for inputs [B, ..., T, D]."""
        tokens_BT = torch.zeros(x.shape[0], x.shape[-2], dtype=torch.int64)
        this_pass = start_pass(tokens_BT, None, lengths_B, None, None, x.dtype)
        if positions_T is not None:
            this_pass = replace(this_pass, positions_BT=positions_T[None], lengths_BT=positions_T[None, -1:] + 1)
        return this_pass.context(self.layer_config, shared_bias=self.shared_bias)

    def attentions(self) -> Sequence[MultiHeadAttention]:
        """Return all modules of multi-head attention."""
        return [module for module in self.modules() if isinstance(module, MultiHeadAttention)]


def _check(config: ModelConfig, part: Part, layers: Sequence[LayerConfig], layer: int) -> None:
    if config.encoder is not None:
        raise UserError("model.encoder: is set; allowed in this comparison: a decoder or an encoder alone")
    if not 0 <= layer < len(layers):
        raise UserError(f"layer: is {layer}; allowed: 0 to {len(layers) - 1}")
    if part in ("attention", "mlp") and part not in [branch.name for branch in layers[layer].branches]:
        raise UserError(f"part: is {part}, but layer {layer} of the config has none; choose another part or config")
    if part == "rotary" and (
        layers[layer].position.acts_on != "queries" or not isinstance(layers[layer].attention, AnyAttention)
    ):
        kind = layers[layer].position.kind
        raise UserError(f"part: is rotary, but model.position.kind is {kind}; allowed: rope")


def _randomize(module: nn.Module) -> None:
    """Draw matrices whose outputs have a variance of about 1, and vectors around 1."""
    random = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            drawn = torch.randn(parameter.shape, generator=random, dtype=torch.float64, device="cpu")
            if name.endswith("embedding.weight"):
                parameter.copy_(drawn)
            elif parameter.ndim > 1:
                parameter.copy_(drawn / parameter.shape[-1] ** 0.5)
            else:
                parameter.copy_(drawn / 3 + (not name.endswith("bias")))
