"""Plug-ins: the examples of docs/plugins.md, run as a reader would, and all that can be wrong with one."""

import itertools
import math
import pickle
import re
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml
from torch import nn
from torch._dynamo.testing import CompileCounter

import archlab
import tiny
from archlab.config.core import trust
from archlab.config.core.yaml_text import read_yaml, to_yaml
from archlab.config.identity import resolved
from archlab.config.io import build_config
from archlab.config.schema import Config
from archlab.errors import UserError, user_message
from archlab.flatten.write import flatten
from archlab.pricing.work import forward_flops
from archlab.study.executors.local import Local
from archlab.study.record import StudySummary
from archlab.study.runner import Study
from archlab.study.study_file import read_study
from archlab.training.callback import Callback
from archlab.training.optim import make_optimizer
from archlab.training.train import train
from plugin_state import as_a_new_process

DOCUMENT = (Path(__file__).parents[2] / "docs" / "plugins.md").read_text(encoding="utf-8")
FILES = {
    name: text for text in re.findall(r"^```\w+\n(.*?)^```", DOCUMENT, re.M | re.S) for name in re.findall(r"\A# (\S+)\n", text)
}  # fmt: skip
pytestmark = pytest.mark.usefixtures("new_process")
SQUARED = {"kind": "plugin", "name": "squared", "options": {"d_ff": 48}}


def write(text: str, name: str = "own.py") -> Path:
    Path(name).write_text(text)
    return Path(name).resolve()


def config(*overrides: str, **changed: Any) -> Config:
    """The tiny model with what squared.py and lion.py bring."""
    for name in ("squared.py", "lion.py"):
        if not Path(name).exists():
            write(FILES[name], name)
    raw = {
        "plugins": ["squared.py", "lion.py"],
        "model": tiny.MODEL | {"mlp": SQUARED} | changed.pop("model", {}),
        "train": tiny.TRAIN | {"optimizer": {"kind": "plugin", "name": "lion"}, "lr": 1e-3} | changed.pop("train", {}),
        "data": {"path": str(tiny.write_text(Path()).resolve())},
    }
    trust.accept(*(raw | changed)["plugins"])
    return build_config(raw | changed, overrides, "own")


def the_study(**changed: str) -> Study:
    """That of the document, of tiny models and runs, with those of its files that are `changed` or not there yet."""
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
    """Its report is the same after they were changed, taken away, and the folder was moved."""
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


def test_the_optimiser_of_the_document_is_lion() -> None:
    """One update, by the formula of Chen 2023, of a matrix and of a norm."""
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
    """Ctrl-C after so many steps."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step(self, metrics: Any) -> None:
        if metrics.step == self.step:
            raise KeyboardInterrupt


def test_a_stopped_run_goes_on_with_the_state_of_its_optimiser() -> None:
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
    assert type(loaded.layers[0].get_submodule("mlp")).__name__ == "Squared"


def test_a_run_does_not_go_on_with_another_plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path.cwd())  # as an installed module, of which a run has no copy
    monkeypatch.delitem(sys.modules, "installed", raising=False)
    write(FILES["squared.py"], "installed.py")
    asked = config(plugins=["installed", "lion.py"])
    train(asked, "run", Callback())
    assert read_yaml(Path("run/config.yaml"))["plugins"] == ["installed", "plugin0-lion.py"]
    assert train(asked, "run", Callback()).status == "finished"
    write(FILES["squared.py"].replace(".square()", ".square() / 2"), "installed.py")
    monkeypatch.delitem(sys.modules, "installed")
    as_a_new_process()
    with pytest.raises(UserError, match=r"was begun with plugins .* and cannot go on with"):
        train(config(plugins=["installed", "lion.py"]), "run", Callback())


def test_another_process_has_the_plugins_of_a_config_that_it_is_given() -> None:
    sent = pickle.dumps(config())
    as_a_new_process()
    assert isinstance(archlab.Decoder(pickle.loads(sent).model), nn.Module)


def test_a_mixer_keeps_what_its_state_says() -> None:
    asked = with_mixer("average")
    decoder = archlab.Decoder(asked.model).eval()
    prompt = torch.tensor([[3, 1, 4, 1, 5]])
    written = archlab.generate(decoder, prompt, max_new_tokens=6)
    whole = decoder(written[:, :-1]).argmax(-1)[:, prompt.shape[1] - 1 :]
    assert whole.tolist() == written[:, prompt.shape[1] :].tolist()
    assert read_values(asked)["mixer"]["options"] == {"keep": 0.5}, "defaults are written out"


def read_values(asked: Config) -> dict[str, Any]:
    return resolved(asked)["model"]


def with_mixer(name: str, *overrides: str) -> Config:
    """The tiny model with a mixer of the document in the place of attention."""
    write(FILES[f"{name}.py"], f"{name}.py")
    given = yaml.safe_load(FILES["sigmoid.yaml"].replace("sigmoid", name))
    model = given["model"] | {"mlp": tiny.MODEL["mlp"]}
    return config(*overrides, plugins=given["plugins"], model=model, train={"optimizer": {"kind": "adamw"}})


def drawn(asked: Config) -> archlab.Decoder:
    """Every parameter drawn, so that all heads' temperatures differ."""
    model = archlab.Decoder(asked.model).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.empty(parameter.shape).normal_(0, 0.4, generator=generator))
    return model


def test_the_attention_of_the_document_is_what_it_says() -> None:
    """Pair by pair; a turn by an angle is a product of complex numbers."""
    asked = with_mixer("sigmoid")
    own = drawn(asked).layers[0].get_submodule("mixer")
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


@pytest.mark.parametrize("own", ["average", "sigmoid"])
def test_a_mixer_of_the_document_keeps_its_texts_apart_and_its_cache_right(
    own: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.compiler.reset()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    model = drawn(with_mixer(own))
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


@pytest.mark.parametrize("own", ["squared", "sigmoid", "average"])
def test_one_is_trained_compiled(own: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Traced into one graph per layer, and not compiled to C++ here; with the losses of what is not."""
    torch.compiler.reset()
    asked = config if own == "squared" else partial(with_mixer, own)
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
    assert kinds == ["Squared", "MLP"]
    train(asked, "run", Callback())
    assert "plugin0-squared.py" in read_yaml(Path("run/config.yaml"))["plugins"]


WRONG = {
    "model.mlp.name=squard": r"model\.mlp\.name +'squard'; no such plug-in for mlp; allowed: squared",
    "model.mlp.options.d_f=3": r"model\.mlp\.options +d_f: no such option of squared; allowed: d_ff",
    "model.mlp.options.d_ff=wide": r"model\.mlp\.options +d_ff: 'wide'; should be a valid integer",
    "train.optimizer.name=squared": r"train\.optimizer\.name +'squared'; no such plug-in for optimizer; allowed: lion",
    "train.betas=[0.8, 0.9]": r"train\.betas +is AdamW's, and lion does not read it; leave it out",
    "train.eps=1e-6": r"train\.eps +is AdamW's, and lion does not read it",
    "plugins=[squared.py]": r"plugins +\S*squared\.py; missing: \S*lion\S*, which brings the optimizer lion",
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
    "an import": ("import no_such_thing", "own.py: imports no_such_thing, which is not there"),
    "a neighbour": ("import math, helper", "own.py: imports helper from its own folder, and a run keeps a copy of the"),
    "a part of a neighbour": ("def late():\n    from folder.part import it", "own.py: imports folder from its own folder"),
    "a relative neighbour": ("from .helper import it", "own.py: imports .helper from its own folder"),
    "no price": (SQUARED_TEXT.replace("def work", "def works"), "Options has no `work`, so nothing is known of its"),
    "no component": (SQUARED_TEXT.replace("archlab.Component", "archlab.Options"), "allowed: a subclass of archlab.Comp"),
    "no options": (FILES["lion.py"].replace("archlab.Options", ""), "allowed: a subclass of archlab.Options"),
    "no unit": (FILES["guesses.py"].replace('"share"', '"furlong"'), "unit 'furlong'; allowed: bits per byte, nats"),
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
    """Python's own, archlab, and what is installed: only its name is that of a file there."""
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
    for changed, message in {
        "2 * site": "mlp plug-in squared: `parameters` says 4,608 learned numbers, and its module has 3,072",
        "role": "mlp plug-in squared: up.weight has neither a constant nor a role .*; allowed: archlab.Projection",
        "module": "mlp plug-in squared: made a int; allowed: a torch.nn.Module",
    }.items():
        text = {
            "2 * site": SQUARED_TEXT.replace("2 * site", "3 * site"),
            "role": SQUARED_TEXT.replace("archlab.Projection", "nn.Linear").replace(', role="input"', "").replace(', role="output"', ""),
            "module": SQUARED_TEXT.replace("Options, Squared)", "Options, lambda options, site: 3)"),
        }[changed]  # fmt: skip
        write(text, "squared.py")
        with pytest.raises(UserError, match=message):
            archlab.Decoder(config().model)


def test_what_an_optimiser_must_not_do() -> None:
    for before, after, message in (
        ("Options, Lion)", "Options, lambda groups, options: 3)", "its factory made a int; allowed: a torch.optim"),
        ("(groups, defaults", "([p for g in groups for p in g['params']], defaults", "groups without lr_multiplier"),
        (
            'p.mul_(1 - group["lr"] * group["weight_decay"])',
            'self.state[p]["n"] = 3; p',
            "/n = 3; allowed in its state",
        ),
    ):
        write(FILES["lion.py"].replace(before, after), "lion.py")
        with pytest.raises(UserError, match=message):
            train(config(), f"run-{message[:3]}".replace("/", "_"), Callback())


def test_an_error_in_one_is_told_by_its_line() -> None:
    write(SQUARED_TEXT.replace("F.relu(self.up(x))", "F.relu(self.up(x) @ x)"), "squared.py")
    with pytest.raises(RuntimeError) as caught:
        archlab.Decoder(config().model)(torch.arange(5)[None])
    line = next(n for n, text in enumerate(Path("squared.py").read_text().splitlines(), 1) if "@ x" in text)
    assert re.match(rf"plug-in \S+squared\.py, line {line}: RuntimeError: ", user_message(caught.value) or "")
    assert user_message(RuntimeError("of ours")) is None


def test_an_outcome_that_gives_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Local, "run_all", tiny.run_here)
    found = run(the_study(**{"guesses.py": FILES["guesses.py"].replace(".item()", ".item() + float('nan')")}))
    assert set(found.failed.values()) == {"outcome guesses: its function gave nan; allowed: a finite number, or None"}
    none = run(the_study(**{"guesses.py": FILES["guesses.py"].replace("return (guessed", "return None and (guessed")}))
    assert none.failed == {}
    assert all(arm.values == {} for arm in none.by("guessed").arms)


def test_what_cannot_have_a_plugin_refuses_it_by_name() -> None:
    model = archlab.Decoder(config().model)
    with pytest.raises(UserError, match=r"model\.mlp\.name +squared; allowed in a flattened file: no plug-in"):
        flatten(model.config, "own")
    with pytest.raises(UserError, match=r"model\.mlp\.name +squared; allowed in a published format: no plug-in"):
        archlab.save_pretrained(model, "out")
    model.config.mlp.share(1)
    with pytest.raises(UserError, match=r"tensor=2: model\.mlp is the plug-in squared, which cannot be cut"):
        model.config.mlp.share(2)
    assert not Path("out").exists()


def test_an_arm_that_cannot_be_adjusted() -> None:
    the_study()
    text = Path("study.yaml").read_text() + "equal: {parameters: 1%}\n"
    write(text, "study.yaml")
    with pytest.raises(UserError, match=r"arms\.mine .* and it has no model\.mlp\.d_ff to adjust"):
        Study("study", read_study("study.yaml")[1], Path("other"))


def test_the_files_of_a_study_are_its_own() -> None:
    the_study()
    text = Path("study.yaml").read_text().replace("set: {", "set: {plugins: [], ")
    write(text, "study.yaml")
    with pytest.raises(UserError, match=r"set\.plugins +is decided by the study's plugins, for all arms"):
        Study("study", read_study("study.yaml")[1], Path("other"))


@pytest.mark.parametrize("code", ["raise SystemExit(0)", "import sys\nsys.exit()"])
def test_a_plug_in_that_ends_python_is_told(code: str) -> None:
    """A script that was never meant to be imported: the training would end with exit code 0, and nothing trained."""
    write(code, "script.py")
    with pytest.raises(UserError, match=r"plugins: .*script\.py: ends Python when it is imported; put the lines"):
        config("plugins=[script.py]")


def test_files_of_plug_ins_that_lead_nowhere(tmp_path: Path) -> None:
    Path("loop.py").symlink_to("loop.py")
    with pytest.raises(UserError, match=r"plugins: .*loop\.py: no such file"):
        config("plugins=[loop.py]")
    with pytest.raises(UserError, match="no user 'nobody-of-that-name'"):
        config("plugins=[~nobody-of-that-name/x.py]")
