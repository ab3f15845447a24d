"""Of how many tokens training and scoring have the logits at once."""

LOGITS_AT_ONCE = {"cpu": 2**22, "cuda": 2**26}
"""By the kind of device: 16 MiB in float32 stay in a processor's cache; a GPU wants more work at a time."""

LEAST_ROWS = 256
"""Of a piece, however large the vocabulary: each adds a gradient as large as the head's matrix."""


def rows_at_once(vocab_size: int, device_type: str) -> int:
    """Tokens of a piece."""
    return max(LEAST_ROWS, LOGITS_AT_ONCE[device_type] // vocab_size)
