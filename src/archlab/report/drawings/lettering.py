"""How wide text is, so that boxes fit it: by the widths of Arial, which Liberation Sans and Helvetica share."""

import textwrap

_EM = {
    "'": 0.19,
    "ijl": 0.222,
    "|": 0.26,
    " !,./:;It[\\]fI·": 0.278,
    "()-r`": 0.333,
    '"': 0.355,
    "*^": 0.47,
    "Jckvxyzs": 0.5,
    "+<=>~×±−": 0.584,
    "FTZ": 0.611,
    "&ABEKPSVXY": 0.667,
    "CDHNRUw": 0.722,
    "GOQ": 0.778,
    "mM": 0.833,
    "%": 0.889,
    "W": 0.944,
    "…→": 1.0,
    "@": 1.015,
}
_WIDTHS = {letter: width for letters, width in _EM.items() for letter in letters}
_OTHERS = 0.556
"""Digits, and most small letters."""
_BOLD, _SPARE = 1.09, 1.17
"""How much wider bold is; and text on machines that have none of these fonts, but DejaVu Sans."""

FAMILY = "Arial, 'Liberation Sans', Helvetica, sans-serif"


def text_width(text: str, size: float, *, bold: bool = False) -> float:
    """Of one line, in the unit of `size`."""
    em = sum(_WIDTHS.get(letter, _OTHERS if letter.isascii() else 1.0) for letter in text)
    return em * size * _SPARE * (_BOLD if bold else 1)


def folded(text: str, size: float, width: float) -> list[str]:
    """The text in lines of about that width at most, broken after commas if they will do; a long word is cut."""
    lines = [""]
    for part in text.split(", "):
        joined = f"{lines[-1]}, {part}" if lines[-1] else part
        if text_width(joined, size) <= width:
            lines[-1] = joined
        else:
            letters = max(8, int(width / (_OTHERS * _SPARE * size)))
            lines += textwrap.wrap(part, letters)
    return [line for line in lines if line]
