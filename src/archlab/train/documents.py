"""Documents packed into one window."""

from torch import Tensor


def document_ids(tokens_BT: Tensor, begins: int | None) -> Tensor | None:
    """Number of each token's document in its window, [B, T]; None where documents are not kept apart.

    0 is the rest of a document that began before the window. The token `begins` belongs to the document it
    begins, so it is predicted from the document before it.
    """
    return None if begins is None else (tokens_BT == begins).cumsum(-1)
