"""Plug-ins whose code returns something other than archlab needs: one message with file and class, and exit code 2."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import archlab
from archlab.cli.app import main
from archlab.config.core import trust
from archlab.config.core.plugins import resolve_and_import
from archlab.config.core.registry import kinds, make
from archlab.errors import UserError, user_message
from archlab.study.outcomes.schema import Outcome
from archlab.study.outcomes.value import check_value
from archlab.training.callback import Callback
from archlab.training.train import train
from plugin_files import FILES, POSITIONS, write, written
from plugin_state import as_a_new_process

pytestmark = pytest.mark.usefixtures("new_process")

BREACHES = {
    # values that the code computes
    "norm: None": ("power_norm.py", "return (wide /", "(wide /", "PowerNormModule.forward returned None; allowed: a float32 tensor [1, 8, 32]"),
    "norm: shape": ("power_norm.py", ".to(x.dtype)", ".mean(-1)", "PowerNormModule.forward returned a float32 tensor [1, 8]; allowed: a float32 tensor [1, 8, 32]"),
    "norm: dtype": ("power_norm.py", ".to(x.dtype)", ".double()", "PowerNormModule.forward returned a float64 tensor [1, 8, 32]; allowed: a float32"),
    "norm: arguments": ("power_norm.py", "forward(self, x)", "forward(self, x, y)", "missing a required argument: 'y'; allowed: (x)"),
    "norm: constructor": ("power_norm.py", "config, shape", "config", "takes 2 positional arguments but 3 were given"),
    "activation: None": ("mish.py", "return F", "F", "Function.forward returned None; allowed: a float32 tensor"),
    "activation: shape": ("mish.py", "F.mish(x)", "x[..., :1]", "Function.forward returned a float32 tensor"),
    "activation: arguments": ("mish.py", "mish(x)", "mish(x, y)", "missing a required argument: 'y'; allowed: (x)"),
    "position: None": ("bell.py", "return -", "-", "BellBias.forward returned None; allowed: a floating-point tensor [1, 4, 8, 8]"),
    "position: shape": ("bell.py", ".square()", ".square().mean(-1)", "BellBias.forward returned a float32 tensor [4, 1, 8]; allowed: a floating-point tensor [1, 4, 8, 8]; any axis"),
    "position: number": ("bell.py", "return n_heads", "return str(n_heads) + ' heads'", "Bell.of_a_layer returned '4 heads'; allowed: int"),
    "attend: None": ("relu_attention.py", "return F.dropout", "F.dropout", "attend returned None; allowed: a float32 tensor [1, 4, 8, 8]"),
    "attend: shape": ("relu_attention.py", "(v.dtype) @ v", "(v.dtype)[:, :1]", "attend returned a float32 tensor [1, 1, 8, 8]; allowed: a float32 tensor [1, 4, 8, 8]"),
    "attention: None": ("sigmoid.py", "return self.out", "self.out", "SigmoidModule.forward returned None; allowed: a float32 tensor [1, 8, 32]"),
    "attention: shape": ("sigmoid.py", ".flatten(-2))\n", ".flatten(-2))[:, :1]\n", "SigmoidModule.forward returned a float32 tensor [1, 1, 32]"),
    "mixer: tuple": ("average.py", "to(x.dtype))", "to(x.dtype)), None", "AverageModule.forward returned (tensor("),
    "mlp: dtype": ("squared.py", "square())", "square()).double()", "SquaredModule.forward returned a float64 tensor [1, 8, 32]; allowed: a float32 tensor"),
    "mlp: arguments": ("squared.py", "x, context=None, state=None", "x", "too many positional arguments; allowed: (x, context, state)"),
    "a role": ("squared.py", 'role="input"', 'role="reader"', "up.weight has the role 'reader'; allowed: embedding, input"),
    # values that the class declares
    "parameters: None": ("squared.py", 'return {"mlp": 2 * site.d_model * self.d_ff}', "return None", "Squared.parameters returned None; allowed: dict[str, int]"),
    "parameters: text": ("squared.py", "2 * site.d_model * self.d_ff", "'many'", "Squared.parameters returned 'many' at mlp; allowed: a valid integer"),
    "parameters: below 0": ("squared.py", "2 * site.d_model * self.d_ff", "-1", "Squared.parameters returned -1 at mlp; allowed: greater than or equal to 0"),
    "parameters: a part": ("squared.py", '{"mlp": 2', '{"mpl": 2', "Squared.parameters returned 'mpl' at mpl.[key]; allowed: norms, positions, attention, mixer, mlp"),
    "work: None": ("squared.py", "yield model_pass", "model_pass", "Squared.work returned None; allowed: Iterator[Operation]"),
    "work: a number": ("squared.py", "yield model_pass.product", "yield 3; model_pass.product", "Squared.work returned 3 at [0]; allowed: a tuple, list, dictionary or an instance of Operation"),
    "work: a kind": ("squared.py", '"activations"', '"wobbles"', "Squared.work returned 'wobbles' at [1].kind; allowed: 'products', 'attention'"),
    "work: a part": ("squared.py", '("mlp", site', '("head", site', "at [0]; allowed: any part except embedding, head, stream"),
    "work: arguments": ("squared.py", "work(self, site, model_pass)", "work(self, site)", "Squared.work() takes 2 positional arguments but 3 were given"),
    "state: a number": ("average.py", 'return (archlab.StateTensor("last", (site.d_model,)),)', "return 3", "Average.state returned 3; allowed: tuple[StateTensor, ...]"),
    "state: a shape": ("average.py", "(site.d_model,)),)", "site.d_model),)", "Average.state returned 32 at [0].shape; allowed: a valid tuple"),
    "roles: text": ("average.py", 'return ("output",)', 'return ("outward",)', "Average.roles returned 'outward' at [0]; allowed: 'embedding', 'input'"),
    "a class variable": ("mish.py", "[int] = 5", "[int] = 'five'", "Mish.flops_per_number is 'five'; allowed: int"),
    "no property": ("palindrome.py", "    @property\n", "", "Palindrome.smallest is a method; allowed: a property"),
    "a field that hides": ("squared.py", '    d_ff: int = 512\n', '    d_ff: int = 512\n    work: int = 3\n', "the field work hides the method of that name, which archlab calls"),
    "state: below 0": ("average.py", "(site.d_model,)),)", "(-3,)),)", "Average.state returned -3 at [0].shape[0]; allowed: greater than or equal to 0"),
    "constants: a list": ("power_norm.py", '{"weight": 1.0}', '["weight"]', "PowerNormModule.constants is ['weight']; allowed: a dict"),
    "constants: text": ("power_norm.py", '{"weight": 1.0}', '{"weight": "one"}', "weight [32] starts at 'one'; allowed: a number, or a tensor of its shape"),
    "constants: shape": ("power_norm.py", '{"weight": 1.0}', '{"weight": torch.ones(3)}', "weight [32] starts at tensor([1., 1., 1.]); allowed: a number"),
    "a type of nothing": ("squared.py", "d_ff: int", "d_ff: 'Nothing'", "a field has the type Nothing, which the file does not define"),
    # values that affect a training
    "optimizer: None": ("lion.py", "return LionOptimizer", "LionOptimizer", "its factory returned a NoneType; allowed: a torch.optim.Optimizer"),
    "optimizer: step": ("lion.py", "def step(self)", "def step(self, gradients)", "missing a required argument: 'gradients'; allowed: ()"),
    "schedule: None": ("root.py", "return 1", "1", "its function returned None for done=0; allowed: a finite number >= 0"),
    "schedule: text": ("root.py", "return 1 -", "return 'fast' if done > 0.5 else 1 -", "its function returned 'fast' for done="),
    "schedule: arguments": ("root.py", "(train, done)", "(done)", "root() takes 1 positional argument but 2 were given"),
    "objective: None": ("smooth.py", "return (1", "(1", "its function returned None; allowed: a floating-point tensor without axes"),
    "objective: a vector": ("smooth.py", "cross_entropy + ", "logits[:, 0] + ", "its function returned a float32 tensor ["),
    "objective: a number": ("smooth.py", "    uniform", "    return 3.0\n    uniform", "its function returned 3.0; allowed: a floating-point tensor without axes"),
    "objective: whole": ("smooth.py", "    uniform", "    return targets.sum()\n    uniform", "its function returned an int64 tensor without axes; allowed"),
    "objective: no gradient": ("smooth.py", "logits, targets, cross_entropy):\n", "logits, targets, cross_entropy):\n    return logits.detach().mean()\n", "its function returned a loss without a gradient"),
    "objective: arguments": ("smooth.py", "(config, logits, targets, cross_entropy)", "(config, logits)", "smooth() takes 2 positional arguments but 4 were given"),
    "task: one array": ("palindrome.py", "return tokens, is_answer", "return tokens", "its function returned array("),
    "task: shape": ("palindrome.py", "return tokens, is", "return tokens[:, 1:], is", "as tokens; allowed: an array ["),
    "task: dtype": ("palindrome.py", "return tokens, is", "return tokens.astype(float), is", "of float64 as tokens; allowed: an array ["),
    "task: lists": ("palindrome.py", "return tokens, is_answer", "return tokens, is_answer.tolist()", "as is_answer; allowed: an array ["),
    "task: too high": ("palindrome.py", "return tokens", "tokens[0, -1] = vocab_size\n    return tokens", "its function returned the token 300; allowed: 0 to 299"),
    "task: below 0": ("palindrome.py", "return tokens", "tokens[0, -1] = -1\n    return tokens", "its function returned the token -1; allowed: 0 to 299"),
    "task: no answers": ("palindrome.py", "is_answer[:, -n:] = True", "is_answer[:, 0] = True", "its function returned a window without an answer"),
    "task: smallest": ("palindrome.py", "return 2 * self.reversed, 4", "return 4", "Palindrome.smallest returned 4; allowed: tuple[int, int]"),
    "task: no answer": ("palindrome.py", "return vocab_size - 2", "return 0", "Palindrome.answers returned 0; allowed: int"),
    "task: sentence": ("palindrome.py", 'return f"Give', 'f"Give', "Palindrome.describe returned None; allowed: str"),
}  # fmt: skip
"""Problem -> (file of the document, text in it, replacement of the text, message)."""


SHORT = ["train.eval_tokens=8", "train.eval_seq_len=8"]


@pytest.mark.parametrize("what", BREACHES)
def test_a_breach_is_one_message_that_names_the_file(what: str, capsys: pytest.CaptureFixture[str]) -> None:
    file, before, after, message = BREACHES[what]
    arguments = written(file)
    assert before in FILES[file]
    write(FILES[file].replace(before, after), file)
    commands = {"state": ["cost", *arguments], "share": ["show", *arguments, "parallel.tensor=2"]}
    command = commands.get(what.partition(":")[0], ["train", *arguments, *SHORT, "--out", "run"])
    assert main(command) == 2
    printed = capsys.readouterr().err
    assert message in printed
    assert f"plug-in {Path(file).resolve()}: " in printed
    assert len([line for line in printed.splitlines() if "plug-in" in line]) == 1


@pytest.mark.parametrize(
    ("kind", "before", "after", "message"),
    [
        ("added", ".to(dtype)", ".double()", "AddedModule.forward returned a float64 tensor [1, 8, 32]; allowed: a float32"),
        ("added", ".to(dtype)", ".to(dtype)[..., :2]", "AddedModule.forward returned a float32 tensor [1, 8, 2]; allowed"),
        ("flipped", "return x * self.signs", "x * self.signs", "Flip.rotate returned None; allowed: a float32 tensor [1, "),
        ("flipped", "def rotate", "def turn", "made a Flip without rotate; allowed: an object with rotate(x)"),
        ("flipped", "lengths, dtype", "lengths", "takes 5 positional arguments but 6 were given"),
    ],
)  # fmt: skip
def test_a_position_elsewhere_that_returns_something_else(kind: str, before: str, after: str, message: str) -> None:
    written()
    write(POSITIONS.replace(before, after), "positions.py")
    asked = archlab.load_config("tiny.yaml", "plugins=[positions.py]", f"model.position.kind={kind}")
    with pytest.raises(UserError, match=re.escape(message)):
        archlab.Decoder(asked.model)(torch.arange(8)[None])


def test_a_share_is_of_the_same_class() -> None:
    arguments = written("squared.py")
    share = "    def share(self, tensor):\n        return {'d_ff': self.d_ff // tensor}\n\n    def parameters"
    write(FILES["squared.py"].replace("    def parameters", share), "squared.py")
    with pytest.raises(UserError, match=r"Squared\.share returned \{'d_ff': 24\}; allowed: Squared"):
        archlab.load_config(*arguments).model.mlp.share(2)


FIELDS = {
    "an arbitrary class": ("    thing: Thing\n", "the field thing has the type Thing; allowed: types that YAML can hold"),
    "a class that pydantic does not check": (
        "    model_config = {'arbitrary_types_allowed': True}\n    thing: Thing = Thing()\n",
        "the field thing is <archlab_plugin_",
    ),
    "a function": ("    thing: Callable[[int], int] = abs\n", "the field thing is <built-in function abs>; allowed: types that YAML"),
    "a tuple": ("    thing: tuple[int, ...] = (1, 2)\n", "the field thing is written as [1, 2], which is not read back as (1, 2)"),
    "a path": ("    thing: Path = Path('x')\n", "the field thing is written as 'x', which is not read back as PosixPath('x')"),
    "no type": ("    thing = 3\n", "`thing = 3` has no type; write `name: int = …` for a field"),
}  # fmt: skip


@pytest.mark.parametrize("what", FIELDS)
def test_a_field_that_no_file_can_hold(what: str) -> None:
    fields, message = FIELDS[what]
    arguments = written("squared.py")
    imports = "from collections.abc import Callable\nfrom pathlib import Path\n\n\nclass Thing:\n    pass\n\n\n"
    write(imports + FILES["squared.py"].replace("    d_ff: int", f"{fields}    d_ff: int"), "squared.py")
    with pytest.raises(UserError, match=re.escape(message)) as caught:
        archlab.load_config(*arguments)
    assert str(Path("squared.py").resolve()) in str(caught.value)
    assert "errors.pydantic.dev" not in str(caught.value)


@pytest.mark.parametrize("given", ["'many'", "[1]", "float('inf')", "run.tokens"])
def test_an_outcome_that_gives_no_number(given: str) -> None:
    write(FILES["guesses.py"].replace("    tokens =", f"    return {given}\n    tokens ="), "guesses.py")
    trust.accept("guesses.py")
    resolve_and_import((str(Path("guesses.py").resolve()),))
    outcome = kinds(Outcome)["guesses"]()
    run: Any = SimpleNamespace(tokens=torch.zeros(2, 3, dtype=torch.int64))
    with pytest.raises(
        UserError, match=r"guesses\.py: outcome guesses: its function returned .*; allowed: a finite number"
    ):
        make(outcome, run, check=check_value)


def test_an_error_inside_the_code_is_the_users_own() -> None:
    """The traceback is not replaced, not even for a TypeError, which wrong arguments raise, too."""
    for file, before, after in (
        ("squared.py", "return self.down", "len(3)\n        return self.down"),
        ("squared.py", "yield model_pass", "len(3)\n        yield model_pass"),
        ("smooth.py", "    uniform", "    len(3)\n    uniform"),
    ):
        as_a_new_process()
        arguments = written(file)
        write(FILES[file].replace(before, after, 1), file)
        with pytest.raises(TypeError, match="has no len") as caught:
            train(archlab.load_config(*arguments), f"run of {before}", Callback())
        assert re.search(rf"{file}, line \d+: TypeError: ", user_message(caught.value) or "")


def test_a_run_does_not_go_on_with_an_edited_file(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = written("squared.py")
    assert main(["train", *arguments, "--out", "run"]) == 0
    write(FILES["squared.py"].replace(".square()", ".abs()"), "squared.py")
    as_a_new_process()
    capsys.readouterr()
    assert main(["train", *arguments, "--out", "run"]) == 2
    message = capsys.readouterr().err
    assert "run: the plug-in that defines mlp squared has changed since the run began" in message
    assert "Choose another folder with --out. If the folder has a copy of the file, you can continue with it" in message
    as_a_new_process()
    assert main(["train", "run", "--out", "run"]) == 0
