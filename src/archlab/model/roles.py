"""What a parameter is for, and what follows: how it starts, whether it decays, its learning rate, who adds it.

Initial values, the optimiser and tensor parallelism read the same table. A module says for each of its parameters a
role (`roles`: name -> role), the number or tensor at which it starts (`constants`: name -> value), or both. How tensor
parallelism cuts it nobody has to say: its shape in a component's share (`Component.share`) does.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Literal, NamedTuple

from torch import Tensor, nn

from archlab.config.components.component import RoleName
from archlab.config.core.contract import short
from archlab.config.core.registry import Registered, breach
from archlab.config.layers import layer_configs
from archlab.config.model_schema import ModelConfig


@dataclass(frozen=True)
class Role:
    """What holds for every parameter of one role."""

    name: RoleName
    """By which train.lr_multipliers calls it."""
    deviation: Callable[[ModelConfig, int], float]
    """Standard deviation of its initial values, from the config and the fan-in."""
    decays: Literal["always", "if_asked", "never"]
    """Under weight decay; `if_asked`: with train.decay_embeddings."""
    group: Literal["matrix", "table", "vector"]
    """What it is: a linear map (the last two axes; those before them stack several), a table of which rows are looked
    up or compared, or all the rest. Muon makes its updates of the first kind alone."""
    is_added_once: bool = False
    """Whether a component's output has it as a summand of its own: the sum over the shares of several processes must
    have it once, though each of them has it."""


def _input(model: ModelConfig, fan_in: int) -> float:
    return _of_matrix(model, model.init.input, fan_in)


def _output(model: ModelConfig, fan_in: int) -> float:
    deviation = _of_matrix(model, model.init.output, fan_in)
    if not model.init.depth_scaled:
        return deviation
    return deviation / math.sqrt(sum(len(layer.branches) for layer in layer_configs(model)))


def _of_matrix(model: ModelConfig, given: float | None, fan_in: int) -> float:
    """What is given is that of muP's base width, where there is one."""
    if given is None:
        return 1 / math.sqrt(fan_in)
    return given / math.sqrt(model.mup.wider(model.d_model)) if model.mup else given


def _embedding(model: ModelConfig, _fan_in: int) -> float:
    return model.init.embedding or 1 / math.sqrt(model.base_width)


def _head(model: ModelConfig, _fan_in: int) -> float:
    return model.init.head or 1 / math.sqrt(model.base_width)


def _convolution(_model: ModelConfig, fan_in: int) -> float:
    return 1 / math.sqrt(3 * fan_in)  # of torch's uniform default, which published code keeps


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
"""`input` reads the stream (q, k, v, up, gate) or a narrow vector that `narrow` has made of it, `output` writes to it
(attention out, MLP down), `convolution` is the kernel of one over tokens, `constant` starts at a given value (norms,
biases), `output_bias` is that beside `output`."""


class RoleOf(NamedTuple):
    """A parameter and what it is for."""

    name: str
    """As in the state dict."""
    parameter: nn.Parameter
    role: Role
    constant: float | Tensor | None
    """Where it starts; None: it is drawn."""


def check_parameters(kind: type[Registered], module: nn.Module, n_said: int) -> list[RoleOf]:
    """Return the parameters of a user's module with their roles.

    Raise UserError if it is no module, a parameter has no role, or the class says another number of parameters.
    """
    if not isinstance(module, nn.Module):
        raise breach(kind, f"made a {type(module).__name__}; allowed: a torch.nn.Module")
    for part, name in product(module.modules(), ("constants", "roles")):
        if not isinstance(found := getattr(part, name, {}), dict):
            raise breach(kind, f"{type(part).__name__}.{name} is {short(found)}; allowed: a dict of parameters' names")
    try:
        made = list(roles_of(module))
    except TypeError as error:
        raise breach(
            kind,
            f"{str(error).lstrip('.')}; allowed: archlab.Projection, whose role says it, or `roles` or `constants` of "
            "the module (docs/plugins.md)",
        ) from None
    for name, parameter, _, constant in made:
        if not _can_start_at(parameter, constant):
            found = f"{name.lstrip('.')} {list(parameter.shape)} starts at {short(constant)}"
            raise breach(kind, f"{found}; allowed: a number, or a tensor of its shape")
    n_made = sum(of.parameter.numel() for of in made)
    if n_made != n_said:
        raise breach(kind, f"{kind.__name__} says {n_said:,} parameters, and its module has {n_made:,}")
    return made


def _can_start_at(parameter: nn.Parameter, constant: object) -> bool:
    if isinstance(constant, Tensor):
        sizes = zip(reversed(constant.shape), reversed(parameter.shape), strict=False)
        return constant.ndim <= parameter.ndim and all(n in (1, m) for n, m in sizes)
    return constant is None or isinstance(constant, int | float)


def roles_of(model: nn.Module) -> Iterator[RoleOf]:
    """Every parameter of the model; a parameter without a role and without a constant is a TypeError."""
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
                raise TypeError(f"{full} has neither a constant nor a role to be initialised by")
