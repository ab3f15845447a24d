"""Trust: code named by the user runs; code named by a folder from elsewhere does not."""

import os
import pickle
import py_compile
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest

import archlab
import tiny
from archlab.cli.app import main
from archlab.config.core import trust
from archlab.config.core.yaml_text import to_yaml
from archlab.errors import UserError
from archlab.study.design import arms
from archlab.study.study_file import read_study, study_from_values
from archlab.training.callback import Callback
from archlab.training.train import train
from plugin_state import as_a_new_process

pytestmark = pytest.mark.usefixtures("new_process")
OWN = """
import archlab, pathlib, torch
pathlib.Path({ran!r}).touch()
archlab.register_optimizer("own", archlab.Options, lambda groups, options: torch.optim.SGD(groups))
"""
"""A plug-in that creates a file when it is imported."""


@pytest.fixture
def ran(tmp_path: Path) -> Path:
    """Return the path of the file that the plug-in creates."""
    return tmp_path / "RAN"


@pytest.fixture
def folder(tmp_path: Path, ran: Path) -> Path:
    """Return a folder from elsewhere with a config that names the plug-in next to it."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "own.py").write_text(OWN.format(ran=str(ran)))
    (folder / "config.yaml").write_text("base: tiny-llama\nplugins: [own.py]\n")
    return folder


def study(**values: object) -> str:
    return to_yaml({"question": "Which?", "base": "tiny-llama", "budget": {"tokens": "1M"}, "arms": {"a": {}}} | values)


@pytest.mark.parametrize(
    "command",
    ["inspect", "generate", "cost", "show", "show --layers", "check", "eval", "flatten", "draw", "report", "probe",
     "train", "profile", "diff tiny-llama", "bench train"],
)  # fmt: skip
def test_no_command_runs_the_code_of_a_folder(
    command: str, folder: Path, ran: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    verb, *rest = command.split()
    words = ["train", str(folder)] if command == "bench train" else [str(folder), *rest]
    words += ["--out", "x.svg"] if verb in ("draw", "train") else []
    assert main([verb, *words]) == 2
    assert not ran.exists()
    said = "".join(capsys.readouterr())
    code = f"{folder / 'own.py'}: a folder's config names this code, but archlab on this machine did not"
    assert f"{folder}: has no weights from which to begin" in said if verb == "train" else f"plugins: {code}" in said


def test_trust_lets_it_run_for_this_command(folder: Path, ran: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["show", str(folder), "--trust"]) == 0
    assert ran.exists()
    assert "ARCHLAB_TRUST" not in os.environ
    as_a_new_process()
    with pytest.raises(UserError, match="add --trust"):
        archlab.load_config(folder)
    monkeypatch.setenv("ARCHLAB_TRUST", "1")
    assert archlab.load_config(folder).plugins == (str(folder / "own.py"),)


@pytest.mark.parametrize(
    "words", ["--trust show {}", "show --trust {}", "show {} --layers --trust", "diff tiny-llama --trust {}",
              "bench --trust train {} --help --trust", "draw {} --out x.svg --trust"],
)  # fmt: skip
def test_trust_may_stand_anywhere(words: str, folder: Path, ran: Path) -> None:
    assert main([word.format(folder) for word in words.split()]) == 0
    assert ran.exists() or "--help" in words


@pytest.mark.parametrize("words", ["generate {} --prompt --trust", "generate {} --stop --trust", "show {} -- --trust"])
def test_trust_as_a_value_does_not_count_as_the_option(
    words: str, folder: Path, ran: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([word.format(folder) for word in words.split()]) == 2
    assert not ran.exists()
    assert "a folder's config names this code" in capsys.readouterr().err


@pytest.mark.parametrize("words", [[], ["show"], ["study", "run"], ["generate"]])
def test_every_help_names_trust(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*words, "--help"]) == 0
    assert capsys.readouterr().out.count("--trust") == 1


def test_the_user_names_files(folder: Path, ran: Path) -> None:
    for source, overrides in ((folder / "config.yaml", []), ("tiny-llama", [f"plugins=[{folder / 'own.py'}]"])):
        as_a_new_process()
        ran.unlink(missing_ok=True)
        archlab.load_config(source, *overrides)
        assert ran.exists()


@pytest.mark.parametrize("base", ["elsewhere", "elsewhere/config.yaml"])
def test_a_base_is_named_by_whoever_names_the_file_above_it(base: str, folder: Path, ran: Path) -> None:
    """The user's file may name another file as its base. A folder is untrusted wherever it is named."""
    Path("mine.yaml").write_text(f"base: {base}\n")
    if base == "elsewhere":
        with pytest.raises(UserError, match=r"own\.py: a folder's config names"):
            archlab.load_config("mine.yaml")
    else:
        archlab.load_config("mine.yaml")
    assert ran.exists() is (base != "elsewhere")


@pytest.mark.parametrize("base", ["deeper.yaml", "../deeper.yaml"])
def test_a_folder_cannot_pass_trust_on(base: str, folder: Path, ran: Path) -> None:
    (folder / base).write_text(f"base: tiny-llama\nplugins: [{folder / 'own.py'}]\n")
    (folder / "config.yaml").write_text(f"base: {base}\n")
    with pytest.raises(UserError, match=r"own\.py: a folder's config names"):
        archlab.load_config(folder)
    assert not ran.exists()


@pytest.mark.parametrize(
    "values",
    [
        {"plugins": ["own.py"]},
        {"base": "config.yaml"},
        {"base": "sub/base.yaml"},
        {"set": {"plugins": ["own.py"]}},
        {"arms": {"a": {"plugins": ["own.py"]}, "b": {}}},
        {"extends": "sub/other.yaml"},
        {"scales": {"small": {"plugins": ["own.py"]}}},
        {"scales": {"small": {"base": "sub/base.yaml"}}},
    ],
)
def test_neither_does_a_study_folder(
    values: dict[str, object], folder: Path, ran: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "sub").mkdir()
    own = folder / "own.py"
    (folder / "sub" / "base.yaml").write_text(f"base: tiny-llama\nplugins: [{own}]\n")
    (folder / "sub" / "other.yaml").write_text(study(plugins=[str(own)]))
    (folder / "study.yaml").write_text(study(**values))
    named = "set" in values or "arms" in values
    if named:  # such a file name is looked up in the working directory
        Path("own.py").write_text(own.read_text())
    scale = ["--scale", "small"] if "scales" in values else []
    for verb in ("run", "show"):
        assert main(["study", verb, str(folder), *scale]) == 2
        assert not ran.exists()
        assert "own.py: a folder's config names this code" in capsys.readouterr().err
    as_a_new_process()
    if not named:
        arms(read_study(str(folder / "study.yaml"), "small" if scale else None)[1])
        assert ran.exists(), "a YAML file given by its path"


def test_a_study_of_python_names_its_plugins(folder: Path, ran: Path) -> None:
    study_from_values({"question": "Which?", "base": "tiny-llama", "budget": {"tokens": "1M"}, "arms": {"a": {}},
                       "plugins": [str(folder / "own.py")]})  # fmt: skip
    assert ran.exists()


def test_a_hugging_face_folder_is_one_whatever_lies_in_it(tmp_path: Path, folder: Path, ran: Path) -> None:
    """A config.yaml next to config.json belongs to another tool, because archlab never writes both."""
    archlab.save_pretrained(archlab.Decoder(tiny.config().model), tmp_path / "hf")
    for name in ("config.yaml", "own.py"):
        (tmp_path / "hf" / name).write_text((folder / name).read_text())
    assert archlab.load_config(tmp_path / "hf").model.d_model == tiny.config().model.d_model
    for verb in ("inspect", "cost", "show"):
        assert main([verb, str(tmp_path / "hf")]) == 0
    archlab.from_pretrained(tmp_path / "hf")
    assert not ran.exists()


def own_run(ran: Path) -> Path:
    """Return a run that was trained on this machine with a plug-in."""
    Path("own.py").write_text(OWN.format(ran=str(ran)))
    given = tiny.config(data=tiny.write_text(Path()).resolve()).model_dump(mode="json")
    given["train"] |= {"optimizer": {"kind": "plugin", "name": "own"}}
    del given["train"]["betas"], given["train"]["eps"]
    Path("mine.yaml").write_text(to_yaml(given | {"plugins": ["own.py"]}))
    train(archlab.load_config("mine.yaml"), "run", Callback())
    ran.unlink()
    as_a_new_process()
    return Path("run")


def test_ones_own_run_goes_on_without_asking(ran: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run = own_run(ran)
    archlab.from_pretrained(run)
    assert ran.exists()
    as_a_new_process()
    monkeypatch.setenv("ARCHLAB_STATE", str(tmp_path / "another machine"))
    with pytest.raises(UserError, match=r"run/plugin0-own\.py: a folder's config names this code"):
        archlab.from_pretrained(run)


def test_a_changed_copy_is_another_file(ran: Path) -> None:
    """digests.json detects damage, but somebody could change it, too."""
    run = own_run(ran)
    with (run / "plugin0-own.py").open("a") as file:
        file.write("# The same, but for a comment.\n")
    (run / "digests.json").unlink()
    with pytest.raises(UserError, match=r"plugin0-own\.py: a folder's config names"):
        archlab.from_pretrained(run)
    assert not ran.exists()


def test_a_worker_on_another_machine_trusts_what_it_is_sent(
    ran: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The config comes from a process that has checked it, and the folder of the run holds the same code."""
    own_run(ran)
    sent = pickle.dumps(archlab.load_config("mine.yaml"))
    as_a_new_process()
    monkeypatch.setenv("ARCHLAB_STATE", str(tmp_path / "another machine"))
    assert train(pickle.loads(sent), "run", Callback()).steps > 0
    assert ran.exists()


def test_compiled_code_beside_a_file_never_runs(ran: Path) -> None:
    """Python itself uses an unchecked .pyc from `__pycache__`, whatever the source says."""
    run = own_run(ran)
    evil = run / "plugin0-own.py.evil"
    evil.write_text(OWN.format(ran=str(ran) + "-evil"))
    cached = run / "__pycache__" / f"plugin0-own.{sys.implementation.cache_tag}.pyc"
    py_compile.compile(str(evil), str(cached), invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
    archlab.from_pretrained(run)
    assert ran.exists()
    assert not Path(f"{ran}-evil").exists()


def test_a_list_that_cannot_be_written_stops_no_training(ran: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("state").write_text("no folder")
    assert own_run(ran)


@pytest.mark.parametrize("listed", [False, True])
@pytest.mark.parametrize("on_path", [".", "lib"])
def test_a_module_that_a_folder_names(
    on_path: str, listed: bool, folder: Path, ran: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not matter where Python finds the module, because the user did not choose it."""
    Path("lib").mkdir()
    (Path(on_path) / "own_module.py").write_text((folder / "own.py").read_text())
    (folder / "config.yaml").write_text("base: tiny-llama\nplugins: [own_module]\n")
    monkeypatch.syspath_prepend(on_path)
    monkeypatch.delitem(sys.modules, "own_module", raising=False)
    if listed:
        trust.remember(["own_module"])
    with (
        nullcontext()
        if listed
        else pytest.raises(UserError, match=r"plugins: own_module \(in \S+\): a folder's config names")
    ):
        archlab.load_config(folder)
    assert ran.exists() is listed
    archlab.load_config("tiny-llama", "plugins=[own_module]")
    assert ran.exists(), "named by the user"


def test_a_module_of_python_that_runs_the_working_folder(folder: Path, ran: Path) -> None:
    """`unittest.__main__` imports the tests in the working directory."""
    (folder / "__init__.py").write_text((folder / "own.py").read_text())
    (folder / "config.yaml").write_text("base: tiny-llama\nplugins: [unittest.__main__]\n")
    with pytest.raises(UserError, match=r"plugins: unittest\.__main__ \(in \S+\): a folder's config names"):
        archlab.load_config(folder)
    assert not ran.exists()
    (folder / "config.yaml").write_text("base: tiny-llama\nplugins: [no_such_module_at_all]\n")
    with pytest.raises(UserError, match="plugins: no module 'no_such_module_at_all'"):
        archlab.load_config(folder)


def test_a_package_without_init_in_the_current_folder_is_refused(
    folder: Path, ran: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend("")
    (folder / "config.yaml").write_text("base: tiny-llama\nplugins: [elsewhere.own]\n")
    with pytest.raises(UserError, match=r"plugins: elsewhere\.own \(in"):
        archlab.load_config(folder)
    assert not ran.exists()
