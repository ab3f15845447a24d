"""What rules of shape read: a config, with what its user says beside it, and the numbers that are measured of it."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from archlab.config.layers import LayerConfig, layer_configs
from archlab.config.schema import Config
from archlab.config.training import resolve_train
from archlab.pricing.params import Parameters, parameters
from archlab.pricing.partition import Cut, cut


@dataclass(frozen=True)
class Reading:
    """One number of a config."""

    field: str
    """What it is a number of: a field, or a ratio of fields."""
    value: float
    kind: str = "models"
    """Of what, in the plural: numbers of the same field and kind can be compared."""
    layers: tuple[int, ...] = ()
    """Where; empty where all layers that have such a number have the same."""


@dataclass(frozen=True)
class Case:
    """A config to be judged."""

    config: Config
    tensor: int | None = None
    """Devices that each matrix is to be cut over. None: not said."""
    languages: int | None = None
    """How many the text is in. None: not said."""
    pipeline: int | None = None
    """Stages that the layers are to be cut into. None: not said."""

    @cached_property
    def layers(self) -> dict[str, tuple[LayerConfig, tuple[int, ...]]]:
        """Layer kind -> the layer, and where it stands."""
        found: dict[str, tuple[LayerConfig, list[int]]] = {}
        for index, layer in enumerate(layer_configs(self.config.model)):
            found.setdefault(layer.kind, (layer, []))[1].append(index)
        return {kind: (layer, tuple(places)) for kind, (layer, places) in found.items()}

    @cached_property
    def counted(self) -> Parameters:
        """Parameters of the whole model."""
        return parameters(self.config.model)

    @cached_property
    def cut(self) -> Cut | None:
        """The layers of each stage; None without a pipeline. Raise UserError if there are fewer layers than stages."""
        tokens = resolve_train(self.config).seq_len
        return cut(self.config.model, tokens, self.pipeline) if self.pipeline else None


Measure = Callable[[Case], Iterable[Reading]]


def of_layers(read: Callable[[LayerConfig], Iterable[Reading]]) -> Measure:
    """What is measured of each layer; it says where only if layers differ in it."""

    def measure(case: Case) -> Iterator[Reading]:
        places: dict[Reading, list[int]] = {}
        for layer, where in case.layers.values():
            for reading in read(layer):
                places.setdefault(reading, []).extend(where)
        fields = [reading.field for reading in places]
        for found, where in places.items():
            differ = fields.count(found.field) > 1
            yield Reading(found.field, found.value, found.kind, tuple(sorted(where)) if differ else ())

    return measure
