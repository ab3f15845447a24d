"""Roles of parameters. A role decides a parameter's initial values, weight decay, learning rate and optimizer.

Initialization, the optimizer and tensor parallelism all use the table `ROLES`. For each of its parameters, a module
names a role (`roles`: name -> role), an initial value (`constants`: name -> number or tensor), or both. A module does
not say how tensor parallelism shards a parameter. This follows from the parameter's shape in a component's share
(`Component.share`).
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Literal, NamedTuple

from torch import Tensor, nn

from archlab.config.components.component import RoleName
from archlab.config.core.contract import breach, short
from archlab.config.core.registry import Registered
from archlab.config.layers import layer_configs
from archlab.config.model_schema import ModelConfig


@dataclass(frozen=True)
class Role:
    """Properties of all parameters of one role."""

    name: RoleName
    """Name of the role in train.lr_multipliers."""
    deviation: Callable[[ModelConfig, int], float]
    """Function of the model config and the fan-in. It returns the standard deviation of the initial values."""
    decays: Literal["always", "if_asked", "never"]
    """Whether weight decay applies. `if_asked` means: only if train.decay_embeddings is true."""
    group: Literal["matrix", "table", "vector"]
    """Kind of tensor. Muon updates only matrices.

    The last two axes of a `matrix` are a linear map; earlier axes stack several maps. The rows of a `table` are looked
    up or compared with hidden states. All other parameters are a `vector`.
    """
    is_added_once: bool = False
    """Whether the parameter is added to a component's output (an output bias), or just before its last linear map.

    Under tensor parallelism, every process has a copy of the parameter, and the outputs of all processes are summed.
    The sum must contain the parameter only once.
    """


def _input(model: ModelConfig, fan_in: int) -> float:
    return _of_matrix(model, model.init.input, fan_in)


def _output(model: ModelConfig, fan_in: int) -> float:
    deviation = _of_matrix(model, model.init.output, fan_in)
    if not model.init.depth_scaled:
        return deviation
    return deviation / math.sqrt(sum(len(layer.branches) for layer in layer_configs(model)))


def _of_matrix(model: ModelConfig, deviation: float | None, fan_in: int) -> float:
    """Return the standard deviation of a matrix's initial values.

    Under muP, the value in the config applies at the base width.
    """
    if deviation is None:
        return 1 / math.sqrt(fan_in)
    return deviation / math.sqrt(model.mup.wider(model.d_model)) if model.mup else deviation


def _embedding(model: ModelConfig, _fan_in: int) -> float:
    return model.init.embedding or 1 / math.sqrt(model.base_width)


def _head(model: ModelConfig, _fan_in: int) -> float:
    return model.init.head or 1 / math.sqrt(model.base_width)


def _convolution(_model: ModelConfig, fan_in: int) -> float:
    return 1 / math.sqrt(3 * fan_in)  # as in torch's uniform default, which published code uses


def _constant(_model: ModelConfig, _fan_in: int) -> float:
    return 0.0


ROLES: dict[RoleName, Role] = {
    "embedding": Role("embedding", _embedding, decays="if_asked", group="table"),
    "input": Role("input", _input, decays="always", group="matrix"),
    "narrow": Role("narrow", _input, decays="always", group="matrix"),
    "output": Role("output", _output, decays="always", group="matrix"),
    "head": Role("head", _head, decays="if_asked", group="table"),
    "convolution": Role("convolution", _convolution, decays="always", group="vector"),
    "constant": Role("constant", _constant, decays="never", group="vector"),
    "output_bias": Role("constant", _constant, decays="never", group="vector", is_added_once=True),
}
"""Roles by name.

Parameters with the role `input` read the residual stream (q, k, v, up, gate), or a narrow vector that a `narrow`
parameter has computed from the stream. Those with the role `output` write to the stream (attention out, MLP down).
Experts in a latent space do not write to the stream, so their `down` is `narrow`.
`convolution` is the kernel of a convolution over tokens. `constant` parameters start at a given value (norms, biases).
`output_bias` is the bias of a projection to the stream, or of experts in a latent space.
"""


class RoleOf(NamedTuple):
    """A parameter and its role."""

    name: str
    parameter: nn.Parameter
    role: Role
    constant: float | Tensor | None
    """Initial value; None means random initial values."""


def check_parameters(kind: type[Registered], module: nn.Module, n_stated: int) -> list[RoleOf]:
    """Return the parameters of a plug-in's module with their roles.

    Raise UserError if the object is not a module, if a parameter has no role, or if the number of parameters is not the
    number that the config class states.
    """
    if not isinstance(module, nn.Module):
        raise breach(kind, f"made a {type(module).__name__}; allowed: a torch.nn.Module")
    for part, name in product(module.modules(), ("constants", "roles")):
        if not isinstance(value := getattr(part, name, {}), dict):
            raise breach(
                kind,
                f"{type(part).__name__}.{name} is {short(value)}; allowed: a dict whose keys are names of parameters",
            )
    try:
        made = list(roles_of(module))
    except TypeError as error:
        raise breach(
            kind,
            f"{str(error).lstrip('.')}; use archlab.Projection, which has a role, or name the parameter in `roles` or "
            "`constants` of the module (docs/plugins.md)",
        ) from None
    for name, parameter, _, constant in made:
        if not _can_start_at(parameter, constant):
            value = f"{name.lstrip('.')} {list(parameter.shape)} starts at {short(constant)}"
            raise breach(kind, f"{value}; allowed: a number, or a tensor of its shape")
    n_made = sum(of.parameter.numel() for of in made)
    if n_made != n_stated:
        raise breach(kind, f"{kind.__name__} states {n_stated:,} parameters, but its module has {n_made:,}")
    return made


def _can_start_at(parameter: nn.Parameter, constant: object) -> bool:
    if isinstance(constant, Tensor):
        sizes = zip(reversed(constant.shape), reversed(parameter.shape), strict=False)
        return constant.ndim <= parameter.ndim and all(n in (1, m) for n, m in sizes)
    return constant is None or isinstance(constant, int | float)


def roles_of(model: nn.Module) -> Iterator[RoleOf]:
    """Yield every parameter with its role. Raise TypeError if a parameter has neither a role nor a constant."""
    for module_name, module in model.named_modules():
        constants: dict[str, float | Tensor] = getattr(module, "constants", {})
        roles: dict[str, RoleName] = getattr(module, "roles", {})
        for name, parameter in module.named_parameters(recurse=False):
            full = f"{module_name}.{name}"
            if name in constants:
                yield RoleOf(full, parameter, ROLES[roles.get(name, "constant")], constants[name])
            elif name in roles and roles[name] not in ROLES:
                raise TypeError(f"{full} has the role {roles[name]!r}; allowed: {', '.join(ROLES)}")
            elif name in roles:
                yield RoleOf(full, parameter, ROLES[roles[name]], None)
            else:
                raise TypeError(f"{full} has no initial value: neither a constant nor a role")
