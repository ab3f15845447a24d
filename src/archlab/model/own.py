"""The modules of plug-ins: made by the user's own class, and held against what its options say of them."""

from typing import Any

from torch import nn

from archlab.config.components.component import Site
from archlab.config.components.plug_in import PlugInComponent
from archlab.errors import UserError
from archlab.model.roles import roles_of


def own_module(config: PlugInComponent, site: Site) -> nn.Module:
    """The plug-in's module at that place. UserError where it is none, where it has a parameter of which nobody knows
    how it starts, and where it learns more or fewer numbers than its options say."""
    name = f"{config.section} plug-in {config.name}"
    module: Any = config.registered.make(config.own, site)
    if not isinstance(module, nn.Module):
        raise UserError(f"{name}: made a {type(module).__name__}; allowed: a torch.nn.Module")
    try:
        made = sum(parameter.numel() for _, parameter, _, _ in roles_of(module))
    except TypeError as error:
        raise UserError(
            f"{name}: {str(error).lstrip('.')}; allowed: archlab.Projection, whose role says it, or `roles` or "
            "`constants` of the module (docs/plugins.md)"
        ) from None
    said = sum(config.parameters(site).values())
    if made != said:
        raise UserError(f"{name}: `parameters` says {said:,} learned numbers, and its module has {made:,}")
    return module
