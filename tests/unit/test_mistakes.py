"""Common errors: every command runs and shows what is said of it, and the numbers that decide are computed here."""

import itertools
import json
import math
import re
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from answers import false_sentences
from archlab.cli.app import main
from archlab.config.components.norm import LayerNorm, RMSNorm
from archlab.config.io import build_config
from archlab.config.layers import layer_configs
from archlab.evidence.claims import mistakes, mistakes_about, sources
from archlab.evidence.intensity import attention_intensity, intensities, intensity_table
from archlab.evidence.topics import commands_of, topics
from archlab.exchange.configs import load_config
from archlab.model.decoder import Decoder
from archlab.model.norms import make_norm
from archlab.model.state import Cache
from archlab.pricing.params import parameters
from archlab.report.guide.lecture import topic_entry
from archlab.training.loss import objective

ENTRIES = {mistake.said: mistake for mistake in mistakes()}
TOPICS = dict(topics())
TOKENS = torch.randint(0, 17, (2, 12), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("said", ENTRIES)
def test_the_command_of_an_error_shows_what_is_said_of_it(said: str):
    assert false_sentences(ENTRIES[said].try_it, ENTRIES[said].shows) == []


def test_a_false_sentence_about_a_command_is_found():
    assert false_sentences("archlab show gpt-2", {"a": "model.d_model == 768", "b": "model.d_model == 767"}) == ["b"]
    assert false_sentences('python -c "print(1)"', {"a": "printed == '2'"}) == ["a"]


def test_a_comparison_leaves_out_overrides_and_keeps_options():
    overrides, options = "'model.mlp={kind: gated, d_ff: 64}' train.seed=1", "--filter family=llama --context=4Ki"
    compared = {"a": "without.parameters > parameters"}
    command = f"archlab cost tiny-llama {overrides} {options}"
    assert commands_of(command, compared) == (command, f"archlab cost tiny-llama {options}")
    assert commands_of(command, {"a": "parameters > 0"}) == (command,)


def test_the_topics_of_errors_exist():
    assert {name for mistake in mistakes() for name in mistake.topics} <= TOPICS.keys()


def test_an_error_is_about_the_topics_that_it_names():
    """Exceptions: what is said of attention in general, and the LayerNorm in a wrong formula of a block."""
    for mistake in mistakes():
        named = {name for name, topic in TOPICS.items() if mentions(mistake.said, topic.title)}
        assert named - {*mistake.topics} <= {"attention", *(["layernorm"] if "parallel block" in mistake.said else [])}
    (history,) = (mistake for mistake in mistakes() if "history of attention" in mistake.said)
    assert history.topics == ("mha", "mqa", "gqa", "mla")


def mentions(text: str, title: str) -> bool:
    return bool(re.search(rf"(?<!\w){re.escape(title)}s?(?!\w)", text, re.IGNORECASE))


def test_the_ledger_lists_all_errors_and_nothing_else(capsys: pytest.CaptureFixture[str], monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["ledger", "mistakes"]) == 0
    printed = capsys.readouterr().out
    said = " ".join(printed.split())
    assert all(f"said {mistake.said}" in said and mistake.fact in said for mistake in mistakes())
    assert all(f"see   {mistake.try_it}\n" in printed for mistake in mistakes()), "commands can be copied"
    assert [line for line in printed.splitlines() if len(line) > 80 and not line.startswith("see")] == []
    assert "verdict" not in printed
    assert main(["ledger", "mistakes", "--json"]) == 0
    assert json.loads(capsys.readouterr().out).keys() == {"mistakes"}
    assert main(["ledger"]) == 0
    assert f"{len(mistakes())} common errors, each with the correct fact: archlab ledger mistakes" in " ".join(
        capsys.readouterr().out.split()
    )


def test_a_comparison_names_both_commands(capsys: pytest.CaptureFixture[str], monkeypatch):
    """A probe of LayerNorm alone once had to show that its gradients are like those of RMSNorm."""
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["ledger", "mistakes"]) == 0
    printed = capsys.readouterr().out
    for mistake in mistakes():
        compares = any("without." in expression for expression in mistake.shows.values())
        assert len(mistake.commands) == 1 + compares
        assert "see   " + "\n      ".join(mistake.commands) + "\n" in printed
    command = "archlab probe tiny-llama model.norm.kind=layernorm"
    assert f"see   {command}\n      archlab probe tiny-llama\n" in printed
    assert main(["explain", "centering"]) == 0
    assert f"try      {command}\n         archlab probe tiny-llama\nshows " in capsys.readouterr().out


def test_an_explained_topic_cites_the_publications_that_an_error_names():
    """`archlab explain batch-norm` once had to show something about Bjorck 2018, which it did not cite."""
    commands = {said: mistake.try_it.split() for said, mistake in ENTRIES.items()}
    explained = [(ENTRIES[said], words[2]) for said, words in commands.items() if words[1] == "explain"]
    assert ("bjorck2018", "batch-norm") in [(key, name) for mistake, name in explained for key in mistake.sources]
    for mistake, name in explained:
        text = f"{mistake.said} {mistake.fact}"
        named = {key for key in mistake.sources if sources()[key].cited in text}
        assert named <= {*TOPICS[name].sources}


@pytest.mark.parametrize("name", sorted({name for mistake in mistakes() for name in mistake.topics}))
def test_a_topic_shows_its_errors_on_every_page(name: str, capsys: pytest.CaptureFixture[str], monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    own = mistakes_about(name)
    assert topic_entry(name, TOPICS[name]).mistakes == own
    assert main(["explain", name]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert all(f"“{mistake.said}” In fact: {mistake.fact}" in said for mistake in own)
    assert said.count("In fact: ") == len(own)


def test_a_disputed_explanation_of_the_warm_up_names_both_sides():
    """Xiong 2020 attributes the warm-up of post-norm to large gradients, and Liu 2020 denies it."""
    texts = [text for mistake in mistakes() for text in (mistake.fact, *mistake.shows)]
    texts += [text for topic in TOPICS.values() for text in (topic.does, topic.why, topic.costs, *topic.shows)]
    sentences = [sentence for text in texts for sentence in re.split(r"(?<=[.;]) ", text) if "warm-up" in sentence]
    assert [sentence for sentence in sentences if re.search(r"\b(so|why|because|therefore)\b", sentence)] == []
    naming = [text for text in texts if "warm-up" in text and "Xiong attributes" in text]
    assert len(naming) == 3
    assert all("Liu" in text for text in naming)


def decoder(*overrides: str, d_model: int = 16, n_layers: int = 3) -> Decoder:
    """Return a float64 decoder with random parameters."""
    model = {"vocab_size": 17, "d_model": d_model, "n_layers": n_layers, "max_seq_len": 16}
    raw = {"model": {**model, "attention": {"n_heads": 4}, "head": {"tied": False}}}
    built = Decoder(build_config(raw, overrides).model).double().eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in built.parameters():
            parameter.add_(torch.empty(parameter.shape).normal_(0, 0.3, generator=generator))
    return built


def normed(config: LayerNorm | RMSNorm, x: Tensor) -> Tensor:
    norm = make_norm(config, x.shape[-1]).double()
    with torch.no_grad():
        for name, parameter in norm.named_parameters():
            parameter.fill_(name == "weight")
    return norm(x)


@pytest.fixture(params=[True, False], ids=["training", "inference"])
def gradients(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fixture that runs a test with gradients and without. Norms compute the two cases differently."""
    with torch.set_grad_enabled(request.param):
        yield


@pytest.mark.usefixtures("gradients")
def test_layernorm_of_1_to_9_has_0_in_the_middle():
    """The standard deviation of the numbers is √(60/9)."""
    y = normed(LayerNorm(eps=1e-12), torch.arange(1.0, 10).double())
    assert y.tolist() == pytest.approx([(i - 5) / math.sqrt(60 / 9) for i in range(1, 10)])
    assert y[4] == 0
    assert not (y.abs() - 0.234).abs().lt(0.01).any()


@pytest.mark.usefixtures("gradients")
def test_rmsnorm_divides_by_the_root_of_the_mean_of_squares():
    x = torch.tensor([3.0, 4.0, 0.0, 0.0]).double()
    y = normed(RMSNorm(eps=1e-12), x)
    assert y.tolist() == pytest.approx([3 / 2.5, 4 / 2.5, 0, 0])  # √(25/4) = 2.5, and √25 = 5
    assert (y / (x / x.norm()))[0].item() == pytest.approx(math.sqrt(4))


def test_z_loss_adds_the_square_of_log_z_and_makes_it_0():
    """A gradient step on the z-loss alone moves log Z toward 0, from above and from below. A penalty of log Z has no
    minimum. Logits of 0 are not at the minimum."""
    targets = torch.zeros(1, 4, dtype=torch.long)

    def penalty(logits: Tensor) -> Tensor:
        minimized, reported = objective(logits, targets, 1.0)
        return minimized - reported

    for shift in (-9.0, 0.0, 5.0):
        logits = torch.full((1, 4, 50), shift, dtype=torch.float64, requires_grad=True)
        log_z = shift + math.log(50)
        value = penalty(logits)
        assert value.item() == pytest.approx(log_z**2)
        (gradient,) = torch.autograd.grad(value, logits)
        assert gradient.sum().item() == pytest.approx(2 * log_z)
    at_minimum = torch.full((1, 4, 50), -math.log(50), dtype=torch.float64)
    assert penalty(at_minimum).item() == pytest.approx(0, abs=1e-12)
    assert penalty(torch.zeros(1, 4, 50, dtype=torch.float64)).item() == pytest.approx(math.log(50) ** 2)


def test_every_logit_is_negative_if_log_z_is_0():
    """Whatever the logits are: each is the logarithm of a probability."""
    for seed in range(20):
        logits = 3 * torch.randn(7, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        logits -= logits.logsumexp(0)
        assert (logits < 0).all()
        assert logits.exp().tolist() == pytest.approx(logits.softmax(0).tolist())


def test_a_causal_window_of_w_sees_w_keys():
    """The stream at a position depends on the last w tokens in a model of one layer."""
    model, w, last = decoder("model.attention.window=5", n_layers=1), 5, 11
    before = model(TOKENS)[:, last]
    seen = []
    for position in range(12):
        changed = TOKENS.clone()
        changed[:, position] = (changed[:, position] + 1) % 17
        seen += [position] * bool((model(changed)[:, last] - before).abs().max() > 1e-9)
    assert seen == list(range(last - w + 1, last + 1))
    assert len(seen) not in (2 * w + 1, w // 2)


def test_mqa_shares_keys_within_a_layer_and_not_across_layers():
    model = decoder("model.attention.n_kv_heads=1", n_layers=3)
    cache = Cache(model.config, batch=2, capacity=16, dtype=torch.float64)
    model(TOKENS, cache=cache)
    keys = [layer["attention"].tensors["k"] for layer in cache.layers]
    assert [key.shape[:2] for key in keys] == [(2, 1)] * 3
    assert all((keys[i] - keys[j]).abs().max() > 0.01 for i, j in ((0, 1), (0, 2), (1, 2)))


def test_a_gated_mlp_of_equal_size_is_two_thirds_as_wide_as_a_plain_one():
    plain, gated = (
        parameters(load_config("tiny-llama", f"model.mlp={{kind: {kind}, activation: silu, d_ff: {d_ff}}}").model).mlp
        for kind, d_ff in (("plain", 4 * 96), ("gated", 4 * 96 * 2 // 3))
    )
    assert plain == gated


def test_a_soft_cap_approaches_its_limit_and_never_reaches_it():
    """Logits beyond the cap stay below it and keep their order. Clipping would make them equal."""
    plain, capped = (decoder(*overrides)(TOKENS).flatten() for overrides in ((), ("model.head.softcap=3",)))
    order = plain.argsort()
    assert (plain[order][-5:] > 3).all()
    assert (capped.abs() < 3).all()
    assert (capped[order].diff() > 0).all()


def test_an_offset_of_the_stream_passes_through_layernorm_models():
    """Centering acts on the inputs of branches. An offset of the embedding reaches the end of the stream as it is.
    RMSNorm does not remove the offset, so it changes the branches."""
    assert "pre-norm with LayerNorm as n, and not with RMSNorm" in TOPICS["centering"].formula
    for kind, is_centered in (("layernorm", True), ("rmsnorm", False)):
        model = decoder(f"model.norm={{kind: {kind}, placement: pre}}")
        ends = list[Tensor]()
        model.norm.register_forward_pre_hook(lambda _, inputs, ends=ends: ends.append(inputs[0]))
        logits = model(TOKENS)
        with torch.no_grad():
            model.embedding.weight.add_(2.5)
        assert ((model(TOKENS) - logits).abs().max() < 1e-9) == is_centered
        assert ((ends[1] - ends[0] - 2.5).abs().max() < 1e-9) == is_centered


def test_centering_can_be_moved_into_the_matrices():
    """Ashkboos 2024: an RMSNorm model with a centered embedding and centered output matrices has the logits of the
    LayerNorm model. Without centered matrices, the logits differ."""
    layernorm = decoder("model.norm={kind: layernorm, bias: false}")
    rmsnorm = decoder("model.norm={kind: rmsnorm}")
    state = layernorm.state_dict()
    rmsnorm.load_state_dict(state)
    expected = layernorm(TOKENS)
    assert (rmsnorm(TOKENS) - expected).abs().max() > 0.01
    writing = [name for name in state if name.endswith(("out.weight", "down.weight"))]
    assert len(writing) == 2 * 3
    for name in writing:
        state[name] = state[name] - state[name].mean(0)
    state["embedding.weight"] = state["embedding.weight"] - state["embedding.weight"].mean(1, keepdim=True)
    rmsnorm.load_state_dict(state)
    assert (rmsnorm(TOKENS) - expected).abs().max() < 1e-9


def printed(topic: str, left: str, remark: str = "", /, **values: float) -> float:
    """Return the right side of `left = …` in the formula of a topic. With `remark`, the line has this remark after it.

    `values` are those of names. Other names have their own line in the formula.
    """
    parts = [part for line in TOPICS[topic].formula.splitlines() for part in re.split(r"\s{2,}", f"{line}  ")]
    right = next(
        part.removeprefix(f"{left} = ")
        for part, after in itertools.pairwise(parts)
        if part.startswith(f"{left} = ") and after.startswith(remark)
    )
    code = re.sub(r"(?<=[\w)]) (?=[\w(])", " * ", right.replace("−", "-").replace("·", "*"))
    names = set(re.findall(r"[a-z_]+", code)) - values.keys()
    return eval(code, {}, {**values, **{name: printed(topic, name, **values) for name in names}})


WIDTHS = {
    "llama-3-8b": "n_heads * head_dim == d_model",
    "qwen3-0.6b": "n_heads * head_dim == 2 * d_model",
    "palm-540b": "n_heads * head_dim == d_model * 2 / 3",
    "gemma-7b": "n_heads * head_dim == d_model * 4 / 3",
}


@pytest.mark.parametrize("preset", WIDTHS)
@pytest.mark.parametrize("kv_heads", [None, 8, 1])
@pytest.mark.parametrize("b", [1, 64])
def test_intensities_of_attention_are_those_of_the_printed_formulas(preset: str, kv_heads: int | None, b: int):
    """The formula once held only if n_heads · head_dim is d_model."""
    config = load_config(preset, f"model.attention.n_kv_heads={kv_heads or 'null'}")
    attention = layer_configs(config.model)[0].attention
    widths = {name: getattr(attention, name) for name in ("n_heads", "n_kv_heads", "head_dim")}
    widths |= {"d_model": config.model.d_model, "n": 8192, "b": b}
    assert eval(WIDTHS[preset], {}, widths)
    decoding = attention_intensity(config, "decoding", b)
    share = printed("arithmetic-intensity", "w", c=2 * 8192, **widths)
    assert 1 / decoding == pytest.approx(
        printed("arithmetic-intensity", "1 / intensity", "decoding", w=share, **widths)
    )
    share_of_training = printed("arithmetic-intensity", "w", c=8192, **widths)
    training = printed("arithmetic-intensity", "1 / intensity", "training", w=share_of_training, **widths)
    expected = 1 / attention_intensity(config, "training", b)
    assert training == pytest.approx(expected, rel=1e-3), "n tokens see (n + 1) / 2 on average"
    kind = "mqa" if kv_heads == 1 else "gqa" if kv_heads else "mha"
    left = "1 / FLOPs per byte in decoding"
    assert 1 / decoding == pytest.approx(printed(kind, left, w=share, batch=b, **widths))


def test_intensities_of_a_model_with_two_widths():
    config = load_config("qwen3-0.6b")
    found = [attention_intensity(config, *which) for which in (("decoding", 1), ("decoding", 64), ("training", 1))]
    assert found == pytest.approx([1.727, 2.361, 1527], rel=1e-3)


def test_intensities_of_the_whole_model_are_those_that_cost_prints(capsys: pytest.CaptureFixture[str]):
    command = "cost llama-3-8b model.attention.n_kv_heads=1 train.batch_tokens=8Ki --context 8Ki --batch 64"
    assert main(command.split()) == 0
    printed = capsys.readouterr().out
    shown = {row[0]: row[-1] for row in intensity_table()}
    for row, label in (("training, 1 text", "training step of 8.19K"), ("decoding, 64 texts", "decoding step, batch")):
        (line,) = (line for line in printed.splitlines() if line.strip().startswith(label))
        assert shown[f"whole model, {row}"] == line.split()[-2]


def test_explain_prints_intensities_of_every_kind_of_kv_heads(capsys: pytest.CaptureFixture[str], monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    for name in ("mha", "gqa", "mqa", "arithmetic-intensity"):
        assert main(["explain", name]) == 0
        lines = capsys.readouterr().out.splitlines()
        for row in intensity_table():
            (line,) = (line for line in lines if row[0] in line)
            assert line.split()[-3:] == [*row[1:]]
        assert topic_entry(name, TOPICS[name]).intensity == intensity_table()
    assert main(["explain", "mqa", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["flops_per_byte"] == intensities()
