"""Longest conversation that fits into a window."""

from archlab.data.shards import ChatFacts
from archlab.errors import UserError


def check_longest(chat: ChatFacts, seq_len: int) -> None:
    """Raise UserError if a conversation of a folder does not fit into windows of `seq_len` tokens."""
    if (n_tokens := chat.longest.tokens) > seq_len + 1:
        raise UserError(
            f"{chat.longest.where}: {too_long(n_tokens, seq_len)}; allowed: a length of {n_tokens - 1} or more "
            f"(train.seq_len, train.eval_seq_len), or shorter conversations: `archlab data --seq-len {seq_len} "
            "--skip-invalid` leaves out longer ones"
        )


def too_long(n_tokens: int, seq_len: int) -> str:
    """Return the message about a conversation that does not fit into a window.

    A window has one token more than the model reads, because its last token is only predicted.
    """
    return f"the conversation has {n_tokens} tokens; a window of {seq_len} tokens holds up to {seq_len + 1}"
