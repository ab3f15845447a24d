"""Size of the pieces, in tokens, for which training and scoring compute logits at once."""

from archlab.config.components.work import FLOAT32_BYTES
from archlab.machine import LARGEST_KEPT

LOGITS_AT_ONCE = {"cpu": 2**22, "cuda": 2**26}
"""Largest number of logits per piece, by type of device. On a CPU, 16 MiB in float32 fit into the cache; a GPU needs
more work at a time."""

LEAST_ROWS = 256
"""Smallest number of tokens in a piece, whatever the size of the vocabulary. Each piece adds a gradient as large as
the head's matrix."""

FEW_ROWS = 128
"""Smallest number of tokens in a piece on a CPU, for pieces whose logits fit into memory that the process keeps and
need not request again.

A training step is then a fifth faster at vocabularies of 32,768 and 50,304.
"""


_ROUND_A_TENSOR = 4096
"""Upper limit of the bytes that the C library adds before and after a tensor."""


def rows_at_once(vocab_size: int, device_type: str) -> int:
    """Return the number of tokens in a piece, for a vocabulary size and a type of device (`cpu`, `cuda`)."""
    kept = (LARGEST_KEPT - _ROUND_A_TENSOR) // FLOAT32_BYTES // vocab_size
    least = kept if device_type == "cpu" and FEW_ROWS <= kept < LEAST_ROWS else LEAST_ROWS
    return max(least, LOGITS_AT_ONCE[device_type] // vocab_size)
