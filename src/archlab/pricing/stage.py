"""Stages of a training pipeline, and the part of the batch that one replica processes."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from archlab.config.components.component import MatrixShape
from archlab.config.components.work import Operation, Pass
from archlab.config.layers import LayerConfig, encoder_of, layer_configs
from archlab.config.model_schema import ModelConfig
from archlab.config.optimizer import Optimizer
from archlab.pricing.memory import BYTES, Format, LayerPass, layer_passes
from archlab.pricing.params import matrix_shapes_of, outer_norms, parameters, shared_positions
from archlab.pricing.partition import Parallel, PipelineStages
from archlab.pricing.update import update
from archlab.pricing.work import BACKWARD, after_layers, around_layers, loss

PLAN_FORMAT: Format = "bfloat16"
"""Number format of matrix products."""
BYTES_PER_WEIGHT = BYTES[PLAN_FORMAT]
"""Bytes per weight in a matrix product, and bytes per element when devices send the residual stream."""


@dataclass(frozen=True)
class Batch:
    """Part of the batch that one replica processes."""

    texts: int
    tokens: int
    """Number of tokens that the decoder, or the only stack, reads of each sequence."""
    source: int
    """Number of source tokens of each sequence. 0 without an encoder."""
    predicted: float | None
    """Mean number of tokens of each sequence that get logits. None: all tokens."""
    micro: int

    @property
    def n_micro_batches(self) -> int:
        return self.texts // self.micro


@dataclass(frozen=True)
class Stage:
    """Pipeline stage. It runs on one device or, with tensor parallelism, on a group of devices."""

    model: ModelConfig
    layers: Counter[LayerConfig]
    """Distinct layer configs of the stage, with the number of layers that have each. Those of an encoder are
    included."""
    index: int
    n_stages: int
    optimizer: Optimizer

    @property
    def is_first(self) -> bool:
        return self.index == 0

    @property
    def is_last(self) -> bool:
        return self.index == self.n_stages - 1

    @cached_property
    def outside_layers(self) -> int:
        """Number of parameters of this stage outside its layers, such as the embedding or the head.

        If the head is tied, both the first and the last stage store its matrix.
        """
        counts, tied = parameters(self.model), self.model.head.tied
        before = counts.embedding + shared_positions(self.model)
        after = counts.head + outer_norms(self.model)
        if self.is_first and self.is_last:
            return before + after
        after += counts.embedding if tied else 0
        return before * self.is_first + after * self.is_last

    def layer_passes(self, model_pass: Pass) -> list[LayerPass]:
        """Return the distinct layers of the stage with their passes. A model with an encoder has only one stage."""
        if self.n_stages == 1:
            return layer_passes(self.model, model_pass)
        return [LayerPass(layer, n, model_pass) for layer, n in self.layers.items()]

    def parameters_per_device(self, tensor: int) -> float:
        """Return the number of parameters on each device if `tensor` devices share this stage."""
        return (
            sum(n * layer.parameters_per_device(tensor) for layer, n in self.layers.items())
            + self.outside_layers / tensor
        )

    @cached_property
    def matrix_shapes(self) -> Counter[MatrixShape]:
        """Number of tensors of weight matrices of layers, by shape."""
        return matrix_shapes_of(self.layers)

    def update(self, parallel: Parallel) -> Iterator[Operation]:
        """Return the operations of an update on one device."""
        own = self.parameters_per_device(parallel.tensor) / parallel.shard
        return update(self.optimizer, own, self.matrix_shapes, BYTES_PER_WEIGHT, parallel.shard)

    def operations(self, model_pass: Pass, *, recompute: bool) -> Iterator[Operation]:
        passes = 1 + BACKWARD
        for layer, n, own_pass in self.layer_passes(model_pass):
            yield from (operation.repeated(n * (passes + recompute)) for operation in layer.work(own_pass))
        if self.is_first:
            yield from (operation.repeated(passes) for operation in around_layers(self.model, model_pass))
        if self.is_last:
            yield from (
                operation.repeated(passes) for operation in after_layers(self.model, model_pass, model_pass.logit_rows)
            )
            yield loss(self.model, model_pass)


def stages_of(model: ModelConfig, pipeline: PipelineStages, optimizer: Optimizer) -> list[Stage]:
    """Return the stages of the pipeline, without repetitions.

    Of several stages with the same layers, only the first is returned. It needs the most memory, because it stores the
    activations of the most micro-batches.
    """
    layers, encoder = layer_configs(model), encoder_of(model)
    stages: dict[object, Stage] = {}
    for i, indices in enumerate(pipeline.layers):
        own = Counter(layers[indices.start : indices.stop]) + (
            Counter(layer_configs(encoder)) if encoder else Counter()
        )
        stage = Stage(model, own, i, len(pipeline.layers), optimizer)
        stages.setdefault((frozenset(stage.layers.items()), stage.is_first, stage.is_last), stage)
    return list(stages.values())
