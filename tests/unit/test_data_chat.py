"""Conversations: tokens and responses as in transformers, packing, windows and scores."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from archlab.cli import app
from archlab.data.chat_data import ChatData
from archlab.data.corpus import Corpus
from archlab.data.objectives import Batches
from archlab.data.open import form_of_data, open_training_data
from archlab.data.packing import Packing
from archlab.data.prepare import prepare
from archlab.data.shards import BEGINS, COUNTS, TOKEN_ID, DataFolder
from archlab.data.template import ChatFields
from archlab.data.text_data import TextSource
from archlab.errors import UserError
from archlab.hf.chat_template import ChatTemplate, ChatTemplateError
from chats import (
    CHATML,
    ENDS,
    SPECIAL,
    TAGGED,
    TEMPLATES,
    TOKENIZERS,
    WITHOUT_SYSTEM,
    some_chats,
    tokenizer_folder,
    write_chats,
)
from tiny import config

MESSAGES = ChatFields(("messages",))
SEQ_LEN = 300

pytestmark = pytest.mark.usefixtures("own_cache")


def made(folder: Path, chats: list[list[dict[str, str]]], tokenizer: Path, **options: object) -> DataFolder:
    file = write_chats(folder / "chats.jsonl", chats)
    return prepare([str(file)], folder / "data", tokenizer=tokenizer, held_out=0.2, template=MESSAGES, **options)  # pyright: ignore[reportArgumentType]


def conversations(data: DataFolder) -> dict[tuple[int, ...], list[bool]]:
    """Return which tokens count, by the tokens of each conversation."""
    flagged = np.concatenate([part.read(0, len(part)) for part in (data.train, data.held_out)])
    parts = np.split(flagged, np.flatnonzero(flagged & int(BEGINS))[1:])
    return {tuple((part & TOKEN_ID).tolist()): ((part & int(COUNTS)) != 0).tolist() for part in parts}


# --- the same tokens as transformers --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", TOKENIZERS)
@pytest.mark.parametrize("name", TEMPLATES)
def test_the_tokens_are_those_of_transformers(name: str, kind: str, tmp_path: Path) -> None:
    """Without tags, a response and its end are everything after the generation prompt, without the text between
    turns."""
    template, chats = TEMPLATES[name], some_chats(30, system=name not in WITHOUT_SYSTEM)
    tokenizer = tokenizer_folder(tmp_path / "tokenizer", template, kind, in_config=len(name) % 2 == 0)
    theirs, has_tags = AutoTokenizer.from_pretrained(tokenizer), "generation %}" in template
    found = conversations(made(tmp_path, chats, tokenizer))
    assert len(found) == len(chats)
    for chat in chats:
        expected = theirs.apply_chat_template(chat, return_dict=True, return_assistant_tokens_mask=has_tags)
        counts = found[tuple(expected["input_ids"])]
        if has_tags:
            assert counts == [bool(counts) for counts in expected["assistant_masks"]]
        ids = np.array(expected["input_ids"])
        starts, ends = np.flatnonzero(np.diff(counts, prepend=0) == 1), np.flatnonzero(np.diff(counts, append=0) == -1)
        responses = [n for n, message in enumerate(chat) if message["role"] == "assistant"]
        for n, start, end in zip(responses, starts, ends, strict=True):
            prompt = theirs.apply_chat_template(chat[:n], add_generation_prompt=True)["input_ids"]
            assert ids[:start].tolist() == prompt
            if (name, kind) != ("phi_3", "byte_level"):  # its tokenizer has no token for the end
                assert theirs.convert_ids_to_tokens(int(ids[end])) == ENDS[name]
            written = theirs.decode(ids[start : end + 1], skip_special_tokens=True).strip()
            assert written.removesuffix("<|end|>").strip() == chat[n]["content"]


def test_special_tokens_come_from_the_files_of_the_tokenizer(tmp_path: Path) -> None:
    folder = tokenizer_folder(tmp_path / "tokenizer", TEMPLATES["llama_2"])
    template, theirs = ChatTemplate.of(folder), AutoTokenizer.from_pretrained(folder)
    assert template is not None
    assert template.special == {"bos_token": "<s>", "eos_token": "</s>"}
    for chat in some_chats(10):
        assert template.render(chat) == theirs.apply_chat_template(chat, tokenize=False)


def test_a_tokenizer_without_described_tokens_writes_the_token_before_documents(tmp_path: Path) -> None:
    """This is the end of text of a tokenizer that archlab has learned, and `archlab export` describes it so."""
    folder = tokenizer_folder(tmp_path / "tokenizer", TEMPLATES["zephyr"], in_config=False)
    (folder / "tokenizer_config.json").unlink()
    data = made(tmp_path, some_chats(20), folder)
    assert data.manifest.chat is not None
    assert [data.tokenizer.id_to_token(i) for i in data.manifest.chat.ends] == ["<|endoftext|>"]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{ messages.append(1) }}", "unsafe"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{% set ns = namespace(a=1) %}{% set ns.__class__ = 2 %}", "__class__"),
        ("{{ raise_exception('no cats') }}", "the chat template fails: no cats"),
        ("{{ raise_exception('') }}", "the chat template fails: TemplateError"),
        ("{{ 1 + 'a' }}", "unsupported operand"),
    ],
)
def test_a_template_that_fails_says_why(source: str, message: str) -> None:
    with pytest.raises(ChatTemplateError, match=message):
        ChatTemplate(source, {}).render([{"role": "user", "content": "hi"}])


def test_a_template_with_a_syntax_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="the chat template is not valid Jinja: unexpected '}'"):
        ChatTemplate.of(tokenizer_folder(tmp_path / "tokenizer", "{{ messages }"))


LAST_ONLY = CHATML.replace("'<|im_end|>'", "('<|im_end|>' if loop.last or message.role == 'user' else '')")
OTHER_PROMPT = CHATML.replace("'<|im_start|>assistant\\n'", "'<|im_start|>model\\n'")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (LAST_ONLY, r"chats\.jsonl:1: later messages change the text of message 2 \(.* became .*\)"),
        (OTHER_PROMPT, r"the text of message 2 does not begin with the generation prompt \(.*model.* became .*assis"),
        ("{{ messages[0].content }}", "the chat template writes no text for the responses"),
        ("a{{ raise_exception('System role not supported') }}", "the chat template fails: System role not supported"),
    ],
)
def test_a_template_that_does_not_define_responses_is_refused(source: str, message: str, tmp_path: Path) -> None:
    chats = [[{"role": role, "content": "a cat"} for role in ("user", "assistant", "user", "assistant")]] * 20
    with pytest.raises(UserError, match=message):
        made(tmp_path, chats, tokenizer_folder(tmp_path / "tokenizer", source))


def test_a_token_with_text_of_prompt_and_response_is_refused(tmp_path: Path) -> None:
    source = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
    folder = tokenizer_folder(tmp_path / "tokenizer", source, "sentencepiece")
    chats = [[{"role": "user", "content": "x"}, {"role": "assistant", "content": "the fox"}]] * 20
    with pytest.raises(UserError, match="the token ' the' has text of a response and of the prompt before it"):
        made(tmp_path, chats, folder)


# --- records --------------------------------------------------------------------------------------------------------


def asked(**changes: object) -> dict[str, object]:
    return {"role": "user", "content": "hi", **changes}


ANSWER = {"role": "assistant", "content": "ho"}


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"chat": []}, "line 2: no field 'messages'"),
        ({"messages": "hi"}, "line 2: 'messages' is a string; expected an array of messages"),
        ({"messages": []}, "has no message of the role 'assistant', so there is nothing to learn"),
        ({"messages": [asked()]}, "has no message of the role 'assistant'"),
        ({"messages": [asked(), "ho"]}, "message 2 of 'messages' is a string; expected an object with role and content"),
        ({"messages": [{"from": "user", "value": "hi"}]}, "message 1 of 'messages' has no 'role'; found: from, value"),
        ({"messages": [asked(role="usr"), ANSWER]}, "has the role 'usr'; did you mean user?; allowed: system, developer, user"),
        ({"messages": [asked(content=None), ANSWER]}, "message 1 of 'messages' has no 'content'; found: role"),
        ({"messages": [asked(content=[{}]), ANSWER]}, "content of message 1 of 'messages' is an array; expected a string"),
        ({"messages": [asked(), asked(role="assistant", content=" ")]}, "message 2 of 'messages', of the role 'assistant', is empty"),
        ({"messages": [ANSWER, asked()]}, "message 1 of 'messages' is a response; expected a message that it responds to"),
        ({"messages": [asked(), ANSWER | {"tool_calls": [1]}]}, "message 2 of 'messages' has the field 'tool_calls'; allowed: role and content"),
    ],
)  # fmt: skip
def test_a_record_without_a_conversation_is_named(record: dict, message: str, tmp_path: Path) -> None:
    tokenizer = tokenizer_folder(tmp_path / "tokenizer", CHATML)
    good = [json.dumps({"messages": [asked(content=str(i)), ANSWER]}) for i in range(40)]
    (tmp_path / "a.jsonl").write_text("\n".join([good[0], json.dumps(record), *good[1:]]))
    with pytest.raises(UserError, match=rf"a\.jsonl, line 2: .*{re.escape(message.removeprefix('line 2: '))}"):
        prepare([str(tmp_path / "a.jsonl")], tmp_path / "data", tokenizer=tokenizer, held_out=0.2, template=MESSAGES)
    data = prepare(
        [str(tmp_path / "a.jsonl")],
        tmp_path / "data",
        tokenizer=tokenizer,
        held_out=0.2,
        template=MESSAGES,
        skip_invalid=True,
    )
    assert len(conversations(data)) == 40
    assert data.manifest.invalid == 1


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (b'{"messages": [{"role": "user", "content": "\xff"}, {"role": "assistant", "content": "x"}]}', "not valid UTF-8"),
        (b'{"messages": [], "messages": 1}', "an object has several values for the key 'messages'; allowed: one"),
        (b'{"messages": [{"role": "user", "content": "a", "role": "system"}]}', "an object has several values for the key 'role'"),
        (b'{"messages": [{"role": "user", "content": "\\ud800"}]}', "content of message 1 of 'messages' has half a surrogate"),
        (b'{"messages": [],}', "not valid JSON"),
        (b'{"messages": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "not valid JSON"),
    ],
)  # fmt: skip
def test_the_line_of_an_invalid_record_is_named(record: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(json.dumps({"messages": [asked(), ANSWER]}).encode() + b"\n" + record)
    with pytest.raises(UserError, match=rf"a\.jsonl, line 2: {message}"):
        list(Corpus([str(tmp_path / "a.jsonl")], MESSAGES))


def test_a_prompt_and_its_response_are_a_conversation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tokenizer, out = tokenizer_folder(tmp_path / "tokenizer", CHATML), tmp_path / "data"
    lines = [json.dumps({"q": {"text": f"{i}?"}, "a": f"{i}!"}) for i in range(40)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    arguments = [
        "data",
        str(tmp_path / "a.jsonl"),
        "--tokenizer",
        str(tokenizer),
        "--out",
        str(out),
        "--held-out",
        "0.2",
    ]
    assert app.main([*arguments, "--chat", "q.text,a"]) == 0
    assert "40 conversations, " in capsys.readouterr().out
    theirs = AutoTokenizer.from_pretrained(out)
    for i in range(40):
        chat = [asked(content=f"{i}?"), {"role": "assistant", "content": f"{i}!"}]
        assert tuple(theirs.apply_chat_template(chat)["input_ids"]) in conversations(DataFolder.open(out))
    assert app.main([*arguments, "--chat", "q.text,a", "--seq-len", "8"]) == 2
    assert "already contains other data" in capsys.readouterr().err
    assert form_of_data(config(data=out).data) == "conversations"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--chat", "a,b,c"], "--chat a,b,c; allowed: one field with messages"),
        (["--chat", "messages", "--pairs", "a,b"], "--pairs and --chat cannot be combined"),
        (["--chat", "messages", "--field", "a"], "--chat cannot be combined with --field"),
        (["--chat", "messages"], "--chat needs the tokenizer of the model, with its chat template"),
        (["--seq-len", "5"], "give --pairs or --chat"),
    ],
)
def test_options_that_do_not_fit(
    options: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write_chats(tmp_path / "chats.jsonl", some_chats(5))
    assert app.main(["data", str(file), "--out", str(tmp_path / "out"), *options]) == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_a_tokenizer_without_a_template_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"tokenizer: no chat template; expected chat_template\.jinja"):
        made(tmp_path, some_chats(20), tokenizer_folder(tmp_path / "tokenizer", None))


@pytest.mark.parametrize("name", SPECIAL)
def test_a_special_token_in_a_message_is_refused(name: str, tmp_path: Path) -> None:
    """The tokenizer would read it as the token, and the message could end its own turn."""
    chats = [*some_chats(20), [asked(content=f"a {name} b"), ANSWER]]
    tokenizer = tokenizer_folder(tmp_path / "tokenizer", CHATML)
    with pytest.raises(UserError, match=rf"chats\.jsonl:21: message 1 contains {re.escape(name)}, a special token"):
        made(tmp_path, chats, tokenizer)
    assert len(conversations(made(tmp_path, chats, tokenizer, skip_invalid=True))) == 20


def test_a_long_conversation_is_named_or_left_out(tmp_path: Path) -> None:
    chats, tokenizer = some_chats(60), tokenizer_folder(tmp_path / "tokenizer", CHATML)
    theirs = AutoTokenizer.from_pretrained(tokenizer)
    lengths = [len(theirs.apply_chat_template(chat)["input_ids"]) for chat in chats]
    longest = int(np.argmax(lengths))
    data = ChatData((TextSource("chats", made(tmp_path, chats, tokenizer)),))
    data.windows(0, 0, 2, lengths[longest] - 1)
    message = rf"chats\.jsonl:{longest + 1}: the conversation has {max(lengths)} tokens; a window of {max(lengths) - 2} tokens holds"
    with pytest.raises(UserError, match=message):
        data.windows(0, 0, 2, max(lengths) - 2)
    (tmp_path / "short").mkdir()
    short = made(tmp_path / "short", chats, tokenizer, skip_invalid=True, seq_len=100)
    assert sorted(map(len, conversations(short))) == sorted(n for n in lengths if n <= 101)
    assert short.manifest.invalid == sum(n > 101 for n in lengths)


def test_every_worker_count_and_time_gives_the_same_files(tmp_path: Path) -> None:
    tokenizer, contents = tokenizer_folder(tmp_path / "tokenizer", TAGGED), list[dict[str, bytes]]()
    file = write_chats(tmp_path / "chats.jsonl", some_chats(50))
    for workers in (1, 2):
        out = tmp_path / str(workers)
        prepare([str(file)], out, tokenizer=tokenizer, held_out=0.2, template=MESSAGES, workers=workers)
        contents.append({path.name: path.read_bytes() for path in out.iterdir()})
    assert contents[0] == contents[1]


def test_a_damaged_template_is_noticed(tmp_path: Path) -> None:
    data = made(tmp_path, some_chats(20), tokenizer_folder(tmp_path / "tokenizer", CHATML))
    (data.path / "chat_template.jinja").write_text("{{ messages }}")
    with pytest.raises(UserError, match=r"chat_template\.jinja: altered"):
        DataFolder.open(data.path)


# --- packing and windows ----------------------------------------------------------------------------------------------


@given(st.lists(st.integers(1, 50), min_size=1, max_size=80), st.integers(50, 90), st.integers(0, 3))
def test_every_epoch_reads_every_text_once_in_windows_that_hold_it(
    lengths: list[int], capacity: int, epoch: int
) -> None:
    array = np.array(lengths)
    packing = Packing.of(array, capacity)
    for windows in (packing.of_epoch(range(packing.n_windows), 0, epoch), packing.in_order(range(packing.n_windows))):
        assert sorted(np.concatenate(windows).tolist()) == list(range(len(lengths)))
        totals = [array[window].sum() for window in windows]
        assert max(totals) <= capacity
        assert sum(total <= capacity / 2 for total in totals) <= 1  # best fit would have joined two such windows
    assert packing.n_windows < 2 * array.sum() / capacity + 1


def test_epochs_and_seeds_pack_other_texts_together() -> None:
    packing = Packing.of(np.random.default_rng(0).integers(5, 20, 200), 64)
    together = {
        (seed, epoch): {
            frozenset(window.tolist()) for window in packing.of_epoch(range(packing.n_windows), seed, epoch)
        }
        for seed in (0, 1)
        for epoch in (0, 1)
    }
    assert len({frozenset(windows) for windows in together.values()}) == 4
    assert len(together[0, 0] & together[0, 1]) < packing.n_windows / 4


@pytest.fixture
def folder(tmp_path: Path) -> DataFolder:
    return made(tmp_path, some_chats(80), tokenizer_folder(tmp_path / "tokenizer", CHATML))


def test_windows_hold_whole_conversations_and_only_responses_count(folder: DataFolder) -> None:
    data, known = ChatData((TextSource("chats", folder),)), conversations(folder)
    train = {tuple((part & TOKEN_ID).tolist()) for part in _split(folder)}
    n_steps = round(1 / data.passes(1, 1, SEQ_LEN)["chats"])
    seen = list[tuple[int, ...]]()
    for step in range(n_steps):
        windows = data.windows(3, step, 1, SEQ_LEN)
        assert windows.conversations is not None
        assert windows.scored is not None
        assert windows.lengths is not None
        (tokens,), (numbers,), (length,) = windows.tokens, windows.conversations, windows.lengths
        assert numbers[:length].tolist() == sorted(numbers[:length])
        assert (numbers[length:] == numbers[length - 1] + 1).all()
        counts = np.concatenate([[False], windows.scored[0]])
        assert not counts[length:].any()
        for number in range(numbers[length - 1] + 1):
            own = tuple(tokens[numbers == number].tolist())
            assert counts[numbers == number].tolist() == known[own]
            seen.append(own)
    assert len(seen) == len(set(seen)) == len(train)
    assert set(seen) == train
    assert data.padding(SEQ_LEN) < 0.1
    counted = sum(sum(known[own]) for own in seen)
    assert data.counted_per_window(SEQ_LEN) == pytest.approx(counted / n_steps)


def _split(folder: DataFolder) -> list[np.ndarray]:
    flagged = folder.train.read(0, len(folder.train))
    return np.split(flagged, np.flatnonzero(flagged & int(BEGINS))[1:])


def test_held_out_windows_have_the_bytes_of_their_responses(tmp_path: Path) -> None:
    for kind, name in (("byte_level", "chatml"), ("sentencepiece", "phi_3"), ("sentencepiece", "tagged_llama_3")):
        (home := tmp_path / f"{kind}-{name}").mkdir()
        chats = some_chats(80)
        folder = made(home, chats, tokenizer_folder(home / "tokenizer", TEMPLATES[name], kind))
        data = ChatData((TextSource("chats", folder),))
        windows, total = data.held_out(SEQ_LEN, None), sum(part.documents for part in folder.manifest.folds[:1])
        assert windows.bytes is not None
        assert windows.documents is not None
        assert np.unique(windows.documents).tolist() == list(range(total))
        begin = data.beginnings(windows)
        assert len(begin) == total
        own = np.bincount(windows.documents.ravel(), windows.bytes.ravel()).astype(int)
        theirs = AutoTokenizer.from_pretrained(home / "tokenizer")
        n_bytes = {
            tuple(theirs.apply_chat_template(chat)["input_ids"]): sum(
                len(message["content"].encode()) for message in chat if message["role"] == "assistant"
            )
            for chat in chats
        }
        expected = list[int]()
        assert windows.conversations is not None
        for tokens, numbers, length in zip(windows.tokens, windows.conversations, windows.lengths, strict=True):
            for number in range(numbers[length - 1] + 1):
                expected.append(n_bytes[tuple(tokens[:length][numbers[:length] == number].tolist())])
        assert own.tolist() == expected
        fewer = data.held_out(SEQ_LEN, 2 * SEQ_LEN)
        assert len(fewer.tokens) == 2


def test_a_response_that_the_tokenizer_changes_has_no_bits_per_byte(tmp_path: Path) -> None:
    from tokenizers import normalizers

    tokenizer = tokenizer_folder(tmp_path / "tokenizer", CHATML)
    changed = TOKENIZERS["byte_level"]()
    changed.normalizer = normalizers.Lowercase()
    (tokenizer / "tokenizer.json").write_text(changed.to_str())
    chats = [[asked(content=f"{i} CATS"), ANSWER] for i in range(20)]
    assert made(tmp_path, chats, tokenizer).manifest.inexact is None  # only the prompts change
    (tmp_path / "other").mkdir()
    chats[3] = [asked(), {"role": "assistant", "content": "Ho"}]
    inexact = made(tmp_path / "other", chats, tokenizer).manifest.inexact
    assert inexact == "chats.jsonl:4: the tokenizer changes a response ('Ho' became 'ho')"


# --- what conversations fit -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ((), "train.document_mask: false, but several conversations of the data share a window"),
        (("train.objective.kind=prefix", "model.attention.visibility=prefix"), "in conversations the responses are predicted; allowed: next_token"),
        (("train.objective.kind=seq2seq", "model.encoder.n_layers=1"), "needs pairs"),
    ],
)  # fmt: skip
def test_objectives_that_do_not_fit(overrides: tuple[str, ...], message: str, folder: DataFolder) -> None:
    settings = config(*overrides, "model.vocab_size=400", data=folder.path)
    batches = Batches.of(settings, open_training_data(settings.data, settings.model.vocab_size))
    with pytest.raises(UserError, match=message):
        batches.check(SEQ_LEN)


def test_a_mixture_has_no_conversations(folder: DataFolder) -> None:
    settings = config(f"data.mixture={{chats: {{path: {folder.path}}}}}", "model.vocab_size=400")
    with pytest.raises(UserError, match="is a folder of conversations; allowed: folders of plain text"):
        open_training_data(settings.data, settings.model.vocab_size)
