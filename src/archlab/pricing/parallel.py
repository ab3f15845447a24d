"""How devices divide training among them."""

from dataclasses import dataclass

from archlab.config.problems import nearest
from archlab.errors import UserError

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
