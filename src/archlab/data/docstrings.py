"""English prose from the docstrings of Python code, as a text to train on."""

import ast
import re
from collections.abc import Iterator

SHORTEST = 40
"""Fewest characters of a paragraph that counts as prose."""

_PLAIN = re.compile(r"[A-Za-z\s,.']")
_LEAST_PLAIN = 0.9
"""Smallest share of letters, spaces and simple punctuation. Formulas, signatures and links have less."""

_NOT_PROSE = (">>>", "---", " : ")
"""Marks of code examples, underlined headings, and parameters with their types."""


def prose(code: str) -> str:
    """Return the paragraphs of prose in all docstrings of the code, one per line. If a paragraph occurs several times,
    it is returned once. Return an empty string if the code has none, or is not valid Python.

    A paragraph counts as prose if all of its lines have the same indentation, it begins with a capital letter and ends
    with a full stop. So lists of parameters, tables and headings are left out.
    """
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError):
        return ""
    return "\n".join(dict.fromkeys(text for docstring in _docstrings(tree) for text in _paragraphs(docstring)))


def _docstrings(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""


def _paragraphs(docstring: str) -> Iterator[str]:
    for block in re.split(r"\n\s*\n", docstring):
        indentations = {len(line) - len(line.lstrip()) for line in block.splitlines()}
        text = " ".join(block.split())
        if len(text) < SHORTEST or len(indentations) > 1 or any(mark in text for mark in _NOT_PROSE):
            continue
        if "A" <= text[0] <= "Z" and text.endswith(".") and len(_PLAIN.findall(text)) >= _LEAST_PLAIN * len(text):
            yield text
