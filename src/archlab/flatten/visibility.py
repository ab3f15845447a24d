"""Which keys a query sees: one function per rule."""

from archlab.config.visibility import Visibility
from archlab.flatten.page import Page, lines


def visibility(page: Page, kind: str, config: Visibility) -> str:
    """The name of the function from positions to a boolean mask [T, S]."""
    if config.blocks is not None:
        size = page.constant(kind, "BLOCK_SIZE", config.blocks.size)
        summary = page.constant(kind, "SUMMARY", config.blocks.summary, "last keys of a block that later ones see")
        return _function(
            page, kind, "sparse_blocks", "its block so far and the ends of earlier ones (Child 2019)",
            "query_T1, key_S = position_T[:, None], position_T",
            f"same_block_TS = query_T1 // {size} == key_S // {size}",
            f"is_summary_S = key_S % {size} >= {size} - {summary}",
            "return (key_S <= query_T1) & (same_block_TS | is_summary_S)",
        )  # fmt: skip
    if config.window is None:
        return _function(
            page, kind, "causal", "itself and every token before it", "return position_T[:, None] >= position_T"
        )
    window = page.constant(kind, "WINDOW", config.window, "keys that a query sees, its own included")
    distance, is_near = "distance_TS = position_T[:, None] - position_T", f"distance_TS < {window}"
    if config.stride is None and not config.global_tokens:
        return _function(
            page, kind, "sliding_window", "the last few tokens, its own included (Beltagy 2020)",
            distance, f"return (distance_TS >= 0) & ({is_near})",
        )  # fmt: skip
    body, about = [distance, f"seen_TS = {is_near}"], "the last few tokens"
    if config.stride is not None:
        stride = page.constant(kind, "STRIDE", config.stride, "beyond the window, one key in so many is seen")
        body.append(f"seen_TS = seen_TS | (distance_TS % {stride} == 0)")
        about += ", some before"
    if config.global_tokens:
        first = page.constant(kind, "GLOBAL_TOKENS", config.global_tokens, "at the start, seen by all")
        body.append(f"seen_TS = seen_TS | (position_T < {first})")
        about += ", the first"
    source = "Child 2019" if config.stride else "Beltagy 2020"
    return _function(page, kind, "sliding_window", f"{about} ({source})", *body, "return (distance_TS >= 0) & seen_TS")


def _function(page: Page, kind: str, name: str, about: str, *body: str) -> str:
    return page.define(
        kind,
        name,
        lines(
            "def <name>(position_T: Tensor) -> Tensor:",
            f'    """A query sees {about}."""',
            [f"    {line}" for line in body],
        ),
    )
