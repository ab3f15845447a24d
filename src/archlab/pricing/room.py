"""Whether a model can be served on one device."""

from archlab.config.core.base import Base
from archlab.pricing.hardware import Hardware
from archlab.pricing.summary import Cost


class Room(Base):
    """Bytes, and how many texts they are for."""

    needed: int
    """Weights, cache and recurrent states."""
    memory: int
    """Of the device."""
    fits: bool
    texts: int | None
    """Of that context, as many as would fit; null: any number, for nothing is kept of them."""


def room(found: Cost, device: Hardware) -> Room:
    """Of one device, as its driver prints its memory."""
    kept = found.kv_cache_bytes + found.recurrent_bytes
    left, needed = device.memory - found.weight_bytes, found.weight_bytes + kept
    texts = max(0, left * found.batch // kept) if kept else None if left >= 0 else 0
    return Room(needed=needed, memory=device.memory, fits=needed <= device.memory, texts=texts)
