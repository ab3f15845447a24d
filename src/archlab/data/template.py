"""Rules that turn a record into a text, or into a pair of a source and a target."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from archlab.errors import UserError

_JSON = (
    (type(None), "null"), (bool, "true or false"), ((int, float), "a number"), (str, "a string"), (list, "an array"),
    (dict, "an object"),
)  # fmt: skip
_BRACES = re.compile(r"\{\{|\}\}|\{([^{}]+)\}|[{}]")


class InvalidRecordError(Exception):
    """Raised for a record without usable text. The message is the reason."""


class MissingFieldError(InvalidRecordError):
    """Raised for a record or table that lacks a field."""


@dataclass(frozen=True)
class TextTemplate:
    """Rule that turns a record into a text: the values of fields, with fixed text around them.

    A field name with dots refers to a field of a nested record, unless a field has exactly that name.
    """

    fields: tuple[str, ...] = ("text",)
    around: tuple[str, ...] = ("", "")
    """Fixed text before the first value, between two values, and after the last value."""

    @classmethod
    def parse(cls, text: str) -> "TextTemplate":
        """Parse a template such as `{title}: {meta.body}`. `{{` and `}}` are literal braces.

        Raise UserError if a brace is unbalanced or the template has no field.
        """
        fields, around, at = list[str](), [""], 0
        for piece in _BRACES.finditer(text):
            around[-1] += text[at : piece.start()]
            at = piece.end()
            if piece[1]:
                fields.append(piece[1])
                around.append("")
            elif len(piece[0]) == 2:
                around[-1] += piece[0][0]
            else:
                hint = f"write {piece[0] * 2} for a literal brace"
                raise UserError(
                    f"--template: {text!r} has an unbalanced {piece[0]} at character {piece.start() + 1}; {hint}"
                )
        around[-1] += text[at:]
        if not fields:
            raise UserError(f"--template: {text!r} has no field; put a field name in braces, as in {{title}}")
        return cls(tuple(fields), tuple(around))

    def texts(self, values: Sequence[object]) -> tuple[str]:
        """Return the text that the values of the fields make."""
        texts = [_checked(value, field) for value, field in zip(values, self.fields, strict=True)]
        rest = (text + after for text, after in zip(texts, self.around[1:], strict=True))
        return ("".join([self.around[0], *rest]) if any(texts) else "",)

    def __str__(self) -> str:
        if self.around == ("", ""):
            return f"field {self.fields[0]!r}"
        before, *after = (text.replace("{", "{{").replace("}", "}}") for text in self.around)
        fields = (f"{{{field}}}{text}" for field, text in zip(self.fields, after, strict=True))
        return f"template {''.join([before, *fields])!r}"


TEXT = TextTemplate()
"""Template that takes the value of the field `text`."""


@dataclass(frozen=True)
class PairFields:
    """Rule that turns a record into a pair: the values of two fields are its source and its target.

    In a .tsv file, the fields are two names in the first line. If they are numbers, they count columns from 1, and the
    file has no line of names.
    """

    fields: tuple[str, str]

    def texts(self, values: Sequence[object]) -> tuple[str, str]:
        """Return the source and the target. Raise InvalidRecordError if one of them is empty."""
        named = zip(values, self.fields, strict=True)
        source, target = (_not_empty(_checked(value, field), field) for value, field in named)
        return source, target

    def __str__(self) -> str:
        return f"pairs of {self.fields[0]!r} and {self.fields[1]!r}"


def called(value: object) -> str:
    return next((name for kinds, name in _JSON if isinstance(value, kinds)), type(value).__name__)


def _not_empty(text: str, field: str) -> str:
    if not text.strip():
        raise InvalidRecordError(f"{field!r} is empty; expected text in the source and in the target of a pair")
    return text


def _checked(text: object, field: str) -> str:
    if not isinstance(text, str):
        raise InvalidRecordError(f"{field!r} is {called(text)}; expected a string")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidRecordError(f"{field!r} has half a surrogate pair, which is not valid Unicode text") from None
    return text
