"""Rules that turn a record into a text, into a pair of a source and a target, or into a conversation."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from archlab.config.check import validate
from archlab.config.problems import nearest
from archlab.config.schema import DataConfig
from archlab.errors import UserError
from archlab.hf.chat_template import ASSISTANT, BESIDE_MESSAGES, ROLES
from archlab.pricing.units import plural

_JSON = (
    (type(None), "null"), (bool, "true or false"), ((int, float), "a number"), (str, "a string"), (list, "an array"),
    (dict, "an object"),
)  # fmt: skip
_KWARGS = "chat_template_kwargs"
"""Field of a record with further values for the chat template, in TRL."""
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
    unit: ClassVar[str] = "texts"
    """Name of what the records contain, in the plural."""
    optional: ClassVar[tuple[str, ...]] = ()
    """Names of fields that a record may lack. Their values, or None, follow those of `fields`."""

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
        texts = [_checked(value, repr(field)) for value, field in zip(values, self.fields, strict=True)]
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
    unit: ClassVar[str] = "pairs"
    optional: ClassVar[tuple[str, ...]] = ()

    def texts(self, values: Sequence[object]) -> tuple[str, str]:
        """Return the source and the target. Raise InvalidRecordError if one of them is empty."""
        named = zip(values, self.fields, strict=True)
        source, target = (_not_empty(_checked(value, repr(field)), field) for value, field in named)
        return source, target

    def __str__(self) -> str:
        return f"pairs of {self.fields[0]!r} and {self.fields[1]!r}"


@dataclass(frozen=True)
class ChatFields:
    """Rule that turns a record into a conversation: one field holds its messages, or two fields hold a prompt and its
    response.

    Each message is an object with a role and a content, as in the chat API of OpenAI. A record may also have tools and
    documents, which its chat template may write.
    """

    fields: tuple[str, ...]
    """Name of the field of the messages, or names of the fields of the prompt and the response."""
    unit: ClassVar[str] = "conversations"
    optional: ClassVar[tuple[str, ...]] = (*BESIDE_MESSAGES, _KWARGS)

    def texts(self, values: Sequence[object]) -> tuple[str]:
        """Return the conversation as JSON: an array of messages or, if the record has tools or documents, an object
        with all of them. Raise InvalidRecordError if the messages are not a conversation with a response."""
        *beside, others = values[len(self.fields) :]
        if others not in (None, {}):
            raise InvalidRecordError(f"the field {_KWARGS!r} is set; allowed beside messages: tools and documents")
        named = {name: _objects(x, name) for name, x in zip(BESIDE_MESSAGES, beside, strict=True) if x is not None}
        messages = self._messages(values[: len(self.fields)])
        return (json.dumps({"messages": messages, **named} if named else messages, ensure_ascii=False),)

    def _messages(self, values: Sequence[object]) -> list[dict[str, str]]:
        if len(self.fields) == 1:
            return list(_messages(values[0], self.fields[0]))
        contents = (_prompt_or_response(value, field) for value, field in zip(values, self.fields, strict=True))
        return [{"role": role, "content": text} for role, text in zip(("user", ASSISTANT), contents, strict=True)]

    def __str__(self) -> str:
        if len(self.fields) == 1:
            return f"conversations in {self.fields[0]!r}"
        return f"conversations of {self.fields[0]!r} and {self.fields[1]!r}"


RecordTemplate: TypeAlias = TextTemplate | PairFields | ChatFields


def record_template(
    field: str | None = None,
    template: str | None = None,
    pairs: Sequence[str] | None = None,
    chat: Sequence[str] | None = None,
) -> RecordTemplate:
    """Return the rule for records: the text of a field or of a template, a pair, or a conversation.

    By default, it is the text of the field `text`. Raise UserError if two of the arguments exclude each other.
    """
    if pairs is not None and chat is not None:
        raise UserError("--pairs and --chat cannot be combined; give one of the two")
    for option, names in (("--pairs", pairs), ("--chat", chat)):
        if names is not None and (field is not None or template is not None):
            raise UserError(f"{option} cannot be combined with --field or --template; it names the fields itself")
    if pairs is not None:
        return _pair_fields(pairs)
    if chat is not None:
        return _chat_fields(chat)
    if template is None:
        return TEXT if field is None else TextTemplate((field,))
    if field is not None:
        raise UserError("--field and --template cannot be combined; a template names its fields")
    return TextTemplate.parse(template)


def _pair_fields(pairs: Sequence[str]) -> PairFields:
    if (n := len(pairs)) != 2:
        raise UserError(
            f"--pairs {','.join(pairs)} names {plural(n, 'field')}; allowed: two with a comma between them, as in en,de"
        )
    fields = validate(DataConfig, {"pairs": [*pairs]}, "--pairs").pairs
    assert fields is not None
    return PairFields(fields)


def _chat_fields(chat: Sequence[str]) -> ChatFields:
    if not all(chat) or not len({*chat}) == len(chat) <= 2 or not chat:
        raise UserError(
            f"--chat {','.join(chat)}; allowed: one field with messages, as in messages, or two with a comma between "
            "them, as in prompt,completion"
        )
    return ChatFields(tuple(chat))


def _prompt_or_response(value: object, field: str) -> str:
    if isinstance(value, list):
        hint = "to read messages, name one field that holds the whole conversation"
        raise InvalidRecordError(f"{field!r} is an array; expected a string ({hint})")
    return _not_empty(_checked(value, repr(field)), field, "in the prompt and in the response")


def _objects(value: object, name: str) -> list[object]:
    if not isinstance(value, list) or not all(isinstance(each, Mapping) for each in value):
        wrong = next(each for each in value if not isinstance(each, Mapping)) if isinstance(value, list) else value
        verb = "contains" if isinstance(value, list) else "is"
        raise InvalidRecordError(f"{name!r} {verb} {json_type(wrong)}; expected an array of objects")
    try:
        _checked(json.dumps(value, ensure_ascii=False), repr(name))
    except (TypeError, ValueError) as error:
        raise InvalidRecordError(f"{name!r} is not JSON: {error}") from None
    return value


def _messages(value: object, field: str) -> list[dict[str, str]]:
    if not isinstance(value, list):
        raise InvalidRecordError(f"{field!r} is {json_type(value)}; expected an array of messages")
    messages = [_message(message, f"message {n} of {field!r}") for n, message in enumerate(value, 1)]
    if not messages or all(message["role"] != ASSISTANT for message in messages):
        raise InvalidRecordError(f"{field!r} has no message of the role {ASSISTANT!r}, so there is nothing to learn")
    if messages[0]["role"] == ASSISTANT:
        raise InvalidRecordError(f"message 1 of {field!r} is a response; expected a message that it responds to")
    return messages


def _message(message: object, where: str) -> dict[str, str]:
    if not isinstance(message, Mapping):
        raise InvalidRecordError(f"{where} is {json_type(message)}; expected an object with role and content")
    present = [str(key) for key, value in message.items() if value not in (None, [], {})]
    if missing := next((key for key in ("role", "content") if key not in present), None):
        raise InvalidRecordError(f"{where} has no {missing!r}; found: {', '.join(present) or 'nothing'}")
    if others := [key for key in present if key not in ("role", "content")]:
        raise InvalidRecordError(
            f"{where} has the field {others[0]!r}; allowed: role and content, because tool calls and other parts of "
            "a message are not supported"
        )
    role, content = message["role"], _checked(message["content"], f"content of {where}")
    if not isinstance(role, str) or role not in ROLES:
        raise InvalidRecordError(
            f"{where} has the role {role!r}{nearest(str(role), ROLES)}; allowed: {', '.join(ROLES)}"
        )
    if not content.strip() and role != "system":
        raise InvalidRecordError(f"{where}, of the role {role!r}, is empty; expected text")
    return {"role": role, "content": content}


def json_type(value: object) -> str:
    """Return the type of a value in JSON, in words: `a string`, or `an array`."""
    return next((name for kinds, name in _JSON if isinstance(value, kinds)), type(value).__name__)


def _not_empty(text: str, field: str, where: str = "in the source and in the target of a pair") -> str:
    if not text.strip():
        raise InvalidRecordError(f"{field!r} is empty; expected text {where}")
    return text


def _checked(text: object, where: str) -> str:
    if not isinstance(text, str):
        raise InvalidRecordError(f"{where} is {json_type(text)}; expected a string")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidRecordError(f"{where} has half a surrogate pair, which is not valid Unicode text") from None
    return text
