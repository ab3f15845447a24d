"""The command line: its imports, its output and its errors."""

import io
import json
import platform
import re
import signal
import subprocess
import sys
from importlib import import_module

import pytest
import torch

import archlab
from archlab.cli import app
from archlab.config.core.yaml_text import to_yaml
from archlab.console import print_exact, visible_stdout
from archlab.data.corpus import Corpus
from archlab.errors import UserError
from archlab.interrupt import run_in_thread
from archlab.study.study_file import read_study
from archlab.ui.configs import Variant


def run_python(code, **kwargs):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, **kwargs)


@pytest.mark.slow
def test_torch_stays_out(tmp_path):
    """All run in one process, one after the other. The first one that loads torch is named."""
    sizes = {
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "max_position_embeddings": 64,
    }
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"model_type": "llama", "vocab_size": 300, **sizes}))
    codes = [
        "import archlab; dir(archlab)",
        "archlab.cost(archlab.load_config('tiny-llama')); archlab.load_study",
        "from archlab.cli.app import main; main(['--help'])",
        "main(['--version'])",
        "main(['__complete', 'show', 'tiny-llama', 'model.norm.kind='])",
        "main(['cost', 'tiny-llama'])",
        "main(['hardware', 'h100x8'])",
        "main(['list', 'presets', '--sort', '-size'])",
        "main(['check', 'palm-540b'])",
        "main(['size', '--params', '1B'])",
        "main(['list', 'families'])",
        "main(['cots'])",
        f"assert main(['cost', {str(file)!r}]) == 0",
    ]
    done = run_python(f"import sys\nfor code in {codes}:\n    exec(code)\n    assert 'torch' not in sys.modules, code")
    assert done.returncode == 0, done.stderr


def test_the_package_offers_what_it_says():
    assert {"load_config", "Decoder", "generate"} <= set(archlab.__all__) <= set(dir(archlab))
    assert archlab.Decoder.__name__ == "Decoder"
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = archlab.nothing


@pytest.mark.parametrize(("verb", "target", "summary"), app.VERBS)
def test_every_verb_exists_and_has_help(verb, target, summary, capsys):
    module, name = target.split(":")
    assert getattr(import_module(f"archlab.cli.{module}"), name)
    assert app.main([verb, "--help"]) == 0
    assert summary.split()[0] in capsys.readouterr().out


def test_version(capsys):
    assert app.main(["--version"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == [f"archlab {archlab.__version__}", f"torch   {torch.__version__}"]
    assert lines[2].startswith(f"Python  {platform.python_version()} ")
    assert lines[3].startswith(f"machine {platform.system()}")
    assert len(lines) == 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["cots", "gpt-2"], "unknown command 'cots'; did you mean cost? allowed: "),
        (["show", "gpt2x"], "did you mean"),
        (["show", "tiny-llama", "model.norm.knd=x"], "model.norm.knd  unknown; did you mean kind?"),
        (["cost", "gpt-2", "--context", "4096"], "learned positions end"),
        (["show", "x" * 300], "File name too long"),
    ],
)
def test_user_errors_end_with_2_and_one_message(arguments, message, capsys):
    assert app.main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert "Traceback" not in err


TAKES = {
    "demo": "no arguments", "list": "WHAT", "schema": "KIND", "generate": "FOLDER", "import": "SOURCE",
    "hardware": "NAME", "export": "FOLDER", "inspect": "FOLDER", "study run": "STUDY", "study report": "FOLDER",
    "study list": "no arguments", "study show": "STUDY", "ledger": "CLAIM", "guide": "no arguments",
}  # fmt: skip
"""Arguments of the commands that do not take any number of them."""

NEEDS = {
    "show": "CONFIG", "draw": "CONFIG", "diff": "A", "flatten": "CONFIG", "check": "CONFIG", "cost": "CONFIG", "data": "--out", "train": "CONFIG",
    "eval": "CONFIG", "generate": "FOLDER", "import": "SOURCE", "export": "FOLDER", "inspect": "FOLDER",
    "convert": "MODEL", "study run": "STUDY", "study report": "FOLDER", "study show": "STUDY",
    "bench train": "CONFIG", "bench decode": "CONFIG", "probe": "CONFIG", "guide": "--out", "report": "RUN",
    "lm-eval": "PATH",
}  # fmt: skip
"""First argument that a command needs."""

WRITES = {"demo", "draw", "guide", "size", "data", "train", "import", "export", "convert", "study run", "report"}
"""Commands with --out."""

COMMANDS = sorted({*[verb for verb, *_ in app.VERBS if verb not in ("study", "bench")], *(TAKES.keys() | NEEDS.keys())})


def refusal(capsys, *arguments):
    """Return the single line that answers a wrong command line."""
    assert app.main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    return err.strip()


@pytest.mark.parametrize("command", COMMANDS)
def test_what_every_command_says_of_wrong_arguments(command, capsys):
    words = command.split()
    said = refusal(capsys, *words, "--nowhere=3")
    assert said.startswith(f"--nowhere: unknown option of `archlab {command}`; ")
    assert ("--out" in said) == (command in WRITES)
    if command in NEEDS:
        name = NEEDS[command]
        assert refusal(capsys, *words).startswith(f"{name} is missing; `archlab {command}` needs it: ")
    if command in TAKES:
        needed = [[], ["presets" if command == "list" else "config"]][TAKES[command] != "no arguments"]
        needed += ["--out", "o"] if command in ("import", "export", "guide") else []
        message = f"'more' is one argument too many; `archlab {command}` takes {TAKES[command]}"
        message += "; a text belongs after --prompt" if command == "generate" else ""
        assert refusal(capsys, *words, *needed, "more", "most") == message


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "cost gpt-2 --contxt 3",
            "--contxt: unknown option of `archlab cost`; did you mean --context? allowed: --batch, --c",
        ),
        ("cost gpt-2 -x", "-x: unknown option of `archlab cost`; allowed: --batch, "),
        (
            "cost gpt-2 --train.lr=3",
            "--train.lr: unknown option of `archlab cost`; to change a field, leave out the dashes: train.lr=3",
        ),
        ("train a --ot b", "--ot: unknown option of `archlab train`; did you mean --out?"),
        ("cost gpt-2 --batch 0", "--batch is '0'; allowed: a whole number, at least 1"),
        ("cost gpt-2 --batch -3", "--batch is '-3'; allowed: a whole number, at least 1"),
        ("cost gpt-2 --batch two", "--batch is 'two'; allowed: a whole number, at least 1"),
        ("cost gpt-2 --batch 1.5", "--batch is '1.5'; allowed: a whole number, at least 1"),
        ("cost gpt-2 --batch", "--batch has no value; allowed: a whole number, at least 1"),
        ("cost gpt-2 --batch 1 --batch 2", "--batch occurs twice; allowed: once"),
        ("cost gpt-2 --dtype float3", "--dtype is 'float3'; did you mean float32? allowed: bfloat16, float32"),
        ("cost gpt-2 --json=maybe", "--json is 'maybe'; allowed: the option without a value"),
        ("list preset", "WHAT is 'preset'; did you mean presets? allowed: presets, hardware, families, "),
        ("generate r --top-k 1.5", "--top-k is '1.5'; allowed: a whole number"),
        ("generate r --seed x", "--seed is 'x'; allowed: a whole number"),
        ("generate r --temperature hot", "--temperature is 'hot'; allowed: a number"),
        ("generate r --stop", "--stop has no value; allowed: text"),
        ("data a --out", "--out has no value; allowed: a path"),
        ("train a", "--out is missing; `archlab train` needs it: the run folder"),
        (
            "study rn",
            "unknown command 'rn' of `archlab study`; did you mean run? allowed: run, report, list, new, show. "
            "`archlab study --help` says what they do",
        ),
        ("--version full", "--version takes no arguments; `archlab doctor` shows what is installed"),
    ],
)
def test_wrong_command_lines(line, message, capsys):
    assert refusal(capsys, *line.split()).startswith(message)


def test_numbers_are_written_as_in_a_config(capsys):
    found = [json.loads(output(capsys, "cost", "gpt-2", "--batch", n, "--json")) for n in ("4K", "4000")]
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (KeyboardInterrupt(), 130, "interrupted; to continue, repeat the command: finished work is kept"),
        (UserError("field: wrong"), 2, "field: wrong"),
        (OSError(28, "No space left on device", "/out/file"), 2, "/out/file: No space left on device"),
        (MemoryError(), 2, "too little memory; try a smaller train.micro_batch_tokens, and in a study fewer --workers"),
        (
            RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to"),
            2,
            "too little memory; try a smaller ",
        ),
    ],
)
def test_how_a_verb_may_end(error, code, message, monkeypatch, capsys):
    def raise_it(_):
        raise error

    monkeypatch.setattr(app, "make_app", lambda: raise_it)
    assert app.main([]) == code
    assert capsys.readouterr().err.startswith(message)


def test_a_swallowed_ctrl_c_ends_what_comes_next():
    """This happens if Ctrl-C arrives while a compiled module is imported."""
    script = (
        "import os, signal, sys\n"
        "from archlab.interrupt import install_handler, stop_on_signal\n"
        "install_handler()\n"
        "try:\n    os.kill(os.getpid(), signal.SIGINT)\n"
        "except KeyboardInterrupt:\n    pass\n"
        "with stop_on_signal():\n    print('went on')\n"
    )
    done = run_python(script)
    assert (done.stdout, done.returncode) == ("", -signal.SIGINT)


PRESS = "import atexit, os, signal; from archlab.interrupt import *\n"
PRESS += "press = lambda: os.kill(os.getpid(), signal.SIGINT)\n"


@pytest.mark.parametrize(
    ("script", "code"),
    [
        ("install_handler()\ntry:\n    press()\nfinally:\n    press()", 130),
        ("install_handler()\nwith stop_on_signal() as stop:\n    press()\n    assert stop.requested\n    press()", 130),
        ("install_handler()\nwith stop_on_signal():\n    press()\npress()", 130),
        ("install_handler()\natexit.register(press)\nexit_on_interrupt()", 130),
        ("install_handler()\ntry:\n    press()\nexcept KeyboardInterrupt:\n    atexit.register(press)", 130),
        (
            "install_handler()\nwith stop_on_signal():\n    pass\ntry:\n    press()\nexcept KeyboardInterrupt:\n    pass",
            0,
        ),
        ("with stop_on_signal():\n    press()\ninstall_handler()\nraise_if_interrupted()", 0),
    ],
)
def test_a_second_ctrl_c_ends_at_once_and_without_a_word(script, code):
    """The second one arrives during the clean-up after the first one, or while Python shuts down."""
    done = run_python(PRESS + script)
    assert (done.stdout, done.stderr, done.returncode) == ("", "", code)


def test_a_ctrl_c_is_heard_while_compiled_code_is_at_work():
    script = (
        "import ctypes, threading\n"
        "install_handler()\n"
        "threading.Timer(0.1, press).start()\n"
        "try:\n    run_in_thread(lambda: ctypes.CDLL(None).sleep(60))\n"
        "except KeyboardInterrupt:\n    print('heard')\n"
    )
    done = run_python(PRESS + script, timeout=30)
    assert (done.stdout, done.stderr, done.returncode) == ("heard\n", "", 0)


def test_work_in_a_thread_hands_back_its_result_or_its_error():
    assert run_in_thread(lambda: 3) == 3
    with pytest.raises(UserError, match="no such file"):
        run_in_thread(lambda: list(Corpus(["nowhere"])))


def test_a_bug_is_not_taken_for_a_user_error(monkeypatch):
    monkeypatch.setattr(app, "make_app", lambda: lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        app.main([])


@pytest.mark.parametrize("columns", ["0", "", "1", "abc"])
def test_any_width_of_the_terminal_will_do(columns, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", columns)
    assert "Usage:" in output(capsys, "--help").replace("\n", "")
    assert "embedding" in output(capsys, "cost", "tiny-llama")


@pytest.mark.parametrize("width", [60, 80, 120])
def test_tables_break_no_name(width, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    text = output(capsys, "diff", "tiny-llama", "tiny-transformer")
    assert max(map(len, text.splitlines())) <= width
    for name in ("n_kv_heads", "qkv_bias", "after_qk_norm", "interleaved", "tiny-transformer"):
        assert re.search(rf"(^|[ .]){name}( |$)", text, re.MULTILINE), name


def test_no_name_commands_the_terminal(tmp_path, capsys):
    file = tmp_path / "\x1b[31m\x9b.yaml"
    file.write_text("{model: {nrm: 1}}")
    assert app.main(["cost", str(file)]) == 2
    assert r"\u001b[31m\u009b.yaml" in (err := capsys.readouterr().err)
    assert not re.search("[\x1b\x9b]", err)


def test_nothing_on_stdout_commands_the_terminal(tmp_path, capsys):
    """Names of tensors and files come from other people. They occur in tables, lines, YAML and JSON."""
    file = tmp_path / "\x1b]0;t\x07\x1b[31m.yaml"
    file.write_text("base: tiny-llama")
    for command in (["check", str(file)], ["diff", str(file), "tiny-transformer"], ["cost", str(file), "--json"]):
        assert r"\u001b" in (out := output(capsys, *command))
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f]", out)
    before = sys.stdout
    with visible_stdout():
        print("\x1b[2J", end="")
    assert (sys.stdout, capsys.readouterr().out) == (before, r"\u001b[2J")


def test_no_name_commands_who_reads_a_page_or_a_drawing(tmp_path, capsys):
    file = tmp_path / "<b>\x1b]0;t\x07\u202e.yaml"
    file.write_text("base: tiny-llama")
    for command, page in ((["check", "--html"], "check.html"), (["draw", "--out"], "drawn.svg")):
        output(capsys, command[0], str(file), command[1], str(tmp_path / page))
        text = (tmp_path / page).read_text(encoding="utf-8")
        assert r"&lt;b&gt;\u001b]0;t\u0007\u202e.yaml" in text
        assert not re.search("<b>|[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", text)


def test_a_plug_in_that_ends_python_while_it_is_used_is_reported(tmp_path, capsys, monkeypatch):
    file = str(tmp_path / "own.py")
    scope = {}
    exec(compile("def make(arguments):\n    raise SystemExit(0)", file, "exec"), scope)
    monkeypatch.setattr(app, "make_app", lambda: scope["make"])
    with pytest.raises(SystemExit):  # not a plug-in
        app.main([])
    monkeypatch.setattr("archlab.errors.OWN_CODE", {file})
    assert app.main([]) == 2
    assert f"plug-in {file}, line 2: SystemExit: 0" in capsys.readouterr().err


@pytest.mark.parametrize("in_terminal", [True, False])
def test_a_models_text_is_exact_in_a_pipe_and_visible_in_a_terminal(in_terminal, monkeypatch):
    text = "a\x1b]52;c;ZXZpbA==\x07\r\n\tb\u202e"
    stream = io.StringIO(newline="")
    monkeypatch.setattr(stream, "isatty", lambda: in_terminal)
    monkeypatch.setattr(sys, "stdout", stream)
    with visible_stdout():
        print_exact(text)
    seen = r"a\u001b]52;c;ZXZpbA==\u0007\u000d" + "\n\tb" + r"\u202e"
    assert stream.getvalue() == (seen if in_terminal else text)


def output(capsys, *arguments):
    assert app.main(arguments) == 0
    return capsys.readouterr().out


@pytest.mark.slow
def test_list_shows_presets_and_studies(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    text = output(capsys, "list")
    assert "llama-3-8b" in text
    assert "study" in text
    assert max(map(len, text.splitlines())) <= 80
    assert "study" not in output(capsys, "list", "presets").splitlines()[1]


def test_show_prints_a_config_that_loads_again(capsys, tmp_path):
    (tmp_path / "again.yaml").write_text(output(capsys, "show", "gpt-2", "model.norm.kind=rmsnorm"))
    first = json.loads(output(capsys, "show", "gpt-2", "model.norm.kind=rmsnorm", "--json"))
    assert json.loads(output(capsys, "show", str(tmp_path / "again.yaml"), "--json")) == first
    assert first["model"]["norm"]["kind"] == "rmsnorm"


def test_show_layers(capsys):
    pattern = "model.layers={a: {attention.window: 4}, b: {}, pattern: [a, a, b]}"
    assert "0-1" in output(capsys, "show", "tiny-llama", pattern, "--layers")
    layers = json.loads(output(capsys, "show", "tiny-llama", pattern, "--layers", "--json"))
    assert [layer["kind"] for layer in layers] == ["a", "a", "b"] * 2


def test_diff(capsys):
    assert output(capsys, "diff", "llama-7b", "LLaMA7B") == "no difference\n"
    assert json.loads(output(capsys, "diff", "llama-7b", "llama-2-7b", "--json")) == {
        "model.max_seq_len": [2048, 4096],
        "model.norm.eps": [1e-6, 1e-5],
        "train.eval_seq_len": [2048, 4096],
        "train.seq_len": [2048, 4096],
    }
    assert "model.max_seq_len" in output(capsys, "diff", "llama-7b", "llama-2-7b")
    model_only = json.loads(output(capsys, "diff", "llama-7b", "llama-2-7b", "--model-only", "--json"))
    assert list(model_only) == ["model.max_seq_len", "model.norm.eps"]
    assert output(capsys, "diff", "llama-7b", "llama-7b", "--model-only") == "no difference\n"
    changed = ("llama-7b", "llama-2-7b", "a.model.max_seq_len=4096", "b.model.norm.eps=1e-6", "b.model.n_layers=16")
    assert json.loads(output(capsys, "diff", *changed, "--json")) == {"model.n_layers": [32, 16]}
    assert "'model.n_layers=16': allowed after A and B" in refusal(
        capsys, "diff", "llama-7b", "llama-2-7b", "model.n_layers=16"
    )


def test_a_study_is_printed_as_yaml_that_loads_again(capsys, tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(output(capsys, "study", "show", "ladder-rates", "--yaml"))
    assert "extends" not in file.read_text()
    assert read_study(str(file))[1] == read_study("ladder-rates")[1]


@pytest.mark.slow
def test_a_study_that_may_add_seeds_shows_the_least_and_the_most(capsys, tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("extends: ladder-rates\nseeds: {until: 0.01, at_most: 12}\ntune: {}\n")
    shown = output(capsys, "study", "show", str(file))
    arms = len(read_study(str(file))[1].arms)
    assert f"{arms} arms, 5 to 12 seeds each" in shown
    assert f"in all up to {12 * arms} runs" in shown


def test_a_study_shows_which_text_it_reads_in_lines_that_fit(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("ARCHLAB_CACHE", str(tmp_path / "cache"))
    (tmp_path / "mine.txt").write_text("words of mine\n" * 1000)
    (tmp_path / "mine.yaml").write_text(to_yaml({"extends": "gates", "set": {"data.path": "mine.txt"}}))
    monkeypatch.setattr(
        "archlab.evidence.study_plan.warnings", lambda config: [f"{20 * 'long '} {config.model.d_model}"]
    )
    assert app.main(["study", "show", str(tmp_path / "mine.yaml"), "--scale", "smoke"]) == 0
    shown = capsys.readouterr()
    assert "14 kB in 19 folds; 9 are used for evaluation" in " ".join(shown.out.split())
    assert "mine.txt" in shown.out.replace("\n", "")  # a long path goes on in the next line
    assert "1 shape warning: long long" in shown.err
    assert [line for line in (shown.out + shown.err).splitlines() if len(line) > 80] == []
    (tmp_path / "mine.txt").unlink()
    assert app.main(["study", "show", str(tmp_path / "mine.yaml")]) == 2
    assert "no such file or folder" in " ".join(capsys.readouterr().err.split())


def test_cost(capsys):
    text = output(capsys, "cost", "llama-3-8b")
    assert "8,030,261,248" in text
    assert "128 KiB" in text
    found = json.loads(output(capsys, "cost", "llama-3-8b", "--batch", "2", "--context", "100", "--json"))
    assert found["kv_cache_bytes"] == 2 * 100 * 131_072


@pytest.mark.parametrize("kind", ["config", "study"])
def test_schema(kind, capsys):
    assert json.loads(output(capsys, "schema", kind))["type"] == "object"


@pytest.mark.parametrize(
    ("preset", "overrides", "note"),
    [
        ("llama-3-8b", ["model.mlp.kind=plain"], "model.mlp.d_ff stays 14336, which was set for a gated MLP"),
        ("gpt-2", ["model.mlp={kind: gated, activation: silu}"], "stays 3072, which was set for a plain MLP"),
        ("llama-3-8b", ["model.mlp.kind=plain", "model.mlp.d_ff=null"], ""),
        ("llama-3-8b", ["model.mlp={kind: plain, d_ff: 8}"], ""),
        ("llama-3-8b", ["model.mlp.kind=gated"], ""),
        ("llama-3-8b", ["model.mlp.kind=none"], ""),
        ("llama-3-8b", [], ""),
        ("mixtral-8x7b", ["model.mlp.active=1"], "model.mlp.active=1 with model.mlp.router.normalise=true gives the "),
        ("mixtral-8x7b", ["model.mlp.active=1", "model.mlp.router.normalise=false"], ""),
        ("mixtral-8x7b", [], ""),
    ],
)
@pytest.mark.parametrize("verb", ["show", "cost"])
def test_what_a_valid_config_perhaps_does_not_mean_is_noted(verb, preset, overrides, note, capsys):
    assert app.main([verb, preset, *overrides]) == 0
    said = capsys.readouterr().err
    assert note in said
    assert bool(said) == bool(note)


@pytest.mark.parametrize(
    ("command", "field", "instead"),
    [
        (("eval", "mini-llama", "train.eval_tokens=2K"), "train.eval_tokens", "use --tokens"),
        (("cost", "mini-llama", "tiny-llama", "parallel.shard=2"), "parallel.shard", "use --parallel"),
        (("bench", "decode", "mini-llama", "train.dtype=float32"), "train.dtype", "use --dtype"),
        (("convert", "mini-llama", "train.lr=1", "--out", "x"), "train.lr", "`archlab train` takes it"),
        (("convert", "mini-llama", "parallel.shard=2", "--out", "x"), "parallel.shard", "`archlab train` takes it"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_an_override_is_refused_if_the_command_has_an_option_for_it(command, field, instead, capsys):
    assert app.main(list(command)) == 2
    _, line = capsys.readouterr().err.splitlines()
    assert line.split(maxsplit=1)[0] == field
    assert f"has no effect on this command; {instead}" in line


@pytest.mark.parametrize(
    ("command", "fields"),
    [
        (("cost", "mini-llama", "train={lr: 1, warmup: 0.1}"), "train.lr, train.warmup"),
        (("draw", "mini-llama", "train.lr=1", "--out", "x.svg"), "train.lr"),
        (("flatten", "mini-llama", "train.lr=1", "model.n_layers=2"), "train.lr"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_an_override_without_an_effect_is_noted(command, fields, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert app.main(list(command)) == 0
    assert f"note: no effect on archlab {command[0]}: {fields}\n" in capsys.readouterr().err


def test_a_folder_is_not_written_under_the_name_of_a_gguf_file(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert app.main(["export", "run", "--out", "model.gguf"]) == 2
    assert "--out model.gguf is the name of a GGUF file; add --gguf, or name a folder" in capsys.readouterr().err


def test_an_unknown_field_is_answered_with_what_it_may_mean(capsys):
    assert app.main(["eval", "mini-llama", "train.eval_tokns=2K"]) == 2
    assert "did you mean eval_tokens?" in capsys.readouterr().err


def test_a_page_prints_commands_that_accept_its_fields(capsys):
    """The fields of a page may be those of training, too."""
    variant = Variant("mini-llama", {"train.lr": "1", "model.n_layers": "2", "train.batch_tokens": "2048"})
    assert variant.command("draw") == "archlab draw mini-llama model.n_layers=2"
    assert variant.command("cost") == "archlab cost mini-llama model.n_layers=2 train.batch_tokens=2048"
    assert app.main(variant.command("cost").split()[1:]) == 0
