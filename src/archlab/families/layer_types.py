"""Which layers slide and which see everything: `layer_types`, or the older keys that imply it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from archlab.config.layers import layer_configs
from archlab.config.merge import Raw
from archlab.config.model_schema import ModelConfig
from archlab.families.fields import Source

SLIDING, FULL = "sliding_attention", "full_attention"


def every(n: int) -> Callable[[Source, int], list[str]]:
    """Every n-th layer is full, the others slide."""
    return lambda _hf, n_layers: [FULL if (i + 1) % n == 0 else SLIDING for i in range(n_layers)]


def all_full(_hf: Source, n_layers: int) -> list[str]:
    """No layer slides."""
    return [FULL] * n_layers


@dataclass(frozen=True)
class LayerTypes:
    """`layer_types` and `sliding_window` <-> our windows, with what else differs between the two kinds."""

    implied: Callable[[Source, int], list[str]] = all_full
    """The types where the file does not list them."""
    window: int | None = 4096
    """Where the file does not say."""
    sliding: Mapping[str, Any] = field(default_factory=dict)
    """Overrides of sliding layers beside the window."""
    full: Mapping[str, Any] = field(default_factory=dict)
    """Overrides of full layers."""

    def read(self, hf: Source, ours: Raw) -> None:
        """One kind of layer needs no pattern."""
        types = hf.get("layer_types") or self.implied(hf, ours["n_layers"])
        window = hf.get("sliding_window", self.window)
        unknown = sorted(set(types) - {SLIDING, FULL})
        if unknown:
            raise hf.refuse("layer_types", unknown[0], f"{SLIDING}, {FULL}")
        kinds = {SLIDING: {"attention.window": window, **self.sliding}, FULL: dict(self.full)}
        if len(set(types)) == 1:
            ours |= kinds[types[0]]
        else:
            ours["layers"] = {"sliding": kinds[SLIDING], "full": kinds[FULL]} | {
                "pattern": ["sliding" if kind == SLIDING else "full" for kind in types]
            }

    def write(self, model: ModelConfig, hf: Raw) -> None:
        """The list, written out."""
        windows = [layer.attention.window for layer in layer_configs(model)]
        hf["layer_types"] = [FULL if window is None else SLIDING for window in windows]
        hf["sliding_window"] = next((window for window in windows if window is not None), None)
