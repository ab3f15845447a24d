"""Chat templates: the Jinja programs that turn the messages of a conversation into the text that a model reads.

A template comes with the tokenizer of a published model, in `chat_template.jinja` or under the key `chat_template` of
`tokenizer_config.json`. It is rendered as in transformers, in Jinja's sandbox, because a template is foreign code.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

from jinja2 import Template, TemplateError, nodes, pass_eval_context
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from archlab.errors import UserError
from archlab.files import parse_object
from archlab.hf.folder import companions
from archlab.hf.special_tokens import SPECIAL_MAP, TOKENIZER_CONFIG, special_names

CHAT_TEMPLATE = "chat_template.jinja"

ASSISTANT = "assistant"
"""Role of the messages that a model writes."""

ROLES = ("system", "developer", "user", ASSISTANT)
"""Roles of messages."""

Messages = Sequence[Mapping[str, str]]
"""Messages of a conversation, each with a `role` and a `content`."""

_TAG = re.compile(r"\{%-?\s*generation\s*-?%\}")


class ChatTemplateError(Exception):
    """Raised if a template cannot render a conversation. The message is the reason."""


@dataclass(frozen=True)
class ChatTemplate:
    """Chat template of a tokenizer."""

    source: str
    """Jinja source."""
    special: Mapping[str, str]
    """Special tokens that the template can write, by the names of its variables, such as `eos_token`."""

    @classmethod
    def of(cls, folder: Path, default: str | None = None) -> "ChatTemplate | None":
        """Return the chat template of a tokenizer's folder, or None if the folder has none.

        `default` is the BOS and EOS token if no file of the folder names special tokens.
        """
        files = companions(folder, (CHAT_TEMPLATE, TOKENIZER_CONFIG, SPECIAL_MAP))
        described = parse_object(files.get(TOKENIZER_CONFIG, b"{}"), str(folder / TOKENIZER_CONFIG))
        source = described.get("chat_template")
        if isinstance(source, list):  # several named templates
            named = {entry.get("name"): entry.get("template") for entry in source if isinstance(entry, dict)}
            source = named.get("default")
        if CHAT_TEMPLATE in files:
            try:
                source = files[CHAT_TEMPLATE].decode()
            except UnicodeDecodeError:
                raise UserError(f"{folder / CHAT_TEMPLATE}: not valid UTF-8") from None
        if not isinstance(source, str):
            return None
        described_somewhere = TOKENIZER_CONFIG in files or SPECIAL_MAP in files
        special = special_names(files, folder) if described_somewhere or default is None else _both(default)
        try:
            _compiled(source)
        except TemplateError as error:
            raise UserError(f"{folder}: the chat template is not valid Jinja: {error}") from None
        return cls(source, special)

    def files(self, companions_there: Mapping[str, bytes], folder: Path) -> dict[str, str]:
        """Return the files that give this template to a tokenizer's folder, which may already have a
        tokenizer_config.json among `companions_there`. Error messages name `folder`."""
        described = parse_object(companions_there.get(TOKENIZER_CONFIG, b"{}"), str(folder / TOKENIZER_CONFIG))
        return {
            CHAT_TEMPLATE: self.source,
            TOKENIZER_CONFIG: json.dumps(described | dict(self.special), indent=2, ensure_ascii=False),
        }

    @property
    def has_tags(self) -> bool:
        """Whether `{% generation %}` tags in the template mark the responses."""
        return _TAG.search(self.source) is not None

    @property
    def writes_date(self) -> bool:
        """Whether the template may write the current date."""
        return "strftime_now" in self.source

    def render(self, messages: Messages, *, add_generation_prompt: bool = False) -> str:
        """Return the text of a conversation. Raise ChatTemplateError if the template refuses it.

        `add_generation_prompt` adds the text that begins a response of the assistant.
        """
        return self._rendered(messages, add_generation_prompt)[0]

    def render_with_responses(self, messages: Messages) -> tuple[str, list[tuple[int, int]]]:
        """Return the text of a conversation, and the places (begin, end) of the responses in it, in characters.

        The responses are the texts inside `{% generation %}` tags. If the template has no tags, a response is the text
        that an assistant message adds after the generation prompt. Raise ChatTemplateError if this text is not defined,
        because other messages change it.
        """
        text, tagged = self._rendered(messages, add_generation_prompt=False)
        if self.has_tags:
            return text, tagged
        places = list[tuple[int, int]]()
        for n, message in enumerate(messages):
            if message["role"] != ASSISTANT:
                continue
            before = self.render(messages[:n], add_generation_prompt=True)
            after = self.render(messages[: n + 1])
            if not after.startswith(before):
                difference = _different(before, after)
                raise ChatTemplateError(
                    f"the text of message {n + 1} does not begin with the generation prompt ({difference})"
                )
            if not text.startswith(after):
                raise ChatTemplateError(
                    f"later messages change the text of message {n + 1} ({_different(after, text)})"
                )
            places.append((len(before), len(after)))
        return text, places

    def _rendered(self, messages: Messages, add_generation_prompt: bool) -> tuple[str, list[tuple[int, int]]]:
        template = _compiled(self.source)
        tags = template.environment.extensions[_GenerationTags.identifier]
        assert isinstance(tags, _GenerationTags)
        values = {"messages": [dict(message) for message in messages], "add_generation_prompt": add_generation_prompt}
        try:
            with tags.recorded() as (blocks, places):
                for block in template.generate(tools=None, documents=None, **values, **self.special):
                    blocks.append(block)
                return "".join(blocks), places
        except Exception as error:  # a template is a program, which may raise anything
            raise ChatTemplateError(f"the chat template fails: {error or type(error).__name__}") from None


def _both(token: str) -> dict[str, str]:
    return {"bos_token": token, "eos_token": token}


def _different(expected: str, actual: str) -> str:
    pairs = enumerate(zip(expected, actual, strict=False))
    same = next((n for n, (a, b) in pairs if a != b), min(len(expected), len(actual)))
    return " became ".join(ascii(text[max(same - 12, 0) : same + 12]) for text in (expected, actual))


# --- Jinja as transformers uses it ------------------------------------------------------------------------------------


class _GenerationTags(Extension):
    """Tags `{% generation %}` and `{% endgeneration %}`, which record where the text between them is."""

    tags = {"generation"}  # noqa: RUF012

    def __init__(self, environment: Any) -> None:
        super().__init__(environment)
        self._blocks: list[str] = []
        self._places: list[tuple[int, int]] = []

    @contextmanager
    def recorded(self) -> Iterator[tuple[list[str], list[tuple[int, int]]]]:
        """Yield the lists of rendered blocks, which the caller fills, and of the places between tags."""
        self._blocks, self._places = [], []
        yield self._blocks, self._places

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_between_tags"), [], [], body).set_lineno(line)

    @pass_eval_context
    def _between_tags(self, context: nodes.EvalContext, caller: Any) -> str:
        text = caller()
        begin = sum(map(len, self._blocks))
        self._places.append((begin, begin + len(text)))
        return text


class _TemplateNamespace(Namespace):
    """Namespace of a template without attributes that reach into Python."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, values = args[0], dict(*args[1:], **kwargs)
        for name in values:
            _check_attribute(name)
        Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_attribute(name)
        super().__setitem__(name, value)


def _check_attribute(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace cannot have the attribute {name!r}")


def _refuse(message: str) -> None:
    raise TemplateError(message)


def _now(form: str) -> str:
    return datetime.now().strftime(form)


def _to_json(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


@lru_cache(8)
def _compiled(source: str) -> Template:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTags, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals |= {"raise_exception": _refuse, "strftime_now": _now, "namespace": _TemplateNamespace}
    environment.globals["dict"] = lambda *args, **kwargs: dict(*args, **kwargs)
    return environment.from_string(source)
