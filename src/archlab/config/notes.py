"""Notes on valid configs that may not be what the user meant."""

from collections.abc import Sequence

from archlab.config.components.dense import GatedMLP
from archlab.config.components.moe import MoE
from archlab.config.core.merge import Raw, merge
from archlab.config.io import overlay, parse_overrides
from archlab.config.layers import layer_configs
from archlab.config.schema import Config


def notes(raw: Raw, overrides: Sequence[str], config: Config) -> list[str]:
    """Return the notes on raw values and their overrides. `config` is the valid config that results from both."""
    return [*_kept_width(raw, overrides, config.model.mlp.kind), *untrained_router(config)]


def untrained_router(config: Config) -> list[str]:
    """Return a note if the cross-entropy does not train a router, because its only active expert has the weight 1."""
    mixtures = [layer.mlp for layer in layer_configs(config.model) if isinstance(layer.mlp, MoE)]
    if not any(mlp.active == 1 and mlp.router.normalise for mlp in mixtures):
        return []
    problem = (
        "model.mlp.active=1 with model.mlp.router.normalise=true gives the chosen expert weight 1, whatever its score"
    )
    return [
        f"{problem}, so the cross-entropy does not train the router; set model.mlp.router.normalise=false to train it"
    ]


def _kept_width(raw: Raw, overrides: Sequence[str], kind: str) -> list[str]:
    before = merge({}, raw, Config).get("model", {}).get("mlp") or {}
    change = overlay({}, parse_overrides(overrides)[0], Config).get("model", {}).get("mlp", {})
    old, width = before.get("kind", GatedMLP().kind), before.get("d_ff")
    if width is None or "d_ff" in change or kind in (old, "none"):
        return []
    problem = f"model.mlp.d_ff stays {width}, which was set for a {old} MLP"
    return [f"{problem}; set model.mlp.d_ff=null to derive it for a {kind} MLP"]
