"""Plug-ins: the examples of docs/plugins.md, run as a reader would run them, and everything that can be wrong
with one."""

import itertools
import json
import math
import pickle
import re
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounter

import archlab
import tiny
from archlab.cli.app import main
from archlab.config.core import trust
from archlab.config.core.base import Base, kind_of
from archlab.config.core.merge import derived_fields
from archlab.config.core.plugins import resolve_and_import
from archlab.config.core.registry import Section, users_kinds
from archlab.config.core.yaml_text import read_yaml, to_yaml
from archlab.config.identity import config_hash, resolved
from archlab.config.io import build_config
from archlab.config.layers import layer_configs
from archlab.config.schema import Config
from archlab.config.training import resolve_train
from archlab.config.vocabulary import elsewhere
from archlab.data.tasks.windows import windows
from archlab.digests import write_with_digests
from archlab.errors import UserError, user_message
from archlab.exchange.gguf.write import save_gguf
from archlab.flatten.write import flatten_model
from archlab.measuring.clock import clocked
from archlab.model.context import start_pass
from archlab.pricing.work import forward_flops
from archlab.report.guide.reference import config_addresses
from archlab.study.authoring import json_schema
from archlab.study.executors.local import Local
from archlab.study.outcomes.schema import Outcome
from archlab.study.record import StudySummary
from archlab.study.runner import Study
from archlab.study.runs import Run
from archlab.study.study_file import read_study
from archlab.training.callback import Callback
from archlab.training.loss import objective
from archlab.training.optim import make_optimizer
from archlab.training.schedule import learning_rate, warmup_steps
from archlab.training.train import train
from plugin_files import FILES, POSITIONS, USED, write, written
from plugin_state import as_a_new_process

pytestmark = pytest.mark.usefixtures("new_process")
SQUARED = {"kind": "squared", "d_ff": 48}


def config(*overrides: str, **changed: Any) -> Config:
    """Return the tiny model with the components of squared.py and lion.py."""
    for name in ("squared.py", "lion.py"):
        if not Path(name).exists():
            write(FILES[name], name)
    raw = {
        "plugins": ["squared.py", "lion.py"],
        "model": tiny.MODEL | {"mlp": SQUARED} | changed.pop("model", {}),
        "train": tiny.TRAIN | {"optimizer": {"kind": "lion"}, "lr": 1e-3} | changed.pop("train", {}),
        "data": {"path": str(tiny.write_text(Path()).resolve())},
    }
    trust.accept(*(raw | changed)["plugins"])
    return build_config(raw | changed, overrides, "own")


def the_study(**changed: str) -> Study:
    """Return the document's study with tiny models and runs. Write the `changed` files and those that do not
    exist yet."""
    as_a_new_process()
    for name, text in FILES.items():
        if name in changed or not Path(name).exists():
            write(changed.get(name, text), name)
    base = tiny.config(data=tiny.write_text(Path()).resolve())
    write(to_yaml(base.model_dump(mode="json")), "tiny.yaml")
    text = FILES["study.yaml"].replace("base: tiny-llama", "base: tiny.yaml").replace("d_ff: 512", "d_ff: 48")
    text = text.replace("256K", "640").replace("train.seq_len: 64, train.batch_tokens: 1024", "train.seq_len: 16")
    write(text, "study.yaml")
    name, asked = read_study("study.yaml")
    return Study(name, asked, Path("studies/study"), Local(workers=1))


def run(study: Study) -> StudySummary:
    return study.run(lambda runs: lambda progress: None)


def runs_of(summary: StudySummary, arm: str) -> set[str]:
    return {str(folder) for found in summary.arms if found.name == arm for folder in found.runs.values()}


def test_the_study_of_the_document_as_its_files_change(monkeypatch: pytest.MonkeyPatch) -> None:
    first = run(the_study())
    monkeypatch.setattr(Local, "run_all", tiny.run_here)
    assert first.failed == {}
    assert [[sorted(arm.values), len(arm.runs)] for arm in first.arms] == [[[0, 1], 2]] * 2
    guessed = first.by("guessed")
    assert guessed.outcome.title == "next tokens guessed in 16 windows"
    assert (guessed.outcome.unit, guessed.outcome.better) == ("share", "higher")
    shares = [value for arm in guessed.arms for value in arm.values.values() if value is not None]
    assert len(shares) == 4
    assert 0 < max(shares) < 1
    before = {arm.name: runs_of(first, arm.name) for arm in first.arms}

    commented = run(the_study(**{"lion.py": "# The same.\n" + FILES["lion.py"]}))
    assert {arm.name: runs_of(commented, arm.name) for arm in commented.arms} == before

    doubled = run(the_study(**{"guesses.py": FILES["guesses.py"].replace(".item()", ".item() / 2")}))
    assert {arm.name: runs_of(doubled, arm.name) for arm in doubled.arms} == before, "nothing is trained again"
    for old, new in zip(guessed.arms, doubled.by("guessed").arms, strict=True):
        assert new.values == pytest.approx({seed: (value or 0) / 2 for seed, value in old.values.items()})

    changed = run(the_study(**{"lion.py": FILES["lion.py"].replace("beta2: float = 0.99", "beta2: float = 0.9")}))
    assert runs_of(changed, "usual") == before["usual"], "arms without it keep their runs"
    assert runs_of(changed, "mine").isdisjoint(before["mine"])


def test_a_finished_study_keeps_its_plugins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The report is unchanged after the plug-ins were edited or removed and the folder was moved."""
    monkeypatch.setattr(Local, "run_all", tiny.run_here)
    first = run(the_study())

    changed = the_study(**{"lion.py": FILES["lion.py"].replace("beta2: float = 0.99", "beta2: float = 0.9")})
    assert changed.changed() == ["plugins"]
    Path("lion.py").unlink()
    Path("studies/study").rename(moved := tmp_path / "moved")
    as_a_new_process()
    name, asked = read_study(str(moved))
    again = Study(name, asked, moved, Local(workers=1)).read()
    assert again.failed == {}
    for old, new in zip(first.arms, again.arms, strict=True):
        assert (old.values, set(old.runs)) == (new.values, set(new.runs))

    Path(moved / "plugin1-lion.py").write_text(FILES["lion.py"] + "beta = 1\n")
    with pytest.raises(UserError, match=r"plugin1-lion\.py: damaged"):
        read_study(str(moved))


def test_the_mlp_of_the_document_is_what_it_says() -> None:
    own = archlab.Decoder(config().model)
    x = torch.randn(2, 5, 32)
    mlp = own.layers[1].get_submodule("mlp")
    up, down = (mlp.get_parameter(f"{name}.weight") for name in ("up", "down"))
    torch.testing.assert_close(mlp(x), (x @ up.T).clamp(min=0) ** 2 @ down.T)

    usual = archlab.Decoder(config("model.mlp={kind: plain, activation: relu_squared, d_ff: 48}").model)
    assert own.state_dict().keys() == usual.state_dict().keys()
    for name, tensor in own.state_dict().items():
        torch.testing.assert_close(tensor, usual.state_dict()[name], msg=f"{name} starts elsewhere")
    assert forward_flops(own.config, 16) == forward_flops(usual.config, 16)
    assert archlab.cost(config()).parameters.total == sum(p.numel() for p in own.parameters())


def test_the_optimizer_of_the_document_is_lion() -> None:
    """One update of a matrix and of a norm, compared with the formula of Chen 2023."""
    asked = config("train.weight_decay=0.5")
    model = archlab.Decoder(asked.model)
    optimizer = make_optimizer(model, asked.train)
    assert {group["group"] for group in optimizer.param_groups} == {"matrix", "table", "vector"}
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    for group in optimizer.param_groups:
        group["lr"] = 0.01
    model(torch.arange(8)[None]).square().mean().backward()
    optimizer.step()
    for name, p in model.named_parameters():
        assert p.grad is not None
        decay = 0.5 if name.endswith(("up.weight", "q.weight")) else 0.0
        if decay or "norm" in name:
            torch.testing.assert_close(p.detach(), before[name] * (1 - 0.01 * decay) - 0.01 * p.grad.sign())


class StopAt(Callback):
    """Stop a training as Ctrl-C does, after `step` steps."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step(self, metrics: Any) -> None:
        if metrics.step == self.step:
            raise KeyboardInterrupt


def test_a_stopped_run_continues_with_the_state_of_its_optimizer() -> None:
    whole = train(config("train.checkpoint_every=2"), "whole", Callback())
    with pytest.raises(KeyboardInterrupt):
        train(config("train.checkpoint_every=2"), "stopped", StopAt(5))
    gone_on = train(config("train.checkpoint_every=2"), "stopped", Callback())
    assert gone_on.loss == whole.loss
    weights = [archlab.from_pretrained(folder).state_dict() for folder in ("whole", "stopped")]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_a_run_has_its_plugins_with_it() -> None:
    train(config(), "run", Callback())
    assert read_yaml(Path("run/config.yaml"))["plugins"] == ["plugin0-squared.py", "plugin1-lion.py"]
    Path("squared.py").unlink()
    Path("lion.py").write_text("raise ValueError('another one')")
    Path("elsewhere").mkdir()
    Path("run").rename("elsewhere/moved")
    as_a_new_process()
    loaded = archlab.from_pretrained("elsewhere/moved")
    assert type(loaded.layers[0].get_submodule("mlp")).__name__ == "SquaredModule"


def test_a_run_does_not_go_on_with_another_plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path.cwd())  # like an installed module, of which a run keeps no copy
    monkeypatch.delitem(sys.modules, "installed", raising=False)
    write(FILES["squared.py"], "installed.py")
    asked = config(plugins=["installed", "lion.py"])
    train(asked, "run", Callback())
    assert read_yaml(Path("run/config.yaml"))["plugins"] == ["installed", "plugin0-lion.py"]
    assert train(asked, "run", Callback()).status == "finished"
    write(FILES["squared.py"].replace(".square()", ".square() / 2"), "installed.py")
    monkeypatch.delitem(sys.modules, "installed")
    as_a_new_process()
    with pytest.raises(
        UserError,
        match=r"the plug-in that defines mlp squared has changed since .*Choose another folder with --out\.",
    ):
        train(config(plugins=["installed", "lion.py"]), "run", Callback())


def test_another_process_has_the_plugins_of_a_config_that_it_is_given() -> None:
    sent = pickle.dumps(config())
    as_a_new_process()
    assert isinstance(archlab.Decoder(pickle.loads(sent).model), nn.Module)


def test_a_mixer_keeps_what_its_state_says() -> None:
    asked = documented("average.py")
    decoder = archlab.Decoder(asked.model).eval()
    prompt = torch.tensor([[3, 1, 4, 1, 5]])
    written = archlab.generate(decoder, prompt, max_new_tokens=6)
    whole = decoder(written[:, :-1]).argmax(-1)[:, prompt.shape[1] - 1 :]
    assert whole.tolist() == written[:, prompt.shape[1] :].tolist()
    assert resolved(asked)["model"]["mixer"] == {"kind": "average", "keep": 0.5}, "defaults are written out"


OF_THE_MODEL = [file for file, overrides in USED.items() if overrides[0].startswith("model.")]
KINDS = {file: re.findall(r'^    kind: Literal\["(\w+)"\]', text, re.M)[0] for file, text in FILES.items() if file[-3:] == ".py"}  # fmt: skip


def documented(file: str, *overrides: str) -> Config:
    """Return the tiny config with everything that a file of the document adds."""
    return archlab.load_config(*written(file), *overrides)


def printed_by(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    """Return what a command prints."""
    assert main(list(arguments)) == code
    printed = capsys.readouterr()
    return printed.out if code == 0 else printed.err


def test_every_section_has_a_file() -> None:
    assert {*USED, "guesses.py"} == KINDS.keys()
    as_a_new_process()
    for file in KINDS:
        write(FILES[file], file)
        trust.accept(file)
    resolve_and_import(tuple(KINDS))
    assert {kind_of(kind): kind.section for kind in users_kinds()}.keys() == set(KINDS.values())
    assert {kind.section for kind in users_kinds()} == set(get_args(Section))


@pytest.mark.parametrize(
    "file", [name for name, text in FILES.items() if name.endswith(".yaml") and "question" not in text]
)
def test_a_config_of_the_document_is_what_it_says(file: str) -> None:
    for name in KINDS:
        write(FILES[name], name)
    write(FILES[file], file)
    asked = archlab.load_config(file)
    assert archlab.cost(asked).parameters.total == sum(p.numel() for p in archlab.Decoder(asked.model).parameters())


@pytest.mark.parametrize("file", USED)
def test_commands_know_a_kind_as_one_of_their_own(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments, kind = written(file), KINDS[file]
    shown = printed_by(capsys, "show", *arguments)
    assert re.search(rf"\b(kind|activation|schedule): {kind}\b", shown)
    priced = json.loads(printed_by(capsys, "cost", *arguments, "--json"))
    built = archlab.Decoder(archlab.load_config(*arguments).model)
    assert priced["parameters"]["total"] == sum(p.numel() for p in built.parameters())
    printed_by(capsys, "check", *arguments)
    (name,) = (own.display_name for own in users_kinds())
    printed_by(capsys, "draw", *arguments, "--out", "block.svg")
    if file in OF_THE_MODEL:
        assert name.lower() in Path("block.svg").read_text().lower()
    explained = printed_by(capsys, "explain", kind, "--plugins", file)
    own = users_kinds()[0]
    assert " ".join((own.__doc__ or "").split()) in " ".join(explained.split())
    assert str(Path(file).resolve()) in explained
    assert all(f".{field}\n" in explained for field in own.model_fields if field != "kind")

    misspelt = [*arguments[:2], *(text.replace(kind, f"{kind[:-1]}") for text in arguments[2:])]
    assert f"did you mean {kind}?" in printed_by(capsys, "show", *misspelt, code=2)


@pytest.mark.parametrize(
    "file", [file for file, overrides in USED.items() if any("{kind" in o and ", " in o for o in overrides)]
)
def test_the_fields_of_a_kind_are_validated_as_those_of_any(file: str) -> None:
    *before, override = written(file) if file != "lion.py" else written(file)[:-1]
    path, field, value = re.findall(r"^(\S+)=\{kind: \w+, (\w+): (\S+)\}", override)[0]
    arguments = [*before, f"{path}.kind={KINDS[file]}"]
    changed = archlab.load_config(*arguments, f"{path}.{field}={int(float(value)) + 2}")
    assert config_hash(changed) != config_hash(archlab.load_config(*arguments)), "a name of a run says the field"
    with pytest.raises(UserError, match=rf"{path}\.{field[1:]} +unknown; did you mean {field}\?"):
        archlab.load_config(*arguments, f"{path}.{field[1:]}=1")
    with pytest.raises(UserError, match=rf"{path}\.{field} +'many'; allowed: a"):
        archlab.load_config(*arguments, f"{path}.{field}=many")


@pytest.mark.parametrize("file", OF_THE_MODEL)
def test_what_cannot_have_a_kind_of_the_model_refuses_it_by_name(file: str) -> None:
    model, kind = archlab.Decoder(documented(file).model), KINDS[file]
    for refusing in (
        lambda: flatten_model(model.config, title="own"),
        lambda: archlab.save_pretrained(model, "out"),
        lambda: save_gguf(model, Path("out.gguf"), None),
    ):
        with pytest.raises(UserError, match=rf"model\.\S+ +{kind} is not archlab's own; allowed in "):
            refusing()
    assert not Path("out").exists()
    assert not Path("out.gguf").exists()


@pytest.mark.parametrize("file", USED)
def test_a_run_with_a_kind_continues_where_it_stopped(file: str) -> None:
    asked = documented(file, "train.checkpoint_every=2")
    whole = train(asked, "whole", Callback())
    with pytest.raises(KeyboardInterrupt):
        train(asked, "stopped", StopAt(5))
    Path(file).unlink()
    as_a_new_process()
    gone_on = train(archlab.load_config("stopped"), "stopped", Callback())
    assert (gone_on.loss, gone_on.train_loss) == (whole.loss, whole.train_loss)
    weights = [archlab.from_pretrained(folder).state_dict() for folder in ("whole", "stopped")]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_what_each_of_the_smaller_kinds_computes() -> None:
    """The expected values follow the formulas in the docstrings."""
    x = torch.randn(3, 32, generator=torch.Generator().manual_seed(0))
    norm = archlab.Decoder(documented("power_norm.py").model).layers[0].get_submodule("mlp_norms.before")
    torch.testing.assert_close(norm(x), x / x.abs().pow(2.5).mean(-1, keepdim=True).pow(1 / 2.5), atol=1e-4, rtol=1e-4)
    mlp = archlab.Decoder(documented("mish.py").model).layers[0].get_submodule("mlp")
    torch.testing.assert_close(mlp.get_submodule("activation")(x), x * torch.tanh(torch.log1p(x.exp())))
    root = resolve_train(documented("root.py"))
    rates = [learning_rate(root, step) / root.lr for step in range(root.steps)]
    start = warmup_steps(root)
    assert rates[start:] == pytest.approx(
        [1 - 0.9 * math.sqrt(n / (root.steps - start)) for n in range(root.steps - start)]
    )
    smooth = documented("smooth.py").train.objective
    logits, targets = torch.randn(4, 7, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 3, 6, 1])
    expected = torch.nn.functional.cross_entropy(logits, targets, label_smoothing=0.2)
    torch.testing.assert_close(objective(logits, targets, 0.0, smooth)[0], expected)
    asked = documented("palindrome.py")
    found = windows(asked.data.task, 0, 0, 3, 16, 300)
    assert (found.tokens[:, -4:] == found.tokens[:, -9:-5][:, ::-1]).all()
    assert found.scored[:, -4:].all()
    assert not found.scored[:, :-4].any()


def test_the_attention_that_weighs_by_relu_is_what_it_says() -> None:
    """The attention has a window, grouped heads and a bias on the scores. The expected values are computed head by
    head."""
    arguments = [*written("relu_attention.py", "bell.py"), "model.attention.window=3"]
    model = drawn(archlab.load_config(*arguments))
    layer = model.layers[0].get_submodule("attention")
    x = torch.randn(1, 6, 32, generator=torch.Generator().manual_seed(0))
    q, k, v = (layer.get_submodule(name)(x)[0].unflatten(-1, (-1, 8)) for name in "qkv")
    rate = layer.get_parameter("position_bias.rate")
    mixed = torch.zeros(6, 4, 8)
    for head, t in itertools.product(range(4), range(6)):
        seen = range(max(0, t - 2), t + 1)
        for s in seen:
            score = q[t, head] @ k[s, head // 2] / math.sqrt(8) - rate[head] * (t - s) ** 2
            mixed[t, head] += score.relu() / len(seen) * v[s, head // 2]
    context = start_pass(torch.zeros(1, 6, dtype=torch.int64), None, None, None, None, torch.float32)
    expected = layer.get_submodule("out")(mixed.flatten(1))
    torch.testing.assert_close(layer(x, context.context(layer_configs(model.config)[0]))[0], expected)


@pytest.mark.parametrize("role", ["convolution", "narrow"])
def test_a_multiplier_for_a_role_that_a_mixer_does_not_have_is_refused(role: str) -> None:
    with pytest.raises(
        UserError, match=rf"train\.lr_multipliers\.{role} +2, but no parameter of this model has the role {role}"
    ):
        documented("average.py", f"train.lr_multipliers.{role}=2")


@pytest.mark.parametrize("change", ["softcap=30", "sinks=true"])
def test_a_field_that_a_kind_narrows_cannot_be_set(change: str) -> None:
    with pytest.raises(
        UserError, match=rf"model\.attention\.{change.partition('=')[0]} +(30|true); allowed: (null|false)$"
    ):
        documented("relu_attention.py", f"model.attention.{change}")


def test_other_places_of_a_position() -> None:
    """A position may be added to the embedding, with parameters, or rotate queries and keys."""
    write(POSITIONS, "positions.py")
    written()
    for kind, n_parameters in (("added", 16 * 32), ("flipped", 0)):
        asked = archlab.load_config("tiny.yaml", "plugins=[positions.py]", f"model.position.kind={kind}")
        without = archlab.load_config("tiny.yaml", "model.position.kind=none")
        extra = archlab.cost(asked).parameters.total - archlab.cost(without).parameters.total
        assert extra == n_parameters
        model = drawn(asked, 0.1)
        tokens = torch.randint(300, (2, 12), generator=torch.Generator().manual_seed(0))
        whole, session = model(tokens), archlab.Session(model, tokens[:, :5], 12)
        for n in range(5, 12):
            torch.testing.assert_close(session.logits(), whole[:, n - 1])
            session.read(tokens[:, n : n + 1])
        assert not torch.allclose(whole, drawn(without, 0.1)(tokens))


def drawn(asked: Config, deviation: float = 0.4) -> archlab.Decoder:
    """Return the model with random changes to every parameter, so that all heads have different temperatures."""
    model = archlab.Decoder(asked.model).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.empty(parameter.shape).normal_(0, deviation, generator=generator))
    return model


def test_the_attention_of_the_document_is_what_it_says() -> None:
    """The expected values are computed pair by pair. A rotation is a product of complex numbers."""
    asked = documented("sigmoid.py")
    own = drawn(asked).layers[0].get_submodule("attention")
    x = torch.randn(5, 32, generator=torch.Generator().manual_seed(0))
    q, k, v = (x @ own.get_parameter("qkv.weight").T).view(5, 3, 4, 8).unbind(1)
    rates = 10_000.0 ** -(torch.arange(4) / 4)
    mixed = torch.zeros(5, 4, 8)
    for head, t in itertools.product(range(4), range(5)):
        for s in range(t + 1):
            (q_t, k_s) = (
                torch.complex(*of[at, head].chunk(2)) * torch.exp(1j * at * rates) for of, at in ((q, t), (k, s))
            )
            score = own.get_parameter("temperature")[head, 0, 0] * (q_t * k_s.conj()).real.sum() - math.log(t + 1)
            mixed[t, head] += score.sigmoid() * v[s, head]
    expected = mixed.flatten(1) @ own.get_parameter("out.weight").T
    context = SimpleNamespace(positions_BT=torch.arange(5)[None], causal=lambda _: torch.ones(1, 5, 5).tril() > 0)
    torch.testing.assert_close(own(x[None], context)[0], expected)

    usual = archlab.load_config("tiny-llama", "model.attention={n_heads: 4, n_kv_heads: 4}").model
    alike = asked.model.model_copy(
        update={"attention": usual.attention, "position": usual.position, "mixer": usual.mixer}
    )
    assert forward_flops(asked.model, 16).total == forward_flops(alike, 16).total
    assert archlab.cost(asked).kv_cache_bytes == archlab.cost(asked.model_copy(update={"model": alike})).kv_cache_bytes


@pytest.mark.parametrize("file", OF_THE_MODEL)
def test_a_kind_of_the_document_keeps_its_texts_apart_and_its_cache_right(
    file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.compiler.reset()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    model = drawn(documented(file), 0.4 if file in ("average.py", "sigmoid.py") else 0.1)
    tokens = torch.randint(300, (2, 12), generator=torch.Generator().manual_seed(0))
    whole = model(tokens)
    packed = model(tokens.view(1, 24), documents=torch.arange(24)[None] // 12)
    torch.testing.assert_close(packed.view_as(whole), whole)
    for chunk, compile in ((None, False), (5, False), (None, True)):
        padded = torch.cat((torch.zeros(2, 2, dtype=torch.int64), tokens[:, :5]), 1)
        session = archlab.Session(model, padded, 14, padding=[2, 2], prefill_chunk=chunk, compile=compile)
        for n in range(5, 12):
            torch.testing.assert_close(session.logits(), whole[:, n - 1])
            session.read(tokens[:, n : n + 1])


@pytest.mark.parametrize("file", [*OF_THE_MODEL, "smooth.py"])
def test_one_is_trained_compiled(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model is traced into one graph per layer but not compiled to C++. Its losses equal those without
    compilation."""
    torch.compiler.reset()
    asked = partial(documented, file)
    plain = train(asked("train.compile=false"), "plain", Callback())
    counter = CompileCounter()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=counter, fullgraph=True))
    compiled = train(asked("train.compile=true"), "compiled", Callback())
    assert counter.frame_count > 0
    assert compiled.loss == pytest.approx(plain.loss, rel=1e-5)


def test_a_layer_kind_may_have_one() -> None:
    layers = {"a": {"mlp": SQUARED}, "b": {}, "pattern": ["a", "b"]}
    asked = config(model={"mlp": {"d_ff": 64}, "layers": layers})
    kinds = [type(layer.get_submodule("mlp")).__name__ for layer in archlab.Decoder(asked.model).layers]
    assert kinds == ["SquaredModule", "MLP"]
    train(asked, "run", Callback())
    assert "plugin0-squared.py" in read_yaml(Path("run/config.yaml"))["plugins"]


WRONG = {
    "model.mlp.kind=squard": r"model\.mlp\.kind +'squard'; did you mean squared\? allowed: ",
    "model.mlp.d_f=3": r"model\.mlp\.d_f +unknown; did you mean d_ff\? allowed: kind, d_ff",
    "model.mlp.d_ff=wide": r"model\.mlp\.d_ff +'wide'; allowed: a whole number",
    "train.optimizer.kind=squared": r"train\.optimizer\.kind +'squared'; allowed: adamw, muon, lion",
    "train.betas=[0.8, 0.9]": r"train\.betas +applies only to AdamW; the optimizer lion ignores it, so leave it out",
    "train.eps=1e-6": r"train\.eps +applies only to AdamW; the optimizer lion ignores it",
    "plugins=[squared.py]": r"plugins +\S*squared\.py; missing: \S*lion\S*, which registers the optimizer lion",
    "plugins=[nowhere.py]": r"plugins: \S+nowhere\.py: no such file",
    "plugins=[no.where]": r"plugins: no module 'no\.where'; allowed: a module that Python finds",
}


@pytest.mark.parametrize("override", WRONG)
def test_what_a_config_says_wrongly_of_one(override: str) -> None:
    config()
    with pytest.raises(UserError, match=WRONG[override]):
        config(override)


SQUARED_TEXT = FILES["squared.py"]
BROKEN = {
    "a syntax error": ("def (", "own.py: cannot be imported: SyntaxError"),
    "an error": ("import archlab\n1 / 0", "own.py: cannot be imported: ZeroDivisionError"),
    "an import": ("import no_such_thing", "own.py: imports no_such_thing, which is not installed"),
    "a neighbor": ("import math, helper", "own.py: imports helper from its own folder, but a run copies only the"),
    "a part of a neighbor": ("def late():\n    from folder.part import it", "own.py: imports folder from its own folder"),
    "a relative neighbor": ("from .helper import it", "own.py: imports .helper from its own folder"),
    "no price": (SQUARED_TEXT.replace("def work", "def works"), "mlp squared: Squared has no work; define it in the class"),
    "no operations": (FILES["mish.py"].replace("    flops_per", "    # "), "activation mish: Mish has no flops_per_number"),
    "no place": (FILES["bell.py"].replace("    acts_on", "    # "), "position bell: Bell has no acts_on; define it in"),
    "no sentence": (FILES["palindrome.py"].replace("def describe", "def say"), "task palindrome: Palindrome has no describe;"),
    "no parameters": (FILES["power_norm.py"].replace("def n_", "def m_"), "norm power_norm: PowerNorm has no n_parameters"),
    "an unknown place": (FILES["bell.py"].replace('"scores"', '"score"'), "position bell: acts_on is 'score'; allowed: embedding"),
    "a field of a name": (FILES["mish.py"].replace("    flops_per", "    beta: float = 1.0\n    flops_per"), "has the field beta"),
    "no state": (FILES["average.py"].replace("def state", "def keeps"), "mixer average: Average has no state; define it in"),
    "no implementation": (SQUARED_TEXT.split("@archlab")[0], "mlp squared: nothing implements Squared; put @archlab"),
    "no value of the kind": (SQUARED_TEXT.replace(' = "squared"', ""), "Squared has a kind without a value; write"),
    "two of one kind": (SQUARED_TEXT + SQUARED_TEXT, "mlp squared is the kind of two classes, Squared and Squared"),
    "archlab's own": ("import archlab\n@archlab.implements(archlab.MultiHead)\nclass Mine:\n    pass", "MultiHead is archlab's own"),
    "a heading": (FILES["guesses.py"].replace("{windows}", "{windos}"), "outcome guesses: its heading has windos in braces; allowed: its fields"),
    "no unit": (FILES["guesses.py"].replace('"share"', '"furlong"'), "unit is 'furlong'; allowed: bits per byte, nats"),
}  # fmt: skip


@pytest.mark.parametrize("what", BROKEN)
def test_a_file_that_is_wrong(what: str) -> None:
    text, message = BROKEN[what]
    write("it = 1", "helper.py")
    Path("folder").mkdir()
    write(text)
    with pytest.raises(UserError, match=re.escape(message)):
        config(plugins=["own.py"])


def test_what_lies_beside_a_file_and_is_found_elsewhere_may_be_imported() -> None:
    """Modules of Python, archlab and installed packages may share the name of a file in the folder."""
    for name in ("math.py", "archlab.py", "numpy.py"):
        write("raise ValueError", name)
    write("import math\nimport numpy.linalg\n" + FILES["squared.py"], "squared.py")
    assert archlab.Decoder(config().model)


def test_two_files_of_one_name() -> None:
    config()
    write(SQUARED_TEXT)
    assert config(plugins=["own.py", "lion.py"]), "the same code may be in two places"
    write(SQUARED_TEXT.replace("square()", "abs()"))
    with pytest.raises(UserError, match=r"mlp squared is registered by \S+squared\.py and by \S+own\.py, whose code"):
        config(plugins=["own.py", "lion.py"])


def test_what_a_module_does_not_keep_of_its_promise() -> None:
    plain = SQUARED_TEXT.replace("archlab.Projection", "nn.Linear")
    for text, message in (
        (SQUARED_TEXT.replace("2 * site", "3 * site"), "mlp squared: Squared states 4,608 parameters, but its module has 3,072"),
        (re.sub(', role="\\w+"', "", plain), "mlp squared: up.weight has no initial value.*; use archlab.Projection"),
        (SQUARED_TEXT.replace('role="input"', 'role="narrow"'), "mlp squared: its module has a parameter with the role narrow; allowed: input, output "),
        (SQUARED_TEXT.split("@archlab")[0] + "archlab.implements(Squared)(lambda config, site: 3)", "mlp squared: made a int; allowed: a torch.nn.Module"),
        (SQUARED_TEXT.replace("@archlab.implements(Squared)", ""), r"mlp squared: nothing implements Squared; put @archlab\.implements\(Squared\) before"),
    ):  # fmt: skip
        as_a_new_process()
        write(text, "squared.py")
        with pytest.raises(UserError, match=message):
            archlab.Decoder(config().model)


@pytest.mark.parametrize(
    ("file", "before", "after", "change"),
    [
        ("power_norm.py", "return width", "return 5 * width", "model.norm={kind: power_norm}"),
        ("mish.py", "flops_per_number", "n_parameters: ClassVar[int] = 1\n    flops_per_number", "model.mlp={kind: gated, activation: mish}"),
    ],
)  # fmt: skip
def test_a_norm_and_an_activation_have_as_many_parameters_as_they_say(
    file: str, before: str, after: str, change: str
) -> None:
    write(FILES[file].replace(before, after, 1), file)
    asked = config(change, plugins=["squared.py", "lion.py", file])
    with pytest.raises(UserError, match=r"states \d+ parameters, but its module has \d+"):
        archlab.Decoder(asked.model)


def test_a_users_kind_takes_over_nothing_but_what_a_common_class_defines() -> None:
    """`d_ff` of archlab's gated MLP has another meaning than `d_ff` in the file."""
    gated = {"kind": "gated", "d_ff": 200}
    assert config("model.mlp.kind=squared", model={"mlp": gated}).model.mlp.d_ff == 512
    write(FILES["power_norm.py"], "power_norm.py")
    files = ["squared.py", "lion.py", "power_norm.py"]
    post = {"kind": "rmsnorm", "placement": "post"}
    norm = config("model.norm.kind=power_norm", model={"norm": post}, plugins=files).model.norm
    assert (norm.kind, norm.placement, norm.power) == ("power_norm", "post", 3.0)


def test_a_run_is_named_after_the_code_that_was_imported() -> None:
    asked = config()
    name = Run("a run", asked, "corpus", threads=1).name
    write(SQUARED_TEXT.replace("square()", "abs()"), "squared.py")
    assert Run("a run", asked, "corpus", threads=1).name == name
    Path("squared.py").unlink()
    assert Run("a run", asked, "corpus", threads=1).name == name


def test_fields_may_hold_lists() -> None:
    text = SQUARED_TEXT.replace(
        "    d_ff: int", "    widths: list[int] = [1, 2]\n    options: dict[str, int] = {}\n    d_ff: int"
    )
    write(text, "squared.py")
    asked = config("model.mlp.options={a: 1}")
    assert asked.model.mlp.options == {"a": 1}
    assert len(set(layer_configs(asked.model))) == 1


def test_invalid_optimizers_are_refused() -> None:
    for before, after, message in (
        ("LionOptimizer(to_train.groups_by_use, config)", "3", "its factory returned a int; allowed: a torch.optim"),
        (
            "(groups, defaults",
            "([p for g in groups for p in g['params']], defaults",
            "parameter groups without lr_multiplier",
        ),
        (
            'p.mul_(1 - group["lr"] * group["weight_decay"])',
            'self.state[p]["n"] = 3; p',
            "/n = 3; allowed: only tensors",
        ),
    ):
        write(FILES["lion.py"].replace(before, after), "lion.py")
        with pytest.raises(UserError, match=message):
            train(config(), f"run-{message[:3]}".replace("/", "_"), Callback())


def test_an_error_in_a_plug_in_names_its_line() -> None:
    write(SQUARED_TEXT.replace("F.relu(self.up(x))", "F.relu(self.up(x) @ x)"), "squared.py")
    with pytest.raises(RuntimeError) as caught:
        archlab.Decoder(config().model)(torch.arange(5)[None])
    line = next(n for n, text in enumerate(Path("squared.py").read_text().splitlines(), 1) if "@ x" in text)
    assert re.match(rf"plug-in \S+squared\.py, line {line}: RuntimeError: ", user_message(caught.value) or "")
    assert user_message(RuntimeError("of ours")) is None


def test_an_outcome_that_gives_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Local, "run_all", tiny.run_here)
    found = run(the_study(**{"guesses.py": FILES["guesses.py"].replace(".item()", ".item() + float('nan')")}))
    file = Path("guesses.py").resolve()
    assert set(found.failed.values()) == {
        f"plug-in {file}: outcome guesses: its function returned nan; allowed: a finite number, or None"
    }
    none = run(the_study(**{"guesses.py": FILES["guesses.py"].replace("return (guessed", "return None and (guessed")}))
    assert none.failed == {}
    assert all(arm.values == {} for arm in none.by("guessed").arms)


def test_a_component_that_cannot_be_divided() -> None:
    mlp = archlab.Decoder(config().model).config.mlp
    with pytest.raises(UserError, match=r"squared: it cannot be divided among devices; allowed: tensor=1"):
        mlp.share(2)
    assert mlp.share(1) is mlp
    assert archlab.cost(config()).step_memory.peak > 0


def test_an_arm_that_cannot_be_adjusted() -> None:
    the_study()
    write(SQUARED_TEXT.replace("d_ff", "width"), "squared.py")
    text = Path("study.yaml").read_text().replace("d_ff", "width") + "equal: {parameters: 1%}\n"
    write(text, "study.yaml")
    with pytest.raises(UserError, match=r"arms\.mine .* and it has no model\.mlp\.d_ff to adjust"):
        Study("study", read_study("study.yaml")[1], Path("other"))


def test_the_files_of_a_study_are_its_own() -> None:
    the_study()
    text = Path("study.yaml").read_text().replace("set: {", "set: {plugins: [], ")
    write(text, "study.yaml")
    with pytest.raises(UserError, match=r"set\.plugins +is set by the study's plugins for all arms"):
        Study("study", read_study("study.yaml")[1], Path("other"))


@pytest.mark.parametrize("code", ["raise SystemExit(0)", "import sys\nsys.exit()"])
def test_a_plug_in_that_ends_python_is_reported(code: str) -> None:
    """Such a script was never meant to be imported. Otherwise the command would end with exit code 0 without
    training."""
    write(code, "script.py")
    with pytest.raises(UserError, match=r"plugins: .*script\.py: exits Python when it is imported; put the lines"):
        config("plugins=[script.py]")


def test_files_of_plug_ins_that_lead_nowhere(tmp_path: Path) -> None:
    Path("loop.py").symlink_to("loop.py")
    with pytest.raises(UserError, match=r"plugins: .*loop\.py: no such file"):
        config("plugins=[loop.py]")
    with pytest.raises(UserError, match="unknown user 'nobody-of-that-name'"):
        config("plugins=[~nobody-of-that-name/x.py]")


NESTED = """
from typing import Literal

import archlab
from archlab.config.core.registry import make
from torch import nn


class Halved(archlab.MLP):
    kind: Literal["halved"] = "halved"
    inner: archlab.MLP

    def parameters(self, site):
        return self.inner.parameters(site)

    def work(self, site, model_pass):
        return self.inner.work(site, model_pass)

    def roles(self):
        return self.inner.roles()

    def resolve(self, d_model):
        return self.model_copy(update={"inner": self.inner.resolve(d_model)})


@archlab.implements(Halved)
class HalvedModule(nn.Module):
    def __init__(self, config, site):
        super().__init__()
        self.inner = make(config.inner, site)

    def forward(self, x, context=None, state=None):
        return self.inner(x, context, state) / 2
"""
"""An MLP with an inner MLP, which may be of the same kind."""


def test_a_kind_may_be_inside_itself(capsys: pytest.CaptureFixture[str]) -> None:
    write(NESTED)
    twice = "model.mlp={kind: halved, inner: {kind: halved, inner: {kind: plain}}}"
    arguments = [*written(), "plugins=[own.py]", twice]
    assert "kind: halved" in printed_by(capsys, "show", *arguments)
    x = torch.randn(2, 3, 32)
    mlp = archlab.Decoder(archlab.load_config(*arguments).model).layers[0].get_submodule("mlp")
    torch.testing.assert_close(mlp(x), mlp.get_submodule("inner.inner")(x) / 4)

    kinds = ["plain", "gated", "moe", "halved", "none"]
    assert f"a section of kind {', '.join(kinds)}" in printed_by(capsys, "explain", "halved", "--plugins", "own.py")
    assert "Halved" in json_schema()["$defs"]
    wrong = printed_by(capsys, "show", *arguments, "model.mlp.inner.inner.d_f=3", code=2)
    assert "model.mlp.inner.inner.d_f  unknown; did you mean d_ff?" in wrong

    layers = "model.layers={a: {mlp.inner.inner.d_ff: 96}, b: {}, pattern: [a, b]}"
    first, second = (
        layer.mlp.model_dump()["inner"]["inner"]
        for layer in layer_configs(archlab.load_config(*arguments, layers).model)
    )
    assert (first["d_ff"], second["d_ff"]) == (96, 4 * 32)


def test_a_kind_is_known_everywhere_that_was_asked_before_it_was_registered() -> None:
    class WithAnObjective(Base):
        objective: archlab.Objective

    layers = {"a": {"mlp.bias": True}, "b": {"mlp.bias": True}, "pattern": ["a", "b"]}
    build_config({"model": tiny.MODEL | {"layers": layers}, "data": {"path": "python-stdlib"}})
    assert elsewhere("amount", "") == ""
    assert "model.mixer.keep" not in config_addresses()
    assert derived_fields(WithAnObjective) == ()

    derived = FILES["smooth.py"].replace("amount: float = 0.1", "amount: Derived[float] = None")
    write("from archlab.config.core.base import Derived\n" + derived, "smooth.py")
    write(FILES["average.py"], "average.py")
    trust.accept("average.py", "smooth.py")
    resolve_and_import(("average.py", "smooth.py"))
    assert elsewhere("amount", "") == "write train.objective.amount"
    assert "model.mixer.keep" not in config_addresses(), "the reference of the guide leaves plug-ins out"
    assert derived_fields(WithAnObjective) == ("objective",)
    layers = {"a": {"mixer.keep": 0.1}, "b": {"mixer.keep": 0.2}, "pattern": ["a", "b"]}
    with pytest.raises(UserError, match=r"model\.mixer\.keep +every layer kind replaces it"):
        documented("average.py", "model.mixer.keep=0.3", f"model.layers={to_yaml(layers)}")


def test_a_field_of_yours_says_nothing_of_another_kinds_field() -> None:
    """`d_ff` of a gated MLP is derived, so all layer kinds may replace it. `d_ff` of `squared` is not."""
    layers = "model.layers={a: {mlp.d_ff: 32}, b: {mlp.d_ff: 64}, pattern: [a, b]}"
    with pytest.raises(UserError, match=r"model\.mlp\.d_ff +every layer kind replaces it"):
        documented("squared.py", layers)
    assert archlab.load_config(*written("squared.py")[:2], "model.mlp={kind: gated, d_ff: 48}", layers)


REFUSED_BY_MUP = {
    "power_norm.py": "model.norm.kind",
    "bell.py": "model.position.kind",
    "relu_attention.py": "model.attention.kind",
    "sigmoid.py": "model.attention.kind",
    "average.py": "model.mixer.kind",
    "squared.py": "model.mlp.kind",
    "lion.py": "train.optimizer",
}
"""File of the document -> field that muP refuses. It allows the other files, because they do not depend on the
width."""


@pytest.mark.parametrize("file", USED)
def test_mup_refuses_kinds_that_it_has_no_rule_for(file: str) -> None:
    mup = "model.mup={base_width: 16, base_head_dim: 8}"
    if file not in REFUSED_BY_MUP:
        assert documented(file, mup).model.mup
        return
    with pytest.raises(UserError) as refused:
        documented(file, mup)
    assert re.search(rf"{REFUSED_BY_MUP[file]} .*{KINDS[file]}.*muP .* has no rule", str(refused.value))


class Measured(Base):
    outcome: Outcome


TASK_OUTCOME = {"kind": "answers", "task": {"kind": "palindrome", "reversed": 4}}


def test_a_changed_task_is_another_outcome() -> None:
    """A result of the old task does not count for the new one. For archlab's own tasks, the names of files do not
    change."""

    def name() -> str:
        trust.accept("palindrome.py")
        resolve_and_import(("palindrome.py",))
        return config_hash(Measured.model_validate({"outcome": TASK_OUTCOME}).outcome.meaning)

    write(FILES["palindrome.py"], "palindrome.py")
    first = name()
    assert name() == first
    write(FILES["palindrome.py"].replace("[:, ::-1]", ""), "palindrome.py")
    assert name() != first

    ours = Measured.model_validate({"outcome": {"kind": "answers", "task": {"kind": "recall"}}}).outcome
    assert ours.meaning == ours.model_dump()


def operations(arguments: list[str]) -> set[str]:
    """Return the kinds of operations in the profile of one training step."""
    model = archlab.Decoder(archlab.load_config(*arguments).model)
    return set(clocked(model, lambda: model(torch.arange(8)[None]).square().mean().backward(), 1, "cpu").by_kind)


@pytest.mark.parametrize(("file", "place"), [("power_norm.py", "norms"), ("average.py", "scans")])
def test_a_profile_counts_a_module_of_yours_as_it_says(file: str, place: str) -> None:
    arguments = written(file)
    assert place not in operations(arguments)
    write(FILES[file].replace("Module(nn.Module):\n", f"Module(nn.Module):\n    timed_as = {place!r}\n", 1), file)
    assert place in operations(arguments)
    write(FILES[file].replace("Module(nn.Module):\n", "Module(nn.Module):\n    timed_as = 'norm'\n", 1), file)
    with pytest.raises(UserError, match=r"Module\.timed_as is 'norm'; allowed: norms, activations, scans"):
        operations(arguments)


OLD = """
import archlab
import torch
import torch.nn.functional as F
from torch import nn


class MLPOptions(archlab.Component):
    d_ff: int = 512

    def parameters(self, site):
        return {"mlp": 2 * site.d_model * self.d_ff}

    def work(self, site, this):
        yield this.product("mlp", site.d_model, self.d_ff)
        yield this.product("mlp", self.d_ff, site.d_model)


class Squared(nn.Module):
    def __init__(self, options, site):
        super().__init__()
        self.up = archlab.Projection(site.d_model, options.d_ff, bias=False, role="input")
        self.down = archlab.Projection(options.d_ff, site.d_model, bias=False, role="output")

    def forward(self, x, context=None, state=None):
        return self.down(F.relu(self.up(x)).square())


class SGDOptions(archlab.Options):
    momentum: float = 0.0


def make_sgd(groups, options):
    return torch.optim.SGD(groups, momentum=options.momentum)


class CountOptions(archlab.Options):
    at_least: int = 0


archlab.register_mlp("old_squared", MLPOptions, Squared)
archlab.register_optimizer("old_sgd", SGDOptions, make_sgd)
archlab.register_outcome(
    "old_count", CountOptions, lambda run, options: len(run.tokens), title="windows", unit="count", better="neither"
)
"""
"""A plug-in file for earlier versions of archlab."""


def in_old_form(**raw: Any) -> Config:
    """Return the tiny config with the kinds that OLD registers, as earlier versions wrote it."""
    write(OLD, "old.py")
    trust.accept("old.py")
    mlp = {"kind": "plugin", "name": "old_squared", "options": {"d_ff": 48}}
    optimizer = {"kind": "plugin", "name": "old_sgd", "options": {"momentum": 0.5}}
    train = tiny.TRAIN | {"optimizer": optimizer}
    return build_config({"plugins": ["old.py"], "model": tiny.MODEL | {"mlp": mlp}, "train": train} | raw)


def test_the_old_form_is_announced_as_deprecated(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.warns(DeprecationWarning, match="is deprecated; derive a class from archlab") as warned:
        in_old_form(data={"path": "python-stdlib"})
    names = {"mlp": "MLP", "optimizer": "Optimizer", "outcome": "Outcome"}
    texts = [
        f"archlab.register_{old} is deprecated; derive a class from archlab.{new} instead" for old, new in names.items()
    ]
    assert [str(one.message) for one in warned] == texts
    assert Path(warned[0].filename).name == "old.py", "the warning names the line of the plug-in"
    assert [line for line in capsys.readouterr().err.splitlines() if "deprecated" in line] == [
        f"note: {text}" for text in texts
    ]


def test_a_run_of_the_old_form_keeps_its_name() -> None:
    """The name is the one from before kinds registered themselves."""
    assert Run("a run", in_old_form(data={"path": "python-stdlib"}), "corpus", threads=1).name == "c1da9d162b25"


def test_a_run_folder_of_the_old_form_loads_and_goes_on() -> None:
    """The folder has the `config.yaml` of earlier versions."""
    asked = in_old_form(data={"path": str(tiny.write_text(Path()).resolve())})
    whole = train(asked, "whole", Callback())
    with pytest.raises(KeyboardInterrupt):
        train(asked, "stopped", StopAt(5))
    for folder in map(Path, ("whole", "stopped")):
        text = (folder / "config.yaml").read_text()
        for kind, field in (("old_squared", "d_ff: 48"), ("old_sgd", "momentum: 0.5")):
            new = f"{{{field}, kind: {kind}}}"
            assert new in text
            text = text.replace(new, f"{{kind: plugin, name: {kind}, options: {{{field}}}}}")
        write_with_digests(folder, {"config.yaml": text})
    Path("old.py").unlink()
    as_a_new_process()
    assert type(archlab.from_pretrained("whole").layers[0].get_submodule("mlp")).__name__ == "Squared"
    assert train(archlab.load_config("stopped"), "stopped", Callback()).loss == whole.loss


def test_an_outcome_of_the_old_form(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Local, "run_all", tiny.run_here)
    the_study()
    text = Path("study.yaml").read_text().replace("guesses.py]", "guesses.py, old.py]").replace(
        "measure:", "measure:\n  windows: {kind: plugin, name: old_count, options: {at_least: 2}}"
    )  # fmt: skip
    write(OLD, "old.py")
    write(text, "study.yaml")
    found = run(Study("study", read_study("study.yaml")[1], Path("studies/study"), Local(workers=1)))
    assert found.failed == {}
    assert {value for arm in found.by("windows").arms for value in arm.values.values()} == {16.0}
