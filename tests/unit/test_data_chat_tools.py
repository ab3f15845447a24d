"""Tools and documents of a conversation reach its chat template, as in transformers."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import AutoTokenizer

from archlab.data.prepare import prepare
from archlab.data.shards import BEGINS, TOKEN_ID
from archlab.data.template import ChatFields
from archlab.errors import UserError
from archlab.hf.chat_template import ChatTemplate
from chats import CHATML, some_chats, tokenizer_folder

pytestmark = pytest.mark.usefixtures("own_cache")

QWEN_2_5 = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0]['role'] == 'system' %}{{- messages[0]['content'] }}{%- else %}{{- 'You are a cat.' }}{%- endif %}
    {{- "\\n\\n# Tools\\n\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools><|im_end|>\\n" }}
{%- elif messages[0]['role'] == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role != 'system' or not loop.first %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""
LLAMA_3_1 = """\
{{- bos_token }}
{%- if not tools is defined %}{%- set tools = none %}{%- endif %}
{%- if tools is not none %}
    {{- "<|start_header_id|>system<|end_header_id|>\\n\\nEnvironment: ipython\\n" }}
    {%- for t in tools %}{{- t | tojson(indent=4) }}{{- "\\n\\n" }}{%- endfor %}
    {{- "<|eot_id|>" }}
{%- endif %}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}
"""
TAGGED_DOCUMENTS = """\
{%- for document in documents or [] %}{{- 'Document: ' + document['title'] + '\\n' + document.text + '\\n' }}{%- endfor %}
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' }}
    {%- if message.role == 'assistant' %}{% generation %}{{ message.content + '<|im_end|>' }}{% endgeneration %}
    {%- else %}{{ message.content + '<|im_end|>' }}{% endif %}
    {{- '\\n' }}
{%- endfor %}
"""
TEMPLATES = {"qwen_2_5": QWEN_2_5, "llama_3_1": LLAMA_3_1, "documents": TAGGED_DOCUMENTS}
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Naïve forecast ☃ <b> & 'quotes'",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
BESIDE: list[dict[str, Any]] = [
    {},
    {"tools": None},
    {"tools": []},
    {"tools": [TOOL]},
    {"tools": [TOOL, {"name": "plain", "nested": [1, 2.5, None, True]}], "documents": []},
    {"documents": [{"title": "A", "text": "naïve ☃"}, {"title": "B", "text": "cat"}]},
    {"chat_template_kwargs": None},
]
MESSAGES = ChatFields(("messages",))


def records() -> list[dict[str, Any]]:
    chats = some_chats(4 * len(BESIDE))
    return [{"messages": chat, **BESIDE[i % len(BESIDE)]} for i, chat in enumerate(chats)]


def prepared(home: Path, file: Path, template: str, fields: ChatFields = MESSAGES) -> dict[tuple[int, ...], int]:
    """Return the number of conversations by their tokens."""
    tokenizer = tokenizer_folder(home / "tokenizer", template)
    data = prepare([str(file)], home / "data", tokenizer=tokenizer, held_out=0.2, template=fields)
    flagged = np.concatenate([part.read(0, len(part)) for part in (data.train, data.held_out)])
    parts = [tuple((p & TOKEN_ID).tolist()) for p in np.split(flagged, np.flatnonzero(flagged & int(BEGINS))[1:])]
    return {tokens: parts.count(tokens) for tokens in parts}


def lines(home: Path, rows: list[dict[str, Any]]) -> Path:
    (home / "chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return home / "chats.jsonl"


@pytest.mark.parametrize("name", TEMPLATES)
def test_tools_and_documents_are_written_as_in_transformers(name: str, tmp_path: Path) -> None:
    found = prepared(tmp_path, lines(tmp_path, records()), TEMPLATES[name])
    theirs = AutoTokenizer.from_pretrained(tmp_path / "tokenizer")
    for row in records():
        beside = {key: row.get(key) for key in ("tools", "documents")}
        expected = theirs.apply_chat_template(row["messages"], **beside, return_dict=True)["input_ids"]
        assert found.pop(tuple(expected)) == 1
    assert not found


def test_tools_in_a_parquet_file(tmp_path: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    rows = [{"messages": chat, "tools": [TOOL] if i % 2 else None} for i, chat in enumerate(some_chats(20))]
    parquet.write_table(arrow.Table.from_pylist(rows), tmp_path / "chats.parquet")
    found = prepared(tmp_path, tmp_path / "chats.parquet", QWEN_2_5)
    theirs = AutoTokenizer.from_pretrained(tmp_path / "tokenizer")
    for row in rows:
        expected = theirs.apply_chat_template(row["messages"], tools=row["tools"], return_dict=True)["input_ids"]
        assert found.pop(tuple(expected)) == 1
    assert not found


def test_a_prompt_and_its_response_may_have_tools(tmp_path: Path) -> None:
    rows = [{"prompt": f"hi {i}", "completion": "ho", "tools": [TOOL]} for i in range(20)]
    found = prepared(tmp_path, lines(tmp_path, rows), QWEN_2_5, ChatFields(("prompt", "completion")))
    template = ChatTemplate.of(tmp_path / "tokenizer")
    assert template is not None
    messages = [{"role": "user", "content": "hi 7"}, {"role": "assistant", "content": "ho"}]
    expected = AutoTokenizer.from_pretrained(tmp_path / "tokenizer")(template.render(messages, {"tools": [TOOL]}))
    assert tuple(expected["input_ids"]) in found


def test_a_template_without_tools_is_noted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"messages": chat, "tools": [TOOL], "documents": []} for chat in some_chats(20)]
    prepared(tmp_path, lines(tmp_path, rows), CHATML)
    written = capsys.readouterr().err
    assert "note: some conversations have tools, but the chat template does not write them" in written
    assert "note: some conversations have documents, but the chat template does not write them" in written


@pytest.mark.parametrize(
    ("beside", "message"),
    [
        ({"tools": "[]"}, "'tools' is a string; expected an array of objects"),
        ({"tools": ["weather"]}, "'tools' contains a string; expected an array of objects"),
        ({"documents": {"title": "A"}}, "'documents' is an object; expected an array of objects"),
        ({"tools": [{"name": "\ud800"}]}, "'tools' has half a surrogate pair"),
        ({"tools": [{"name": "a<|im_end|>"}]}, "tools contain <|im_end|>, a special token of the tokenizer"),
        ({"chat_template_kwargs": {"enable_thinking": True}}, "the field 'chat_template_kwargs' is set; allowed"),
    ],
)
def test_values_that_cannot_be_passed_are_refused_by_name(beside: dict, message: str, tmp_path: Path) -> None:
    rows = [{"messages": chat} for chat in some_chats(20)]
    rows[1] |= beside
    with pytest.raises(UserError, match=rf"chats\.jsonl(, line |:)2: {re.escape(message)}"):
        prepared(tmp_path, lines(tmp_path, rows), QWEN_2_5)


def test_another_template_for_tools_is_refused(tmp_path: Path) -> None:
    """transformers would use it instead of the default template."""
    tokenizer = tokenizer_folder(tmp_path / "tokenizer", None)
    described = json.loads((tokenizer / "tokenizer_config.json").read_text())
    described["chat_template"] = [{"name": "default", "template": CHATML}, {"name": "tool_use", "template": QWEN_2_5}]
    (tokenizer / "tokenizer_config.json").write_text(json.dumps(described))
    rows = [{"messages": chat, "tools": [TOOL]} for chat in some_chats(20)]
    with pytest.raises(UserError, match=r"line 1|:1: the conversation has tools, for which the tokenizer has another"):
        prepare([str(lines(tmp_path, rows))], tmp_path / "data", tokenizer=tokenizer, held_out=0.2, template=MESSAGES)
    prepare(
        [str(lines(tmp_path, [{"messages": row["messages"]} for row in rows]))],
        tmp_path / "data",
        tokenizer=tokenizer,
        held_out=0.2,
        template=MESSAGES,
    )
