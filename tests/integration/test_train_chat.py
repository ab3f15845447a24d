"""Fine-tuning on conversations: no leaks between them, only responses are learned, runs resume, export and generate."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from archlab.cli import app
from archlab.config.schema import Config
from archlab.config.training import resolve_train
from archlab.data.chat_data import ChatData
from archlab.data.objectives import Batches
from archlab.data.open import open_training_data
from archlab.data.prepare import prepare
from archlab.data.template import ChatFields
from archlab.infer.load import load_run
from archlab.model.decoder import Decoder
from archlab.pricing.work import visible_training_flops
from archlab.training.callback import Callback
from archlab.training.device import Device
from archlab.training.loss import backward_through_head
from archlab.training.step import hidden_and_targets
from archlab.training.train import train
from chats import CHATML, TAGGED, tokenizer_folder, write_chats
from scores import score
from tiny import Killed, config, losses

SEQ_LEN = 96
SETTINGS = ("train.document_mask=true", "model.vocab_size=400", f"train.seq_len={SEQ_LEN}", f"model.max_seq_len={SEQ_LEN}",
            f"train.batch_tokens={2 * SEQ_LEN}", f"train.tokens={20 * SEQ_LEN}", f"train.eval_tokens={8 * SEQ_LEN}")  # fmt: skip

pytestmark = pytest.mark.usefixtures("own_cache")


def capitals(n: int) -> list[list[dict[str, str]]]:
    """Return conversations in which a response repeats the question in capitals. Questions have different lengths."""
    words = ("cat", "dog", "fox", "lazy", "the", "red")
    asked = [" ".join([words[i % 6], words[i // 6 % 6], words[i // 36 % 6]][: 1 + i % 3]) for i in range(n)]
    return [[{"role": "user", "content": text}, {"role": "assistant", "content": text.upper()}] for text in asked]


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    return tokenizer_folder(tmp_path / "tokenizer", CHATML)


@pytest.fixture
def folder(tmp_path: Path, tokenizer: Path) -> Path:
    file = write_chats(tmp_path / "chats.jsonl", capitals(200))
    return prepare(
        [str(file)], tmp_path / "data", tokenizer=tokenizer, held_out=0.1, template=ChatFields(("messages",))
    ).path


def tokens_of(tokenizer: PreTrainedTokenizerFast, text: str) -> list[int]:
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def opened(settings: Config) -> ChatData:
    data = open_training_data(settings.data, settings.model.vocab_size)
    assert isinstance(data, ChatData)
    return data


@pytest.mark.parametrize(
    "model",
    [
        (),
        ("model.position.kind=learned",),
        ("model.position.kind=alibi",),
        ("model.attention.window=9",),
        ("model.layers={linear: {attention: {kind: none}, mixer: {kind: gated_delta}}, pattern: [linear, linear]}",),
    ],
)
def test_a_packed_conversation_has_the_logits_that_it_has_alone(model: tuple[str, ...], folder: Path) -> None:
    settings = config(*SETTINGS, *model, data=folder)
    batch = Batches.of(settings, data := opened(settings)).training(0, 0, 2, SEQ_LEN)
    decoder = Decoder(settings.model).double()
    windows = data.windows(0, 0, 2, SEQ_LEN)
    assert windows.conversations is not None
    assert windows.lengths is not None
    assert batch.documents is not None
    assert batch.lengths is not None
    inputs = (torch.from_numpy(array) for array in (batch.tokens, batch.documents, batch.lengths))
    tokens, documents, lengths = inputs
    with torch.no_grad():
        logits = decoder(tokens, documents=documents, lengths=lengths)
        for row, numbers in enumerate(batch.documents):
            assert len(np.unique(numbers)) > 2
            for number in range(windows.conversations[row, windows.lengths[row] - 1] + 1):
                own = torch.from_numpy(batch.tokens[row][numbers == number])
                torch.testing.assert_close(logits[row][numbers == number], decoder(own[None])[0], rtol=0, atol=1e-12)
        unmasked = decoder(tokens)
    assert (logits - unmasked)[batch.documents > 0].abs().max() > 1e-3


def test_only_responses_are_learned(folder: Path) -> None:
    """The loss and its gradient are those of the responses, computed one conversation at a time in float64."""
    settings = config(*SETTINGS, data=folder)
    train_settings, device = resolve_train(settings), Device("cpu", torch.float32)
    batch = Batches.of(settings, opened(settings)).training(0, 0, 2, SEQ_LEN)
    model, alone = Decoder(settings.model), Decoder(settings.model).double()
    hidden, targets = hidden_and_targets(model, batch, device)
    gradient, loss = backward_through_head(model, hidden, targets, train_settings, 1.0, device)
    (hidden * gradient).sum().backward()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    total, n_targets = torch.zeros((), dtype=torch.float64), 0
    assert batch.documents is not None
    for row, numbers in enumerate(batch.documents):
        text = tokenizer.decode(batch.tokens[row].tolist() + batch.targets[row, -1:].tolist())
        for part in text.split("<|im_start|>user\n")[1:]:
            question, rest = part.split("<|im_end|>\n<|im_start|>assistant\n")
            answer = rest.split("<|im_end|>")[0]
            assert answer == question.upper()
            prompt = f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
            ids, n_read = tokens_of(tokenizer, prompt + answer + "<|im_end|>"), len(tokens_of(tokenizer, prompt))
            logits = alone(torch.tensor([ids[:-1]]))[0, n_read - 1 :]
            total = total + torch.nn.functional.cross_entropy(logits, torch.tensor(ids[n_read:]), reduction="sum")
            n_targets += len(ids) - n_read
        assert numbers.max() > 1
    assert n_targets == len(targets)
    (total / n_targets).backward()
    assert float(loss.cross_entropy) == pytest.approx(float(total) / n_targets, rel=1e-5)
    for (name, ours), theirs in zip(model.named_parameters(), alone.parameters(), strict=True):
        assert ours.grad is not None
        torch.testing.assert_close(ours.grad.double(), theirs.grad, rtol=1e-3, atol=1e-5, msg=name)


def test_a_run_resumes_exactly_and_in_any_division_of_its_batches(folder: Path, tmp_path: Path) -> None:
    settings = config(*SETTINGS, "train.checkpoint_every=5", data=folder)
    with pytest.raises(RuntimeError, match="killed"):
        train(settings, tmp_path / "parts", Killed())
    train(settings, tmp_path / "parts", Callback())
    train(settings, tmp_path / "whole", Callback())
    assert losses(tmp_path / "parts") == losses(tmp_path / "whole")
    whole, parts = (load_run(tmp_path / name)[1].state_dict() for name in ("whole", "parts"))
    assert all(torch.equal(whole[name], parts[name]) for name in whole)
    divided = config(*SETTINGS, f"train.micro_batch_tokens={SEQ_LEN}", data=folder)
    train(divided, tmp_path / "divided", Callback())
    assert losses(tmp_path / "divided") == pytest.approx(losses(tmp_path / "whole"), rel=1e-4)


def test_the_score_is_in_bits_per_byte_of_the_responses(folder: Path, tmp_path: Path) -> None:
    """It does not depend on the length of windows, and so not on which conversations share one."""
    settings = config(*SETTINGS, data=folder)
    train(settings, tmp_path / "run", Callback())
    model, tokenizer = load_run(tmp_path / "run")[1].double(), AutoTokenizer.from_pretrained(folder)
    windows = opened(settings).held_out(SEQ_LEN, None)
    bits = n_bytes = 0.0
    for row in windows.tokens.tolist():
        for part in tokenizer.decode(row).split("<|im_start|>user\n")[1:]:
            prompt, rest = part.split("assistant\n")
            prompt, answer = f"<|im_start|>user\n{prompt}assistant\n", rest.split("<|im_end|>")[0]
            ids, n_read = tokens_of(tokenizer, prompt + answer + "<|im_end|>"), len(tokens_of(tokenizer, prompt))
            logits = model(torch.tensor([ids[:-1]]))[0, n_read - 1 :]
            bits += float(
                torch.nn.functional.cross_entropy(logits, torch.tensor(ids[n_read:]), reduction="sum")
            ) / math.log(2)
            n_bytes += len(answer)
    for seq_len in (SEQ_LEN, 2 * SEQ_LEN):
        scored = score(str(tmp_path / "run"), (f"train.eval_seq_len={seq_len}",), None)
        assert scored.bits_per_byte == pytest.approx(bits / n_bytes, rel=1e-5)


def test_flops_count_logits_of_responses_only(folder: Path) -> None:
    settings = config(*SETTINGS, data=folder)
    counted = opened(settings).counted_per_window(SEQ_LEN)
    assert 10 < counted < SEQ_LEN / 2
    head = 6 * settings.model.vocab_size * settings.model.d_model
    saved = visible_training_flops(settings) - visible_training_flops(settings, counted)
    assert saved == pytest.approx(head * (1 - counted / SEQ_LEN), rel=1e-6)


def test_a_tuned_model_answers_and_is_exported_with_its_template(
    folder: Path, tokenizer: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same answer comes from the run, from its export, and from transformers with the exported chat template."""
    run, exported = tmp_path / "run", tmp_path / "exported"
    longer = (f"train.tokens={600 * SEQ_LEN}", "train.lr=1e-2", "train.eval_every=1000", "model.d_model=64")
    train(config(*SETTINGS, *longer, data=folder), run, Callback())
    assert app.main(["export", str(run), "--out", str(exported)]) == 0
    assert (exported / "chat_template.jinja").read_text() == CHATML
    capsys.readouterr()
    for source in (run, exported):
        question = ["--chat", "--prompt", "cat", "--temperature", "0", "--max-new-tokens", "20"]
        assert app.main(["generate", str(source), *question]) == 0
        assert capsys.readouterr().out == "CAT\n"
    theirs, model = AutoTokenizer.from_pretrained(exported), AutoModelForCausalLM.from_pretrained(exported)
    assert theirs.special_tokens_map["eos_token"] == "</s>"
    asked = theirs.apply_chat_template(
        [{"role": "user", "content": "cat"}], add_generation_prompt=True, return_tensors="pt"
    )
    written = model.generate(**asked, max_new_tokens=20, do_sample=False)[0, asked["input_ids"].shape[1] :]
    assert theirs.decode(written) == "CAT<|im_end|>"


def test_an_imported_model_is_tuned_and_gets_the_template(
    folder: Path, tokenizer: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A base model has the tokens but no template. It gets the one of the data, and stops where responses end."""
    base, run, exported = tmp_path / "base", tmp_path / "run", tmp_path / "exported"
    first = config(*SETTINGS, "train.document_mask=false", data=write_text_of(tmp_path))
    train(first, tmp_path / "pretrained", Callback())
    model = load_run(tmp_path / "pretrained")[1]
    model.origin = type(model.origin)()
    import archlab

    archlab.save_pretrained(model, base)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (base / name).write_text((tokenizer / name).read_text())
    described = json.loads((base / "tokenizer_config.json").read_text())
    del described["chat_template"]
    (base / "tokenizer_config.json").write_text(json.dumps(described))
    assert app.main(["import", str(base), "--out", str(run)]) == 0
    fields = [field for field in SETTINGS if field.startswith("train.")]
    assert app.main(["train", str(run), *fields, "train.dtype=float32", f"data.path={folder}", "--out", str(run)]) == 0
    assert app.main(["export", str(run), "--out", str(exported)]) == 0
    assert (exported / "chat_template.jinja").read_text() == CHATML
    generation = json.loads((exported / "generation_config.json").read_text())
    assert AutoTokenizer.from_pretrained(exported).convert_tokens_to_ids("<|im_end|>") in generation["eos_token_id"]
    capsys.readouterr()
    assert app.main(["generate", str(base), "--chat", "--prompt", "cat"]) == 2
    assert "base has no chat template" in " ".join(capsys.readouterr().err.split())


def write_text_of(folder: Path) -> Path:
    (folder / "text.txt").write_text("the cat sat on a mat\n" * 2000)
    return folder / "text.txt"


def test_tags_decide_which_tokens_are_learned(tmp_path: Path) -> None:
    """A template whose tags leave out the end of a turn trains fewer tokens."""
    without_end = TAGGED.replace(
        "message.content + '<|im_end|>' }}\n        {%- endgeneration %}",
        "message.content }}\n        {%- endgeneration %}\n        {{- '<|im_end|>' }}",
    )
    counted = []
    for name, template in (("with", TAGGED), ("without", without_end)):
        (home := tmp_path / name).mkdir()
        file = write_chats(home / "chats.jsonl", capitals(100))
        tokenizer = tokenizer_folder(home / "tokenizer", template)
        data = prepare(
            [str(file)], home / "data", tokenizer=tokenizer, held_out=0.1, template=ChatFields(("messages",))
        )
        assert data.manifest.chat is not None
        counted.append((data.manifest.chat.counted, len(data.manifest.chat.ends)))
    assert counted[0][0] - counted[1][0] == 100
    assert [n_ends for _, n_ends in counted] == [1, 0]
