"""Rules of shape: changes that break each rule, published models that support it, and commands that report it."""

import json
import re
from collections import Counter

import pytest

from archlab.cli import app
from archlab.config.io import build_config, presets, studies
from archlab.config.layers import layer_configs
from archlab.evidence.claims import claims, sources
from archlab.exchange.configs import load_config
from archlab.pricing.params import parameters
from archlab.report.check import sentences, strip
from archlab.review.findings import RULES, findings, results, warnings
from archlab.review.published import Published, comparable, near
from archlab.review.shape_rule import Case
from archlab.study import design
from archlab.study.design import arms
from archlab.study.study_file import read_study
from published import ENTRIES, add_half_a_model
from tiny import write_text

BY_NAME = {rule.name: rule for rule in RULES}


def broken(config, **said):
    return {rule.name for rule in RULES if rule.broken(Case(config, **said))}


@pytest.mark.parametrize("name", BY_NAME)
def test_each_rule_has_a_config_that_breaks_it_and_one_that_does_not(name):
    rule = BY_NAME[name]
    assert name in broken(load_config("llama-3-8b", *rule.broken_by), pipeline=2)
    assert name not in broken(load_config("llama-3-8b", *rule.kept_by), pipeline=2)
    assert rule.why.endswith(".")


def test_names_are_of_one_rule_each():
    assert len(BY_NAME) == len(RULES)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_rule_cites_the_evidence_that_the_ledger_has(rule):
    cited = {*rule.sources, *(point.source for point in rule.measured)}
    assert cited <= sources().keys()
    assert cited or "atlas" in rule.why
    for number in rule.claims:
        published = {effect.source for effect in claims()[number].published}
        assert cited & {*claims()[number].sources, *published}, "a claim about something else"


# --- published models -----------------------------------------------------------------------------------------

SAID = {
    "t5-11b": {"d_ff / d_model 64", "n_heads * head_dim / d_model 16", "dropout 0.1"},
    "palm-540b": {"n_layers 118", "n_heads * head_dim / d_model 0.667"},
    "llama-3.1-405b": {"n_layers 126"},
    "falcon-7b": {"n_heads 71"},
    "gpt-3-175b": {"vocab_size 50257"},
    "gpt-2": {"vocab_size 50257", "dropout 0.1"},
    "gemma-7b": {"d_ff / d_model 8"},
    "gemma-3-270m": {"embedding and head / all parameters 0.626"},
    "phi-4-14b": {"n_kv_heads 10"},
    "glm-4.5": {"n_heads * head_dim / d_model 2.4"},
}
QUIET = {
    "llama-3-8b", "llama-3-70b", "deepseek-llm-67b", "deepseek-v3", "qwen3-next-80b-a3b", "gemma-3-27b", "gpt-oss-20b",
}  # fmt: skip


@pytest.mark.parametrize("name", [*SAID, *sorted(QUIET)])
def test_what_is_said_of_a_published_model(name):
    said = {finding.what for finding in findings(Case(ENTRIES[name].config))}
    assert {text.partition(" is ")[0].partition(" (")[0] for text in said} == SAID.get(name, set())


@pytest.mark.slow
def test_most_published_models_are_left_in_peace():
    """Counted by hand from the configs: no rule forbids what most published decoders do.

    Encoders of 2018 to 2020 are older than the rules about vocabularies and dropout.
    """
    counts = Counter(name for entry in ENTRIES.values() for name in broken(entry.config))
    wide = [entry for entry in ENTRIES.values() if entry.config.model.d_model >= 512]
    assert counts["vocabulary a multiple of 64"] == sum(entry.config.model.vocab_size % 64 > 0 for entry in wide)
    found = [broken(entry.config) for entry in ENTRIES.values() if Case(entry.config).stacks == "decoder"]
    assert max(Counter(name for names in found for name in names).values()) <= len(found) / 8
    assert sum(not names for names in found) > 0.7 * len(found)


STACKS = {name: Case(entry.config).stacks for name, entry in ENTRIES.items()}
ENCODERS = {name for name, stacks in STACKS.items() if stacks == "encoder"}
DECODERS = {name for name, stacks in STACKS.items() if stacks == "decoder"}


def test_encoders_are_compared_with_encoders_and_decoders_with_decoders():
    """BERT base and GPT-2 are of about the same size, but neither says what is usual for the other."""
    bert, gpt2 = (Case(load_config(name)) for name in ("bert-base", "gpt-2"))
    for case, others in ((bert, ENCODERS), (gpt2, DECODERS)):
        assert {entry.preset for entry, _ in comparable(case)} == others
        assert {entry.preset for entry, _ in near(case)} <= others
    assert {entry.preset for entry, _ in near(bert)} == {
        "bert-base", "distilbert-base", "roberta-base", "modernbert-base",
    }  # fmt: skip
    dropout = next(finding for finding in findings(bert) if finding.rule == "dropout")
    assert str(dropout.published) == "5 encoders, median 0.1, 10-90% 0.1 to 0.1"
    assert len(dropout.others) == 5
    assert not any("BERT" in name for finding in findings(gpt2) for name in finding.others)


def test_the_rule_about_kv_heads_is_for_decoders():
    """Without its direction, the model has far more KV heads than published models of its size."""
    change = ("model.n_layers=4", "model.attention={n_heads: 64, n_kv_heads: 64, head_dim: 64}")
    assert "number of KV heads" in broken(load_config("llama-3-8b", *change))
    two_sided = load_config("llama-3-8b", *change, "model.attention.visibility=two_sided")
    assert "number of KV heads" not in broken(two_sided)
    assert not list(BY_NAME["number of KV heads"].measure(Case(load_config("bert-large"))))


def test_the_kinds_of_encoders_in_words():
    case = Case(load_config("modernbert-base", "model.mlp.d_ff=768", "model.vocab_size=50304"))
    found = {finding.rule: finding for finding in findings(case)}["d_ff / d_model"]
    assert found.published.kind == "gated MLPs of encoders"
    assert found.published.n == 2


@pytest.mark.parametrize("name", [name for name in presets() if name.startswith("tiny-")])
def test_our_own_presets_are_quiet(name):
    assert broken(load_config(name)) == set()


@pytest.mark.parametrize("name", studies())
def test_our_own_studies_are_quiet(name, monkeypatch):
    monkeypatch.setattr(
        design, "tokens_per_byte", lambda *_: 0.4
    )  # this override changes no shape, and counting it takes 20 s
    assert {text for arm in arms(read_study(name)[1]) for text in warnings(arm.config)} == set()


def test_a_model_is_compared_with_the_others_of_its_kind():
    """Checked by hand: most plain MLPs of decoders are 4 wide; most wider ones are gated."""
    wide = Case(load_config("gpt-3-175b", "model.mlp.d_ff=786432"))
    found = {finding.rule: finding for finding in findings(wide)}["d_ff / d_model"]
    plain = [name for name in DECODERS if ENTRIES[name].config.model.mlp.kind == "plain"]
    assert found.published.n == len(plain)
    assert (found.published.median, found.published.low, found.published.high) == (4, 4, 5.125)
    assert found.others == ["LaMDA 137B (8)", "Gemma 2 27B (8)", "Gemma 2B (8)", "Gemma 7B (8)", "Jais 2 8B (8)"]
    assert (found.measured.at, found.measured.found) == (50, "loss 8.4% higher than at 1")
    assert [text.split()[0] for text in sentences(found)][1:] == ["Measured", "Published:", "Published"]


def test_an_encoder_decoder_is_compared_with_encoder_decoders():
    """Checked by hand: of the 8 others with plain MLPs, T5-3B is 16 wide and all others are 4 wide."""
    found = {finding.rule: finding for finding in findings(Case(ENTRIES["t5-11b"].config))}["d_ff / d_model"]
    assert found.others == ["T5-3B (16)"]
    assert str(found.published) == "8 plain MLPs of encoder-decoders, median 4, 10-90% 4 to 7.6"


def test_a_distribution_by_hand():
    rule = BY_NAME["d_model / n_layers"]
    case = Case(load_config("llama-3-8b"))
    ratios = sorted(
        e.config.model.d_model / e.config.model.n_layers
        for name, e in ENTRIES.items()
        if name in DECODERS - {"mamba-2-2.7b", "mamba-2.8b", "falcon-mamba-7b", "llama-3-8b"}
    )
    found = Published(case).distribution(rule, next(iter(rule.measure(case))))
    assert found.n == len(ratios)
    assert ratios[len(ratios) // 10 - 1] <= found.low <= ratios[len(ratios) // 10 + 1]
    assert ratios[-len(ratios) // 10 - 1] <= found.high <= ratios[-len(ratios) // 10 + 1]


def test_models_of_about_the_same_size_say_what_is_usual():
    """Checked by hand: all models that can be built and have half to twice the active parameters. A tied head counts as
    0."""
    case = Case(load_config("llama-3-8b", "model.n_layers=4", "model.d_model=2048", "model.mlp.d_ff=8192"))
    size = parameters(case.config.model).active
    models = [entry.config.model for n, entry in ENTRIES.items() if n in DECODERS]
    close = [model for model in models if size / 2 <= parameters(model).active <= 2 * size]
    assert 5 < len(close) < 25
    shares = [
        0 if m.head.tied else m.vocab_size * (m.embedding.width or m.d_model) / parameters(m).total for m in close
    ]
    assert BY_NAME["untied head"].usual(case).high == pytest.approx(max(shares))
    heads = [
        layer.attention.n_kv_heads for m in close for layer in layer_configs(m) if layer.attention.kind == "multihead"
    ]
    usual = BY_NAME["number of KV heads"].usual(case)
    assert (usual.low, usual.high) == (min(heads), max(heads))
    (found,) = [finding for finding in findings(case) if finding.rule == "untied head"]
    assert found.published.n == len(close)


@pytest.mark.parametrize(
    ("config", "found"),
    [
        (("llama-3-70b",), set()),
        (("llama-3-70b", "model.attention.n_kv_heads=4"), {"number of KV heads"}),  # from 35B on, all have 8 or more
        (("llama-3.2-1b",), set()),
        (("llama-3.2-1b", "model.head.tied=false"), {"untied head"}),
        (("tiny-llama", "model.head.tied=false", "model.attention.n_kv_heads=1"), set()),  # no other model is as small
    ],
)
def test_rules_of_size(config, found):
    assert broken(load_config(*config)) == found


@pytest.mark.parametrize(
    ("config", "window", "stages"),
    [
        (("llama-3.1-405b",), 8192, 16),
        (("bloom-176b",), 2048, 12),
        # MT-NLG 530B: 105 layers of 20,480, 128 heads
        (("gpt-3-175b", "model={n_layers: 105, d_model: 20480, vocab_size: 51200, attention: {n_heads: 128, head_dim: 160},"
          " mlp: {d_ff: 81920}}"), 2048, 35),
    ],
)  # fmt: skip
def test_published_pipelines_are_what_the_rule_lets_pass(config, window, stages):
    """The unevenness in the rule is what archlab counts, and the threshold is the largest of these values."""
    rule = BY_NAME["stages of a pipeline"]
    loaded = load_config(*config, f"train.seq_len={window}")
    (reading,) = rule.measure(Case(loaded, pipeline=stages))
    (cited,) = [point for point in rule.measured if f"in {stages} stages" in point.found]
    assert reading.value == pytest.approx(cited.at, abs=5e-4)
    assert reading.value <= rule.usual(Case(loaded)).high < max(point.at for point in rule.measured) + 0.01


def test_the_cut_of_a_pipeline_is_judged(capsys):
    """Checked by hand: eight stages of Llama 3 8B share 32 layers and a head.

    Per token a layer has 218M weights and sees 4,096 keys on average. The head has 525M weights, which equal 2.09
    layers. The slowest stages have five layers, where 4.26 would be even.
    """
    out = run(capsys, "check", "llama-3-8b", "--pipeline", "8").out
    assert "warning  slowest of 8 stages / mean 1.17 in layers 12-16 (usual: up to 1.07)\n" in out
    rows = [line.split() for line in out.splitlines() if "head" in line and "+" in line]
    assert rows == [["8", "2", "+", "head", "962M", "0.96"]]
    assert ["1", "4", "+", "embedding", "1.4B", "0.94"] in [line.split() for line in out.splitlines()]
    (found,) = json.loads(run(capsys, "check", "llama-3-8b", "--pipeline", "8", "--json").out)
    assert found["layers"] == [12, 13, 14, 15, 16]
    assert run(capsys, "check", "llama-3.1-405b", "model.n_layers=100", "--pipeline", "101", code=2).err.endswith(
        "101 stages are too many for 100 layers; allowed: at most 100\n"
    )


# --- where rules apply ------------------------------------------------------------------------------------------


def test_layers_that_differ_are_named():
    layers = "model.layers={a: {mlp.d_ff: 32768}, b: {}, pattern: [a, a, b, b, b]}"
    (found,) = findings(Case(load_config("llama-3-8b", layers)))
    assert found.what == "d_ff / d_model 8 in layers 0-1, 5-6, 10-11, 15-16, 20-21, 25-26, 30-31 (usual: 2 to 6)"


@pytest.mark.parametrize(
    ("said", "overrides", "found"),
    [
        ({"tensor": 8}, (), set()),
        ({"tensor": 16}, (), set()),
        ({"tensor": 3}, (), {"heads over devices", "KV heads over devices"}),
        ({"tensor": 64}, (), {"heads over devices"}),
        ({"tensor": 1}, ("model.attention={n_heads: 31, n_kv_heads: 31}",), set()),
        ({"languages": 1}, ("model.vocab_size=49152",), set()),
        ({"languages": 1}, (), {"vocabulary"}),
        ({"languages": 20}, ("model.vocab_size=256000",), {"untied head"}),
        ({"languages": 20}, ("model.vocab_size=32000",), {"vocabulary"}),
        ({"languages": 2}, ("model.vocab_size=64000",), set()),
    ],
)
def test_what_the_user_says_beside_the_config(said, overrides, found):
    assert broken(load_config("llama-3-8b", *overrides), **said) == found


def test_what_a_model_lacks_is_not_judged():
    absent = {name: {"kind": "none"} for name in ("attention", "mlp", "position")}
    model = {"d_model": 2560, "n_layers": 200, "vocab_size": 32000, "mixer": {"kind": "mamba2"}, **absent}
    assert broken(build_config({"model": model})) == {"up to 100 layers"}


# --- the commands -------------------------------------------------------------------------------------------------


def run(capsys, *arguments, code=0):
    assert app.main(arguments) == code
    return capsys.readouterr()


def test_check(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    out, err = run(capsys, "check", "palm-540b")
    assert out.startswith("warning  n_layers 118 (usual: up to 100)\n")
    assert out.endswith("\npalm-540b: 1 warning, 1 note\n")
    assert "Llama 3.1 405B (126)" in out
    assert "(Billion Word, with a wider MLP to compensate) (Shazeer 2019).\n" in out
    assert "Source: Vaswani 2017, arXiv 1706.03762; Shazeer 2019, arXiv 1911.02150.\n" in out
    assert "Claim 9, depth: archlab ledger 9\n" in out
    assert max(map(len, out.splitlines())) <= 80
    assert err == ""
    assert run(capsys, "check", "llama-3-70b").out == "llama-3-70b: no warning, no note\n"


def test_a_model_that_cannot_be_built_is_checked_all_the_same(capsys, monkeypatch, tmp_path):
    name = add_half_a_model(monkeypatch, tmp_path)
    out, err = run(capsys, "check", name, "model.mlp.d_ff=65536")
    assert "d_ff / d_model 64" in out
    assert out.startswith(f"{name}: decoder half only: it has a second half")
    assert err == ""


def test_the_exit_code(capsys):
    run(capsys, "check", "gpt-2")
    run(capsys, "check", "gpt-2", "--strict", code=1)
    run(capsys, "check", "t5-11b", "--strict")
    err = run(capsys, "check", "gpt-2", "model.n_layers=0", "model.mlp.activation=swishh", code=2).err
    assert "2 problems in gpt-2" in err


def test_check_as_json(capsys):
    (found,) = json.loads(run(capsys, "check", "lamda-137b", "--json").out)
    assert (found["rule"], found["level"], found["value"]) == ("d_ff / d_model", "note", 8)
    assert found["published"]["kind"] == "gated MLPs"
    assert {key: source["where"] for key, source in found["sources"].items()} == {
        "kaplan2020": "arXiv 2001.08361",
        "shazeer2020": "arXiv 2002.05202",
    }
    assert found["measured"]["source"] == "kaplan2020"
    assert found["claims"] == {"7": "archlab ledger 7"}
    assert json.loads(run(capsys, "check", "llama-3-8b", "--json").out) == []


# --- values that pass ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["llama-3-8b", "gpt-2-xl", "t5-11b", "mamba-2-2.7b", "bert-base", "tiny-llama"])
def test_every_value_either_passes_or_has_a_finding(name):
    case = Case(load_config(name))
    checked = results(case)
    rejected = Counter((result.rule, result.level, result.number) for result in checked if result.level)
    assert rejected == Counter((finding.rule, finding.level, finding.value) for finding in findings(case))
    assert all(result.usual.side(result.number) == 0 for result in checked if not result.level)
    assert len(checked) > len(rejected)


def test_the_accepted_values_in_words():
    words = {result.rule: result.usual.accepted for result in results(Case(load_config("llama-3-8b"), tensor=8))}
    assert words["d_ff / d_model"] == "2 to 6"
    assert words["up to 100 layers"] == "up to 100"
    assert words["d_model a multiple of 64"] == "a multiple of 64"
    assert words["KV heads over devices"] == "a multiple or a divisor of 8"
    assert words["a norm in every layer"] == "more than 0"
    assert words["dropout"] == "0"


@pytest.mark.parametrize("name", ["llama-3-8b", "t5-11b", "bert-base", "tiny-llama"])
def test_a_strip_has_every_published_model_in_order_and_in_its_range(name):
    strips = [(result, drawn) for result in results(Case(load_config(name))) if (drawn := strip(result))]
    assert strips
    for result, drawn in strips:
        assert len(drawn.marks) == len(result.published)
        values = [result.published[mark.name.rpartition(": ")[0]] for mark in drawn.marks]
        assert values == sorted(values)
        assert [mark.left for mark in drawn.marks] == sorted(mark.left for mark in drawn.marks)
        assert len({(mark.left, mark.bottom) for mark in drawn.marks}) == len(drawn.marks), "no mark covers another"
        for mark, value in zip(drawn.marks, values, strict=True):
            assert 0 <= mark.left < 100
            assert 0 <= mark.bottom <= 100 - mark.height + 1e-9
            assert value >= result.number or mark.left <= drawn.own
            assert value <= result.number or mark.left + 2 >= drawn.own
            if drawn.usual and not result.usual.side(value):
                assert drawn.usual[0] - 1e-9 <= mark.left < drawn.usual[0] + drawn.usual[1]


def test_a_strip_needs_two_different_values():
    (checked,) = (result for result in results(Case(load_config("llama-3-8b"))) if result.rule == "vocabulary")
    assert strip(checked) is not None
    assert strip(checked._replace(published={"a": 1.0, "b": 1.0})) is None
    assert strip(checked._replace(published={})) is None


def test_the_marks_of_a_page_do_not_repeat_their_style(capsys, tmp_path):
    """Pages contain about a thousand marks."""
    run(capsys, "check", "llama-3-8b", "--html", str(tmp_path / "page.html"))
    marks = re.findall(r"<rect ([^>]*)><title>", (tmp_path / "page.html").read_text())
    assert len(marks) > 100
    assert {tuple(re.findall(r"([a-z]+)=", mark)) for mark in marks} == {("x", "y", "height")}


def test_check_as_a_page(capsys, tmp_path):
    page = tmp_path / "sub" / "page.html"
    assert run(capsys, "check", "lamda-137b", "--html", str(page)).out == f"{page}\n"
    text = page.read_text(encoding="utf-8")
    assert '<a href="https://arxiv.org/abs/2001.08361">Kaplan 2020</a>' in text
    assert "(Kaplan 2020, figure 5, 50M parameters, values read from the plot, accurate to about 0.1%)" in text
    assert "<code>archlab ledger 7</code>" in text
    assert not re.search(r"<script|src=|@import|url\(", text)


WIDE = "model={d_model: 512, n_layers: 1, vocab_size: 300, attention: {n_heads: 1, n_kv_heads: 1, head_dim: 12}, mlp: {d_ff: 8}, embedding: {scale: 1.0}}"


@pytest.mark.slow
def test_warnings_are_printed_once_when_a_config_is_used(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("ARCHLAB_CACHE", str(tmp_path / "cache"))
    short = ("train.tokens=64", "train.batch_tokens=64", "train.seq_len=16", "train.eval_tokens=64", "train.lr=1e-4")
    data = f"data.path={write_text(tmp_path)}"
    said = run(capsys, "train", "tiny-llama", WIDE, *short, data, "--out", str(tmp_path / "run")).err
    assert said.count("shape warning") == 1
    assert (
        "note: 3 shape warnings: head_dim 12 is not a multiple of 8; vocab_size 300 is not a multiple of 64; d_ff 8"
        in said
    )
    (tmp_path / "tiny.yaml").write_text(f"base: tiny-llama\n{WIDE.replace('=', ': ')}")
    arms = "{one: {}, two: {train.lr: 0.1}, three: {model.n_layers: 2}}"
    (tmp_path / "mine.yaml").write_text(f"{{question: Q?, base: tiny.yaml, budget: {{tokens: 64K}}, arms: {arms}}}")
    said = run(capsys, "study", "show", str(tmp_path / "mine.yaml")).err
    assert said.count("head_dim 12") == 1


@pytest.mark.parametrize(("preset", "warned"), [("smollm2-135m", False), ("gpt-2-xl", True)])
def test_a_model_that_one_device_holds_is_not_cut(preset, warned):
    """9 and 25 heads. Below a billion parameters, the number of devices must be given."""
    names = [finding.rule for finding in findings(Case(load_config(preset)))]
    assert ("heads over devices" in names) == warned
    assert "heads over devices" in [finding.rule for finding in findings(Case(load_config(preset), 2))]
