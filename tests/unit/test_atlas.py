"""The atlas: every published model loads, has its published size, and fits into the table."""

import itertools
import json
import re
import statistics
from typing import get_args

import pytest
import torch
import vl_convert

import archlab
from archlab.atlas import models
from archlab.atlas import select as select_module
from archlab.atlas.adoption import CHOICES, counted, kinds
from archlab.atlas.inspect import choices
from archlab.atlas.models import AtlasRow
from archlab.atlas.select import fields_of, select
from archlab.atlas.table import FIGURES, HEADINGS, MORE, cells, count, evolution, more, remarks, without_architecture
from archlab.cli import app
from archlab.config.about import About, Certainty
from archlab.config.components.any_attention import AnyAttention
from archlab.config.identity import flatten, resolved
from archlab.config.io import facts, find_preset, presets, read_entry
from archlab.config.layers import layer_configs
from archlab.errors import UserError
from archlab.exchange.configs import load_config
from archlab.pricing.params import parameters
from archlab.report.atlas import MLP_KINDS, linked, render, search_words, shares, table_cells
from html_page import Page
from published import ENTRIES, add_half_a_model

ROWS = {name: models.row(entry) for name, entry in ENTRIES.items()}
OURS = [name for name in presets() if name.startswith(("tiny-", "mini-", "small-", "cs336"))]


def test_every_file_is_an_entry_but_our_own_presets():
    assert set(ENTRIES) == {*presets()} - {*OURS}
    assert set(facts()) == {*models.unpublished()}
    assert all(entry.about.buildable for entry in ENTRIES.values())
    assert len(ENTRIES) >= 66


# --- facts about each model ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ENTRIES)
def test_about(name):
    about, config = ENTRIES[name].about, ENTRIES[name].config
    assert about.certainty in get_args(Certainty)
    assert find_preset(about.name) == find_preset(name), "its published name finds it, too"
    assert all(map(str.strip, (*about.source, *about.notes)))
    if about.dropout is not None:
        assert config.model.dropout.branch == about.dropout


@pytest.mark.parametrize("name", [name for name in ENTRIES if ENTRIES[name].about.unverified])
def test_unverified_fields_exist(name):
    fields = {*flatten(resolved(ENTRIES[name].config)), *(f"about.{field}" for field in About.model_fields)}
    for field in ENTRIES[name].about.unverified:
        everywhere = re.sub(r"layers\.[^.]+\.", "", field)
        assert any(f"{known}.".startswith(f"{everywhere}.") for known in fields), field
        assert field == everywhere or any(known.startswith(field) for known in fields), field


ROUNDED_SIZES = {"transformer-base": 0.03, "kimi-linear-48b-a3b": 0.03, "olmo-hybrid-7b": 0.065}
"""The vocabulary of the first Transformer is only published as about 37,000 tokens. The size of Kimi Linear does not
include the embedding and the head. The size of Olmo Hybrid is published with one digit, 7B."""


@pytest.mark.parametrize("name", ENTRIES)
def test_the_size_is_the_published_one(name):
    about = ENTRIES[name].about
    counted_here = parameters(ENTRIES[name].config.model).total + (about.elsewhere or 0)
    assert counted_here == pytest.approx(about.published_parameters, rel=ROUNDED_SIZES.get(name, 0.02))


ROUNDED = {
    "ernie-4.5-21b-a3b": 0.03,
    "deepseek-v2-lite": 0.025,
    "qwen3-next-80b-a3b": 0.09,
    "lfm2-8b-a1b": 0.04,
    "kimi-linear-48b-a3b": 0.1,
    "granite-4.0-h-small": 0.03,
    "glm-4.7-flash": 0.09,
}
"""Sizes are published with one or two digits, rounded or cut off: 3B, 2.4B, 3B, 1.5B, 3B, 9B, 3B."""


@pytest.mark.parametrize("name", [name for name in ENTRIES if ENTRIES[name].about.published_active])
def test_the_active_parameters_are_the_published_ones(name):
    about, here = ENTRIES[name].about, parameters(ENTRIES[name].config.model)
    left_out = {"nothing": 0, "embedding": here.embedding, "embedding and head": here.embedding + here.head}
    active = here.active - left_out[about.active_without]
    assert active == pytest.approx(about.published_active, rel=ROUNDED.get(name, 0.02))
    assert active < here.total


def test_every_mixture_says_how_many_are_active():
    """Grok-1's is not published. Granite's is rounded to 1B. FlexOlmo uses all experts."""
    mixtures = {name for name, row in ROWS.items() if row.n_experts}
    silent = {name for name in mixtures if ENTRIES[name].about.published_active is None}
    assert silent == {"grok-1-314b", "granite-4.0-h-tiny", "flexolmo-7x7b"}
    assert len(mixtures) >= 24


def test_most_sizes_are_exact():
    exact = [
        name
        for name in ENTRIES
        if parameters(ENTRIES[name].config.model).total == ENTRIES[name].about.published_parameters
    ]
    assert len(exact) >= 44


def test_parameters_elsewhere_are_explained():
    for name, entry in ENTRIES.items():
        assert not entry.about.elsewhere or any("elsewhere" in note for note in entry.about.notes), name


@pytest.mark.parametrize(("name", "d"), [("gopher-280b", 16384), ("chinchilla-70b", 8192)])
def test_gopher_and_chinchilla_by_hand(name, d):
    """Per layer: 4 matrices in attention, 8 in the MLP and 1 for the positions; 4 d + 5 d biases, 2 d weights of norms,
    and 2 d biases of the positions."""
    total = 80 * (13 * d**2 + (4 + 5 + 2 + 2) * d) + 32000 * d + d
    assert parameters(ENTRIES[name].config.model).total == total
    assert total == pytest.approx(ENTRIES[name].about.published_parameters, rel=0.002)


@pytest.mark.parametrize("name", ENTRIES)
def test_the_decoder_allocates_what_is_counted(name):
    model = ENTRIES[name].config.model
    cut = model.model_copy(update={"n_layers": min(model.n_layers, len(model.layers.pattern) if model.layers else 1)})
    with torch.device("meta"):
        decoder = archlab.Decoder(cut)
    assert sum(p.numel() for p in decoder.parameters()) == parameters(cut).total


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("palm-540b", ["head_dim is 256", "258", "0.667", "1.48"]),
        ("t5-11b", ["42.7", "33"]),
        ("gpt-2-xl", ["25 heads", "33.3"]),
        ("gpt-1-117m", ["40478", "0.01"]),
        ("olmo-7b", ["no weight and no bias", "RMSNorm"]),
        ("llama-65b", ["no QK-norm", "Command R+"]),
        ("gemma-2-9b", ["4 d_model", "ratio of 8", "training as well"]),
        ("phi-4-14b", ["Phi-3 small"]),
        ("qwen-14b", ["13696", "27392"]),
    ],
)
def test_corrections_cite_both_figures(name, said):
    notes = " ".join(ENTRIES[name].about.notes)
    assert all(words in notes for words in said)


def test_corrected_figures_are_the_ones_encoded():
    assert (ROWS["palm-540b"].head_dim, ROWS["palm-540b"].n_heads) == (256, 48)
    assert ROWS["t5-11b"].d_over_layers == pytest.approx(42.7, abs=0.05)
    assert (ROWS["gpt-2-xl"].n_heads, ROWS["gpt-1-117m"].vocab_size) == (25, 40478)
    assert (ROWS["olmo-7b"].norm, "norm without weight" in ROWS["olmo-7b"].tricks) == ("LayerNorm", True)
    assert "QK-norm" not in ROWS["llama-65b"].tricks
    assert "QK-norm" in ROWS["command-r-plus-104b"].tricks
    assert [ROWS[f"gemma-2-{size}"].d_ff_over_d for size in ("2b", "9b", "27b")] == [4, 4, 8]


# --- commands -----------------------------------------------------------------------------------------------


def output(capsys, *arguments):
    assert app.main(arguments) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("name", ENTRIES)
def test_show_and_an_override(name, capsys):
    shown = json.loads(output(capsys, "show", name, "model.vocab_size=77", "--json"))
    assert shown["model"]["vocab_size"] == 77
    assert "about" not in shown
    assert f"n_layers: {ROWS[name].n_layers}" in output(capsys, "show", name)


def test_what_cannot_be_built_says_why(capsys, monkeypatch, tmp_path):
    name = add_half_a_model(monkeypatch, tmp_path)
    for command in ("show", "cost"):
        assert app.main([command, name]) == 2
        said = capsys.readouterr().err
        assert "it has a second half" in said
        assert "list presets" in said


def test_a_model_without_a_published_architecture_is_named_but_has_no_row(capsys, tmp_path):
    """No command makes up a shape for it."""
    found = models.unpublished()
    assert set(found) == {"gpt-4", "palm-2"}
    for name, about in found.items():
        assert about.cannot_build
        assert about.part == about.cannot_build
        for command, *options in (["show"], ["cost"], ["check"], ["draw", "--out", str(tmp_path / "x.svg")]):
            assert app.main([command, name, *options]) == 2
            assert about.cannot_build in capsys.readouterr().err
    assert without_architecture(found) == (
        "Not in the table, because the architecture is not published: GPT-4 (2023), PaLM 2 (2023)."
    )
    assert without_architecture({}) == ""


@pytest.mark.parametrize(
    ("begun", "whole"),
    [
        ("phi-4", "phi-4-14b"),
        ("Command R+", "command-r-plus-104b"),
        ("bloom", "bloom-176b"),
        ("GPT-2", "gpt-2"),
        ("mpt", "mpt-7b"),
        ("phi2", "phi-2-2.7b"),
        ("DBRX", "dbrx-132b"),
        ("mt5", "mt5-xxl"),
        ("electra", "electra-small"),
        ("palm", "palm-540b"),
        ("PaLM 2", "palm-2"),
    ],
)
def test_the_beginning_of_a_name_is_enough_if_it_is_unique(begun, whole):
    assert find_preset(begun) == {**presets(), **facts()}[whole]


@pytest.mark.parametrize("name", ["llama", "gemma-2", "phi", "phi-4-1", "tiny"])
def test_an_ambiguous_beginning_or_half_a_word_does_not_match(name):
    assert find_preset(name) is None
    with pytest.raises(UserError, match="unknown config"):
        load_config(name)


@pytest.mark.parametrize(
    ("begun", "said"),
    [
        ("bert", "; names that begin with bert: bert-base, bert-large"),
        ("T5", "; names that begin with T5: t5-11b, t5-3b, t5-base, t5-large, t5-small, t5-v1.1-xxl"),
        ("transformer", "; names that begin with transformer: transformer-base, transformer-big"),
        ("llama-3.2", "; names that begin with llama-3.2: llama-3.2-1b, llama-3.2-3b"),
        ("qwen3", "qwen3-4b and 3 more"),
        ("bert-bas", "; did you mean bert-base?"),
    ],
)
def test_an_ambiguous_beginning_lists_the_names(begun, said):
    with pytest.raises(UserError) as caught:
        load_config(begun)
    assert str(caught.value).endswith(said)


@pytest.mark.slow
def test_list_as_json(capsys):
    listed = json.loads(output(capsys, "list", "presets", "--json"))
    assert set(listed) == {"published", "architecture_not_published", "own"}
    assert {about["year"] for about in listed["architecture_not_published"].values()} == {2023}
    assert [row["preset"] for row in listed["published"]] == list(ROWS)
    assert set(listed["own"]) == set(OURS)
    assert all(row["about"]["certainty"] and row["d_over_layers"] for row in listed["published"])


@pytest.mark.parametrize(
    ("conditions", "sort", "chosen"),
    [
        (
            ["family=Llama", "year>=2024", "d_ff_over_d>3.2", "d_over_layers>127"],
            "-year",
            ["llama-3-8b", "llama-3.1-405b", "llama-3.2-1b"],
        ),
        (["family=llama-3", "context > 8192"], None, ["llama-3.1-405b", "llama-3.2-1b", "llama-3.2-3b"]),
        (["family=llama-3.1", "context>128K"], None, ["llama-3.1-405b"]),
        (["active_parameters>20B", "heads=MLA"], "size", ["deepseek-v2", "deepseek-v3", "kimi-k2"]),
        (
            ["weight_decay<0.1", "weight_decay>0"],
            "-size",
            [
                "gpt-neox-20b",
                "pythia-1.4b",
                "roberta-large",
                "bert-large",
                "roberta-base",
                "gpt-1-117m",
                "bert-base",
                "electra-small",
            ],
        ),
        (["reach=both sides", "year<2019"], None, ["bert-base", "bert-large"]),
        (["tied=true", "family=gpt-2"], "-n_layers", ["gpt-2-xl", "gpt-2"]),
        (["heads_over_d=16"], None, ["t5-11b"]),
        (["family=gemma", "head_dim!=256", "dropout!=0"], None, []),
        (["norm!=RMSNorm", "year=2025"], None, ["command-a-111b", "jais-2-8b"]),
        (["n_heads=null"], None, ["mamba-2.8b", "falcon-mamba-7b", "mamba-2-2.7b"]),
        (
            ["heads=MQA|MLA", "year=2019|2025"],
            None,
            ["gemma-3-1b", "gemma-3-270m", "kimi-k2", "kimi-linear-48b-a3b", "moonlight-16b-a3b", "youtu-llm-2b"],
        ),
        (
            ["reach=local", "reach!=local+full|local+both sides"],
            None,
            ["mistral-7b-v0.1", "phi-3-mini-3.8b", "recurrentgemma-2b"],
        ),
        (["reach==Local", "year!=2022|2023"], None, ["phi-3-mini-3.8b"]),
        (["n_heads==71|null", "year=2023"], None, ["falcon-7b", "mamba-2.8b"]),
    ],
)
def test_models_are_chosen_and_sorted(conditions, sort, chosen):
    if chosen:
        assert [row.preset for row in select(list(ROWS.values()), conditions, sort)] == chosen
    else:
        with pytest.raises(UserError, match="no model meets"):
            select(list(ROWS.values()), conditions, sort)


@pytest.mark.parametrize("field", select_module.FIELDS)
def test_every_field_can_be_sorted_by_and_unknown_values_are_last(field):
    for sort in (field, f"-{field}"):
        values = [select_module.value_of(row, field) for row in select(list(ROWS.values()), [], sort)]
        known = [value.lower() if isinstance(value, str) else value for value in values if value is not None]
        assert known == sorted(known, reverse=sort != field)
        assert values[len(known) :] == [None] * (len(values) - len(known))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--filter", "yaer>3"], "condition 'yaer>3': unknown field 'yaer'; did you mean year? allowed: name, year, "),
        (["--sort", "-siz"], "sort by '-siz': unknown field 'siz'; did you mean size? allowed: "),
        (
            ["--filter", "year=>3"],
            "cannot read the condition 'year=>3'; allowed: a field, one of = != < <= > >= ==, and a value",
        ),
        (["--filter", "year=new"], "condition 'year=new': year must be a number, true or false; found 'new'"),
        (["--filter"], "--filter has no value; allowed: conditions"),
        (
            ["--filter", "year"],
            "cannot read the condition 'year'; allowed: a field, one of = != < <= > >= ==, and a value, as in 'year>=2024'",
        ),
        (
            ["--filter", "norm<RMSNorm"],
            "condition 'norm<RMSNorm': < does not work with norm, whose values are words; allowed: = and !=",
        ),
        (["--filter", "year>null"], "condition 'year>null': > does not work with null; allowed: = and !="),
        (
            ["--filter", "year>2016|2017"],
            "condition 'year>2016|2017': > does not work with alternatives; allowed: = and !=",
        ),
        (["--filter", "year>2016", "year<2016"], "no model meets year>2016 year<2016; "),
    ],
)
@pytest.mark.parametrize("form", [[], ["--json"], ["--html"]])
def test_invalid_choices_are_refused(options, said, form, capsys, tmp_path, monkeypatch):
    monkeypatch.setattr("archlab.atlas.list_presets.rows", lambda: list(ROWS.values()))
    page = tmp_path / "x.html"
    assert app.main(["list", "presets", *options, *form, *([str(page)] if form == ["--html"] else [])]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n"), page.exists()) == ("", 1, False)
    assert err.startswith(said)


def test_every_form_obeys_filter_and_sort(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr("archlab.atlas.list_presets.rows", lambda: list(ROWS.values()))
    options = ["--filter", "family=gpt-2", "context=1024", "--sort", "-n_layers"]
    listed = json.loads(output(capsys, "list", "--json", *options))
    assert [row["preset"] for row in listed.pop("published")] == ["gpt-2-xl", "gpt-2"]
    assert not listed
    page = Page((tmp_path / output(capsys, "list", *options, "--html", str(tmp_path / "x.html")).strip()).read_text())
    assert re.findall("GPT-2 XL|GPT-2", page.text.split("The models")[1]) == ["GPT-2 XL", "GPT-2"]
    assert "Llama" not in page.text.split("The models")[1]
    monkeypatch.setenv("COLUMNS", "80")
    lines = output(capsys, "list", "presets", *options).splitlines()
    assert [line.split()[0] for line in lines[1:5:2]] == ["gpt-2-xl", "gpt-2"], "and no years between"
    assert lines[2].split(";")[:2] == ["    n_layers 48", " context 1024"]


def test_html_is_for_presets(capsys, tmp_path):
    assert app.main(["list", "studies", "--html", str(tmp_path / "x.html")]) == 2
    assert "list presets --html" in capsys.readouterr().err
    assert app.main(["list", "hardware", "--sort", "year"]) == 2
    assert "list presets --sort" in capsys.readouterr().err


# --- `about` in a user's own files ---------------------------------------------------------------------------


def test_a_run_does_not_depend_on_about(tmp_path):
    text = presets()["llama-3-8b"].read_text()
    (tmp_path / "mine.yaml").write_text(text)
    assert load_config(tmp_path / "mine.yaml") == load_config("llama-3-8b")


@pytest.mark.parametrize(
    ("about", "said"),
    [
        ("{name: x, year: 2020, source: [y], certainty: sure}", "certainty  'sure'"),
        ("{name: x}", "year"),
        ("nothing", "about is 'nothing'"),
    ],
)
def test_a_wrong_about_is_an_error(tmp_path, about, said):
    (tmp_path / "mine.yaml").write_text(f"about: {about}\nmodel: {{d_model: 8}}\n")
    with pytest.raises(UserError, match=re.escape(said)):
        load_config(tmp_path / "mine.yaml")


def test_doubts_reach_from_a_section_to_its_fields_and_from_a_layer_kind_to_the_model():
    about = About(
        name="x", year=2020, source=("y",), certainty="verified", unverified=("model.norm", "model.layers.a.mlp.d_ff")
    )
    assert about.doubts("norm.kind")
    assert about.doubts("mlp.d_ff")
    assert not about.doubts("mlp")
    assert not about.doubts("mlp.activation", "position.kind")


# --- table and page -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [80, 100, 120, 200])
def test_the_table_fits(width):
    lines = [line for line, _ in evolution(list(ROWS.values()), width)]
    assert max(map(len, lines)) <= width
    assert [line for line in lines if re.fullmatch(r"\d{4}", line)] == [str(year) for year in range(2017, 2027)]
    for row in ROWS.values():
        line = next(line for line in lines if line.startswith(f"{row.preset} "))
        assert all(cell in line for cell in (*cells(row), *(more(row) if width == 200 else ())))
    assert (MORE[-1] in lines[0]) == (width == 200)
    assert max(map(len, lines)) > 0.9 * width, "and uses the width"


@pytest.mark.parametrize("width", [80, 200])
@pytest.mark.parametrize(("condition", "n_wide"), [("dropout>0", 0), ("tied=true", 1)])
def test_a_row_says_nothing_twice(width: int, condition: str, n_wide: int):
    """Every row of the models with dropout once had `dropout 0.1` twice. In wide tables, dropout has a column."""
    rows = select([*ROWS.values()], [condition], None)
    (field,) = fields_of([condition], None)
    lines = [line for line, _ in evolution(rows, width, [field])]
    said = [re.split(r"; |  +", " ".join(block)) for block in blocks(lines, {row.preset for row in rows})]
    assert len(said) == len(rows) > 10
    n = n_wide if width == 200 else 1
    assert [parts for parts in said if sum(part.startswith(field) for part in parts) != n] == []


def test_an_unverified_value_is_not_said_twice():
    """The remark `dropout 0.1?` once stood beside the column of the dropout."""
    row = ROWS["bert-base"]
    about = row.about.model_copy(update={"unverified": ("model.dropout", "about.dropout")})
    doubted = row.model_copy(update={"about": about, "tricks": ["tied", "dropout 0.1?"]})
    ((wide, _),) = [line for line in evolution([doubted], 250) if line[0].startswith("bert-base")]
    assert wide.count("0.1") == 1
    assert "0.1?" in wide
    narrow = " ".join(line for line, _ in evolution([doubted], 80, ["dropout"]))
    assert narrow.count("dropout 0.1") == narrow.count("dropout 0.1?") == 1


def blocks(lines: list[str], presets: set[str]) -> list[list[str]]:
    """Return the lines of each model."""
    starts = [n for n, line in enumerate(lines) if line.split()[0] in presets]
    return [lines[start:end] for start, end in itertools.pairwise([*starts, len(lines)])]


@pytest.mark.slow
def test_list_prints_it(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    text = output(capsys, "list", "presets")
    assert max(map(len, text.splitlines())) <= 80
    assert all(name in text for name in (*ENTRIES, *OURS))
    assert all(heading in text.splitlines()[0] for heading in HEADINGS)


@pytest.mark.parametrize("name", ENTRIES)
def test_rows_say_what_the_layers_say(name):
    row, layers = ROWS[name], layer_configs(ENTRIES[name].config.model)
    attending = [layer for layer in layers if layer.attention.kind != "none"]
    assert (row.norm == "RMSNorm") == (layers[0].norm.kind == "rmsnorm")
    assert ("GLU" in row.activation) == (layers[0].mlp.kind in ("gated", "moe"))
    assert ("NoPE" in row.position) == any(layer.position.kind == "none" for layer in attending)
    rules = [layer.attention for layer in attending if isinstance(layer.attention, AnyAttention)]
    sides = {"full", "both sides"} & set(row.reach.split("+"))
    assert bool(sides) == any(rule.window is None and rule.blocks is None for rule in rules)
    assert ("both sides" in row.reach) == ("encoder" in row.tricks) == any(r.visibility == "two_sided" for r in rules)
    assert ("state" in row.reach) == (len(attending) < len(layers))
    assert ("mixture" in row.feed_forward) == any(layer.mlp.kind == "moe" for layer in layers)
    assert ("MLA" in row.heads) == any(layer.attention.kind == "latent" for layer in layers)


def test_rows_by_hand():
    assert tuple(cells(ROWS["llama-3-8b"])) == (
        "llama-3-8b", "8.03B", "pre RMS", "RoPE", "SwiGLU", "32/8", "3.5", "128", "128K",
    )  # fmt: skip
    assert cells(ROWS["lamda-137b"])[2] == "pre RMS?"
    assert ROWS["bert-base"].tricks == [
        "encoder", "biases", "embedding norm", "tied", "2 segments", "dense layer before head", "head bias", "dropout 0.1",
    ]  # fmt: skip
    assert ROWS["modernbert-base"].tricks[:4] == [
        "encoder", "norm without bias", "2:1 window 65 each side", "theta 1.6e5/1e4",
    ]  # fmt: skip
    assert "1 segment" in ROWS["roberta-base"].tricks
    assert ROWS["gemma-3-27b"].tricks == [
        "norm ×(1+w)", "5:1 window 1024", "QK-norm", "heads 0.76 d", "scores ×0.0772", "theta 1e4/1e6",
        "linear scaling", "embedding ×sqrt(d)", "tied",
    ]  # fmt: skip
    assert "NoPE on 16 of 64" in ROWS["command-a-111b"].tricks
    assert cells(ROWS["deepseek-v3"]) == (
        "deepseek-v3 ~", "671B", "pre RMS", "RoPE", "SwiGLU", "128/MLA", "2.57", "118", "129K",
    )  # fmt: skip
    assert more(ROWS["deepseek-v3"])[:4] == ("192", "3.43", "37.6B", "160Ki")
    assert more(ROWS["bloom-176b"])[2:] == ("", "", "46", "0", "0.1"), "all are active, and its length is unverified"
    assert more(ROWS["llama-2-7b"])[4:] == ("", "", "0.1?"), "a fact less certain than the config"
    assert remarks(ROWS["deepseek-v3"]) == [
        "8 of 256 experts on 58 of 61", "shared expert", "sigmoid router", "correction bias",
        "4 of 8 groups", "experts ×2.5", "latent 512+64", "scores ×0.135", "yarn scaling",
    ]  # fmt: skip
    assert cells(ROWS["mamba-2-2.7b"])[3:7] == ("-", "-", "-", "-")
    assert ROWS["mamba-2-2.7b"].tricks == ["Mamba-2", "no attention", "no MLP", "tied"]
    assert ROWS["qwen3-next-80b-a3b"].tricks[:3] == [
        "gated delta on 36 of 48",
        "10 of 512 experts",
        "gated shared expert",
    ]
    assert "sinks" in ROWS["gpt-oss-20b"].tricks
    assert "biases" in ROWS["gpt-oss-20b"].tricks
    assert ROWS["llama-4-scout"].reach == "local+full"
    assert "3:1 chunks 8192" in ROWS["llama-4-scout"].tricks
    assert "1:1 window 256?" in ROWS["gpt-3-175b"].tricks


def test_choices_by_hand():
    said = {name: choices(ENTRIES[name].config.model) for name in ("deepseek-v3", "mamba-2-2.7b", "qwen3-next-80b-a3b")}
    assert "37,552,282,624 of them active" in said["deepseek-v3"]["size"]
    assert said["deepseek-v3"]["attention"] == "MLA, 128 heads of 192, values of 128, from 512+64 numbers per token"
    experts = "8 of 256 experts 2048 wide and a shared one 2048 wide on 58 of 61"
    assert said["deepseek-v3"]["MLP"] == f"SwiGLU, 18432 wide on 3 of 61, {experts}"
    assert "recurrent mixer" not in said["deepseek-v3"]
    assert said["qwen3-next-80b-a3b"]["recurrent mixer"] == "gated delta on 36 of 48"
    assert said["qwen3-next-80b-a3b"]["attention"] == "GQA, 16/2 heads of 256 on 12 of 48"
    assert {"block", "position"}.isdisjoint(said["mamba-2-2.7b"])
    assert said["mamba-2-2.7b"]["sees"] == "a recurrent state"


@pytest.mark.parametrize(
    ("number", "text"),
    [(None, "?"), (999885952, "1B"), (8030261248, "8.03B"), (405853388800, "406B"), (50257, "50.3K"), (12, "12")],
)
def test_counts_have_three_digits(number, text):
    assert count(number) == text


@pytest.fixture(scope="module")
def page():
    return Page(render(list(ROWS.values())))


@pytest.mark.slow
def test_the_page_has_every_model_and_loads_nothing(page):
    assert page.loads == []
    assert not {"link", "img", "iframe", "object", "embed", "base"} & set(page.tags)
    for entry in ENTRIES.values():
        assert entry.about.name in page.text
        assert all(note in page.text for note in entry.about.notes)
    assert page.tags.count("tr") == 1 + 2 * len(ENTRIES)
    assert {*page.links} >= {f"#model-{name}" for name in ENTRIES}
    assert {f"#model-{name}" for name in ENTRIES} >= {link for link in page.links if link.startswith("#")}


def test_sources_are_links():
    assert (
        linked("huggingface.co/a/B-1: config.json")
        == '<a href="https://huggingface.co/a/B-1">huggingface.co/a/B-1</a>: config.json'
    )
    assert (
        linked("arXiv 2005.14165, tables 2.1 and D.1")
        == '<a href="https://arxiv.org/abs/2005.14165">arXiv 2005.14165</a>, tables 2.1 and D.1'
    )
    assert linked("<b> & 3.5") == "&lt;b&gt; &amp; 3.5"


def test_cells_sort_by_the_number_that_they_show():
    for row in ROWS.values():
        shown = dict(zip(("year", *HEADINGS[1:], *MORE), table_cells(row), strict=True))
        assert all(
            (cell.number is None) == (cell.text in ("", "-", "?"))
            for heading, cell in shown.items()
            if heading in FIGURES
        )
        assert shown["ff/d"].number is None or f"{shown['ff/d'].number:.3g}" == shown["ff/d"].text


def test_the_filter_finds_models_by_their_choices():
    assert {"GQA", "RMSNorm", "with", "llama-3", "llama-3-8b"} <= set(search_words(ROWS["llama-3-8b"]).split())


def test_shares_of_a_year_add_up(page):
    specs = json.loads(page.data["specs"])
    for choice in CHOICES:
        data = specs[choice.field]["datasets"].popitem()[1]
        for year in {bar["year"] for bar in data}:
            assert sum(bar["share"] for bar in data if bar["year"] == year) == pytest.approx(1)


def test_a_family_counts_once():
    """Checked by hand: one of Gemma 3's four sizes has a single KV head, and Qwen3's two sizes have groups."""
    names = ("gemma-3-1b", "gemma-3-4b", "gemma-3-12b", "gemma-3-27b", "qwen3-8b", "qwen3-32b")
    heads = next(choice for choice in CHOICES if choice.field == "heads")
    some = [ROWS[name] for name in names]
    drawn = shares(some, heads).to_dict()
    bars = drawn["datasets"].popitem()[1]
    assert {bar["kind"]: bar["share"] for bar in bars} == {"MQA": 0.25 / 2, "GQA": 1.75 / 2}
    assert "{'2025': '2'}" in drawn["encoding"]["x"]["axis"]["labelExpr"], (
        "under the year stands the number of families"
    )
    assert kinds(some, heads) == {"MQA": 1, "GQA": 2}


@pytest.mark.parametrize(
    ("preset", "family"),
    [
        ("mixtral-8x7b", "mixtral"),
        ("qwen2-57b-a14b", "qwen2"),
        ("glm-4.5-air", "glm-4.5"),
        ("gpt-2-xl", "gpt-2"),
        ("phi-3-mini-3.8b", "phi-3"),
        ("qwen2.5-7b", "qwen2.5"),
        ("mistral-7b-v0.1", "mistral"),
        ("bert-large", "bert"),
        ("phi-2-2.7b", "phi-2"),
    ],
)
def test_a_family_is_the_name_without_the_size(preset, family):
    assert ROWS[preset].family == family


def layers_of(page, name):
    """Return the data of each layer of a chart, without layers that have no data."""
    spec = json.loads(page.data["specs"])[name]
    return [spec["datasets"][layer["data"]["name"]] for layer in spec["layer"]]


def test_the_bars_are_medians_in_the_middle_of_their_year(page):
    dots, bars = layers_of(page, "aspect")
    found = {bar["year"]: bar["value"] for bar in bars}
    for year in found:
        values = [row.d_over_layers for row in ROWS.values() if str(row.about.year) == year]
        assert found[year] == statistics.median(values)
        offsets = [dot["offset"] for dot in dots if dot["year"] == year]
        assert statistics.mean(offsets) == pytest.approx(0.5)
    assert {bar["offset"] for bar in bars} == {0.5}


def test_unusual_shapes_are_named_if_there_is_room(page):
    guides, dots, *sides = layers_of(page, "wide-by-size")
    assert [guide["value"] for guide in guides] == [8 / 3, 4]
    assert len(dots) == sum(row.d_ff is not None for row in ROWS.values())
    kinds_of = {dot["model"]: dot["kind"] for dot in dots}
    assert (kinds_of["GPT-3 175B"], kinds_of["Llama 3 8B"], kinds_of["Mixtral 8x7B"]) == MLP_KINDS[:3]
    named = {dot["model"]: dot["value"] for side in sides for dot in side}
    assert named.items() >= {"T5-11B": 64, "LaMDA 137B": 8}.items()
    assert all(value > 4 * 1.4 or value < 8 / 3 / 1.4 for value in named.values())
    deep = {dot["model"] for side in layers_of(page, "aspect-by-size")[2:] for dot in side}
    assert {"SmolLM2 135M", "T5 base"} <= deep
    assert "Llama 3 8B" not in deep


@pytest.mark.parametrize("width", [430, 280])
@pytest.mark.parametrize("name", ["wide", "aspect", "heads-width"])
def test_names_cover_neither_dots_nor_each_other(page, name, width):
    """Check the texts that Vega draws. A letter is assumed to be half as wide as the font size, as in Arial on average."""
    spec = json.loads(page.data["specs"])[f"{name}-by-size"] | {"width": width, "autosize": "pad"}
    svg = vl_convert.vegalite_to_svg(spec)
    place = r'transform="translate\(([\d.]+),([\d.]+)\)"'
    dots = [(float(x), float(x), float(y)) for x, y in re.findall(rf'"point" {place}', svg)]
    names = []
    for anchor, x, y, text in re.findall(rf'"text mark" text-anchor="(\w+)" {place}[^>]*>([^<]+)<', svg):
        length = 5.5 * len(text)
        start = float(x) - (length if anchor == "end" else 0)
        assert start >= 0
        assert start + length <= width + 5
        names.append((start, start + length, float(y) - 4))  # the baseline is below the middle of the text
    assert len(names) >= 5
    for left, right, y in names:
        covered = [other for other in (*dots, *names) if other[0] < right and left < other[1] and abs(other[2] - y) < 6]
        assert covered == [(left, right, y)]


def test_every_choice_has_enough_colors():
    for choice in CHOICES:
        assert 2 <= len(kinds(list(ROWS.values()), choice)) <= 8


@pytest.mark.parametrize("name", ["mamba-2-2.7b", "t5-11b", "transformer-base"])
def test_a_page_of_one_model(name):
    html = render([ROWS[name]])
    places = set(re.findall(r'id="caption-([^"]+)"', html))
    assert places == set(json.loads(Page(html).data["specs"]))
    assert ("heads" in places) == (ROWS[name].n_heads is not None)


def test_a_stand_in_is_not_counted():
    norm = next(choice for choice in CHOICES if choice.field == "norm")
    known: list[AtlasRow] = counted(list(ROWS.values()), norm)
    assert ROWS["lamda-137b"] not in known
    assert ROWS["llama-3-8b"] in known


@pytest.mark.slow
def test_write(tmp_path, capsys):
    path = tmp_path / "new" / "atlas.html"
    assert output(capsys, "list", "--html", str(path)).strip() == str(path)
    assert len(path.read_bytes()) < 1.7e6


def test_entries_say_where_they_are_wrong(tmp_path):
    (tmp_path / "x.yaml").write_text("about: {name: x, year: 1999, source: [y], certainty: verified}")
    with pytest.raises(UserError, match=r"x\.yaml, about"):
        read_entry(tmp_path / "x.yaml")
