"""`archlab eval` of several models: one table, in which all are scored on the same windows of held-out text."""

import json
import math

import pytest
import torch
import torch.nn.functional as F
from scipy import stats

from archlab.cli import app
from archlab.config.core.yaml_text import to_yaml
from archlab.data.objectives import Batches
from archlab.data.open import open_training_data
from archlab.exchange.configs import load_config
from archlab.infer.load import from_pretrained
from archlab.training.callback import Callback
from archlab.training.run_folder import RunFolder
from archlab.training.train import train
from tiny import MODEL, TRAIN, config

pytestmark = pytest.mark.usefixtures("shared_cache")
CONSTANT = ["train.schedule=constant", "train.warmup=0.2"]


@pytest.fixture(scope="module")
def trained(text, tmp_path_factory):
    """Folder with a run, the same model as a Hugging Face folder, and runs that begin from the weights of each."""
    home = tmp_path_factory.mktemp("eval")
    train(config(*CONSTANT, data=text), home / "run", Callback())
    assert app.main(["export", str(home / "run"), "--out", str(home / "hf")]) == 0
    train(config("model.attention.n_kv_heads=1", f"train.start={home / 'run'}", data=text), home / "gqa", Callback())
    longer = ["train.seq_len=32", "model.max_seq_len=32", f"train.start={home / 'hf'}"]
    train(config(*longer, data=text), home / "longer", Callback())
    return home


def scores(capsys, *arguments):
    capsys.readouterr()
    assert app.main(["eval", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def refused(capsys, *arguments):
    capsys.readouterr()
    assert app.main(["eval", *arguments]) == 2
    return capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize("first", ["run", "gqa"])
def test_each_score_is_that_of_the_model_alone(here, capsys, first):
    names = [first, *({"run", "gqa"} - {first})]
    alone = [scores(capsys, name) for name in names]
    both = scores(capsys, *names)
    assert [score["config"] for score in both] == names
    assert [score["difference"] for score in both] == [0, alone[1]["bits_per_byte"] - alone[0]["bits_per_byte"]]
    assert [{field: score[field] for field in alone[0]} for score in both] == alone
    assert both[1]["difference"] != 0
    assert both[0]["interval"] == [0, 0]


def test_a_run_was_scored_like_this_at_its_end(here, capsys):
    found = scores(capsys, "run", "gqa", "--tokens", str(TRAIN["eval_tokens"]))
    ended = [RunFolder(here / name).summary() for name in ("run", "gqa")]
    assert [score["loss"] for score in found] == [summary.loss for summary in ended if summary]


def test_a_folder_is_scored_on_the_text_of_the_run_that_began_from_it(here, capsys):
    before, after = scores(capsys, "hf", "longer")
    assert (before["context"], before["tokens"], before["corpus"]) == (32, after["tokens"], after["corpus"])
    assert after == {**scores(capsys, "longer"), **{name: after[name] for name in ("config", "difference", "interval")}}
    assert scores(capsys, "run", "hf")[1]["bits_per_byte"] == pytest.approx(scores(capsys, "run")["bits_per_byte"])


def test_all_are_read_in_the_windows_of_the_first_run(here, capsys):
    assert [score["context"] for score in scores(capsys, "run", "longer")] == [16, 16]
    assert [score["context"] for score in scores(capsys, "hf", "longer", "run")] == [32, 32, 32]
    assert [score["context"] for score in scores(capsys, "run", "longer", "train.eval_seq_len=8")] == [8, 8]


def test_a_field_is_changed_for_all_models(here, capsys):
    plain, narrow = (scores(capsys, "run", "gqa", *more) for more in ([], ["model.attention.window=2"]))
    assert all(a["loss"] != b["loss"] for a, b in zip(plain, narrow, strict=True))


def test_the_table_shows_the_difference_to_the_first_model(here, capsys):
    first, second = scores(capsys, "run", "gqa")
    assert app.main(["eval", "run", "gqa"]) == 0
    printed = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["run", "10", "steps", f"{first['bits_per_byte']:.4f}"] in printed
    difference = f"{second['difference']:+.4f}"
    ends = ["[{:.4f},".format(second["interval"][0]), "{:.4f}]".format(second["interval"][1])]
    assert ["gqa", "10", "steps", f"{second['bits_per_byte']:.4f}", difference, *ends] in printed
    assert f"{first['tokens']:,} predicted tokens in windows of 16, in float32".split() in printed
    assert ["95%", "interval:", "covers", "the"] in [line[:4] for line in printed]
    assert ["data:", *first["corpus"].split()] in printed


def test_the_interval_covers_the_windows(here, capsys):
    """The reference runs each window through each model alone, and sums by hand."""
    _, second = scores(capsys, "run", "gqa")
    settings = load_config("run")
    data = open_training_data(settings.data, settings.model.vocab_size)
    windows = Batches.of(settings, data).held_out(16, None).windows
    models = [from_pretrained(name) for name in ("run", "gqa")]
    changes, sizes = [], [sum(row) for row in windows.bytes.tolist()]
    for row in torch.from_numpy(windows.tokens):
        nats = [F.cross_entropy(model(row[None, :-1])[0], row[1:], reduction="sum") for model in models]
        changes.append((nats[1] - nats[0]).item() / math.log(2))
    n, total = len(changes), sum(sizes)
    difference = sum(changes) / total
    squares = sum((change - difference * size) ** 2 for change, size in zip(changes, sizes, strict=True))
    half_width = stats.t.ppf(0.975, n - 1) * math.sqrt(n / (n - 1) * squares) / total
    assert second["interval"] == pytest.approx([difference - half_width, difference + half_width], abs=1e-6)
    assert half_width > 1e-4  # so that the tolerance, which is for float32, means something


def test_a_task_is_compared_by_its_accuracy(here, capsys):
    fields = ["data.task.kind=recall", "model.max_seq_len=32"]
    (here / "mine.yaml").write_text(to_yaml({"model": MODEL, "train": TRAIN}))
    first, second = scores(capsys, "mine.yaml", "mine.yaml", *fields, "--tokens", "256")
    assert (first["bits_per_byte"], second["difference"]) == (None, 0)
    assert app.main(["eval", "mine.yaml", "mine.yaml", *fields, "--tokens", "256"]) == 0
    accuracy = f"{first['accuracy']:.2%}"
    printed = [line.split()[2:4] for line in capsys.readouterr().out.splitlines()]
    assert [accuracy, "+0.00%"] in printed


def test_a_run_that_has_read_the_held_out_text_is_refused_by_name(here, capsys, text):
    train(config("data.fold=1", data=text), here / "other", Callback())
    line = refused(capsys, "run", "gqa", "other")
    assert line == "data.fold: 0; other was trained on this fold; allowed: 1"
    line = refused(capsys, "other", "run")
    assert line == "data.fold: 1; run was trained on this fold; allowed: 0"
    assert refused(capsys, "run", "gqa", "data.fold=1").startswith("data.fold: 1; run was trained on this fold")


def test_a_model_with_another_tokenizer_is_refused_by_name(here, capsys, text):
    train(config("model.vocab_size=290", data=text), here / "other", Callback())
    line = refused(capsys, "run", "hf", "other")
    assert line.startswith(f"data.path: {text} has a different tokenizer than other; ")


def test_a_note_names_the_run_whose_text_is_another(here, capsys, text):
    (here / "more.txt").write_text(text.read_text() + "a new line\n" * 500)
    more = ["data.path=more.txt", f"data.tokenizer={here / 'run'}"]
    train(config(*more, f"train.start={here / 'run'}"), here / "other", Callback())
    capsys.readouterr()
    assert app.main(["eval", "run", "other"]) == 0
    notes = [line for line in capsys.readouterr().err.splitlines() if line.startswith("note: ")]
    assert notes == [
        "note: this is not the text of other, or it is split differently; other may have been trained on parts of it"
    ]


def test_folders_without_a_run_need_a_text(here, capsys, text):
    assert refused(capsys, "hf", "hf").startswith("data.path: not set, and no source is a run folder")
    assert refused(capsys, "hf", "hf", "data.fold=0").startswith("data.path: not set")
    assert app.main(["data", str(text), "--tokenizer", "hf", "--out", "data"]) == 0
    first, second = scores(capsys, "hf", "hf", "data.path=data", "--tokens", "256")
    assert first["bits_per_byte"] == second["bits_per_byte"]


@pytest.mark.parametrize("source", ["hf", "run", "imported"])
def test_a_text_is_encoded_with_the_tokenizer_of_the_model(here, capsys, source):
    """The reference is the same text, encoded before with this tokenizer."""
    if source == "imported":
        assert app.main(["import", "hf", "--out", "imported"]) == 0
    (here / "other.txt").write_text("Three words, and a fourth one.\n\n" * 400)
    assert app.main(["data", "other.txt", "--tokenizer", "hf", "--out", "encoded"]) == 0
    text, encoded = (
        scores(capsys, source, f"data.path={path}", "--tokens", "512") for path in ("other.txt", "encoded")
    )
    assert text["bits_per_byte"] == encoded["bits_per_byte"]
    several = scores(capsys, source, "hf", "data.path=other.txt", "--tokens", "512")
    assert several[0]["bits_per_byte"] == text["bits_per_byte"]


def test_a_tokenizer_that_the_command_names_encodes_the_text(here, capsys, text):
    train(config("model.vocab_size=290", data=text), here / "other", Callback())
    line = refused(capsys, "hf", f"data.path={text}", "data.tokenizer=other")
    assert "has a different tokenizer than hf" in line
    task = ["data.task.kind=recall", "model.max_seq_len=32", "--tokens", "64"]
    assert scores(capsys, "hf", *task)["bits_per_byte"] is None


def test_a_vocabulary_must_have_all_tokens_of_the_text(here, capsys):
    (here / "small.yaml").write_text(to_yaml({"model": {**MODEL, "vocab_size": 50}, "train": TRAIN}))
    line = refused(capsys, "run", "small.yaml")
    assert line.startswith("small.yaml: model.vocab_size is 50, but ")


def test_an_objective_that_a_model_cannot_have_is_refused_by_name(here, capsys):
    (here / "two.yaml").write_text(
        to_yaml({"model": {**MODEL, "attention": {**MODEL["attention"], "visibility": "two_sided"}}, "train": TRAIN})
    )
    capsys.readouterr()
    assert app.main(["eval", "run", "two.yaml"]) == 2
    assert "two.yaml" in capsys.readouterr().err
