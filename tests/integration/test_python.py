"""The public functions of archlab in Python."""

import inspect
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from math import inf, nan
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch

import archlab
import archlab.pricing.params as counted
import sample_run
import sample_study
import tiny
from archlab.cli.app import main
from archlab.config.core.yaml_text import to_yaml
from archlab.errors import UserError
from archlab.exchange import configs
from archlab.exchange.configs import Shape
from archlab.study.executors.local import Local
from archlab.study.schema import StudyConfig
from archlab.study.study_file import study_from_values
from archlab.training import train as loop
from archlab.training.run_folder import RunFolder


def test_cost_and_train_are_packages_and_functions_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARCHLAB_CACHE", str(tmp_path / "cache"))
    config = tiny.config(data=tiny.write_text(tmp_path))
    assert archlab.cost(config).parameters == counted.parameters(config.model)
    run = archlab.train(config, out=str(tmp_path / "run"))
    assert run == RunFolder(tmp_path / "run").summary()
    monkeypatch.setattr(loop, "Training", None)
    assert archlab.train(config, tmp_path / "run") == run, "a finished run is only read"


def test_a_study_is_read_as_rows(tmp_path: Path) -> None:
    study = sample_study.diverging_ladder()
    (tmp_path / "study.yaml").touch()
    (tmp_path / "summary.json").write_text(study.model_dump_json())
    rows = archlab.load_study(tmp_path).frame()
    assert [(row["arm"], row["seed"]) for row in rows] == [(arm, s) for arm in sample_study.LADDER for s in (0, 1, 2)]
    rope = [row for row in rows if row["label"] == "RoPE"]
    assert [row["bits_per_byte"] is None for row in rope] == [False, True, False]
    assert rope[0]["bits_per_byte"] == study.arms[4].values[0]
    assert rope[0]["parameters"] == study.arms[4].parameters


def test_no_study_to_read(tmp_path: Path) -> None:
    run = sample_run.begun(tmp_path / "run", steps=1, ended="finished")
    (run / "summary.json").touch()
    with pytest.raises(UserError, match=r"run: not a study folder \(no study\.yaml\); `archlab study run` makes one"):
        archlab.load_study(run)
    (tmp_path / "study.yaml").touch()
    with pytest.raises(UserError, match=r"summary\.json is missing; `archlab study run`"):
        archlab.load_study(tmp_path)
    (tmp_path / "summary.json").write_text('{"name": 1}')
    with pytest.raises(UserError, match="is damaged, or another version of archlab wrote it"):
        archlab.load_study(str(tmp_path))


def values(tmp_path: Path, **changed: Any) -> dict[str, Any]:
    """Return a study of two arms and two seeds whose runs take a second each."""
    (tmp_path / "tiny.yaml").write_text(to_yaml(tiny.config(data=tiny.write_text(tmp_path)).model_dump(mode="json")))
    arms = {"silu": {}, "gelu": {"model.mlp.activation": "gelu"}}
    return {
        "question": "Which?", "base": str(tmp_path / "tiny.yaml"), "budget": {"tokens": 320}, "arms": arms, "seeds": 2,
    } | changed  # fmt: skip


def test_a_study_is_run_and_has_its_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ARCHLAB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(Local, "run_all", tiny.run_here)
    monkeypatch.setattr("archlab.report.study.page.picture", lambda _: b"drawn")
    asked = values(tmp_path)
    summary = archlab.run_study({**asked, "seeds": 3}, tmp_path / "mine", workers=1, seeds=2)
    assert [len(arm.values) for arm in summary.arms] == [2, 2]
    assert capsys.readouterr().out == ""
    assert (summary.name, summary.failed) == ("mine", {})
    assert "Which?" in (tmp_path / "mine" / "report.html").read_text()
    assert (tmp_path / "mine" / "report.png").read_bytes() == b"drawn"
    monkeypatch.setattr(Local, "run_all", None)
    for name in ("write_page", "write_picture"):
        monkeypatch.setattr(f"archlab.report.study.run_study.{name}", lambda *_: None)
    (tmp_path / "same.yaml").write_text(to_yaml(asked))
    again = archlab.run_study(tmp_path / "same.yaml", tmp_path / "mine")
    assert again.arms == summary.arms, "finished runs are only read"
    assert archlab.run_study(StudyConfig.model_validate(asked), tmp_path / "mine").arms == summary.arms
    assert archlab.run_study(str(tmp_path / "mine")).arms == summary.arms, "a study folder goes on where it lies"
    assert "Which?" in asked["question"]
    assert archlab.load_study(tmp_path / "mine").arms == summary.arms


PLAIN = """
import json, sys
import archlab
print("begins")
study = json.loads(sys.argv[1])
summary = archlab.run_study(study, sys.argv[2], workers=1)
print(summary.failed, sorted(summary.others[0].arms))
"""


def test_a_script_without_a_guard_is_run_once(tmp_path: Path) -> None:
    """Runs and timings use processes of their own. multiprocessing would run the script again in each of them."""
    asked = values(tmp_path, measure=["peak_memory"])
    (tmp_path / "plain.py").write_text(PLAIN)
    done = subprocess.run(
        [sys.executable, tmp_path / "plain.py", json.dumps(asked), tmp_path / "out"],
        capture_output=True,
        text=True,
        env={**os.environ, "ARCHLAB_CACHE": str(tmp_path / "cache")},
    )
    assert done.stdout == "begins\n{} ['gelu', 'silu']\n", done.stderr


def test_invalid_studies_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="out: a study without a file needs a folder"):
        archlab.run_study(values(tmp_path))
    with pytest.raises(UserError, match=r"1 problem in the study\n +seeds +1; allowed: at least 2"):
        archlab.run_study(values(tmp_path, seeds=1), tmp_path / "out")
    with pytest.raises(UserError, match="workers: 0; allowed: at least 1"):
        archlab.run_study(values(tmp_path), tmp_path / "out", workers=0)
    with pytest.raises(UserError, match="threads: 0; allowed: at least 1"):
        archlab.run_study(values(tmp_path), tmp_path / "out", threads=0)
    with pytest.raises(UserError, match="scale: 'smoke'; only the name of a study or a study file can have a scale"):
        archlab.run_study(values(tmp_path), tmp_path / "out", scale="smoke")
    assert not (tmp_path / "out").exists()


def test_values_may_extend_a_study(tmp_path: Path) -> None:
    extending = study_from_values({"extends": "ladder", "question": "Which, with more?"})
    assert (extending.question, extending.base) == ("Which, with more?", "tiny-transformer")


FUNCTIONS = {
    **{name: value for name in archlab.__all__ if inspect.isfunction(value := getattr(archlab, name))},
    "compare": archlab.testing.compare,
}
REQUIRED: dict[str, Any] = {
    **dict.fromkeys(("a", "b", "config"), "tiny-llama"),
    **dict.fromkeys(("folder", "folder_or_hub_id", "name", "out", "prompt", "source", "study", "text", "title"), "a"),
    **dict.fromkeys(("factory", "function", "module", "target"), print),
    "better": "lower", "options": archlab.Options, "part": "norm", "texts": [], "tokens_BT": torch.zeros(1, 1), "unit": "rate",
    "widths": [32, 64],
}  # fmt: skip
"""A value of the right type for each argument without a default."""


@pytest.mark.parametrize("name", FUNCTIONS)
def test_an_argument_of_the_wrong_type_is_one_message_that_names_it(name: str) -> None:
    parameters = inspect.signature(FUNCTIONS[name]).parameters
    model = tiny.config().model
    required = {**REQUIRED, "model": model if name == "flatten_model" else archlab.Decoder(model), "like": "llama-3"}
    if name in ("register_mixer", "register_mlp"):
        required["options"] = archlab.MLP
    for wrong, parameter in parameters.items():
        before = {parameter.POSITIONAL_ONLY, parameter.VAR_POSITIONAL}
        if parameter.kind is parameter.VAR_POSITIONAL:
            before.add(parameter.POSITIONAL_OR_KEYWORD)
        values = {
            each: object() if each == wrong else required[each]
            for each, other in parameters.items()
            if each == wrong
            or (other.kind is not other.VAR_POSITIONAL and (other.default is other.empty or each == "like"))
        }
        first = [values.pop(each) for each, other in parameters.items() if each in values and other.kind in before]
        with pytest.raises(UserError, match=rf"^{wrong}: a value of class object; allowed: \w"):
            FUNCTIONS[name](*first, **values)


PROMPT = torch.zeros(1, 2, dtype=torch.int64)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda c: archlab.cost(c, batch="2"), "batch: '2'; allowed: an integer or None"),
        (lambda c: archlab.cost(c, batch=True), "batch: True; allowed: an integer or None"),
        (lambda c: archlab.cost(c, batch=0), "batch: 0; allowed: 1 or more"),
        (lambda c: archlab.cost(c, context=-1), "context: -1; allowed: 1 or more"),
        (lambda c: archlab.cost(c, dtype="fp8"), "dtype: 'fp8'; allowed: bfloat16, float32"),
        (lambda c: archlab.cost(c, 5), "more: 5; allowed: a config of archlab.load_config, a text or a path"),
        (lambda c: archlab.cost(c, bacth=2), "archlab.cost: got an unexpected keyword argument 'bacth'; allowed: config,"),
        (lambda c: archlab.cost(c, hardware="h100", devices=2, price=0), "price: 0; allowed: a finite number above 0"),
        (lambda c: archlab.cost(c, hardware="h100", devices=2, price=inf), "price: inf; allowed: a finite number"),
        (lambda c: archlab.cost(c, devices=2), "devices needs hardware; `archlab list hardware` shows all devices"),
        (lambda c: archlab.cost(c, names="ab"), "names: 'ab'; allowed: a list (each item: a text)"),
        (lambda c: archlab.cost(c, c, names=["a", "a"]), "names: ['a', 'a']; allowed: 2 different names"),
        (lambda _: archlab.evaluate("tiny-llama", tokens=0), "tokens: 0; allowed: 1 or more"),
        (lambda c: archlab.check(c, tensor="x"), "tensor: 'x'; allowed: an integer or None"),
        (lambda c: archlab.check(c, tensor=0), "tensor: 0; allowed: 1 or more"),
        (lambda c: archlab.draw(c, unfold="mlp"), "unfold: 'mlp'; allowed: a list (each item: a text)"),
        (lambda c: archlab.draw("tiny-lama"), "unknown config 'tiny-lama': neither a preset, a file nor a hub id"),
        (lambda _: archlab.draw("tiny-llama", "model.n_layers=3"), "archlab.draw: too many positional arguments; allowed: config, title, unfold, remark; archlab.load_config takes overrides"),
        (lambda _: archlab.flatten_model("tiny-llama", "model.n_layers=3"), "archlab.flatten_model: too many positional"),
        (lambda _: archlab.cost("tiny-llama", "model.n_layers=3"), "unknown config 'model.n_layers=3': neither a preset, a file nor a hub id (owner/name); archlab.load_config takes overrides"),
        (lambda c: archlab.profile(c, "train.lr=1"), "steps: 'train.lr=1'; allowed: an integer; archlab.load_config takes overrides"),
        (lambda c: archlab.draw(c, unfold=b"x"), "unfold: a value of class bytes; allowed: a list (each item: a text)"),
        (lambda c: archlab.cost(c, dtype=np.zeros(2)), "dtype: a value of class ndarray; allowed: bfloat16, float32"),
        (lambda _: archlab.ledger("gate"), "unknown claim 'gate'; did you mean gates?"),
        (lambda _: archlab.ledger(99), "unknown claim '99'; expected a number from 1 to"),
        (lambda c: archlab.draw(c, unfold=["mpl"]), "unfold: 'mpl'; did you mean mlp?"),
        (lambda c: archlab.beam_search(archlab.Decoder(c.model), PROMPT, alpha=nan), "alpha, the exponent of the length"),
        (lambda c: archlab.coordinate_check(c, [32, 32]), "widths: 32, 32; allowed: two or more different widths"),
        (lambda c: archlab.train(c, "a", print), "callback: a value of class builtin_function_or_method; allowed: an ins"),
        (lambda c: archlab.draw(c).save(3), "path: 3; allowed: a text or a path"),
        (lambda _: archlab.Decoder(), "archlab.Decoder: missing a required argument: 'config'; allowed: config, seed,"),
        (lambda _: archlab.Session("a", PROMPT, 8), "model: 'a'; allowed: a model of archlab.from_pretrained"),
        (lambda c: archlab.Session(archlab.Decoder(c.model), PROMPT, "x"), "capacity: 'x'; allowed: an integer"),
        (lambda _: archlab.explain(5), "word: 5; allowed: a text"),
        (lambda _: archlab.propose(params="1X"), "params: '1X'; allowed: a positive integer, or its text, as in 1B"),
        (lambda _: archlab.propose(flops=0), "flops: 0; allowed: a positive integer, or its text, as in 4e21"),
        (lambda c: archlab.train(c), "archlab.train: missing a required argument: 'out'; allowed: config, out,"),
        (lambda c: archlab.generate(archlab.Decoder(c.model), ["a"]), "prompt: ['a']; allowed: a tensor or a text"),
        (lambda _: archlab.load_config({"model": {}}), "source: {'model': {}}; allowed: a text or a path"),
    ],
)  # fmt: skip
def test_a_wrong_argument_is_one_message(call: Callable[[Any], object], message: str) -> None:
    with pytest.raises(UserError) as raised:
        call(tiny.config())
    assert str(raised.value).startswith(message)


@pytest.mark.parametrize("out", ["", "."])
def test_the_current_folder_is_never_replaced(out: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = archlab.Decoder(tiny.config().model)
    archlab.save_pretrained(model, tmp_path / "a")
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    with pytest.raises(UserError, match=r"^\.: already exists; name a new or an empty folder"):
        archlab.save_pretrained(model, out)
    with pytest.raises(UserError, match=r"^\.: already exists; name a new or an empty folder"):
        archlab.convert(tmp_path / "a", {"model.attention.n_kv_heads": 1}, out=out)


def test_numbers_and_bools_of_numpy_are_plain_and_a_compiled_model_is_a_model() -> None:
    assert archlab.cost("gpt-2", batch=np.int64(2)) == archlab.cost("gpt-2", batch=2)  # pyright: ignore[reportArgumentType]
    assert archlab.evaluate("tiny-llama", tokens=256, int8=np.True_) == archlab.evaluate(  # pyright: ignore[reportArgumentType]
        "tiny-llama", tokens=256, int8=True
    )
    model = archlab.Decoder(tiny.config().model)
    assert archlab.generate(torch.compile(model, backend="eager"), torch.zeros(1, 2, dtype=torch.long), 1).shape == (
        1,
        3,
    )


PYTHON = {
    "train.lr": np.float32(2**-9), "train.tokens": np.int64(81920), "model.norm": MappingProxyType({"eps": np.float64(1e-4)}),
    "model.head.tied": np.bool_(False), "data.path": Path("a.txt"), "train.dtype": torch.bfloat16,
}  # fmt: skip
YAML = {
    "train.lr": 2**-9, "train.tokens": 81920, "model.norm": {"eps": 1e-4}, "model.head.tied": False,
    "data.path": "a.txt", "train.dtype": "bfloat16",
}  # fmt: skip


def test_values_of_other_libraries_are_values_of_a_config_and_of_a_study(tmp_path: Path) -> None:
    config = archlab.load_config("tiny-llama", PYTHON)
    assert config == archlab.load_config("tiny-llama", YAML)
    assert (config.train.lr, config.train.dtype) == (2**-9, "bfloat16")
    asked = values(tmp_path)
    given = {**asked, "budget": {"tokens": np.int64(320)}, "seeds": np.int64(2), "base": tmp_path / "tiny.yaml"}
    assert archlab.plan_study(MappingProxyType(given)).config == archlab.plan_study(asked).config


def test_a_value_that_no_config_can_have_names_its_field(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^train\.betas\.1: is a value of class ndarray; allowed: a text, a number"):
        archlab.load_config("tiny-llama", {"train": {"betas": (0.9, np.zeros(2))}})
    with pytest.raises(UserError, match=r"^arms\.silu\.train\.lr: is a value of class object; allowed:"):
        archlab.plan_study(values(tmp_path, arms={"silu": {"train.lr": object()}}))
    endless: dict[str, Any] = {}
    endless["model"] = endless
    with pytest.raises(UserError, match="nested more than 100 deep"):
        archlab.load_config("tiny-llama", endless)


def test_a_public_function_can_be_pickled() -> None:
    assert pickle.loads(pickle.dumps(archlab.cost)) is archlab.cost


def test_a_size_may_be_a_text_as_on_the_command_line() -> None:
    assert archlab.propose(params="1B").config == archlab.propose(params=10**9).config
    small, large = archlab.propose(memory="16GiB", hardware="h100"), archlab.propose(memory="1TiB", hardware="h100")
    assert small.config == archlab.propose(memory=16 * 2**30).config
    assert large.config == archlab.propose(memory=archlab.load_hardware("h100").memory).config


def test_a_drawing_without_a_title_is_of_a_config() -> None:
    assert 'aria-label="Block diagram of a config"' in archlab.draw(tiny.config()).svg


def test_a_callback_receives_each_step_and_another_text_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Steps(archlab.Callback):
        def on_step(self, metrics: Any) -> None:
            steps.append(metrics.step)

    steps: list[int] = []
    monkeypatch.setenv("ARCHLAB_CACHE", str(tmp_path / "cache"))
    config = tiny.config(data=tiny.write_text(tmp_path))
    with pytest.raises(UserError, match=r"^corpus: 'abc', but the fingerprint of .+ is '\w+'"):
        archlab.train(config, tmp_path / "run", corpus="abc")
    run = archlab.train(config, tmp_path / "run", Steps())
    assert steps == [*range(1, run.steps + 1)]


def test_a_config_may_be_given_by_its_name(tmp_path: Path) -> None:
    config = archlab.load_config("gpt-2")
    (tmp_path / "mine.yaml").write_text("base: gpt-2\n")
    for source in ("gpt-2", tmp_path / "mine.yaml", str(tmp_path / "mine.yaml")):
        assert archlab.cost(source) == archlab.cost(config)
        assert archlab.check(source).data == archlab.check(config).data
        assert archlab.draw(source, title="it").svg == archlab.draw(config, title="it").svg
        assert archlab.diff(source, config) == {}
        assert archlab.flatten_model(source, title="it") == archlab.flatten_model(config.model, title="it")
    assert [*archlab.cost("gpt-2", config, tmp_path / "mine.yaml").by_name] == [
        "gpt-2",
        "config 2",
        f"{tmp_path}/mine.yaml",
    ]
    with pytest.raises(UserError, match=r"names: .* allowed: 2 different names, one for each config"):
        archlab.cost("gpt-2", "gpt-2")
    assert archlab.draw("gpt-2").title == "gpt-2"
    assert archlab.diff("gpt-2", config).names == ("gpt-2", "b")


def test_a_part_of_a_model_that_cannot_be_built_is_reviewed_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = Shape(archlab.load_config("gpt-2"), "only its decoder", [])
    monkeypatch.setattr(configs, "load_shape", lambda name: {"huge": shape}[name])
    assert str(archlab.check("huge")).startswith("only its decoder\n")
    assert "only its decoder" in archlab.check("huge")._repr_html_()
    assert "only its decoder" in archlab.draw("huge").svg


@pytest.mark.parametrize(
    ("options", "command"),
    [
        ({"hardware": "h100"}, "--hardware h100"),
        ({"hardware": "h100x8", "parallel": "shard=8", "price": 2.0}, "--hardware h100x8 --parallel shard=8 --price 2"),
        ({"hardware": "h100", "devices": 4}, "--hardware h100 --devices 4"),
    ],
)
def test_costs_on_a_device_are_the_data_of_the_command(
    options: dict[str, Any], command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = archlab.cost("llama-3-8b", **options)
    assert main(["cost", "llama-3-8b", *command.split(), "--json"]) == 0
    assert json.loads(json.dumps(answer.data)) == json.loads(capsys.readouterr().out)
    device = archlab.load_hardware(options["hardware"])
    assert archlab.cost("llama-3-8b", **{**options, "hardware": device}).data == answer.data


def test_presets_are_a_sequence():
    presets = archlab.list_presets("family=llama")
    assert [presets[i] for i in range(len(presets))] == list(presets)
