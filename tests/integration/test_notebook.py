"""Values in a notebook and at Python's prompt: they show what the commands print, and what the pages draw."""

import builtins
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest
import torch

import archlab
import archlab.cli.bench
import archlab.cli.study  # its help has the width of the terminal at the import
import sample_run
import sample_study
import tiny
from archlab.atlas.inspect import choices
from archlab.cli.app import main
from archlab.config.core.yaml_text import parse_yaml
from archlab.config.identity import differences
from archlab.errors import UserError
from archlab.infer.load import load_codec
from archlab.infer.text import stream_text
from archlab.measuring import speed
from archlab.progress import Bar
from archlab.report.drawings.block import block_diagram
from archlab.report.study.arms import difference_rows


@pytest.fixture
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Return the output of a command, without spaces at the ends of lines."""
    assert main(words) == 0
    return "\n".join(line.rstrip() for line in capsys.readouterr().out.split("\n")).strip("\n")


def shown(value: object) -> tuple[ElementTree.Element, str]:
    """Return the HTML of a value as a tree, and its text with single spaces."""
    bundle = value._repr_mimebundle_()  # pyright: ignore[reportAttributeAccessIssue]
    assert bundle["text/plain"] == repr(value) == str(value)
    assert same(bundle["text/html"], value._repr_html_())  # pyright: ignore[reportAttributeAccessIssue]
    assert "<script" not in bundle["text/html"]
    tree = ElementTree.fromstring(re.sub(r"&(?!amp;|lt;|gt;|quot;|#)", "&amp;", bundle["text/html"]))
    return tree, " ".join("".join(tree.itertext()).split())


def test_values_in_a_kernel_have_no_escape_sequences(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel of Jupyter sets both variables."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("CLICOLOR_FORCE", "1")
    for value in (archlab.load_hardware("h100"), archlab.list_presets(), archlab.list_families(), archlab.ledger()):
        _, text = shown(value)
        assert "\\u001b" not in text
        assert "\x1b" not in repr(value)


def same(a: str, b: str) -> bool:
    """Return whether two outputs differ only in the numbers that vl-convert gives to the parts of each picture."""
    return re.sub(r"-clip\d+", "-clip", a) == re.sub(r"-clip\d+", "-clip", b)


def cells(tree: ElementTree.Element) -> list[str]:
    return [" ".join("".join(cell.itertext()).split()) for cell in tree.iter() if cell.tag in ("th", "td")]


@pytest.mark.usefixtures("wide")
def test_values_read_like_the_output_of_their_commands(capsys: pytest.CaptureFixture[str]) -> None:
    llama, gpt = (archlab.load_config(name) for name in ("llama-3-8b", "gpt-2"))
    assert repr(archlab.cost(llama)) == printed(capsys, "cost", "llama-3-8b")
    both = archlab.cost(llama, gpt, names=["llama-3-8b", "gpt-2"])
    assert repr(both) == printed(capsys, "cost", "llama-3-8b", "gpt-2")
    wide_config = archlab.load_config("llama-3-8b", "model.mlp.d_ff=14337")
    assert f"x: {archlab.check(wide_config)}".endswith(
        printed(capsys, "check", "llama-3-8b", "model.mlp.d_ff=14337").split("\n")[-1].partition(": ")[2]
    )
    for words in ([], ["rope"], ["positions"], ["model.norm.eps"]):
        assert repr(archlab.explain(*words)) == printed(capsys, "explain", *words)


@pytest.mark.usefixtures("wide")
@pytest.mark.parametrize(
    ("make", "command"),
    [
        (archlab.list_hardware, "list hardware"),
        (archlab.list_families, "list families"),
        (archlab.list_transformations, "list transformations"),
        (lambda: archlab.list_presets("family=llama", sort="size"), "list presets --filter family=llama --sort size"),
        (archlab.list_studies, "study list"),
        (archlab.ledger, "ledger"),
        (lambda: archlab.ledger(9)[0], "ledger 9"),
        (lambda: archlab.propose("llama-3", params=10**9), "size --params 1B"),
        (lambda: archlab.load_hardware("h100x16"), "hardware h100x16"),
        (lambda: archlab.diff(archlab.load_config("gpt-2"), archlab.load_config("gpt-2")), "diff gpt-2 gpt-2"),
    ],
)
def test_lists_read_and_show_like_the_output_of_their_commands(
    make: Callable[[], object], command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    value = make()
    assert repr(value) == printed(capsys, *command.split())
    _, text = shown(value)
    assert " ".join(repr(value).split("\n")[0].split()) in text


def test_differences_are_a_table_of_two_configs() -> None:
    differences = archlab.diff(archlab.load_config("gpt-2"), archlab.load_config("gpt-2", "model.n_layers=3"))
    rows = [line.split() for line in repr(differences).split("\n") if line.strip(" ─")]
    assert rows == [["field", "a", "b"], ["model.n_layers", "12", "3"]]


def test_a_planned_study_shows_itself_like_its_command(capsys: pytest.CaptureFixture[str]) -> None:
    plan = archlab.plan_study("norm-kind", scale="smoke")
    assert main(["study", "show", "norm-kind", "--scale", "smoke"]) == 0
    assert repr(plan).split() == capsys.readouterr().out.split()
    assert plan.config.question in plan._repr_html_()


@pytest.mark.usefixtures("wide")
@pytest.mark.parametrize("sources", [("tiny-llama",), ("tiny-llama", "tiny-transformer")])
def test_evaluations_show_themselves_like_their_command(
    sources: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    evaluations = archlab.evaluate(*sources, tokens=256)
    assert repr(evaluations) == printed(capsys, "eval", *sources, "--tokens", "256")
    tree, text = shown(evaluations)
    assert all(f"{each.score.value:.4f}" in text for each in evaluations)
    assert ("tiny-transformer" in cells(tree)) == (len(sources) == 2)


@pytest.mark.usefixtures("wide")
def test_measurements_and_folders_show_themselves_like_their_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = ("inspect", "exported")
    archlab.save_pretrained(archlab.Decoder(tiny.config().model), folder[1])
    converted = archlab.convert(folder[1], {"model.attention.n_kv_heads": 1}, out="one")
    command = ("convert", folder[1], "model.attention.n_kv_heads=1", "--out", "two")
    assert f"{converted}\ntwo" == printed(capsys, *command)
    values = {folder: archlab.inspect(folder[1])}
    values["probe", "tiny-llama", "tiny-transformer"] = archlab.probe(
        "tiny-llama", "tiny-transformer", names=["tiny-llama", "tiny-transformer"]
    )
    measured = {"used": 0.5, "limit": 2e9, "compiled": False, "device": "a CPU", "dtype": "float32", "threads": 1}
    measured |= {"tokens_per_second": 300.0, "time_by_kind": {"norm": 1.0}}
    for kind, words, name in (
        (speed.Speed, ("bench", "train"), "training_speed"),
        (speed.DecodingSpeed, ("bench", "decode"), "decoding_speed"),
    ):
        value = values[*words, "tiny-llama"] = kind.model_validate(measured)
        monkeypatch.setattr(speed, name, lambda *_, value=value, **__: value)
    share = speed.Share(kind="norms", flops=0.5, n_bytes=0.5, time=0.5)
    values["profile", "tiny-llama"] = profile = speed.Profile(
        seconds=1, whole_seconds=2, shares=[share], parts={}, device="a CPU", dtype="float32", threads=1
    )
    monkeypatch.setattr(speed, "profile", lambda *_: profile)
    for words, value in values.items():
        assert repr(value) == printed(capsys, *words)
        assert " ".join(repr(value).split("\n")[0].split()) in shown(value)[1]


def test_the_model_of_a_config_shows_its_architecture() -> None:
    config = archlab.load_config("llama-3-8b")
    tree, _ = shown(config.model)
    assert {" ".join(words.split()) for words in choices(config.model).values()} <= {*cells(tree)}
    assert parse_yaml(repr(config.model), "model") == parse_yaml(repr(config), "config")["model"]


def test_a_comparison_with_hand_written_code_shows_its_checks() -> None:
    comparison = archlab.testing.compare(torch.nn.RMSNorm, "norm", tiny.config())
    assert repr(comparison) == comparison.text()
    _, text = shown(comparison)
    assert comparison.checks
    assert [check.name for check in comparison.checks if " ".join(check.words.split()) not in text] == []


def test_differences_are_in_columns_with_the_names_of_the_configs() -> None:
    tree, _ = shown(archlab.diff("gpt-2", archlab.load_config("gpt-2", "model.n_layers=3")))
    assert cells(tree) == ["field", "gpt-2", "b", "model.n_layers", "12", "3"]


def test_answers_are_the_data_of_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    change = "model.mlp.d_ff=14337"
    config = archlab.load_config("llama-3-8b", change)
    assert archlab.check(config, tensor=8).data == json.loads(
        printed(capsys, "check", "llama-3-8b", change, "--tensor", "8", "--json")
    )
    assert archlab.check(config).findings
    for words in ([], ["rope"], ["positions"], ["model.norm.eps"]):
        assert json.loads(json.dumps(archlab.explain(*words).data)) == json.loads(
            printed(capsys, "explain", *words, "--json")
        )
    with pytest.raises(UserError, match="unknown topic 'ropee'; did you mean"):
        archlab.explain("ropee")


def test_differences_and_claims_are_the_data_of_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    a, b = (archlab.load_config(name) for name in ("llama-3-8b", "gemma-2-9b"))
    assert {key: [*pair] for key, pair in archlab.diff(a, b).items()} == json.loads(
        printed(capsys, "diff", "llama-3-8b", "gemma-2-9b", "--json")
    )
    assert [entry.model_dump(mode="json") for entry in archlab.ledger()] == json.loads(
        printed(capsys, "ledger", "--json")
    )["claims"]


def test_a_config_reads_like_its_file_and_shows_as_a_table() -> None:
    config = archlab.load_config("llama-3-8b", "model.n_layers=30")
    assert len(repr(config).split("\n")) > 5
    again = archlab.load_config("llama-3-8b", parse_yaml(repr(config), "repr"))
    assert differences(config, again) == {}, "the text is a config file"
    tree, text = shown(config)
    table = cells(tree)
    assert all(" ".join(words.split()) in table for words in choices(config.model).values())
    assert "0-29" in table
    assert "Whole config" in text


@pytest.mark.parametrize("section", ["train", "data", "parallel"])
def test_a_section_of_a_config_reads_like_a_file_with_all_its_fields(section: str) -> None:
    config = archlab.load_config("tiny-llama", "train.lr=2e-3", "data.fold=3", "parallel.tensor=2")
    values = parse_yaml(repr(getattr(config, section)), "repr")
    assert values == getattr(config, section).model_dump(mode="json")


def test_costs_are_compared_side_by_side() -> None:
    llama, gpt = (archlab.load_config(name) for name in ("llama-3-8b", "gpt-2"))
    both = archlab.cost(llama, gpt)
    assert [*both.by_name] == ["config 1", "config 2"]
    first, second = both.by_name.values()
    assert first.context == second.context == 1024, "the smaller training window"
    assert first == archlab.cost(llama, context=1024)
    tree, _ = shown(both)
    ratio = second.parameters.total / first.parameters.total
    assert any(cell.endswith(f" {ratio:.2f}x") for cell in cells(tree))
    with pytest.raises(UserError, match=r"names: .*; allowed: 2 different names"):
        archlab.cost(llama, gpt, names=["a", "a"])
    with pytest.raises(UserError, match=r"more: 4; allowed: a config of archlab\.load_config, a text or a path"):
        archlab.cost(llama, 4)  # pyright: ignore[reportArgumentType, reportCallIssue]


def test_a_drawing_is_the_picture_of_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = archlab.load_config("gemma-2-9b")
    drawn = archlab.draw(config, title="gemma-2-9b")
    assert main(["draw", "gemma-2-9b", "--out", str(tmp_path / "a.svg")]) == 0
    assert drawn._repr_svg_() == drawn._repr_mimebundle_()["image/svg+xml"] == (tmp_path / "a.svg").read_text()
    assert drawn._repr_html_() == drawn._repr_mimebundle_()["text/html"] == drawn.svg, "JupyterLab shows only the HTML"
    assert drawn.svg == block_diagram(config, "gemma-2-9b")
    assert "gemma-2-9b" in repr(drawn)
    pdf = drawn.save(tmp_path / "new" / "a.pdf").read_bytes()
    assert pdf.startswith(b"%PDF")
    assert b"/FontFile" in pdf, "fonts are embedded"
    assert drawn.figure("png").startswith(b"\x89PNG")
    with pytest.raises(UserError, match="format: 'gif'; allowed: svg, pdf, png"):
        drawn.save(tmp_path / "a.gif")
    with pytest.raises(UserError, match="unfold"):
        archlab.draw(config, unfold=["norm"])


def test_a_study_shows_its_forest_plot() -> None:
    study = sample_study.diverging_ladder()
    assert study.answer.split(".")[0] in " ".join(repr(study).split())
    tree, text = shown(study)
    assert study.question in text
    assert study.answer in text
    (svg,) = tree.iter("{http://www.w3.org/2000/svg}svg")
    drawn = "".join(svg.itertext())
    assert all(row["arm"] in drawn for row in difference_rows(study))
    assert "<image" not in study._repr_html_()


def test_a_chart_can_be_restyled_and_written() -> None:
    study = sample_study.diverging_ladder()
    chart = study.chart()
    rows = json.dumps(chart.to_dict(validate=False))
    assert all(json.dumps(row["arm"]) in rows for row in difference_rows(study))
    assert "containerSize" not in rows
    restyled = chart.properties(title="Mine").configure_axis(labelFontSize=20).to_dict(validate=False)
    assert (restyled["title"], restyled["config"]["axis"]["labelFontSize"]) == ("Mine", 20)
    pdf = study.figure("pdf", "curves")
    assert pdf.startswith(b"%PDF")
    assert b"/FontFile" in pdf, "fonts are embedded"
    assert ElementTree.fromstring(study.figure("svg")).tag.endswith("svg")
    with pytest.raises(UserError, match="name: 'curve'; did you mean curves\\? allowed: differences, levels"):
        study.chart("curve")
    with pytest.raises(UserError, match="name: 3; allowed: differences, levels"):
        study.chart(3)  # pyright: ignore[reportArgumentType]


def test_a_study_has_a_table_for_latex() -> None:
    lines = sample_study.diverging_ladder().latex().splitlines()
    assert lines[:2] == [r"\begin{tabular}{lrrrrlr}", r"\toprule"]
    rows = [line for line in lines if line.endswith(r"\\")]
    assert len(rows) == 1 + len(sample_study.LADDER)
    assert {line.count("&") for line in rows} == {6}
    assert r"bits/byte $\pm$ sd" in rows[0]
    assert "$-$0." in "".join(rows), "a minus sign, not a hyphen"
    hostile = sample_study.hostile().latex()
    for own in ("$\\pm$", "$\\times$", "$-$"):
        hostile = hostile.replace(own, "")
    assert not re.search(r"(?<!\\)[#%_$](?!\\pm|\\t|\\l|\$)", hostile)


def test_a_run_shows_its_curves(tmp_path: Path) -> None:
    run = archlab.load_run(sample_run.begun(tmp_path / "run", steps=500, ended="finished"))
    tree, text = shown(run)
    assert len([*tree.iter("{http://www.w3.org/2000/svg}svg")]) == 2
    assert "Held-out evaluation" in text
    assert run.frame()[0] == run.metrics[0]
    assert "right answers" not in text
    summary = run.summary
    assert summary is not None
    assert summary.folder == tmp_path / "run"
    assert same(summary._repr_html_(), run._repr_html_())
    assert "folder" not in summary.model_dump()
    assert summary == summary.model_validate(summary.model_dump()), "the folder does not count"
    assert repr(summary).startswith("finished: 3.0000 bits per byte")
    without = summary.model_validate(summary.model_dump())
    assert "finished" in without._repr_html_()
    with pytest.raises(UserError, match="does not come from a run folder"):
        without.chart()
    losses = json.dumps(run.chart("updates-loss").to_dict(validate=False))
    assert "nats per token" in losses
    assert "bits per byte on held-out text" in json.dumps(run.chart().to_dict(validate=False))
    with pytest.raises(UserError, match="nothing to draw yet"):
        archlab.load_run(sample_run.begun(tmp_path / "new", steps=0)).chart()


def test_frames_are_of_the_library_that_the_user_names(monkeypatch: pytest.MonkeyPatch) -> None:
    study = sample_study.diverging_ladder()
    for name in ("pandas", "polars"):
        monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(UserError, match=f"{name} is not installed .*pip install {name}"):
            study.frame(name)
        monkeypatch.setitem(sys.modules, name, SimpleNamespace(DataFrame=lambda rows: ("frame", rows)))
        assert study.frame(name) == ("frame", study.frame())
    (_, rows) = archlab.plan_study("ladder").frame("polars")
    changes = archlab.plan_study("ladder").frame()[1]["changes"]
    assert parse_yaml(rows[1]["changes"], "cell") == changes != {}
    with pytest.raises(UserError, match="library: 'numpy'; allowed: pandas, polars"):
        study.frame("numpy")  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    "overrides",
    [
        ({"model.norm.kind": "layernorm", "model.norm.eps": 1e-6, "train.lr": 2e-5},),
        ({"model": {"norm": {"kind": "layernorm", "eps": 1e-6}}, "train": {"lr": 2e-5}},),
        ({"model.norm.kind": "layernorm"}, "model.norm.eps=1e-6", {"train.lr": 2e-5}),
    ],
)
def test_overrides_may_be_mappings(overrides: tuple) -> None:
    texts = ("model.norm.kind=layernorm", "model.norm.eps=1e-6", "train.lr=2e-5")
    assert archlab.load_config("tiny-llama", *overrides) == archlab.load_config("tiny-llama", *texts)


def test_overrides_of_a_mapping_keep_their_types() -> None:
    config = archlab.load_config("tiny-llama", {"train.grad_clip": None, "data.path": "123", "train.betas": (0.8, 0.9)})
    assert (config.train.grad_clip, config.data.path, config.train.betas) == (None, "123", (0.8, 0.9))
    assert archlab.load_config("tiny-llama", {"model.max_seq_len": "8Ki"}).model.max_seq_len == 8192
    with pytest.raises(UserError, match=r"model\.norm\.eps: is a value of class object; allowed: a text, a number"):
        archlab.load_config("tiny-llama", {"model.norm": {"eps": object()}})
    with pytest.raises(UserError, match=r"overrides: 3; allowed: a text or a dict"):
        archlab.load_config("tiny-llama", 3)  # pyright: ignore[reportArgumentType]
    with pytest.raises(UserError, match="knd"):
        archlab.load_config("tiny-llama", {"model": {"norm": {"knd": 1}}})


def test_a_text_is_continued_with_the_tokenizer_of_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ARCHLAB_CACHE", str(tmp_path / "cache"))
    run = tmp_path / "run"
    archlab.train(tiny.config(data=tiny.write_text(tmp_path)), run)
    model = archlab.from_pretrained(run)
    text = archlab.generate(model, "hello", 8)
    assert text == "hello" + "".join(stream_text(model, load_codec(run), "hello", 8))
    capsys.readouterr()
    assert main(["generate", str(run), "--prompt", "hello", "--max-new-tokens", "8", "--temperature", "0"]) == 0
    assert capsys.readouterr().out == f"{text}\n"
    tokenizer = archlab.load_tokenizer(model)
    ids = tokenizer.encode("hello").ids
    assert ids == archlab.load_tokenizer(run).encode("hello").ids == load_codec(run).encode("hello")
    tokens = archlab.generate(model, torch.tensor([ids]), 8, end_of_text=ids[0])
    assert text.startswith("hello")
    assert tokenizer.decode(tokens[0, len(ids) :].tolist()).startswith(text.removeprefix("hello"))
    with pytest.raises(UserError, match="padding is for a prompt of token ids"):
        archlab.generate(model, "hello", padding=[0])
    with pytest.raises(UserError, match="source: a text, but the prompt is token ids"):
        archlab.generate(model, torch.tensor([ids]), source="a")
    with pytest.raises(UserError, match="no tokenizer, because it was not loaded from a folder"):
        archlab.generate(archlab.Decoder(tiny.config().model), "hello")


def test_the_package_lists_only_its_names_and_has_docstrings(capsys: pytest.CaptureFixture[str]) -> None:
    assert dir(archlab) == sorted([*archlab.__all__, "testing"])
    builtins.help(archlab.train)
    assert "Train a run in the folder" in capsys.readouterr().out


def test_values_are_made_without_torch_and_altair() -> None:
    code = """
import archlab, sys
config = archlab.load_config("tiny-llama")
repr(config), repr(archlab.cost(config, config)), repr(archlab.check(config)), archlab.explain("rope"), archlab.draw(config)
print(*sys.modules.keys() & {"torch", "altair", "vl_convert"})
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "\n", done.stderr


def test_a_bar_in_a_notebook_is_below_its_cell(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bundles: list[dict[str, str]] = []

    def display(bundle: dict[str, str], **_: object) -> SimpleNamespace:
        bundles.append(bundle)
        return SimpleNamespace(update=lambda bundle, **_: bundles.append(bundle))

    shell = SimpleNamespace(kernel=None)
    notebook = SimpleNamespace(get_ipython=lambda: shell, display=SimpleNamespace(display=display))
    monkeypatch.setitem(sys.modules, "IPython", notebook)
    monkeypatch.setattr("archlab.progress._BETWEEN_MOVES", 0.0)
    with Bar() as bar:
        bar.begin("training <a>")
        bar.update(0.25, "1/4", "loss 2.0")
        bar.update(1.0, "4/4", "loss 1.0")
        bar.print("a line")
    assert [bundle["text/plain"] for bundle in bundles] == [
        "training <a> 1/4  loss 2.0",
        "training <a> 4/4  loss 1.0",
        "",
    ]
    assert '<progress value="0.2500"></progress>' in bundles[0]["text/html"]
    assert "training &lt;a&gt;" in bundles[0]["text/html"]
    assert capsys.readouterr() == ("a line\n", "")
