"""Typesetting of formulas: the plain text of a topic's formula becomes HTML with MathML, which all browsers render.

Two or more spaces separate a formula from a remark. `x_i`, `S_{t−1}` and `W₁` have subscripts; `x²` and `theta^(2m/d)`
have superscripts. `√(x + y)` is a root.

A slash between spaces makes a fraction. Its numerator is the product to the left, up to a sum, a relation or a comma.
Its denominator is the next factor, or several without a sign between them. A slash without spaces stays in the line.

`head_dim` is the name of a config field. But `d_model` and `MLP_e` have subscripts, because their bases are a single
letter and capitals.
"""

import re
from collections.abc import Sequence
from functools import cache
from html import escape
from typing import NamedTuple

from markupsafe import Markup

_TOKEN = re.compile(
    r"""(?P<gap>\s*)(?:
      (?P<mark><\w+>)
    | (?P<number>\d+(?:\.\d+)?%?)
    | (?P<name>[A-Za-z]{2,}(?![-'’]?[A-Za-z]*_[^\W_](?![^\W_]))(?:_[A-Za-z]{2,})+  # a field, such as head_dim
             | [A-Za-z]+\d*(?:[-'’][A-Za-z0-9]+)*)
    | (?P<letter>[α-ρτ-ωΑ-ΡΤ-Ωσ∞])
    | (?P<open>[(\[⌊]|‖(?=\w))
    | (?P<close>[)\]⌋]|(?<!\s)‖)  # between spaces, ‖ stands between two distributions
    | (?P<root>√)
    | (?P<below>_(?:\{[^}]*\}|[A-Za-z0-9]+(?:_[A-Za-z]+)*(?:[−+]\d+)?)|[₀-₉ₖ]+)
    | (?P<above>\^|[²³ᵀ]+|′)
    | (?P<hat>\u0302)
    | (?P<sign>\S))""",
    re.VERBOSE,
)

_RELATIONS = "=←→≈∝≤≥<>~|‖"
_SUMS = "+−"
_COMMAS = ",;:."
_PLAIN = dict(zip("₀₁₂₃₄₅₆₇₈₉ₖ²³ᵀ", "0123456789k23T", strict=True))
_FUNCTIONS = {"cos", "sin", "tanh", "exp", "ln", "log", "max", "min", "int", "sign", "clip"}
"""Names that stay beside their argument, even without brackets."""

_LONGEST_OPERAND = 3
"""Maximum number of words of an operand of a fraction. A longer phrase is a sentence around the slash."""


class _Token(NamedTuple):
    kind: str
    text: str
    is_apart: bool
    """Whether a space comes before the token."""


class _Node(NamedTuple):
    """A part of a formula. `kind` is `words`, `operator` for sums and relations, `comma`, `sign`, or `term`."""

    kind: str
    html: str
    is_apart: bool = False
    inside: str = ""
    """Content of a term in round brackets."""
    n_words: int = 0


@cache
def typeset(formula: str) -> Markup:
    """Return a formula of several lines as HTML. Formulas in a line are `<math>` elements, and remarks are text, so
    that a line can be wrapped between them."""
    lines = (re.split(r"(?<!,)\s{2,}", line.strip()) for line in formula.replace("`", "").strip().splitlines())
    cells = ("".join(f"<span>{_cell(cell)}</span>" for cell in line) for line in lines)
    return Markup('<div class="formula" tabindex="0">' + "".join(f"<div>{line}</div>" for line in cells) + "</div>")


def _cell(text: str) -> str:
    chunks, before = list[list[_Node]](), _Node("comma", "")
    for node in _Parser(text).sequence():
        stays = node.kind == "comma" or not {"words", "comma"} & {node.kind, before.kind}
        if chunks and stays and node.kind != "operator":
            chunks[-1].append(node)
        else:
            chunks.append([node])
        before = node
    return " ".join(_chunk(chunk) for chunk in chunks)


def _chunk(parts: Sequence[_Node]) -> str:
    if parts[0].kind == "words":
        return re.sub("</?mo>", "", "".join(part.html for part in parts))
    row = _row(parts).replace('form="infix"', 'form="infix" lspace="0"', int(parts[0].kind == "operator"))
    return f'<math displaystyle="true">{row}</math>'


class _Parser:
    def __init__(self, text: str) -> None:
        self.tokens = [
            _Token(str(match.lastgroup), match[str(match.lastgroup)], bool(match["gap"]))
            for match in _TOKEN.finditer(text)
        ]
        self.at = 0

    @property
    def next(self) -> _Token:
        return self.after(0)

    def after(self, n: int) -> _Token:
        return self.tokens[self.at + n] if self.at + n < len(self.tokens) else _Token("end", "", True)

    def take(self) -> _Token:
        self.at += 1
        return self.tokens[self.at - 1]

    def sequence(self) -> list[_Node]:
        """Return the parts up to the end or to a closing bracket."""
        parts, start = list[_Node](), 0
        while self.next.kind not in ("end", "close"):
            if self.next.text == "/" and self.next.is_apart and _is_operand(parts[start:]):
                self.take()
                parts[start:] = [_fraction(parts[start:], self.run())]
                continue
            node = self.part()
            parts.append(node)
            if node.kind in ("operator", "comma"):
                start = len(parts)
        return parts

    def run(self) -> list[_Node]:
        """Return the factors up to the next sign."""
        parts = [self.part()]
        while self.next.kind not in ("end", "close", "sign"):
            parts.append(self.part())
        return parts

    def part(self) -> _Node:
        token = self.take()
        match token.kind:
            case "number":
                node = _Node("term", f"<mn>{token.text}</mn>", token.is_apart)
            case "name":
                if words := self.words(token):
                    return words
                node = _Node("term", f"<mi>{escape(token.text)}</mi>", token.is_apart)
            case "letter":
                node = _Node("term", f"<mi>{token.text}</mi>", token.is_apart)
            case "open":
                node = self.group(token, ")]⌋‖"["([⌊‖".index(token.text)])
            case "root":
                inside = self.part()
                node = _Node("term", f"<msqrt>{inside.inside or inside.html}</msqrt>", token.is_apart)
            case "mark":
                return _Node("words", escape(token.text), token.is_apart, n_words=1)
            case _:
                return self.sign(token)
        return self.scripts(node)

    def group(self, token: _Token, end: str) -> _Node:
        inside = _row(self.sequence())
        if self.next.kind == "close":
            end = self.take().text
        html = f'<mo stretchy="false">{token.text}</mo>{inside}<mo stretchy="false">{end}</mo>'
        return _Node("term", f"<mrow>{html}</mrow>", token.is_apart, inside if token.text == "(" else "")

    def sign(self, token: _Token) -> _Node:
        text = escape(token.text)
        if token.text in _COMMAS:
            return _Node("comma", f"<mo>{text}</mo>")
        if token.text in _SUMS and not (token.is_apart and self.next.is_apart):
            return self.scripts(_Node("term", f'<mo form="prefix">{text}</mo>', token.is_apart))
        if token.text in _RELATIONS + _SUMS:
            return _Node("operator", f'<mo form="infix">{text}</mo>')
        if token.text in "·⊙×":
            return _Node("sign", f'<mo form="infix">{text}</mo>')
        if token.text == "/":
            space = "0.2em" if token.is_apart else "0"
            return _Node("sign", f'<mo lspace="{space}" rspace="{space}">/</mo>')
        if token.text == "Σ":
            return self.scripts(_Node("term", '<mo largeop="false">Σ</mo>', token.is_apart))
        return self.scripts(_Node("term", f"<mo>{text}</mo>", token.is_apart))

    def words(self, first: _Token) -> _Node | None:
        """Return a phrase that begins with this name, or None if the name is part of a formula."""
        before = self.tokens[self.at - 2] if self.at > 1 else _Token("sign", "", True)
        after = self.next
        is_word = self.is_word(first, after)
        article = first.text == "a" and self.is_word(after, self.after(1))
        beside = (before.kind not in ("sign", "open") and first.is_apart) or (
            after.kind not in ("sign", "end", "close") and after.is_apart
        )
        if before.kind == "root" or not (article or (is_word and beside)):
            return None
        texts = [first.text]
        while self.next.kind == "name" and self.next.is_apart:
            is_article = self.next.text == "a" and self.after(1).kind in ("name", "end")
            if not (is_article or self.is_word(self.next, self.after(1))):
                break
            texts.append(self.take().text)
        return _Node("words", escape(" ".join(texts)), first.is_apart, n_words=len(texts))

    def is_word(self, token: _Token, after: _Token) -> bool:
        is_alone = after.is_apart or after.kind in ("end", "close", "sign")
        return token.kind == "name" and len(token.text) > 1 and token.text not in _FUNCTIONS and is_alone

    def scripts(self, node: _Node) -> _Node:
        """Return the part with the accents, subscripts and superscripts that follow it."""
        html, below, above = node.html, "", ""
        while self.next.kind in ("hat", "below", "above") and not self.next.is_apart:
            token = self.take()
            if token.kind == "hat":
                html = f'<mover accent="true">{html}<mo>^</mo></mover>'
            elif token.kind == "below":
                text = token.text.removeprefix("_").strip("{}")
                below = _row(_Parser("".join(_PLAIN.get(letter, letter) for letter in text)).sequence())
            elif token.text == "^":
                power = self.part()
                above = power.inside or power.html
            else:
                above += _row(_Parser("".join(_PLAIN.get(letter, letter) for letter in token.text)).sequence())
        if not (below or above or html != node.html):
            return node
        tag = "msubsup" if below and above else "msub" if below else "msup" if above else ""
        scripts = "".join(f"<mrow>{script}</mrow>" for script in (below, above) if script)
        return _Node("term", f"<{tag}>{html}{scripts}</{tag}>" if tag else html, node.is_apart)


def _is_operand(parts: Sequence[_Node]) -> bool:
    return bool(parts) and all(part.n_words <= _LONGEST_OPERAND for part in parts)


def _fraction(over: Sequence[_Node], under: Sequence[_Node]) -> _Node:
    halves = (part[0].inside if len(part) == 1 and part[0].inside else _row(part) for part in (over, under))
    return _Node("term", f"<mfrac>{''.join(f'<mrow>{half}</mrow>' for half in halves)}</mfrac>", over[0].is_apart)


def _row(parts: Sequence[_Node]) -> str:
    """Return the parts in a row. A factor has a space before it if it follows another factor without a sign."""
    html = ""
    for before, part in zip([None, *parts], parts, strict=False):
        factors = before is not None and {before.kind, part.kind} <= {"term", "words"}
        html += _SPACE if factors and part.is_apart else ""
        html += f"<mtext>{part.html}</mtext>" if part.kind == "words" else part.html
    return html


_SPACE = '<mspace width="0.2em"></mspace>'
