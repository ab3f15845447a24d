"""Chat templates of published models: training, import and export keep them, as transformers reads them."""

import json
from pathlib import Path
from typing import Any

import gguf
import pytest
from transformers import AutoTokenizer

from archlab.cli import app
from archlab.errors import UserError
from archlab.exchange.gguf.vocabulary import read_vocabulary
from archlab.hf.chat_template import ChatTemplate, sources_in
from archlab.hf.folder import companions
from chats import CHATML, QWEN, some_chats, tokenizer_folder, write_chats
from tests.parity.tiny import SMALL, Case, tiny_model
from tiny import write_text

TOOLS = "{{ bos_token }}tools\n" + CHATML
OTHER = "other\n" + CHATML
SETTINGS = ["train.tokens=640", "train.batch_tokens=64", "train.device=cpu", "train.dtype=float32"]
CHATS = some_chats(30)


def published(folder: Path, form: str) -> Path:
    """Write a model with a tokenizer and its chat templates in one of the forms of transformers."""
    tokenizer_folder(folder, CHATML if form == "text" else None)
    if form == "file":
        (folder / "chat_template.jinja").write_text(CHATML)
    elif form == "list":
        named = [{"name": "default", "template": CHATML}, {"name": "tool_use", "template": TOOLS}]
        described = json.loads((folder / "tokenizer_config.json").read_text())
        (folder / "tokenizer_config.json").write_text(json.dumps({**described, "chat_template": named}))
    elif form == "files":
        (folder / "chat_template.jinja").write_text(CHATML)
        (folder / "additional_chat_templates").mkdir()
        (folder / "additional_chat_templates/tool_use.jinja").write_text(TOOLS)
    tiny_model(Case("llama", form, {**SMALL, "vocab_size": 400, "max_position_embeddings": 256})).save_pretrained(
        folder
    )
    return folder


def rendered(folder: Path) -> dict[str, Any]:
    """Return the text and the ids of each conversation with each template, according to transformers."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    template = tokenizer.chat_template
    names: list[str | None] = [None, *template] if isinstance(template, dict) else [None]
    return {
        str(name): [
            tokenizer.apply_chat_template(chat, chat_template=name, tokenize=tokenize, add_generation_prompt=tokenize)
            for chat in CHATS
            for tokenize in (False, True)
        ]
        for name in names
    }


FORMS = {"text": 1, "file": 1, "list": 3, "files": 3}
"""Number of templates, including the one without a name, by form."""


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("way", ["import", "train", "chat"])
def test_the_exported_tokenizer_renders_as_the_published_one(
    form: str, way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ARCHLAB_CACHE", str(tmp_path / "cache"))
    hf, run, out = published(tmp_path / "hf", form), str(tmp_path / "run"), tmp_path / "out"
    expected = rendered(hf)
    assert len(expected) == FORMS[form]
    data = str(tmp_path / "data")
    if way == "chat":
        chats, held_out = write_chats(tmp_path / "chats.jsonl", CHATS), ["--held-out", "0.2"]
        assert (
            app.main(["data", str(chats), "--chat", "messages", "--tokenizer", str(hf), *held_out, "--out", data]) == 0
        )
    text = [f"data.path={data}", "train.document_mask=true", "train.seq_len=256", "train.eval_seq_len=256"]
    text = text if way == "chat" else [f"data.path={write_text(tmp_path)}", "train.seq_len=16"]
    first = ["import", str(hf)] if way == "import" else ["train", str(hf), *SETTINGS, *text, "train.batch_tokens=256"]
    assert app.main([*first, "--out", run]) == 0
    assert app.main(["export", run, "--out", str(out)]) == 0
    assert rendered(out) == expected
    if form != "text":
        return
    assert app.main(["generate", run, "--chat", "--prompt", "the cat", "--max-new-tokens", "2"]) == 0


@pytest.mark.parametrize("form", FORMS)
def test_a_gguf_file_has_the_templates_where_llama_cpps_converter_puts_them(form: str, tmp_path: Path) -> None:
    hf, run, out = published(tmp_path / "hf", form), str(tmp_path / "run"), tmp_path / "model.gguf"
    assert app.main(["import", str(hf), "--out", run]) == 0
    assert app.main(["export", run, "--gguf", "--out", str(out)]) == 0
    fields = gguf.GGUFReader(out).fields
    found = {name: field.contents() for name, field in fields.items() if "chat_template" in name}
    named = {"tokenizer.chat_templates": ["tool_use"], "tokenizer.chat_template.tool_use": TOOLS}
    assert found == {"tokenizer.chat_template": CHATML, **(named if FORMS[form] > 1 else {})}


@pytest.mark.parametrize("form", ["list", "files"])
def test_the_template_of_the_data_replaces_the_default_one_only(form: str, tmp_path: Path) -> None:
    folder = published(tmp_path / "hf", form)
    files = companions(folder)
    other = ChatTemplate(OTHER, {"eos_token": "</s>"})
    files |= {name: text.encode() for name, text in other.files(files, folder).items()}
    assert sources_in(files) == {"default": OTHER, "tool_use": TOOLS}
    for name, content in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)
    assert AutoTokenizer.from_pretrained(folder).chat_template == {"default": OTHER, "tool_use": TOOLS}


def test_files_replace_the_templates_of_the_config(tmp_path: Path) -> None:
    folder = published(tmp_path / "hf", "list")
    (folder / "chat_template.jinja").write_text(QWEN)
    assert sources_in(companions(folder)) == {"default": QWEN}
    assert AutoTokenizer.from_pretrained(folder).chat_template == QWEN


def test_a_damaged_named_template_of_a_run_is_noticed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    assert app.main(["import", str(published(tmp_path / "hf", "files")), "--out", str(run)]) == 0
    (run / "additional_chat_templates/tool_use.jinja").write_text("")
    assert app.main(["export", str(run), "--out", str(tmp_path / "out")]) == 2
    assert "tool_use.jinja: damaged" in capsys.readouterr().err


def test_templates_outside_the_folder_are_refused(tmp_path: Path) -> None:
    folder = published(tmp_path / "hf", "files")
    (folder / "additional_chat_templates").rename(tmp_path / "elsewhere")
    (folder / "additional_chat_templates").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match="'additional_chat_templates' is not a file of this folder"):
        companions(folder)


@pytest.mark.parametrize("value", [3, [{"name": "default"}], [3], {"default": CHATML}])
def test_other_values_are_refused(value: Any, tmp_path: Path) -> None:
    files = {"tokenizer_config.json": json.dumps({"chat_template": value}).encode()}
    with pytest.raises(UserError, match=r"tokenizer_config\.json: chat_template is .*; allowed: text, or a list of"):
        sources_in(files)


@pytest.mark.parametrize("name", ["../../evil", "/evil", "", ".."])
def test_a_name_cannot_lead_to_another_folder(name: str, tmp_path: Path) -> None:
    named = [{"name": "default", "template": CHATML}, {"name": name, "template": "evil"}]
    files = {"tokenizer_config.json": json.dumps({"chat_template": named}).encode()}
    with pytest.raises(UserError, match=r"chat template .*: allowed in names: letters"):
        ChatTemplate(OTHER, {}).files(files, tmp_path)
    with pytest.raises(UserError, match=r"chat template .*: allowed in names: letters"):
        read_vocabulary({"tokenizer.chat_templates": [name], f"tokenizer.chat_template.{name}": "evil"}, "")
