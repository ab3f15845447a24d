"""Division of a training run among devices, and of layers among pipeline stages."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise

from archlab.config.components.work import Operation, Pass, matrix_flops
from archlab.config.layers import distinct_layers, layer_configs
from archlab.config.model_schema import ModelConfig
from archlab.config.problems import nearest
from archlab.errors import Refusals, UserError
from archlab.pricing.work import after_layers

WAYS = ("replicate", "shard", "tensor", "pipeline")

MOST_DEVICES = 1_000_000


@dataclass(frozen=True)
class Parallel:
    """Sizes of the four dimensions of parallelism. Their product is the number of devices.

    - replicate: each device stores the whole model, and the devices average their gradients.
    - shard: each device stores a part of the weights, gradients and AdamW averages. It gathers all weights of a layer
      when it needs them (ZeRO 3, Rajbhandari 2019; FSDP).
    - tensor: each matrix is divided among several devices, which compute a layer together (Shoeybi 2019). Between
      branches, the residual stream is divided along the sequence (Korthikanti 2022).
    - pipeline: each device stores some of the layers (Huang 2019). Several micro-batches are in the pipeline at the
      same time (Narayanan 2021).
    """

    replicate: int = 1
    shard: int = 1
    tensor: int = 1
    pipeline: int = 1

    @classmethod
    def parse(cls, text: str) -> "Parallel":
        """Parse text like `shard=8,tensor=2`. Raise a UserError with all parts that do not have this form."""
        sizes, refused = dict[str, int](), Refusals()
        for part in (part.strip() for part in text.split(",")):
            way, _, size = part.partition("=")
            if way not in WAYS or way in sizes or not size.isdecimal() or not 1 <= int(size) <= MOST_DEVICES:
                hint = nearest(way, WAYS) if way not in WAYS else ""
                refused.add(
                    f"parallel: cannot read {part!r}{hint or ';'} allowed: {', '.join(WAYS)}, "
                    "each at most once, as in shard=8,tensor=2"
                )
            else:
                sizes[way] = int(size)
        refused.raise_any()
        return cls(**sizes)

    def __str__(self) -> str:
        sizes = {way: getattr(self, way) for way in WAYS}
        return ", ".join(f"{way}={n}" for way, n in sizes.items() if n > 1) or "one device"

    @property
    def devices(self) -> int:
        return self.replicate * self.shard * self.tensor * self.pipeline

    @property
    def replicas(self) -> int:
        """Number of parts into which the batch is divided: `replicate` times `shard`."""
        return self.replicate * self.shard

    def neighbor_distance(self, way: str) -> int:
        """Return the distance between two neighbors in the dimension `way`. It is the difference between their device
        numbers.

        Devices are numbered so that those of a tensor group are closest together. Shards, replicas and pipeline stages
        follow in this order.
        """
        nearer = {"tensor": 1, "shard": self.tensor, "replicate": self.tensor * self.shard}
        return nearer.get(way, self.tensor * self.replicas)

    def group_span(self, way: str) -> int:
        """Return how many consecutive devices one group spans. `way` is the kind of parallelism: tensor, shard, …"""
        return self.neighbor_distance(way) * getattr(self, way)


@dataclass(frozen=True)
class PipelineStages:
    """Division of the layers into pipeline stages."""

    layers: tuple[range, ...]
    """Indices of the layers in each stage."""
    work: tuple[float, ...]
    """FLOPs of each stage in a forward pass. The last stage includes the head."""

    @cached_property
    def slowest(self) -> int:
        """Index of the stage with the most work, for which all other stages wait."""
        return max(range(len(self.work)), key=self.work.__getitem__)

    @property
    def unevenness(self) -> float:
        """Work of the slowest stage, divided by the mean work of all stages.

        A step takes this many times as long as it would with stages of equal work.
        """
        return self.work[self.slowest] * len(self.work) / sum(self.work)


def pipeline_stages(model: ModelConfig, tokens: int, n_stages: int) -> PipelineStages:
    """Return the division of a decoder into `n_stages` stages that minimizes the work of the slowest stage.

    The work is computed for sequences of `tokens` tokens. The work of the other stages is as equal as possible. Raise
    UserError if there are fewer layers than stages, or if the model has an encoder.
    """
    if model.encoder is not None:
        raise UserError(
            "a model with an encoder cannot be divided into pipeline stages; allowed: models without an encoder"
        )
    layers, model_pass = layer_configs(model), Pass(1, tokens)
    if n_stages > len(layers):
        raise UserError(f"{n_stages} stages are too many for {len(layers)} layers; allowed: at most {len(layers)}")

    flops = {layer: _total(layer.work(model_pass)) for layer in distinct_layers(model)}
    return even_stages([flops[layer] for layer in layers], _total(after_layers(model, model_pass, tokens)), n_stages)


def _total(operations: Iterable[Operation]) -> float:
    return sum(matrix_flops(operations).values())


def even_stages(work: Sequence[float], after: float, n_stages: int) -> PipelineStages:
    """Return the division that minimizes the work of the slowest stage.

    `work` contains the work of each layer. `after` is the work of the head, which belongs to the last stage.
    """
    before = [0.0, *accumulate(work)]
    low, high = 0.0, before[-1] + after
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if _ends(before, after, n_stages, middle) else (middle, high)
    high *= 1 + 1e-9  # tolerance for rounding in sums of floats
    earliest, ends = _ends(before, after, n_stages, high) or [], [0]
    for stage in range(1, n_stages):
        last = min(bisect_right(before, before[ends[-1]] + high) - 1, len(work) - (n_stages - stage))
        even = bisect_right(before, (before[-1] + after) * stage / n_stages) - 1
        ends.append(min(last, max(earliest[stage], ends[-1] + 1, even)))
    ends.append(len(work))
    layers = tuple(range(start, end) for start, end in pairwise(ends))
    loads = [before[end] - before[start] for start, end in pairwise(ends)]
    return PipelineStages(layers, (*loads[:-1], loads[-1] + after))


def _ends(before: Sequence[float], after: float, n_stages: int, most: float) -> list[int] | None:
    """Return, for each stage, the smallest possible index of its first layer, if no stage may have more work than
    `most`.

    Return None if this limit is too low.
    """
    end, starts = len(before) - 1, list[int]()
    limit = before[-1] + after - most
    for stage in reversed(range(n_stages)):
        start = max(bisect_left(before, limit), stage)
        if start >= end:
            return None
        starts.append(start)
        end, limit = start, before[start] - most
    return starts[::-1] if starts[-1] == 0 else None
