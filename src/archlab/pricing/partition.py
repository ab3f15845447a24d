"""How a training is divided: devices by way of dividing, and layers by stage of a pipeline."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise

from archlab.config.components.work import Operation, Pass, matrix_flops
from archlab.config.layers import distinct_layers, layer_configs
from archlab.config.model_schema import ModelConfig
from archlab.config.problems import nearest
from archlab.errors import UserError
from archlab.pricing.work import after_layers

WAYS = ("replicate", "shard", "tensor", "pipeline")

MOST_DEVICES = 1_000_000


@dataclass(frozen=True)
class Parallel:
    """In each way so many; their product is the number of devices.

    replicate: replicas that average gradients. shard: the replicas share weights, gradients and AdamW's averages, and
    gather a layer's weights when they need them (ZeRO 3, Rajbhandari 2019; FSDP). tensor: matrices are cut, so that
    devices work on one layer together, with the stream cut along the text between branches (Shoeybi 2019, Korthikanti
    2022). pipeline: each device has some of the layers (Huang 2019), one micro-batch after the other (Narayanan 2021).
    """

    replicate: int = 1
    shard: int = 1
    tensor: int = 1
    pipeline: int = 1

    @classmethod
    def parse(cls, text: str) -> "Parallel":
        """From `shard=8,tensor=2`; UserError where it says something else."""
        found = dict[str, int]()
        for part in (part.strip() for part in text.split(",")):
            way, _, size = part.partition("=")
            if way not in WAYS or way in found or not size.isdecimal() or not 1 <= int(size) <= MOST_DEVICES:
                hint = nearest(way, WAYS) if way not in WAYS else ";"
                raise UserError(
                    f"parallel: {part!r}{hint} allowed: {', '.join(WAYS)}, each once, as in shard=8,tensor=2"
                )
            found[way] = int(size)
        return cls(**found)

    def __str__(self) -> str:
        sizes = {way: getattr(self, way) for way in WAYS}
        return ", ".join(f"{way}={n}" for way, n in sizes.items() if n > 1) or "one device"

    @property
    def devices(self) -> int:
        """All of them."""
        return self.replicate * self.shard * self.tensor * self.pipeline

    @property
    def replicas(self) -> int:
        """Parts that the batch is cut into."""
        return self.replicate * self.shard

    def within(self, way: str) -> int:
        """Devices between two that exchange something in this way: a tensor group stands closest together, then shards,
        replicas, and the stages of a pipeline."""
        nearer = {"tensor": 1, "shard": self.tensor, "replicate": self.tensor * self.shard}
        return nearer.get(way, self.tensor * self.replicas)

    def reach(self, way: str) -> int:
        """Devices that the ones which exchange something in this way are spread over."""
        return self.within(way) * getattr(self, way)


@dataclass(frozen=True)
class Cut:
    """The layers of each stage."""

    layers: tuple[range, ...]
    """Indices of the layers of each stage."""
    work: tuple[float, ...]
    """FLOPs of a forward pass per stage; those of the last include the head."""

    @cached_property
    def slowest(self) -> int:
        """Index of the stage with the most work, which all others wait for."""
        return max(range(len(self.work)), key=self.work.__getitem__)

    @property
    def unevenness(self) -> float:
        """Work of the slowest stage over the mean of all: a pipeline takes so many times as long as an even one."""
        return self.work[self.slowest] * len(self.work) / sum(self.work)


def cut(model: ModelConfig, tokens: int, n_stages: int) -> Cut:
    """Return the cut into `n_stages` whose slowest stage has the least work, in windows of `tokens` tokens.

    The other stages are as even as that allows. Raise UserError if there are fewer layers than stages.
    """
    layers, this = layer_configs(model), Pass(1, tokens)
    if n_stages > len(layers):
        raise UserError(f"{n_stages} stages are more than the {len(layers)} layers")

    flops = {layer: _total(layer.work(this)) for layer in distinct_layers(model)}
    return even_cut([flops[layer] for layer in layers], _total(after_layers(model, this, tokens)), n_stages)


def _total(operations: Iterable[Operation]) -> float:
    return sum(matrix_flops(operations).values())


def even_cut(work: Sequence[float], after: float, n_stages: int) -> Cut:
    """Return the cut of layers that have this work each, before a head that has the work `after`."""
    before = [0.0, *accumulate(work)]
    low, high = 0.0, before[-1] + after
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if _ends(before, after, n_stages, middle) else (middle, high)
    high *= 1 + 1e-9  # sums of floats
    earliest, ends = _ends(before, after, n_stages, high) or [], [0]
    for stage in range(1, n_stages):
        last = min(bisect_right(before, before[ends[-1]] + high) - 1, len(work) - (n_stages - stage))
        even = bisect_right(before, (before[-1] + after) * stage / n_stages) - 1
        ends.append(min(last, max(earliest[stage], ends[-1] + 1, even)))
    ends.append(len(work))
    layers = tuple(range(start, end) for start, end in pairwise(ends))
    loads = [before[end] - before[start] for start, end in pairwise(ends)]
    return Cut(layers, (*loads[:-1], loads[-1] + after))


def _ends(before: Sequence[float], after: float, n_stages: int, most: float) -> list[int] | None:
    """Return the earliest first layer of each stage if no stage may have more work than `most`; None if that is too
    little."""
    end, starts = len(before) - 1, list[int]()
    limit = before[-1] + after - most
    for stage in reversed(range(n_stages)):
        start = max(bisect_left(before, limit), stage)
        if start >= end:
            return None
        starts.append(start)
        end, limit = start, before[start] - most
    return starts[::-1] if starts[-1] == 0 else None
