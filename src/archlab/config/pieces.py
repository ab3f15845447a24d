"""Of how many tokens training and scoring have the logits at once."""

from archlab.config.components.work import FLOAT32_BYTES
from archlab.machine import LARGEST_KEPT

LOGITS_AT_ONCE = {"cpu": 2**22, "cuda": 2**26}
"""By the kind of device: 16 MiB in float32 stay in a processor's cache; a GPU wants more work at a time."""

LEAST_ROWS = 256
"""Of a piece, however large the vocabulary: each adds a gradient as large as the head's matrix."""

FEW_ROWS = 128
"""Of a piece on a CPU where so few keep its logits in memory that need not be asked for again: a step is by a fifth
faster at a vocabulary of 32,768, and at 50,304."""


_ROUND_A_TENSOR = 4096
"""Bytes, more than the C library puts before and behind one."""


def rows_at_once(vocab_size: int, device_type: str) -> int:
    """Tokens of a piece."""
    kept = (LARGEST_KEPT - _ROUND_A_TENSOR) // FLOAT32_BYTES // vocab_size
    least = kept if device_type == "cpu" and FEW_ROWS <= kept < LEAST_ROWS else LEAST_ROWS
    return max(least, LOGITS_AT_ONCE[device_type] // vocab_size)
