"""Tutorials, followed as a reader would: every command, file and line of Python, and then what the text promises."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from lab import ARCHLAB

import archlab
from archlab.pricing.budget import PUBLISHED_MFU
from archlab.study.study_file import AS_IT_STANDS, library_study

DOCS = Path(archlab.__file__).parents[2] / "docs"
_BLOCK = re.compile(r"^```(sh|yaml|python)\n(.*?)^```", re.MULTILINE | re.DOTALL)


@dataclass
class Followed:
    """A tutorial whose blocks have all been run."""

    folder: Path
    env: Mapping[str, str]
    out: str = ""
    """Everything that was printed on stdout."""
    err: str = ""

    def run(self, *typed: str) -> str:
        """Run a command that must succeed. Return what it printed on stdout."""
        done = subprocess.run(
            typed, cwd=self.folder, env=self.env, capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout
        self.err += done.stderr
        return done.stdout


def file_of(block: str) -> tuple[str, str] | None:
    """Return (name, text) of a block whose first line is a comment with a file name."""
    named = re.match(r"# ([\w-]+\.(?:yaml|py))\n", block)
    return (named[1], block) if named else None


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder has the plug-ins of the page that the tutorials refer to, and a few texts."""
    plugins = (DOCS / "plugins.md").read_text(encoding="utf-8")
    for _, block in _BLOCK.findall(plugins):
        if (named := file_of(block)) and named[0] in ("squared.py", "guesses.py"):
            (tmp_path / named[0]).write_text(named[1], encoding="utf-8")
    (tmp_path / "notes").mkdir()
    for file in sorted(Path(re.__file__).parents[1].glob("[a-f]*.py")):
        shutil.copy(file, tmp_path / "notes")
    return tmp_path


@pytest.mark.parametrize("name", sorted(file.stem for file in (DOCS / "tutorials").glob("*.md")))
def test_a_tutorial_can_be_followed(name: str, folder: Path, cache: Path) -> None:
    text = (DOCS / "tutorials" / f"{name}.md").read_text(encoding="utf-8")
    env = {**os.environ, "ARCHLAB_CACHE": str(cache), "OMP_NUM_THREADS": "1", "COLUMNS": "80",
           "PATH": f"{ARCHLAB.parent}:{os.environ['PATH']}"}  # fmt: skip
    followed = Followed(folder, env)
    for kind, block in _BLOCK.findall(text):
        if kind == "yaml":
            if named := file_of(block):
                (folder / named[0]).write_text(named[1], encoding="utf-8")
        else:
            followed.out += followed.run(*([sys.executable, "-c"] if kind == "python" else ["bash", "-euxc"]), block)
    page = " ".join(text.split())
    for sentence, check in PROMISES[name]:
        assert sentence in page, "the tutorial does not promise this any more"
        check(followed)


# --- the promises of each tutorial, with their checks ------------------------------------------------------

Promises = tuple[tuple[str, Callable[[Followed], None]], ...]


def two_kinds_of_mlp(followed: Followed) -> None:
    assert (matrices(followed.folder / "gated.svg"), matrices(followed.folder / "plain.svg")) == (3, 2)


def matrices(svg: Path) -> int:
    """Return the number of weight matrices in the frame of the MLP."""
    return len(set(re.findall(r">(Up|Gate|Down) projection<", svg.read_text(encoding="utf-8"))))


def ten_arms(followed: Followed) -> None:
    assert len(library_study("gates", AS_IT_STANDS).arms) == 10


def only_the_mlp_differs(followed: Followed) -> None:
    arms = library_study("gates", AS_IT_STANDS).arms
    assert all(set(changed) <= {"model.mlp", "model.mlp.kind", "model.mlp.activation"} for changed in arms.values())


def equal_parameters(followed: Followed) -> None:
    gates = library_study("gates", AS_IT_STANDS)
    assert gates.equal
    assert gates.equal.parameters


def a_tuned_rate(followed: Followed) -> None:
    gates = library_study("gates", AS_IT_STANDS)
    assert gates.tune.keys() == {"train.lr"}
    assert gates.seeds == 5


def two_seeds_and_no_difference(followed: Followed) -> None:
    study = archlab.load_study(followed.folder / "gates-smoke")
    verdicts = {arm.comparison.verdict for arm in study.arms if arm.comparison}
    assert (verdicts, len(study.seeds)) == ({"not distinguishable"}, 2)
    assert {round(arm.tokens, -3) for arm in study.arms} == {7000}


def nine_comparisons(followed: Followed) -> None:
    study = archlab.load_study(followed.folder / "gates-smoke")
    assert len([arm for arm in study.arms if arm.comparison]) == 9


def detectable_differences(followed: Followed) -> None:
    study = archlab.load_study(followed.folder / "gates-smoke")
    assert all(arm.comparison.smallest_effect for arm in study.arms if arm.comparison)


def every_field_is_explained(followed: Followed) -> None:
    assert (followed.folder / "mine.yaml").read_text(encoding="utf-8").count("#") > 20


STUDENT: Promises = (
    ("A third matrix maps the product to the output.", two_kinds_of_mlp),
    ("In `plain.svg` the MLP has only two matrices", two_kinds_of_mlp),
    ("The study `gates` compares ten models", ten_arms),
    ("The arms differ only in the MLP.", only_the_mlp_differs),
    ("They have the same number of parameters", equal_parameters),
    ("In the full study, each arm has its own tuned learning rate.", a_tuned_rate),
    (
        "with about 7,000 tokens and two seeds, every verdict is *not distinguishable*.",
        two_seeds_and_no_difference,
    ),
    ("The report says how large a difference must be", detectable_differences),
    ("corrected because nine arms are compared at once.", nine_comparisons),
    ("The file explains every field", every_field_is_explained),
)


def one_row_per_run(followed: Followed) -> None:
    assert len(archlab.load_study(followed.folder / "squared").frame()) == 2 * 3


def the_same_rows(followed: Followed) -> None:
    rows = archlab.load_study(followed.folder / "squared").frame()
    lines = (followed.folder / "squared" / "runs.csv").read_text(encoding="utf-8").splitlines()
    assert len(lines) == 1 + len(rows)


def own_measurement(followed: Followed) -> None:
    rows = archlab.load_study(followed.folder / "squared").frame()
    assert all(row["guessed"] is not None for row in rows)


def equal_to_the_first_arm(followed: Followed) -> None:
    first, other = archlab.load_study(followed.folder / "squared").arms
    assert other.parameters == pytest.approx(first.parameters, rel=0.02)


RESEARCHER: Promises = (
    ("The method `frame()` of a study returns a list with one row per run", one_row_per_run),
    ("`squared/runs.csv` contains the same rows.", the_same_rows),
    ("You use your own text and your own measurement.", own_measurement),
    ("each arm gets the same number of parameters as the first arm.", equal_to_the_first_arm),
)


def a_billion_parameters(followed: Followed) -> None:
    config = archlab.load_config(followed.folder / "mine.yaml")
    assert archlab.cost(config).parameters.total == pytest.approx(1e9, rel=0.01)


def no_warning(followed: Followed) -> None:
    assert "mine.yaml: no warning" in followed.out


def four_ways(followed: Followed) -> None:
    assert all(f"{way}=8" in followed.out for way in ("replicate", "shard", "tensor", "pipeline"))


def a_recommended_way(followed: Followed) -> None:
    assert re.search(r"^ \* \w+=8", followed.out, re.MULTILINE)


def the_highest_mfu(followed: Followed) -> None:
    highest = max(PUBLISHED_MFU, key=lambda published: published.high)
    assert round(100 * highest.high) == 46
    assert f"at 46% MFU, {highest.model}" in followed.out


def the_lowest_mfu(followed: Followed) -> None:
    lowest = min(PUBLISHED_MFU, key=lambda published: published.low)
    assert round(100 * lowest.low) == 30
    assert f"at 30% MFU, {lowest.model}" in followed.out


def an_uneven_pipeline(followed: Followed) -> None:
    assert "slowest of 8 stages / mean 2.15 " in followed.run("archlab", "check", "mine.yaml", "--pipeline", "8")


def a_longer_context(followed: Followed) -> None:
    assert "mine.yaml is built for at most 8,192 tokens" in followed.err
    assert "costs for 32,768 tokens are computed anyway" in followed.err


def two_kv_heads(followed: Followed) -> None:
    assert archlab.load_config(followed.folder / "fewer.yaml").model.attention.n_kv_heads == 2  # pyright: ignore


def differences_of_two_models(followed: Followed) -> None:
    assert "model.norm.placement" in followed.out
    assert "model.attention.qk_norm" in followed.out


def a_scale_for_gpus(followed: Followed) -> None:
    assert "gpu" in library_study("stability", AS_IT_STANDS).scales


ENGINEER: Promises = (
    ("`archlab size` writes a config of the requested size", a_billion_parameters),
    ("For the config of this tutorial, it reports no warning.", no_warning),
    ("`archlab cost --devices 8` compares four ways", four_ways),
    ("an asterisk marks the recommended way to divide the work.", a_recommended_way),
    ('"at 46% MFU" | the time at the highest of three published utilizations', the_highest_mfu),
    ('"at 30% MFU" | the time at the lowest of three published utilizations', the_lowest_mfu),
    ("it warns that the slowest stage does 2.15 times the average work.", an_uneven_pipeline),
    ("`archlab show` writes a second config, `fewer.yaml`, with two KV heads.", two_kv_heads),
    ("A note says that 32,768 tokens are more than the config's `max_seq_len`", a_longer_context),
    ("differ in the placement of the norm, and in whether queries and keys are normalized.", differences_of_two_models),
    ("with the scale `gpu`, on one large GPU", a_scale_for_gpus),
)


def scored(followed: Followed) -> dict[str, float]:
    """Return the bits per byte of the models in step 5, by name."""
    printed = followed.run("archlab", "eval", "llama", "llama-mqa", "runs/mqa", "--tokens", "32K", "--json")
    return {score["config"]: score["bits_per_byte"] for score in json.loads(printed)}


def worse_without_training(followed: Followed) -> None:
    found = scored(followed)
    assert found["llama-mqa"] > found["llama"] + 0.1
    assert found["runs/mqa"] < found["llama-mqa"] - 0.1


def a_report_of_three_arms(followed: Followed) -> None:
    assert (followed.folder / "changes" / "report.html").is_file()
    study = archlab.load_study(followed.folder / "changes")
    assert [arm.comparison is None for arm in study.arms] == [True, False, False]


def same_bits_per_byte(followed: Followed) -> None:
    printed = followed.run("archlab", "eval", "runs/mqa", "llama-trained", "--tokens", "32K", "--json")
    assert abs(json.loads(printed)[1]["difference"]) < 1e-4


def four_heads_pooled(followed: Followed) -> None:
    assert "attention of layers 0 to 3: 4 to 1 heads" in followed.out
    assert archlab.load_config(followed.folder / "llama-mqa").model.attention.n_kv_heads == 1  # pyright: ignore


TRAINED_MODEL: Promises = (
    ("replaces the four key/value heads by their mean", four_heads_pooled),
    ("without training, the change makes the model worse.", worse_without_training),
    ("The last line of the output names the report, `changes/report.html`.", a_report_of_three_arms),
    ("the export has the same bits per byte as the run.", same_bits_per_byte),
)


def an_equal_norm(followed: Followed) -> None:
    assert "rms_norm equals archlab's norm" in followed.out


def a_variance_of_one_less(followed: Followed) -> None:
    report = followed.out[followed.out.index("layer_norm differs from archlab's norm") :]
    assert "variance divides by D - 1" in report[: report.index("equals")]


def three_kinds_equal(followed: Followed) -> None:
    assert all(f"{kind} equals archlab's attention" in followed.out for kind in ("MHA", "MQA", "GQA"))
    assert followed.out.count("padding            equal") == 3


def tiled_heads(followed: Followed) -> None:
    report = followed.out[followed.out.index("Tiled differs from archlab's attention") :]
    assert "first at sequence" in report
    assert "Query heads read the wrong key/value heads" in report


def matched_parameters(followed: Followed) -> None:
    assert "{'wq.weight': ('q.weight',)" in followed.out


HAND_WRITTEN: Promises = (
    ("The first report says that `rms_norm` equals archlab's norm.", an_equal_norm),
    ("names the mistake: its variance divides by D - 1.", a_variance_of_one_less),
    ("All three are equal.", three_kinds_equal),
    ("With the mask, archlab can also check padding.", three_kinds_equal),
    ("Then it names the mistake: query heads read the wrong key/value heads.", tiled_heads),
    ("shows which of archlab's parameters each of your parameters holds", matched_parameters),
)

PROMISES = {
    "student": STUDENT,
    "hand_written": HAND_WRITTEN,
    "researcher": RESEARCHER,
    "engineer": ENGINEER,
    "trained_model": TRAINED_MODEL,
}
