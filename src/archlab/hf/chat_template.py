"""Chat templates: the Jinja programs that turn the messages of a conversation into the text that a model reads.

A template comes with the tokenizer of a published model, in `chat_template.jinja` or under the key `chat_template` of
`tokenizer_config.json`. It is rendered as in transformers, in Jinja's sandbox, because a template is foreign code.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from archlab.errors import UserError
from archlab.files import parse_object
from archlab.hf.folder import CHAT_TEMPLATE, NAMED_TEMPLATES, SPECIAL_TOKENS_MAP, TOKENIZER_CONFIG, companions
from archlab.hf.special_tokens import special_names

DEFAULT = "default"
"""Name of the template that renders a conversation unless another name is given."""

ASSISTANT = "assistant"
"""Role of the messages that a model writes."""

ROLES = ("system", "developer", "user", ASSISTANT)
"""Roles of messages."""

Messages = Sequence[Mapping[str, str]]
"""Messages of a conversation, each with a `role` and a `content`."""

BESIDE_MESSAGES = ("tools", "documents")
"""Names of the lists of objects that a chat template may write besides the messages."""

Beside = Mapping[str, Sequence[object]]
"""Lists of objects by their names in BESIDE_MESSAGES. A list that is left out is None in the template."""

_TOOL_USE = "tool_use"
"""Name of the template that transformers uses if there are tools. Without it, transformers uses the default one."""

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
    other_for_tools: bool = field(default=False, compare=False)
    """Whether the tokenizer has another template for conversations with tools, which archlab does not render."""

    @classmethod
    def of(cls, folder: Path, default: str | None = None) -> "ChatTemplate | None":
        """Return the chat template of a tokenizer's folder, or None if the folder has none.

        `default` is the BOS and EOS token if no file of the folder names special tokens.
        """
        return cls.from_files(
            companions(folder, (CHAT_TEMPLATE, TOKENIZER_CONFIG, SPECIAL_TOKENS_MAP)), folder, default
        )

    @classmethod
    def from_files(cls, files: Mapping[str, bytes], folder: Path, default: str | None = None) -> "ChatTemplate | None":
        """Return the chat template in the contents of a folder's files, or None. Error messages name `folder`."""
        sources = sources_in(files, folder)
        source = sources.get(DEFAULT)
        if source is None:
            return None
        described_somewhere = TOKENIZER_CONFIG in files or SPECIAL_TOKENS_MAP in files
        special = special_names(files, folder) if described_somewhere or default is None else _both(default)
        from jinja2 import TemplateError  # most runs do not need Jinja

        from archlab.hf.jinja import compiled

        try:
            compiled(source)
        except TemplateError as error:
            raise UserError(f"{folder}: the chat template is not valid Jinja: {error}") from None
        return cls(source, special, _TOOL_USE in sources)

    def files(self, companions_there: Mapping[str, bytes], folder: Path) -> dict[str, str]:
        """Return the files that give this template to a tokenizer's folder, as the default one. `companions_there` may
        hold the tokenizer_config.json and other templates of that folder. Error messages name `folder`."""
        described = parse_object(companions_there.get(TOKENIZER_CONFIG, b"{}"), str(folder / TOKENIZER_CONFIG))
        others = {name: source for name, source in sources_in(companions_there, folder).items() if name != DEFAULT}
        return {
            CHAT_TEMPLATE: self.source,
            **{file_of(name): source for name, source in others.items()},
            TOKENIZER_CONFIG: json.dumps(
                {key: value for key, value in described.items() if key != "chat_template"} | dict(self.special),
                indent=2,
                ensure_ascii=False,
            ),
        }

    @property
    def has_tags(self) -> bool:
        """Whether `{% generation %}` tags in the template mark the responses."""
        return _TAG.search(self.source) is not None

    @property
    def writes_date(self) -> bool:
        """Whether the template may write the current date."""
        return "strftime_now" in self.source

    def reads(self, name: str) -> bool:
        """Return whether the template may read a variable, such as `tools`."""
        return re.search(rf"\b{name}\b", self.source) is not None

    def render(self, messages: Messages, beside: Beside | None = None, *, add_generation_prompt: bool = False) -> str:
        """Return the text of a conversation. Raise ChatTemplateError if the template refuses it.

        `add_generation_prompt` adds the text that begins a response of the assistant.
        """
        return self._rendered(messages, beside, add_generation_prompt)[0]

    def render_with_responses(
        self, messages: Messages, beside: Beside | None = None
    ) -> tuple[str, list[tuple[int, int]]]:
        """Return the text of a conversation, and the places (begin, end) of the responses in it, in characters.

        The responses are the texts inside `{% generation %}` tags. If the template has no tags, a response is the text
        that an assistant message adds after the generation prompt. Raise ChatTemplateError if this text is not defined,
        because other messages change it.
        """
        text, tagged = self._rendered(messages, beside, add_generation_prompt=False)
        if self.has_tags:
            return text, tagged
        places = list[tuple[int, int]]()
        for n, message in enumerate(messages):
            if message["role"] != ASSISTANT:
                continue
            before = self.render(messages[:n], beside, add_generation_prompt=True)
            after = self.render(messages[: n + 1], beside)
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

    def _rendered(
        self, messages: Messages, beside: Beside | None, add_generation_prompt: bool
    ) -> tuple[str, list[tuple[int, int]]]:
        if beside and "tools" in beside and self.other_for_tools:
            raise ChatTemplateError(
                f"the conversation has tools, for which the tokenizer has another template ({_TOOL_USE}); archlab "
                "renders only the default one; make it the default, or leave the tools out"
            )
        from archlab.hf.jinja import GenerationTags, compiled

        template = compiled(self.source)
        tags = template.environment.extensions[GenerationTags.identifier]
        assert isinstance(tags, GenerationTags)
        values = {
            "messages": [dict(message) for message in messages],
            "add_generation_prompt": add_generation_prompt,
            **dict.fromkeys(BESIDE_MESSAGES),
            **(beside or {}),
        }
        try:
            with tags.recorded() as (blocks, places):
                for block in template.generate(**values, **self.special):
                    blocks.append(block)
                return "".join(blocks), places
        except Exception as error:  # a template is a program, which may raise anything
            raise ChatTemplateError(f"the chat template fails: {str(error) or type(error).__name__}") from None


def file_of(name: str) -> str:
    """Return the file of the chat template of this name. Raise UserError for a name that leads to another folder."""
    if re.fullmatch(r"\w[\w.-]*", name) is None:
        raise UserError(f"chat template {name!r}: allowed in names: letters, digits, `_`, `-` and `.`")
    return CHAT_TEMPLATE if name == DEFAULT else f"{NAMED_TEMPLATES}/{name}.jinja"


def sources_in(files: Mapping[str, bytes], folder: Path = Path()) -> dict[str, str]:
    """Return the Jinja sources of a tokenizer's chat templates, by name. `files` maps file names to contents.

    As in transformers, files with templates replace those of tokenizer_config.json. Error messages name `folder`.
    """
    in_files = {DEFAULT: CHAT_TEMPLATE} if CHAT_TEMPLATE in files else {}
    in_files |= {Path(name).stem: name for name in files if name.startswith(f"{NAMED_TEMPLATES}/")}
    if in_files:
        return {name: _decoded(files[file], folder / file) for name, file in in_files.items()}
    described = parse_object(files.get(TOKENIZER_CONFIG, b"{}"), str(folder / TOKENIZER_CONFIG))
    match template := described.get("chat_template"):
        case None:
            return {}
        case str():
            return {DEFAULT: template}
        case [*entries] if all(map(_is_named, entries)):
            return {entry["name"]: entry["template"] for entry in entries}
    allowed = "text, or a list of names and templates"
    raise UserError(f"{folder / TOKENIZER_CONFIG}: chat_template is {template!r:.60}; allowed: {allowed}")


def _is_named(entry: object) -> bool:
    return isinstance(entry, dict) and all(isinstance(entry.get(key), str) for key in ("name", "template"))


def _decoded(content: bytes, file: Path) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise UserError(f"{file}: not valid UTF-8 (byte {error.start})") from None


def _both(token: str) -> dict[str, str]:
    return {"bos_token": token, "eos_token": token}


def _different(expected: str, actual: str) -> str:
    pairs = enumerate(zip(expected, actual, strict=False))
    same = next((n for n, (a, b) in pairs if a != b), min(len(expected), len(actual)))
    return " became ".join(ascii(text[max(same - 12, 0) : same + 12]) for text in (expected, actual))
