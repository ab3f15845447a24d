"""`archlab explain`: every field and value has an explanation, and statements of topics hold in configs and tests."""

import json
import re
import shlex
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from answers import false_sentences
from archlab.atlas.models import AtlasRow
from archlab.atlas.models import rows as make_rows
from archlab.cli.app import main, make_app
from archlab.config.identity import flatten, resolved
from archlab.config.io import build_config, find_preset, studies
from archlab.config.schema import Config
from archlab.config.vocabulary import WRITE
from archlab.errors import UserError
from archlab.evidence.field_help import FieldHelp, field_help
from archlab.evidence.ledger import about, measured_over_sizes
from archlab.evidence.look_up import families_named, look_up, plain, showing_models, topic_of
from archlab.evidence.prices import configured, prices
from archlab.evidence.topics import Chapter, Topic, chapters, topics
from archlab.evidence.usage import in_words, usage, values
from archlab.exchange.configs import read_config
from archlab.study.authoring import SCHEMAS
from archlab.study.design import arms
from archlab.study.study_file import AS_IT_STANDS, library_study
from plugin_state import as_a_new_process
from schema_classes import classes_in, kind_names

TESTS = Path(__file__).parents[1]
TOPICS = dict(topics())


@cache
def rows() -> list[AtlasRow]:
    return make_rows()


def literals(annotation: Any) -> list[str]:
    own = [part for part in get_args(annotation) if isinstance(part, str)]
    return own + [word for part in get_args(annotation) for word in literals(part)]


def walk(schema: type[BaseModel], at: str = "") -> list[tuple[str, list[str]]]:
    """Return dotted fields with the words that are allowed as values, read from the classes themselves."""
    found = []
    for name, field in schema.model_fields.items():
        below = classes_in(field.annotation)
        words = [str(field.default)] if name == "kind" else [*literals(field.annotation), *kind_names(field)]
        found.append((at + name, words))
        for section in below:
            found += walk(section, f"{at}{name}.")
    return found


SCHEMA = walk(Config)


@pytest.mark.slow
def test_every_field_and_every_value_of_the_schema_is_explained():
    as_a_new_process()
    unanswered = []
    for path, words in SCHEMA:
        (field,) = fields(path)
        if field.path != path or not all(reading.text for reading in field.readings):
            unanswered.append(path)
        unanswered += [f"{path}={word}" for word in words if word not in field.values]
        for word in words:
            for text in (word, f"{path}={word}"):
                try:
                    look_up(text)
                except UserError:
                    unanswered.append(text)
    assert unanswered == []


def fields(text: str) -> list[FieldHelp]:
    found = look_up(text)
    assert isinstance(found, list), f"{text} is a topic"
    return found


def topic(text: str) -> str:
    found = look_up(text)
    assert isinstance(found, tuple), f"unknown topic {text}"
    return found[0]


@pytest.mark.slow
def test_every_word_in_messages_about_configs_is_explained():
    for word in (word for words in WRITE for word in words.split()):
        look_up(word)


def test_no_spelling_means_two_topics():
    meant = defaultdict(set)
    for name, found in TOPICS.items():
        for spelling in (name, found.title, *found.aliases):
            meant[plain(spelling)].add(name)
    assert {spelling: names for spelling, names in meant.items() if len(names) > 1} == {}


@pytest.mark.parametrize("name", TOPICS)
def test_the_settings_of_a_topic_are_valid(name: str):
    """They are valid for a small model, and differ from the settings that they are compared with."""
    found = TOPICS[name]
    assert all(any(path == known for known, _ in SCHEMA) or path.startswith("model.layers.") for path in found.fields)
    if found.fields:
        assert configured(found.fields) != configured(found.against) or not prices(found)
    _ = [usage([condition]) for condition in found.conditions]


@pytest.mark.parametrize("name", TOPICS)
@pytest.mark.slow
def test_a_topic_is_a_screenful_of_80_columns(name: str, capsys: pytest.CaptureFixture[str], monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["explain", name]) == 0
    lines = capsys.readouterr().out.splitlines()
    errors = next((n for n, line in enumerate(lines) if line.startswith("errors ")), len(lines))
    table = 7 if TOPICS[name].intensity else 0
    sizes = 4 * len(measured_over_sizes(name, about(TOPICS[name])))
    assert errors - table - sizes <= 51, (
        "with the findings of papers and of our runs, without what only few topics have"
    )
    assert len(lines) - sizes <= 66
    whole = ("type", "try")  # settings and commands are never broken within a word
    assert [line for line in lines if len(line) > 80 and not line.startswith(whole) and " " in line.strip()] == []


def test_a_null_field_does_not_count_as_another_value():
    """`model.head.scale!=1` also holds for null, which means 1."""
    for name, topic in TOPICS.items():
        for path, value in (condition.split("!=") for condition in topic.conditions if "!=" in condition):
            if value not in ("null", "none", "false"):
                assert not {*usage(topic.conditions).models} & {*values(path).get("null", [])}, name
    assert len(usage(TOPICS["logit-scale"].conditions).models) < 20


def test_the_tests_that_a_topic_names_exist():
    for name, found in TOPICS.items():
        for test in found.tested_by:
            file, _, function = test.partition("::")
            (path,) = TESTS.glob(f"*/{file}")
            assert f"def {function}(" in path.read_text(encoding="utf-8"), f"{name}: {test}"


def test_every_formula_in_the_code_is_tested():
    """Exceptions: archlab has no batch norm, and the ladder is a study."""
    assert [name for name, found in TOPICS.items() if not found.tested_by] == ["batch-norm", "ladder"]


@pytest.mark.parametrize("name", TOPICS)
def test_the_command_to_try_can_be_typed(name: str):
    """Its verb, options, presets and studies exist, and its overrides make a valid config."""
    archlab, *words = shlex.split(TOPICS[name].try_it)
    assert archlab == "archlab"
    make_app().parse_args(words, print_error=False, exit_on_error=False)
    verb, *rest = words
    named = [word for word in rest if re.fullmatch(r"[a-z][\w.-]*", word)]
    if verb == "explain":
        look_up(named[0])
    elif verb == "study":
        assert named[-1] in studies()
    elif verb in ("cost", "show", "diff", "probe", "check", "bench"):
        presets = [word for word in named if word not in ("train", "decode")][: 2 if verb == "diff" else 1]
        assert all(find_preset(preset) for preset in presets)
        build_config(base(presets[0]), [word for word in rest if "=" in word])


@pytest.mark.parametrize("name", [name for name, found in TOPICS.items() if found.shows])
@pytest.mark.slow
def test_the_sentences_about_the_output_of_a_command_are_true(name: str):
    """Post-norm once offered a probe in which the gradient fell from the first layer to the last."""
    assert false_sentences(TOPICS[name].try_it, TOPICS[name].shows) == []


def test_every_command_that_measures_has_sentences_about_its_output():
    measuring = {name for name, found in TOPICS.items() if found.try_it.split()[1] in ("probe", "cost")}
    assert measuring == {name for name, found in TOPICS.items() if found.shows}


@pytest.mark.parametrize("name", [name for name, found in TOPICS.items() if found.try_it.split()[1] == "diff"])
def test_one_of_two_compared_models_has_the_topic(name: str):
    """The exception is the block of 2017, which is the whole difference between our own two presets."""
    found = usage(TOPICS[name].conditions)
    pair = TOPICS[name].try_it.split()[2:4]
    assert name == "block-of-2017" or sum(preset in (*found.models, *found.uncertain) for preset in pair) == 1


@pytest.mark.parametrize("name", [name for name, found in TOPICS.items() if found.try_it.split()[1] == "study"])
def test_the_study_of_a_topic_is_about_it(name: str):
    """The topic names one of its comparisons, or an arm has a field of the topic at this value."""
    topic, study = TOPICS[name], TOPICS[name].try_it.split()[-1]
    known = [flatten(resolved(arm.config)) for arm in arms(library_study(study, AS_IT_STANDS))]
    is_named = any(comparison.startswith(f"{study}/") for comparison in topic.measured)
    has_value = any(config.get(path) == value for config in known for path, value in topic.fields.items())
    assert is_named or has_value or not topic.fields


@pytest.mark.parametrize("name", [name for name, found in TOPICS.items() if found.try_it.split()[1] == "explain"])
def test_the_field_to_explain_belongs_to_the_topic(name: str):
    topic, path = TOPICS[name], TOPICS[name].try_it.split()[-1]
    assert not topic.fields or any(one == path or one.startswith(f"{path}.") for one in topic.fields)


@pytest.mark.parametrize("name", [name for name, found in TOPICS.items() if found.try_it.startswith("archlab show ")])
def test_the_model_to_show_has_the_topic(name: str):
    found = usage(TOPICS[name].conditions)
    assert TOPICS[name].try_it.split()[2] in [*found.models, *found.uncertain]


def base(preset: str) -> dict[str, Any]:
    from archlab.exchange.configs import read_config

    return read_config(preset)


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("swiglu", "swiglu"),
        ("SwiGLU", "swiglu"),
        ("GQA", "gqa"),
        ("grouped query attention", "gqa"),
        ("Grouped-Query Attention", "gqa"),
        ("NoPE", "nope"),
        ("pre-norm", "pre-norm"),
        ("PRE NORM", "pre-norm"),
        ("sandwich", "sandwich-norm"),
        ("rotary", "rope"),
        ("MLA", "mla"),
        ("sinks", "sinks"),
        ("batch norm", "batch-norm"),
        ("KV cache", "kv-cache"),
        ("MFU", "mfu"),
        ("model.mlp.activation=gelu", "gelu"),
        ("squared relu", "relu-squared"),
        ("expert load", "balance-loss"),
        ("router load", "balance-loss"),
        ("chinchilla", "tokens-per-parameter"),
        ("2017 block", "block-of-2017"),
        ("vanilla transformer", "block-of-2017"),
        ("head dim", "heads"),
        ("FFN", "plain-mlp"),
        ("perplexity", "bits-per-byte"),
        ("NTK", "ntk"),
        ("warmup", "warm-up"),
        ("WSD", "wsd"),
        ("encoder", "encoder-decoder"),
        ("Encoder-Decoder", "encoder-decoder"),
        ("is_encoder_decoder", "encoder-decoder"),
        ("cross attention", "cross-attention"),
        ("encoder-only", "two-sided"),
        ("MLM", "masked"),
        ("mlm_probability", "masked"),
        ("train.objective.kind=masked", "masked"),
        ("span corruption", "span-corruption"),
        ("UL2", "mixture-of-denoisers"),
        ("seq2seq", "seq2seq"),
        ("beam search", "beam-search"),
        ("prefix", "prefix-lm"),
        ("uptraining", "uptraining"),
        ("MHA to GQA", "uptraining"),
        ("MHA to MLA", "to-latent"),
        ("Mamba in the Llama", "to-recurrent"),
        ("upcycling", "upcycling"),
        ("transplant", "transplant"),
        ("fine-tuning", "transplant"),
        ("context extension", "context-extension"),
        ("pruning", "other-depth"),
        ("LoRA", "lora"),
        ("distillation", "distillation"),
        ("masked lm", "masked"),
        ("transformer-xl", "transformer-xl"),
        ("extrapolation", "extrapolation"),
        ("length generalization", "extrapolation"),
        ("pipeline parallel", "parallelism"),
        ("FSDP", "parallelism"),
        ("vanishing gradient", "residual-stream"),
        ("mean subtraction", "centering"),
    ],
)
def test_what_people_type(typed: str, name: str):
    assert topic(typed) == name


@pytest.mark.parametrize(
    ("typed", "paths"),
    [
        ("model.attention.n_kv_heads", ["model.attention.n_kv_heads"]),
        ("attention.n_kv_heads", ["model.attention.n_kv_heads"]),
        ("fraction_of_nothing", []),
        ("each_head", ["model.attention.qk_norm.scope"]),
        ("original_max_seq_len", ["model.position.scaling.original_max_seq_len"]),
        ("hidden_dim", ["model.mlp.d_ff"]),
    ],
)
def test_fields_are_found_by_path_end_value_and_foreign_name(typed: str, paths: list[str]):
    if paths:
        assert [field.path for field in fields(typed)] == paths
    else:
        with pytest.raises(UserError, match="unknown topic"):
            look_up(typed)


def test_allowed_values_are_those_of_the_schema():
    (eps,) = fields("model.norm.eps")
    assert {kind for reading in eps.readings for kind in reading.kinds} == {
        "layernorm",
        "rmsnorm",
        "prmsnorm",
        "scalenorm",
    }
    assert {reading.allowed for reading in eps.readings} == {"a number more than 0"}
    assert eps.readings[0].default == "1.0e-05"
    (seed,) = fields("train.seed")
    assert seed.readings[0].allowed == "a whole number at least 0, at most 9,223,372,036,854,775,807"
    (size,) = fields("model.d_model")
    assert size.readings[0].allowed == "a whole number at least 1, at most 10,000,000, or a text such as 8Ki or 1M"
    (dtype,) = fields("train.dtype")
    assert dtype.readings[0].allowed == "auto, float32, bfloat16"


def test_a_field_that_only_some_kinds_have_names_them(capsys: pytest.CaptureFixture[str]):
    """`model.norm.bias` has the default true, but the default kind has no bias."""
    assert main(["explain", "model.norm.bias"]) == 0
    assert "(layernorm) Whether a learned bias" in capsys.readouterr().out
    (lr,) = fields("train.lr")
    assert lr.readings[0].kinds == []


def test_a_year_has_no_separator():
    assert field_help(SCHEMAS["config"])["about.year"].readings[0].allowed == "a whole number at least 2017"


def test_an_unknown_topic_ends_with_2_and_the_nearest_name(capsys: pytest.CaptureFixture[str]):
    assert main(["explain", "swigul"]) == 2
    assert "did you mean swiglu?" in capsys.readouterr().err
    assert main(["explain", "soap"]) == 2
    assert "archlab has no optimizer except AdamW and Muon" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("typed", "commands"),
    [
        ("t5-11b", ["archlab show t5-11b", "archlab list presets --filter family=t5"]),
        ("T5 11B", ["archlab show t5-11b", "archlab list presets --filter family=t5"]),
        ("llama-3-8b", ["archlab show llama-3-8b", "archlab list presets --filter family=llama-3"]),
        ("bart", ["archlab list presets --filter family=bart"]),
        ("bert", ["archlab list presets --filter family=bert"]),
        ("Gemma 2", ["archlab list presets --filter family=gemma-2"]),
        ("llama2", ["archlab list presets --filter family=llama2"]),
        ("deepseek", ["archlab list presets --filter family=deepseek"]),
        ("grok", ["archlab list presets --filter family=grok"]),
        ("LLaMA 1", ["archlab list presets --filter family==llama"]),
        ("OLMo 1", ["archlab list presets --filter family==olmo"]),
        ("SmolLM", ["archlab list presets --filter 'family==smollm2|smollm3'"]),
        ("Granite", ["archlab list presets --filter family=granite"]),
        ("Command R+", ["archlab list presets --filter family=command-r+"]),
    ],
)
def test_names_of_models_lead_to_the_commands_that_show_them(typed: str, commands: list[str]):
    with pytest.raises(UserError) as error:
        look_up(typed)
    assert re.findall("`(.*?)`", str(error.value)) == commands
    assert str(error.value).startswith(f"{typed!r} is a name of models, not of a topic; type `archlab ")
    for command in commands:
        assert main(shlex.split(command)[1:]) == 0


@pytest.mark.parametrize(
    ("typed", "title", "family"),
    [
        ("Llama 3.1", "Llama 3's scaling", "llama-3.1"),
        ("Llama 3", "Llama 3's scaling", "llama-3"),
        ("llama3", "Llama 3's scaling", "llama3"),
        ("Transformer", "The block of 2017", "transformer"),
        ("Falcon", "model.position.form", "falcon"),
        ("T5", "T5's bias", "t5"),
        ("Chinchilla", "Tokens per parameter", "chinchilla"),
        ("mamba", "Mamba 1", "mamba"),
        ("Mamba 1", "Mamba 1", "=mamba"),
        ("Mamba 2", "Mamba 2", "mamba-2"),
        ("Kimi Linear", "Kimi delta attention", "kimi-linear"),
        ("LFM", "Short convolution", "=lfm2"),
    ],
)
def test_a_name_of_models_and_of_a_topic_leads_to_both(typed: str, title: str, family: str, capsys):
    assert main(["explain", *typed.split()]) == 0
    first, second, *_, last = capsys.readouterr().out.splitlines()
    command = f"archlab list presets --filter family={family}"
    assert first == title
    assert f"{typed} is also a family of models: {command}" == (last if isinstance(look_up(typed), list) else second)
    assert main(shlex.split(command)[1:]) == 0


def test_no_family_of_models_is_unknown():
    """Each leads to its models, whether or not a topic has its name."""
    for family in {row.family for row in rows()}:
        for typed in (family, family.replace("-", " ").title()):
            assert any(f"family={typed.lower().replace(' ', '-')}" in command for command in showing_models(typed)) or (
                f"archlab show {family}" in showing_models(typed)
            )


@pytest.mark.parametrize("typed", ["seed", "k", "t", "block", "transformer++", "moe", "linear"])
def test_the_beginning_of_a_family_is_not_the_name_of_its_models(typed: str):
    assert families_named(typed) == []


@pytest.mark.parametrize(
    ("typed", "families"),
    [
        ("Llama 3", ["llama-3"]),
        ("Llama", ["llama"]),
        ("Llama 1", ["llama"]),
        ("SmolLM", ["smollm2", "smollm3"]),
        ("Granite", ["granite-3", "granite-3.1"]),
        ("EXAONE", ["exaone-4.0"]),
        ("Command R+", ["command-r-plus"]),
        ("Command R 08", []),
    ],
)
def test_a_family_is_named_with_and_without_the_number_of_its_version(typed: str, families: list[str]):
    assert families_named(typed) == families


@pytest.mark.parametrize(
    ("typed", "lacking"),
    [
        ("label smoothing", "label smoothing"),
        ("value residual", "value residual"),
        ("NSA", "attention that chooses its keys"),
        ("EMA", "average of weights"),
        ("MTP", "prediction of several tokens"),
        ("flash attention", "choice of kernel"),
    ],
)
def test_missing_features_are_named(typed: str, lacking: str):
    with pytest.raises(UserError, match=f"archlab has no .*{lacking}"):
        look_up(typed)


@pytest.mark.parametrize("typed", ["no such thing", "quantization", "bigram", "lightning attention"])
def test_dissimilar_words_are_not_suggested(typed: str):
    with pytest.raises(UserError, match=r"unknown topic .*; `archlab explain` lists all"):
        look_up(typed)


@pytest.mark.parametrize(
    ("name", "holds"),
    [
        ("gqa", lambda row: "GQA" in row.heads.split("+")),
        ("mqa", lambda row: "MQA" in row.heads.split("+")),
        ("mla", lambda row: "MLA" in row.heads.split("+")),
        ("rmsnorm", lambda row: "RMSNorm" in row.norm.split("+")),
        ("swiglu", lambda row: "SwiGLU" in row.activation.split("+")),
        ("geglu", lambda row: "GEGLU" in row.activation.split("+")),
        ("rope", lambda row: "RoPE" in row.position.split("+")),
        ("nope", lambda row: "NoPE" in row.position.split("+")),
        ("moe", lambda row: "mixture" in row.feed_forward.split("+")),
        ("tied-embeddings", lambda row: row.tied),
        ("hybrid", lambda row: "state" in row.reach and row.reach != "state"),
        ("encoder-decoder", lambda row: row.preset.startswith(("t5", "mt5", "bart", "transformer-"))),
    ],
)
def test_users_of_a_choice_are_those_in_the_table_of_the_atlas(name: str, holds: Any):
    """`archlab list` reads the same layers with other code."""
    found = usage(TOPICS[name].conditions)
    assert {*found.models, *found.uncertain} == {row.preset for row in rows() if holds(row)}
    assert sum(has for has, _ in found.by_year.values()) == len(found.models)
    assert sum(of for _, of in found.by_year.values()) == found.known == len(rows())


def test_unverified_fields_are_not_counted():
    doubtful = [row.preset for row in rows() if row.about.doubts("train.z_loss")]
    assert doubtful
    assert not {*doubtful} & {*usage(TOPICS["z-loss"].conditions).models}


def test_models_with_unpublished_values_are_not_counted():
    known = [row for row in rows() if row.about.dropout is not None]
    assert usage(TOPICS["dropout"].conditions).known == len(known) < len(rows())


@pytest.mark.parametrize(
    ("name", "counted"),
    [
        ("rope-pairing", "15 of archlab's 156 models (pairing=interleaved), 3 of them only in some layers: "),
        ("embedding-scale", "(scale!=1): "),
        ("rmsnorm", "115 of archlab's 156 models: "),
        ("dropout", "20 of the 35 models for which this is known: "),
    ],
)
def test_the_line_of_users_says_what_was_counted(name: str, counted: str):
    assert counted in in_words(usage(TOPICS[name].conditions), TOPICS[name].counted)


def test_values_in_published_models_are_counted_once_each():
    counts = values("model.mlp.kind")
    assert len(counts["moe"]) == len(usage(["model.mlp.kind=moe"]).models)


def test_costs_are_those_of_the_two_configs():
    found = prices(TOPICS["gqa"])
    d, head_dim, layers = 128, 32, 6
    with_it, without = found.values()
    assert without.parameters - with_it.parameters == layers * 2 * 2 * head_dim * d
    assert (with_it.state_bytes, without.state_bytes) == tuple(layers * 2 * n * head_dim * 4096 * 2 for n in (2, 4))


HERE = {
    "batch-norm": "batch norm vs LayerNorm, loss on held-out text: 0.126 [0.102, 0.150] bits per byte, 99.3% interval, worse, as claimed",
    "pre-norm": "post-norm averaged over the other settings vs pre-norm, loss at the best rate: 0.821 [0.669, 0.973] bits per byte, 97.5% interval, worse",
    "post-norm": "post-norm averaged over the other settings vs pre-norm, loss at the best rate: 0.821",
    "sandwich-norm": "double norm averaged over the other settings vs pre-norm, loss at the best rate: -0.020",
    "output-norm": "output norm averaged over the other settings vs pre-norm, loss at the best rate: 0.092",
    "dropout": "dropout 0.1 averaged over the other settings vs no dropout, loss on held-out text: 0.011",
    "weight-decay": "weight decay 0.3 averaged over the other settings vs no weight decay, loss on held-out text: 0.014",
    "mqa": "MQA, 1 KV head vs MHA, 4 KV heads, loss on held-out text: 0.018",
    "gqa": "GQA, 2 KV heads vs MHA, 4 KV heads, loss on held-out text: 0.007",
    "mla": "latent, rank 64 vs MHA, 4 KV heads, loss on held-out text: 0.057",
    "sliding-window": "windows of 16 vs full attention, right answers: -46.5 [",
    "mamba2": "3 in 4 layers Mamba-2 vs attention, right answers: -18.3 [-27.6, -8.9] percentage points, 96.7% interval, not testable here",
    "gated-delta": "gated delta vs attention, loss on held-out text: -0.033",
    "shared-expert": "8 experts, 1 active and 1 shared vs dense, loss on held-out text: -0.005",
    "heads": "1 head of 64 vs 4 heads of 16, loss on held-out text: 0.010",
    "depth": "8 layers of 48 vs 4 layers of 64, loss on held-out text: 0.053",
    "vocabulary-size": "8,192 vs 1,024, loss on held-out text: -0.137",
    "mlp-width": "d_ff = 0.5 d vs d_ff ≈ 4 d, loss on held-out text: 0.003",
    "nope": "NoPE vs RoPE, loss on held-out text: 0.109 [0.094, 0.124] bits per byte, worse; loss beyond the training length in texts 2 times as long: 0.046",
    "t5-bias": "T5's bias vs RoPE, loss on held-out text: 0.013",
    "gelu": "GELU vs ReLU, loss on held-out text: -0.013",
    "geglu": "GEGLU vs ReLU, loss on held-out text: 0.003",
}


@pytest.mark.parametrize("name", HERE)
@pytest.mark.slow
def test_findings_of_our_runs_come_before_claims(name: str, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "1000")
    assert main(["explain", name]) == 0
    printed = capsys.readouterr().out
    assert HERE[name] in printed
    assert printed.index("\nhere ") < printed.index(HERE[name]) < printed.index("\nclaims ")


def test_findings_on_gelu_are_those_on_the_plain_mlp(capsys: pytest.CaptureFixture[str]):
    assert main(["explain", "gelu", "--json"]) == 0
    assert {one["arm"] for one in json.loads(capsys.readouterr().out)["here"]} == {"gelu"}


def test_the_comparison_that_a_topic_names_comes_first(capsys: pytest.CaptureFixture[str]):
    """Pre-norm is the reference of the study of norm placement, and a step of the ladder."""
    assert main(["explain", "pre-norm", "--json"]) == 0
    first, *_, last = json.loads(capsys.readouterr().out)["here"]
    assert (first["study"], first["outcome"]["name"]) == ("norm-placement", "best_loss")
    assert last["study"] == "ladder-rates"


@pytest.mark.parametrize("name", [name for name, found in TOPICS.items() if found.measured])
def test_comparisons_that_a_topic_names_belong_to_studies_of_its_claims(name: str, capsys: pytest.CaptureFixture[str]):
    assert main(["explain", name, "--json"]) == 0
    here = json.loads(capsys.readouterr().out)["here"]
    assert set(TOPICS[name].measured) <= {f"{one['study']}/{one['arm']}" for one in here}


@pytest.mark.parametrize("name", [name for name, found in TOPICS.items() if found.resized])
@pytest.mark.slow
def test_a_gate_is_priced_at_the_same_width_and_at_equal_parameters(name: str, capsys: pytest.CaptureFixture[str]):
    """d is 128 with 6 layers; the difference is one matrix of d x d_ff per layer, or none."""
    d, layers, found = 128, 6, prices(TOPICS[name])
    matrix = layers * d * 344
    assert abs(found["with it"].parameters - found["without"].parameters) == matrix
    assert found["equal size"].parameters == pytest.approx(found["with it"].parameters, abs=matrix / 50)
    assert main(["explain", name]) == 0
    assert f"model.mlp.d_ff={TOPICS[name].resized['model.mlp.d_ff']}, for the same" in capsys.readouterr().out


def test_json_has_the_same(capsys: pytest.CaptureFixture[str]):
    assert main(["explain", "swiglu", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["fields"] == {"model.mlp.kind": "gated", "model.mlp.activation": "silu"}
    assert printed["sources"]["shazeer2020"]["where"] == "arXiv 2002.05202"
    assert printed["published"]["models"] == usage(TOPICS["swiglu"].conditions).models
    assert main(["explain", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {name: list(found.topics) for name, found in chapters().items()}


def test_all_are_listed(capsys: pytest.CaptureFixture[str]):
    assert main(["explain"]) == 0
    assert capsys.readouterr().out.split()[1:4] == ["layernorm", "rmsnorm", "centering"]


def test_a_topic_survives_a_round_trip():
    assert Topic.model_validate({**TOPICS["gqa"].model_dump(by_alias=True)}) == TOPICS["gqa"]


@pytest.mark.parametrize(
    ("word", "title"), [("norms", "Norms"), ("positional encoding", "Positions"), ("BPE", "Vocabulary")]
)
def test_a_word_for_many_choices_is_a_chapter(word: str, title: str, capsys: pytest.CaptureFixture[str]):
    found = look_up(word)
    assert isinstance(found, Chapter)
    assert found.title == title
    assert main(["explain", word]) == 0
    said = capsys.readouterr().out
    assert all(f"{name}: {topic.does.split()[0]}" in said for name, topic in found.topics.items())


@pytest.mark.parametrize(
    ("model", "path", "topic"),
    [
        ("deepseek-v3", "model.mlp.kind", "moe"),  # not sigmoid-router, which sets this field and another one
        ("deepseek-v3", "model.attention.kind", "mla"),
        ("llama-3-8b", "model.attention.kind", "attention"),
        ("llama-3-8b", "model.attention.qk_norm.kind", "qk-norm"),
        ("llama-3-8b", "model.mlp.activation", "swiglu"),
        ("t5-small", "model.mlp.activation", "relu"),
        ("gemma-2-9b", "model.position.theta", "rope-theta"),
        ("gemma-2-9b", "model.norm.eps", "model.norm.eps"),
    ],
)
def test_a_field_has_the_topic_that_is_most_about_it(model: str, path: str, topic: str):
    assert topic_of(path, flatten(resolved(build_config(read_config(model))))) == topic
