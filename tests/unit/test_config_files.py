"""Presets and YAML files: all load, under any spelling, survive a round trip and match the JSON schema."""

import math
import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import jsonschema
import pytest
import yaml

from archlab.config.core import yaml_text
from archlab.config.core.merge import expand
from archlab.config.core.yaml_text import first_comment, parse_yaml, read_yaml, to_yaml
from archlab.config.identity import config_hash, resolved
from archlab.config.io import build_config, presets, studies
from archlab.errors import UserError
from archlab.exchange.configs import find_folder, load_config, read_config
from archlab.study.authoring import SCHEMAS, json_schema
from plugin_state import as_a_new_process

CONFIG_FILES = jsonschema.Draft202012Validator(json_schema())


@pytest.mark.parametrize("name", presets())
def test_every_preset_loads_says_what_it_is_and_matches_the_json_schema(name):
    load_config(name)
    assert first_comment(presets()[name])
    CONFIG_FILES.validate(read_config(name))


@pytest.mark.parametrize("name", studies())
def test_every_study_file_matches_the_json_schema(name):
    jsonschema.validate(read_yaml(studies()[name]), json_schema("study"))


@pytest.mark.parametrize(
    ("measure", "fits"),
    [
        (["gap", "spikes"], True),
        (["gapp"], False),
        ({"spikes": {"times": 5}, "gap": None, "far": {"kind": "beyond", "times": 8}}, True),
        ({"far": {"kind": "beyond", "tims": 8}}, False),
        ({"far": {"kind": "beyondd"}}, False),
        ("gap", False),
    ],
)
def test_outcomes_match_the_json_schema_in_all_their_forms(measure, fits):
    study = {**read_yaml(studies()["ladder"]), "measure": measure}
    assert jsonschema.Draft202012Validator(json_schema("study")).is_valid(study) == fits


@pytest.mark.parametrize("spelling", ["Mistral-7B-v0.1", "mistral_7b_v01", "MISTRAL7BV0.1"])
def test_names_are_found_in_any_spelling(spelling):
    assert load_config(spelling) == load_config("mistral-7b-v0.1")


@pytest.mark.parametrize("name", presets())
@pytest.mark.parametrize("plain", [resolved, lambda config: config.model_dump(mode="json")])
def test_round_trip_through_yaml(name, plain, tmp_path):
    config = load_config(name)
    (tmp_path / "config.yaml").write_text(to_yaml(plain(config)))
    again = load_config(tmp_path)
    assert config_hash(again) == config_hash(config)
    if plain is not resolved:
        assert again == config


def test_round_trip_of_layer_patterns(tmp_path):
    layers = "model.layers={a: {attention.window: 4}, b: {mlp: {d_ff: 8}}, pattern: [a, a, b]}"
    config = load_config("tiny-llama", layers)
    (tmp_path / "c.yaml").write_text(to_yaml(config.model_dump(mode="json")))
    assert load_config(tmp_path / "c.yaml") == config


@pytest.mark.slow
def test_the_json_schema_describes_every_field_and_refuses_what_we_refuse():
    as_a_new_process()
    for kind, root in SCHEMAS.items():
        schema = json_schema(kind)
        for section in [schema, *schema["$defs"].values()]:
            for name, field in section.get("properties", {}).items():
                assert name == "kind" or "description" in field, f"{section['title']}.{name} has no description"
        assert schema["title"] == root.__name__
    good = read_config("tiny-llama")
    jsonschema.validate(good | {"train": {"tokens": "4M"}}, json_schema())
    jsonschema.validate(read_config("gpt-2"), json_schema())  # dropout as one number
    jsonschema.validate({"base": "tiny-llama", "model": {"n_layers": 3, "attention": {"window": 8}}}, json_schema())
    for bad in (
        {"modl": 1},
        {"model": {"n_layers": 3}},
        {"model": good["model"] | {"attention": {"window": 8}}},
        {"train": {"lr": -1}},
        {"model": good["model"] | {"norm": {"kind": "batchnorm"}}},
    ):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(good | bad, json_schema())


def test_an_unknown_name_is_answered_with_the_nearest():
    with pytest.raises(UserError, match=r"unknown config 'tiny-lama'.*did you mean tiny-llama\?"):
        load_config("tiny-lama")


def test_duplicate_keys_are_refused_with_their_line(tmp_path):
    file = tmp_path / "twice.yaml"
    file.write_text("model:\n  d_model: 8\n  n_layers: 2\n  d_model: 16\n")
    with pytest.raises(UserError, match=r"twice\.yaml, line 4: not valid YAML: d_model is given twice"):
        load_config(file)


def test_both_parsers_read_the_same(monkeypatch):
    files = {**presets(), **studies()}
    fast = {name: read_yaml(file) for name, file in files.items()}
    monkeypatch.setattr(yaml_text, "_FAST", yaml.SafeLoader)
    assert {name: read_yaml(file) for name, file in files.items()} == fast


def test_yaml_anchors_and_merge_keys_work():
    text = "a: &a {x: 1, y: 2}\nb: &b {<<: *a, x: 3}\nc: {<<: *b, z: 1e-5}\n"
    assert parse_yaml(text, "text")["c"] == {"x": 3, "y": 2, "z": 1e-5}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("010", 10), ("0o17", 15), ("0x1F", 31), ("-7", -7), ("1_000", "1_000"), ("0b1", "0b1"),
        ("1:30", "1:30"), ("1e5", 1e5), (".5", 0.5), ("2.", 2.0), ("-1.5E-3", -0.0015), ("e5", "e5"), (".inf", math.inf),
        ("yes", "yes"), ("on", "on"), ("True", True), ("~", None), ("", None), ("'~'", "~"), ("2024-01-01", "2024-01-01"),
        ("{16: a, 0x10: b, null: c, 2024-01-01: d, on: e}", {"16": "a", "0x10": "b", "null": "c", "2024-01-01": "d", "on": "e"}),
    ],
)  # fmt: skip
def test_values_are_those_of_yaml_1_2_and_keys_are_text(text, value):
    found = parse_yaml(text, "text")
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize("text", ["1e5", "0o17", "yes", "010", "1_000", "~", "", "2024-01-01", "<<", "1:30", ".5"])
def test_text_stays_text_when_it_is_written(text):
    assert parse_yaml(to_yaml({text or "key": [text]}), "text") == {text or "key": [text]}


def bomb(first: str, of_nine: Callable[[str], str]) -> str:
    """Return a YAML text whose aliases multiply `first` by nine again and again."""
    return f"a: &a {first}\n" + "".join(f"{b}: &{b} {of_nine(f'*{a}')}\n" for a, b in pairwise("abcdefgh"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (bomb("[x]", lambda a: f"[{', '.join([a] * 9)}]"), "line 6: more than 50,000 values"),
        (bomb("{x: y}", lambda a: f"{{{', '.join(f'k{i}: {a}' for i in range(9))}}}"), "line 6: more than 50,000 values"),
        (bomb("{x: y}", lambda a: f"{{<<: [{', '.join([a] * 9)}]}}"), "line 6: more than 50,000 values"),
        (f"a: &a {'x' * 500_000}\nb: [{', '.join(['*a'] * 200)}]", "line 2: more than 50,000 values"),
        ("[" * 1000, "line 1: values are nested more than 100 deep"),
        ("\n" + "{a: " * 200_000, "line 2: values are nested more than 100 deep"),  # minutes in PyYAML's own parser
        ("a: &a " + "[" * 60 + "]" * 60 + "\nb: " + "[" * 60 + "*a" + "]" * 60, "line 2: values are nested"),
        ("a: &a [*a]", r"line 1: the alias \*a refers to a value that contains it"),
        (r'a: "\UFFFFFFFF"', "the escape .* names no Unicode character"),
        (r'a: "\U00110000"', "the escape .* names no Unicode character"),
        ("a: *b", r"the alias \*b has no anchor before it"),
        (f"a: {'9' * 5000}", "a number of 5,000 digits; allowed: up to 300"),
        (f"a: 0x{'f' * 5000}", "a number of 5,002 digits"),
        ("a: !!bool x", r"a tag \(!!bool\) is not allowed; leave it out"),
        ('!!int "": 3', r"a tag \(!!int\)"),
        ("a: !!timestamp x", r"a tag \(!!timestamp\)"),
        ("!!binary YQ==: 1", r"a tag \(!!binary\)"),
        ("a: !!python/object/apply:os.system [ls]", r"a tag \(!!python"),
        ("'': 1", "a key must be text, and not empty"),
        ("a: 1\n---\nb: 2", "line 2: a second document"),
        ("a: 1\nb: \a", r"line 2: a character \(0x7\)"),
        ("<<: 3", "line 1: << needs keys and values"),
    ],
)  # fmt: skip
def test_files_that_are_not_plain_configs_are_refused_at_once(text, message, tmp_path):
    (tmp_path / "bad.yaml").write_text(text)
    with pytest.raises(UserError, match=rf"bad\.yaml, line .*{message.removeprefix('line ')}"):
        load_config(tmp_path / "bad.yaml")


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({".".join("a" * 200): 1}, "sections are nested more than 100 deep"),
        ({"model": {".".join("a" * 60): {".".join("b" * 60): 1}}}, "sections are nested more than 100 deep"),
        ({f"a{i}": i for i in range(20_000)}, "allowed: plugins, model, train, data, parallel\n  ..."),
        ({"train": {"tokens": "1E999999M"}}, "'1E999999M'; allowed: a whole number"),
    ],
)
def test_raw_values_without_measure(raw, message):
    with pytest.raises(UserError) as caught:
        build_config(expand(raw))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model: d_model: 8", "line 1: not valid YAML: unexpected `:`; put each key on its own line"),
        ("model:\n\td_model: 8", "line 2: not valid YAML: unexpected tab; indent with spaces"),
        ("model:\n  a: 8\n b: 8", "line 3: not valid YAML: the line does not fit the lines above it"),
        ("model: {a: 8\n", "line 2: not valid YAML: a list or mapping in brackets is not closed; add a comma or `}`"),
        ("model: {a: 8}}", "line 1: not valid YAML: unexpected `}`; remove it"),
        ("model: @a", "line 1: not valid YAML: a value cannot begin with `@`"),
        ('model: "a" b', "line 1: not valid YAML: text after the end of a value"),
        ("a: 1\nb\n", "line 2: not valid YAML: a key without `:`"),
        ('a: 1\nb: "c\n\n', "line 2: not valid YAML: text in quotes is not closed"),
        (r'a: "\q"', r"line 1: not valid YAML: `\q` in double quotes is not an escape sequence"),
        ("a: - b", "line 1: not valid YAML: unexpected `- `"),
        ("a: *", "line 1: not valid YAML: `*` or `&` without a name"),
        ("a: }", "line 1: not valid YAML: a value is missing"),
    ],
)
def test_an_error_of_yaml_is_reported_in_plain_words(text, message):
    with pytest.raises(UserError, match=re.escape(f"text, {message}")):
        parse_yaml(text, "text")


def test_only_studies_extend(tmp_path):
    (tmp_path / "mine.yaml").write_text("extends: tiny-llama\nmodel:\n  n_layers: 3\n")
    with pytest.raises(
        UserError, match=r"(?s)^1 problem in .*extends +only studies have `extends`; write `base: NAME`"
    ):
        load_config(tmp_path / "mine.yaml")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"model: [1,\n", "line 2: not valid YAML"),
        (b"\xff\xfe\x00", "not a text file"),
        (b"", "expected a mapping such as `key: value`, found nothing"),
        (b"- 1\n", "expected a mapping such as `key: value`, found list"),
        (b"{[1]: 2}", "not valid YAML"),
    ],
)
def test_files_that_hold_no_config(content, message, tmp_path):
    file = tmp_path / "bad.yaml"
    file.write_bytes(content)
    with pytest.raises(UserError, match=message):
        load_config(file)


def test_a_config_builds_on_a_preset_or_on_a_file_beside_it(tmp_path):
    (tmp_path / "below").mkdir()
    (tmp_path / "mine.yaml").write_text(
        "base: llama-3.2-1b\nmodel:\n  n_layers: 4\n  norm.kind: layernorm\ntrain.lr: 2e-3\n"
    )
    (tmp_path / "below" / "again.yaml").write_text("base: ../mine.yaml\nmodel.position: alibi\n")
    changes = ["model.n_layers=4", "model.norm.kind=layernorm", "train.lr=2e-3"]
    assert load_config(tmp_path / "mine.yaml") == load_config("llama-3.2-1b", *changes)
    with_another_position = load_config("llama-3.2-1b", *changes, "model.position=alibi")
    assert load_config(tmp_path / "below" / "again.yaml") == with_another_position


def test_a_long_chain_of_bases_is_reported(tmp_path):
    for i in range(1500):
        (tmp_path / f"{i}.yaml").write_text(f"base: {i + 1}.yaml\n")
    with pytest.raises(UserError, match=r"100\.yaml: this is file 101 in a chain of bases; allowed: up to 100"):
        load_config(tmp_path / "0.yaml")


@pytest.mark.parametrize(
    ("base", "message"),
    [
        ("mine.yaml", "chain of bases leads back to this file"),
        ("other.yaml", "chain of bases leads back to this file"),
        ("llama-3.2-1x", r"base is 'llama-3.2-1x', which is neither a file in the same folder nor a preset; did you mean llama-3.2-1b\?"),
        ("3", "base is 3, which is neither"),
        ("[a]", r"base is \['a'\], which is neither"),
        ("gpt-4", "only facts"),
    ],
)  # fmt: skip
def test_a_base_that_is_none(base, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text(f"base: {base}\n")
    (tmp_path / "other.yaml").write_text("base: mine.yaml\n")
    with pytest.raises(UserError, match=message):
        load_config("mine.yaml")


def test_a_preset_is_not_hidden_by_a_path_with_its_name(tmp_path, monkeypatch, capsys):
    presets = {name: load_config(name) for name in ("tiny-llama", "gpt-2", "llama-3-8b")}
    monkeypatch.chdir(tmp_path)
    for name in ("tiny-llama", "gpt-2", "gpt2"):
        (tmp_path / name).mkdir()
    changed = load_config("tiny-llama", "model.n_layers=1")
    (tmp_path / "tiny-llama" / "config.yaml").write_text(to_yaml(changed.model_dump(mode="json")))
    (tmp_path / "llama-3-8b").write_text("not a config")
    (tmp_path / "mine.yaml").write_text("base: tiny-llama\n")
    assert {name: load_config(name) for name in presets} == presets
    assert load_config("gpt2") == presets["gpt-2"], "a folder without a config is not a config"
    assert load_config("mine.yaml") == presets["tiny-llama"]
    notes = capsys.readouterr().err
    assert "note: tiny-llama is the preset; for the folder, write ./tiny-llama\n" in notes
    assert "note: llama-3-8b is the preset; for the file, write ./llama-3-8b\n" in notes
    for own in ("./tiny-llama", "tiny-llama/", Path("tiny-llama")):
        assert load_config(own) == changed, own
    assert find_folder("tiny-llama") == Path("tiny-llama"), "a preset has no weights"


def test_a_folder_without_a_config(tmp_path):
    with pytest.raises(UserError, match=r"has no config\.yaml"):
        load_config(tmp_path)


@pytest.mark.parametrize("said", ["data: {path: texts/*.txt}", "data.path: texts", "data: {path: texts/a.txt}"])
def test_text_is_looked_for_beside_the_config_first(said, tmp_path, monkeypatch):
    for home in ("configs", "elsewhere"):
        (tmp_path / home / "texts").mkdir(parents=True)
        (tmp_path / home / "texts" / "a.txt").touch()
    (tmp_path / "configs" / "mine.yaml").write_text(f"base: tiny-llama\n{said}\n")
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert load_config("../configs/mine.yaml").data.path.startswith(str(tmp_path / "configs" / "texts"))
    (tmp_path / "configs" / "texts").rename(tmp_path / "configs" / "gone")
    assert load_config("../configs/mine.yaml").data.path.startswith(str(tmp_path / "elsewhere" / "texts"))
