"""Typeset formulas: written back as plain text, they are the formulas of the topics."""

import re
from html import unescape
from xml.etree.ElementTree import Element, fromstring

import pytest

from archlab.evidence.topics import topics
from archlab.report.formulas import typeset

FORMULAS = {name: topic.formula for name, topic in topics()}
SUMS = "=←→≈∝≤≥<>~|+−,;:"


def written(element: Element) -> str:
    """Return the plain text of an element. Fractions, roots and powers have brackets where a line needs them."""
    parts = [written(child) for child in element]
    match element.tag:
        case "mfrac":
            over, under = parts
            over = f"({over})" if signs(element[0]) & {*SUMS} else over
            return f"{over}/{f'({under})' if signs(element[1]) else under}"
        case "msqrt":
            return f"√({''.join(parts)})" if len(parts) > 1 else f"√{parts[0]}"
        case "msub":
            return f"{parts[0]}_{parts[1]}"
        case "msup" | "msubsup":
            base = parts[0] if element.tag == "msup" else f"{parts[0]}_{parts[1]}"
            is_long = len(element[-1]) > 1 or element[-1][0].tag == "mfrac"
            return base + (parts[-1] if parts[-1] == "′" else f"^({parts[-1]})" if is_long else f"^{parts[-1]}")
        case "mover":
            return f"{parts[0]}\u0302"
        case _:
            return "".join(
                [element.text or "", *(part + (child.tail or "") for part, child in zip(parts, element, strict=True))]
            )


def signs(row: Element) -> set[str]:
    """Return the signs between the factors of a row, outside brackets."""
    return {child.text or "" for child in row if child.tag == "mo" and child.get("form") != "prefix"} - {"Σ", "…"}


def in_one_way(formula: str) -> str:
    """Return a formula without spaces, with `_1` and `^2` in place of Unicode's subscripts and superscripts."""
    for letter, plain in zip(
        "₀₁₂₃₄₅₆₇₈₉ₖ²³ᵀ",
        ["_0", "_1", "_2", "_3", "_4", "_5", "_6", "_7", "_8", "_9", "_k", "^2", "^3", "^T"],
        strict=True,
    ):
        formula = formula.replace(letter, plain)
    return re.sub(r"[\s{}`]", "", formula)


@pytest.mark.parametrize("name", FORMULAS)
def test_nothing_of_a_formula_is_lost_or_moved(name: str):
    assert in_one_way(written(fromstring(typeset(FORMULAS[name])))) == in_one_way(FORMULAS[name])


def math_of(formula: str) -> str:
    return re.sub(r'<mspace width="0.2em"></mspace>| form="\w+"| stretchy="false"', "", typeset(formula))


def test_a_fraction_reaches_over_the_product_before_it():
    assert (
        "<mfrac><mrow><mi>q</mi><mo>·</mo><mi>k</mi></mrow><mrow><msqrt><mi>d</mi></msqrt></mrow></mfrac>"
        in math_of("score = q · k / √d + b")
    )


def test_a_slash_in_a_sentence_stays_in_the_line():
    assert "mfrac" not in typeset("ω   if it is shorter than original / factor")
    assert "mfrac" in typeset("speed = tokens per second / bytes per second")


def test_a_field_has_no_subscript_but_a_variable_has():
    assert "<mi>head_dim</mi>" in math_of("x = head_dim")
    assert "<msub><mi>d</mi><mrow><mi>model</mi></mrow></msub>" in math_of("x = d_model")


def test_what_looks_like_html_stays_text():
    assert "&lt;mask&gt;" in typeset("80% as <mask> and <b>")
    assert "<b>" not in typeset("80% as <mask> and <b>")
    assert unescape(typeset("a < b")).count("<") > 1
