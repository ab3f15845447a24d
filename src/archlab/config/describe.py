"""Short descriptions of layers for tables."""

from archlab.config.components.norm import Norm
from archlab.config.components.position import ON_ATTENTION, Rope
from archlab.config.layers import COMPONENTS, LayerConfig, encoder_of, layer_runs
from archlab.config.model_schema import ModelConfig


def layer_table(model: ModelConfig) -> list[dict[str, str]]:
    """Return the table of layers, with one row for each run of identical layers. Each row maps headings to text. A cell
    is `-` if only other layers have the part that the heading names. With an encoder, its layers come first, and a
    column names the stack."""
    runs = [(name, *run) for name, stack in named_stacks(model).items() for run in layer_runs(stack)]
    headings = {name: "-" for *_, layer in runs for name in _branches(layer)}
    return [
        {
            **({"stack": name} if model.encoder else {}),
            "layers": str(first) if first == last else f"{first}-{last}",
            "kind": layer.kind,
            **headings,
            **_branches(layer),
            "position": _position(layer),
            "norm": _norm(layer),
        }
        for name, first, last, layer in runs
    ]


def named_stacks(model: ModelConfig) -> dict[str, ModelConfig]:
    """Return the encoder, if there is one, and the decoder, by name."""
    encoder = encoder_of(model)
    return {"decoder": model} if encoder is None else {"encoder": encoder, "decoder": model}


def _branches(layer: LayerConfig) -> dict[str, str]:
    columns = dict[str, str]()
    for branch in layer.branches:
        described = branch.component.describe()
        columns |= {"cross": described["q/kv/dim"]} if branch.site.reads_source else described
    return columns


def _position(layer: LayerConfig) -> str:
    position = layer.position
    if position.acts_on in ON_ATTENTION and not any(getattr(layer, name).score_heads for name in COMPONENTS):
        return "-"
    return f"rope {position.theta:g}" if isinstance(position, Rope) else position.kind


def _norm(layer: LayerConfig) -> str:
    words = f"{layer.norm.kind} {layer.norm.placement}" if isinstance(layer.norm, Norm) else layer.norm.kind
    return words if layer.block.parallel == "none" else f"{words}, parallel {layer.block.parallel}"
