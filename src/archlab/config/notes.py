"""What a person should know of a config that is valid, but perhaps not what was meant."""

from collections.abc import Sequence

from archlab.config.dense import GatedMLP
from archlab.config.io import overlay, parse_overrides
from archlab.config.merge import Raw, merge
from archlab.config.schema import Config


def notes(raw: Raw, overrides: Sequence[str]) -> list[str]:
    """Of raw values and the overrides that were laid over them; the two together are a valid config."""
    before = merge({}, raw, Config).get("model", {}).get("mlp") or {}
    change = overlay({}, parse_overrides(overrides)[0], Config).get("model", {}).get("mlp", {})
    kind, width = before.get("kind", GatedMLP().kind), before.get("d_ff")
    if width is None or "d_ff" in change or change.get("kind", kind) == kind:
        return []
    made_for = f"model.mlp.d_ff stays {width}, which was made for a {kind} MLP"
    return [f"{made_for}; model.mlp.d_ff=null derives it anew for a {change['kind']} one"]
