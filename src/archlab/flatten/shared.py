"""What the model computes once per pass and hands to every layer."""

from dataclasses import dataclass

from archlab.config.model_schema import ModelConfig
from archlab.config.position import T5, Alibi, Rope, Shaw
from archlab.flatten.kinds import Kind


@dataclass(frozen=True)
class Shared:
    """Which of mask, bias and rotation the layers get; all of them get the same arguments."""

    masked: bool
    biased: bool
    rope: Rope | None
    """That of the first layer that turns; None where none does."""
    t5: T5 | None
    """The table that all layers share."""

    @property
    def names(self) -> list[str]:
        """The arguments after x."""
        return ["seen_TS"] * self.masked + ["bias_HTS"] * self.biased + ["rotation"] * bool(self.rope)

    @property
    def parameters(self) -> list[str]:
        """The same with their types."""
        return [f"{name}: Tensor" for name in self.names]

    def is_biased(self, kind: Kind) -> bool:
        """Whether this layer adds `bias_HTS` to its scores, the shared one or its own."""
        match kind.layer.position:
            case Alibi():
                return True
            case T5(shared=shared):
                return not shared or self.t5 is not None
            case _:
                return False


def shared_by(model: ModelConfig, kinds: list[Kind]) -> Shared:
    """What the layers of a model need."""
    t5 = model.position if isinstance(model.position, T5) and model.position.shared else None
    positions = [kind.layer.position for kind in kinds]
    takes_table = [isinstance(position, T5) and position.shared and t5 is not None for position in positions]
    own_bias = any(isinstance(position, Alibi | T5 | Shaw) for position in positions)
    attentions = [kind.layer.multi_head for kind in kinds]
    sparse = any(a.window is not None or a.blocks is not None or a.softcap is not None for a in attentions)
    return Shared(
        masked=own_bias or sparse,
        biased=any(takes_table) or any(isinstance(position, Alibi) for position in positions),
        rope=next((position for position in positions if isinstance(position, Rope)), None),
        t5=t5,
    )
