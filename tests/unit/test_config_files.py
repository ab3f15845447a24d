"""Presets and YAML files: all load, under any spelling, survive a round trip and match the JSON schema."""

import jsonschema
import pytest

from archlab.config.io import (
    config_hash,
    load_config,
    presets,
    read_config,
    read_yaml,
    resolved,
    studies,
    to_yaml,
)
from archlab.config.json_schema import SCHEMAS, json_schema
from archlab.config.yaml_text import first_comment, parse_yaml
from archlab.errors import UserError


@pytest.mark.parametrize("name", presets())
def test_every_preset_loads_says_what_it_is_and_matches_the_json_schema(name):
    load_config(name)
    assert first_comment(presets()[name])
    jsonschema.validate(read_config(name), json_schema())


@pytest.mark.parametrize("name", studies())
def test_every_study_file_matches_the_json_schema(name):
    jsonschema.validate(read_yaml(studies()[name]), json_schema("study"))


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


def test_the_json_schema_describes_every_field_and_refuses_what_we_refuse():
    for kind, root in SCHEMAS.items():
        schema = json_schema(kind)
        for section in [schema, *schema["$defs"].values()]:
            for name, field in section.get("properties", {}).items():
                assert name == "kind" or "description" in field, f"{section['title']}.{name} has no description"
        assert schema["title"] == root.__name__
    good = read_config("tiny-llama")
    jsonschema.validate(good | {"train": {"tokens": "4M"}}, json_schema())
    jsonschema.validate(read_config("gpt-2"), json_schema())  # dropout as one number
    for bad in (
        {"modl": 1},
        {"train": {"lr": -1}},
        {"model": good["model"] | {"norm": {"kind": "batchnorm"}}},
    ):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(good | bad, json_schema())


def test_an_unknown_name_is_answered_with_the_nearest():
    with pytest.raises(UserError, match=r"no config 'tiny-lama'.*did you mean tiny-llama\?"):
        load_config("tiny-lama")


def test_duplicate_keys_are_refused_with_their_line(tmp_path):
    file = tmp_path / "twice.yaml"
    file.write_text("model:\n  d_model: 8\n  n_layers: 2\n  d_model: 16\n")
    with pytest.raises(UserError, match=r"twice\.yaml, line 4: not valid YAML: d_model is given twice"):
        load_config(file)


def test_yaml_anchors_and_merge_keys_work():
    text = "a: &a {x: 1, y: 2}\nb: &b {<<: *a, x: 3}\nc: {<<: *b, z: 1e-5}\n"
    assert parse_yaml(text, "text")["c"] == {"x": 3, "y": 2, "z": 1e-5}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"model: [1,\n", "line 2: not valid YAML"),
        (b"\xff\xfe\x00", "not a text file"),
        (b"", "expected keys and values, found nothing"),
        (b"- 1\n", "expected keys and values, found list"),
        (b"{[1]: 2}", "not valid YAML"),
    ],
)
def test_files_that_hold_no_config(content, message, tmp_path):
    file = tmp_path / "bad.yaml"
    file.write_bytes(content)
    with pytest.raises(UserError, match=message):
        load_config(file)


def test_a_folder_without_a_config(tmp_path):
    with pytest.raises(UserError, match=r"without config\.yaml"):
        load_config(tmp_path)
