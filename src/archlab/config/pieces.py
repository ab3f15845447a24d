"""Number of tokens per piece. Training and scoring compute the logits of one piece at a time."""

from archlab.config.components.work import FLOAT32_BYTES
from archlab.machine import LARGEST_KEPT

LOGITS_AT_ONCE = {"cpu": 2**22, "cuda": 2**26}
"""Largest number of logits per piece, by device type. On a CPU, these logits are 16 MiB in float32 and fit into the
cache. A GPU needs more work at a time."""

LEAST_ROWS = 256
"""Smallest number of tokens in a piece for any vocabulary size. Smaller pieces would be slow, because each piece adds a
gradient as large as the head's matrix."""

FEW_ROWS = 128
"""Smallest number of tokens in a piece on a CPU if the logits of the piece fit into memory that the process reuses.

The process then does not request this memory from the operating system again. This makes a training step 20% faster at
vocabularies of 32,768 and 50,304 tokens.
"""


_ALLOCATION_OVERHEAD = 4096
"""Upper limit of the bytes that the C library allocates around a tensor."""


def rows_at_once(vocab_size: int, device_type: str) -> int:
    """Return the number of tokens in a piece, for a vocabulary size and a type of device (`cpu`, `cuda`)."""
    rows_that_fit = (LARGEST_KEPT - _ALLOCATION_OVERHEAD) // FLOAT32_BYTES // vocab_size
    least = rows_that_fit if device_type == "cpu" and FEW_ROWS <= rows_that_fit < LEAST_ROWS else LEAST_ROWS
    return max(least, LOGITS_AT_ONCE[device_type] // vocab_size)
