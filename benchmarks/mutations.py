"""Change the source in one place at a time, and see whether a test notices the change.

Needs `pip install coverage pytest-cov`. Usage:
    python benchmarks/mutations.py cover                # run the tests once; 20 minutes on two cores
    python benchmarks/mutations.py run --mutants 150    # write records/mutations.json
    python benchmarks/mutations.py again                # test the recorded mutants in the current source.

A mutant is the source with one change. It is tested by the tests that execute its line: first one case of each test
function, until one fails or they have run for 60 s. A line that runs when its module is imported is tested by the tests
that execute other lines of the file, and by those named after the file.

Tests that fail without a mutant, in `cover` or at the end of a run, do not count. A mutant that such a test had noticed
is unjudged; `again --only unjudged` tests it with other tests.

The tool mutmut does not fit: it wraps every function, but archlab reads its own source (`archlab flatten`) and counts
compiled graphs. The tool cosmic-ray would run all tests for each mutant.
"""

import ast
import importlib
import json
import multiprocessing
import os
import random
import re
import resource
import shutil
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from queue import Queue
from typing import Any
from xml.etree import ElementTree

from rounds import help_of

ROOT = Path(__file__).resolve().parent.parent
COVER = ROOT / "build" / "mutations"
RECORD = ROOT / "benchmarks" / "records" / "mutations.json"
TARGETS = ("model", "pricing", "config/components", "study/stats.py", "training/step.py", "families")
"""Parts of src/archlab. Each one gets an equal share of the mutants."""
TESTS = ("tests/unit", "tests/integration", "tests/parity", "tests/invariants")
SECONDS = 60
UNFIT = "tests that fail without a mutant"
FIRST = 15
"""Number of unit tests to try before collecting the others, because collecting takes longer."""
LIBRARIES = [
    "pytest", "torch", "torch._dynamo", "scipy.stats", "pydantic", "hypothesis", "altair", "cyclopts", "jsonschema",
    "rich", "safetensors.torch", "tiktoken", "tokenizers", "transformers.models.llama.modeling_llama",
    "transformers.models.auto",
]  # fmt: skip
"""Libraries that are imported once, for the processes of all mutants."""
FORKS = multiprocessing.get_context("forkserver")
SWAPS: dict[type, type] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult,
}  # fmt: skip


def main() -> int:
    parser = help_of(__doc__)
    parser.add_argument("action", choices=("cover", "run", "again"))
    parser.add_argument("targets", nargs="*", default=TARGETS, help="folders or files of src/archlab")
    parser.add_argument("--mutants", type=int, default=150)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--also", nargs="*", default=[], help="tests written after `cover`; run first for each mutant")
    parser.add_argument(
        "--only", nargs="*", help="with `again`: only mutants with these results (survived, unjudged, ...)"
    )
    parser.add_argument("--cover", type=Path, default=COVER, help="folder into which `cover` writes")
    options = parser.parse_args()
    FORKS.set_forkserver_preload(LIBRARIES)
    if options.action == "cover":
        return cover(options.cover)
    record = json.loads(RECORD.read_text()) if options.action == "again" else {"seed": options.seed, UNFIT: []}
    if options.action == "again":
        record["mutants"] = mutants = [moved(mutant) for mutant in record["mutants"]]
    else:
        record["mutants"] = mutants = drawn(options.targets, options.mutants, random.Random(options.seed))
    with tempfile.TemporaryDirectory() as home, ThreadPoolExecutor(options.workers) as pool:
        copies = Queue[Path]()
        for n in range(options.workers):
            ignored = shutil.ignore_patterns(".git", ".venv", "build", "__pycache__")
            copies.put(Path(shutil.copytree(ROOT, Path(home) / str(n), ignore=ignored)))
        tests = Tests(options.cover, record[UNFIT], some_are_gone=options.action == "again")
        judged = [mutant for mutant in mutants if not options.only or mutant.get("result", "unjudged") in options.only]
        judging = {pool.submit(judge, mutant, tests, copies, options.also): mutant for mutant in judged}
        for n, done in enumerate(as_completed(judging)):
            mutant = judging[done]
            mutant |= done.result()
            if mutant["result"] != "unjudged":
                mutant.setdefault("first", mutant["result"])
            line = f"{mutant['result']}: {mutant['file']}:{mutant['line']}, {mutant.get('by')}"
            print(f"{n + 1}/{len(judged)} {line}", flush=True)
            write(record)
        record[UNFIT] += failing({mutant["by"] for mutant in judged if mutant["result"] == "noticed"}, copies.get())
        for mutant in mutants:
            if mutant["by"] in record[UNFIT]:
                mutant["result"] = "unjudged"
                mutant.pop("first", None)
        write(record)
    return 0


def write(record: dict[str, Any]) -> None:
    mutants = record["mutants"]
    body: dict[str, Any] = {"benchmark": "mutations", "seed": record["seed"], UNFIT: record[UNFIT]}
    for key, heading in (
        ("first", "the tests before any was written for a mutant"),
        ("result", "the tests as they are"),
    ):
        results = Counter("equivalent" if "reason" in m else m[key] for m in mutants if key in m)
        counted = results["noticed"] + results["survived"] + results["not covered"]
        body[heading] = {"share_noticed": round(results["noticed"] / max(counted, 1), 3), "results": results}
    RECORD.write_text(json.dumps(body | {"mutants": mutants}, indent=1) + "\n")


def failing(names: set[str], copy: Path) -> list[str]:
    """Return the tests that fail in the unchanged source."""
    names = {name for name in names if "::" in name}
    return failed(pytest(sorted(names), copy, seconds=10 * SECONDS)[1]) if names else []


def cover(home: Path) -> int:
    """Run the tests once and record which lines each one executes and how long it takes."""
    home.mkdir(parents=True, exist_ok=True)
    wanted = ("--cov=src/archlab", "--cov-context=test", "--cov-report=", f"--junitxml={home / 'tests.xml'}")
    run = (sys.executable, "-m", "pytest", *TESTS, "-n", "auto", "--dist", "worksteal", *wanted)
    return subprocess.run(
        run, cwd=ROOT, env=environment(ROOT) | {"COVERAGE_FILE": str(home / "tests.coverage")}
    ).returncode


def environment(root: Path) -> dict[str, str]:
    path = os.pathsep.join((str(root / "src"), os.environ.get("PYTHONPATH", "")))
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": ""}


class Tests:
    """The tests that execute each line, and the seconds that each test takes."""

    def __init__(self, home: Path, unfit: list[str], *, some_are_gone: bool) -> None:
        from coverage import CoverageData  # pyright: ignore[reportMissingImports]

        self.data = CoverageData(no_disk=True)
        for file in home.glob("*.coverage"):
            part = CoverageData(str(file))
            part.read()
            self.data.update(part)
        self.files = {file.partition("/src/archlab/")[2]: file for file in self.data.measured_files()}
        existing = some_are_gone and set(pytest(["--collect-only", "-v", *TESTS], ROOT)[1])
        self.seconds: dict[str, float] = {}
        for file in home.glob("*.xml"):
            for case in ElementTree.parse(file).iter("testcase"):
                name = f"{(case.get('classname') or '').replace('.', '/')}.py::{case.get('name')}"
                passed = all(case.find(other) is None for other in ("failure", "error", "skipped"))
                if passed and name not in unfit and (not existing or name in existing):
                    self.seconds[name] = float(case.get("time") or 0)

    def of(self, mutant: dict[str, Any]) -> list[str]:
        """Return the tests for a mutant: the one that noticed it before, then one per function, the fastest first."""
        file, stem = mutant["file"], Path(mutant["file"]).stem
        lines = self.data.contexts_by_lineno(self.files[file]) if file in self.files else {}
        own = range(mutant["line"], mutant["line"] + mutant["before"].count("\n") + 1)
        names = {name for line in own for name in lines.get(line, ())} if not mutant["on_import"] else set()
        names = {name.partition("|")[0] for name in names or {name for line in lines.values() for name in line}} - {""}
        names = names or {name for name in self.seconds if stem in name or stem.replace("_", "-") in name}
        by_function = defaultdict[str, list[str]](list)
        for name in sorted(names & self.seconds.keys(), key=lambda name: self.seconds[name]):
            by_function[name.partition("[")[0]].append(name)
        ordered = sorted((n, self.seconds[name], name) for f in by_function.values() for n, name in enumerate(f))
        chosen, left = [name for name in (mutant.get("by"),) if name in self.seconds], float(SECONDS)
        for _, seconds, name in ordered[:400]:
            if (left := left - seconds) > 0 or not chosen:
                chosen.append(name)
        return list(dict.fromkeys(chosen))


def judge(mutant: dict[str, Any], tests: Tests, copies: "Queue[Path]", also: list[str]) -> dict[str, Any]:
    """Return the mutant's result and the test that noticed it."""
    if mutant.get("result") == "gone":
        return {}
    names = [*also, *tests.of(mutant)]
    if not names:
        return {"result": "not covered", "by": None}
    copy = copies.get()
    file = copy / "src" / "archlab" / mutant["file"]
    source = file.read_text()
    lines, first = source.split("\n"), mutant["line"] - 1
    lines[first : first + mutant["before"].count("\n") + 1] = [mutant["after"]]
    change(file, "\n".join(lines))
    known = [name for name in names if name in also or name == mutant.get("by")]
    unit = [name for name in names if name.startswith("tests/unit/") and name not in known][:FIRST]
    try:
        for part in (known, unit, [name for name in names if name not in known + unit]):
            code, printed = pytest(["-x", *part], copy) if part else (0, [])
            if code is None:
                return {"result": "unjudged", "by": "the machine was too busy"}
            if code < 0:
                return {"result": "noticed", "by": "a test that did not end"}
            if code:
                (by, *_) = failed(printed) or ["conftest.py"]
                broken = mutant["on_import"] and "::" not in by
                return {"result": "broken on import" if broken else "noticed", "by": by}
        return {"result": "survived", "by": f"{len(names)} tests passed"}
    finally:
        change(file, source)
        copies.put(copy)


def change(file: Path, source: str) -> None:
    """Write a file and delete its compiled form, which looks current if both have the same second."""
    file.write_text(source)
    for compiled in file.parent.glob(f"__pycache__/{file.stem}.*"):
        compiled.unlink()


def pytest(arguments: list[str], root: Path, seconds: int = 2 * SECONDS) -> tuple[int | None, list[str]]:
    """Run pytest. Return its exit code (None if it took too long) and the lines it prints.

    The limit is in CPU time, so that a busy machine does not turn into surviving mutants.
    """
    with tempfile.NamedTemporaryFile() as printed:
        process = FORKS.Process(target=run_tests, args=(arguments, root, seconds, printed.name))
        process.start()
        process.join(20 * seconds)
        if process.is_alive():
            process.kill()
            return None, []
        return process.exitcode, Path(printed.name).read_text(errors="replace").split("\n")


def run_tests(arguments: list[str], root: Path, seconds: int, printed: str) -> None:
    """Run pytest in a process that has loaded the libraries but no module of archlab."""
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    file = os.open(printed, os.O_WRONLY)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.chdir(root)
    os.environ |= environment(root)
    sys.dont_write_bytecode = False
    sys.path[:] = [str(root / "src"), *(path for path in sys.path if Path(path) != Path(__file__).parent)]
    options = ("-q", "-rfE", "--no-header", "--tb=no", "-p", "no:cacheprovider")
    sys.exit(importlib.import_module("pytest").main([*options, *arguments]))


def failed(printed: list[str]) -> list[str]:
    """Return the names of the tests that failed."""
    return [line.partition(" ")[2].partition(" - ")[0] for line in printed if line.startswith(("FAILED ", "ERROR "))]


def moved(mutant: dict[str, Any]) -> dict[str, Any]:
    """Find a mutant in the current source: in its own file, in a file of the same name, or in any other."""
    home, name = ROOT / "src" / "archlab", Path(mutant["file"]).name
    files = {str(file.relative_to(home)): file for file in sorted(home.rglob("*.py"))}
    for path in sorted(files, key=lambda path: (path != mutant["file"], Path(path).name != name)):
        source, lines = files[path].read_text().split("\n"), mutant["before"].split("\n")
        starts = [n + 1 for n in range(len(source)) if source[n : n + len(lines)] == lines]
        if starts:
            return mutant | {"file": path, "line": min(starts, key=lambda start: abs(start - mutant["line"]))}
    return mutant | {"result": "gone"}


def drawn(targets: list[str], number: int, draw: random.Random) -> list[dict[str, Any]]:
    """Draw an equal share of the mutants of each target."""
    chosen: list[dict[str, Any]] = []
    for n, target in enumerate(targets):
        place = ROOT / "src" / "archlab" / target
        files = sorted(place.rglob("*.py")) if place.is_dir() else [place]
        candidates = [mutant for file in files for mutant in mutants_of(file)]
        chosen += draw.sample(candidates, number * (n + 1) // len(targets) - number * n // len(targets))
    draw.shuffle(chosen)
    return chosen


def mutants_of(file: Path) -> Iterator[dict[str, Any]]:
    """Yield every change of one file: the lines before and after."""
    source, name = file.read_text(), str(file.relative_to(ROOT / "src" / "archlab"))
    lines = source.split("\n")
    for node, text, on_import in changes(ast.parse(source)):
        first, last = node.lineno - 1, node.end_lineno
        start = lines[first].encode()[: node.col_offset].decode()
        end = lines[last - 1].encode()[node.end_col_offset :].decode()
        end = re.sub("^, ?", "", end) if isinstance(node, ast.keyword) else end
        before = "\n".join(lines[first:last])
        yield {"file": name, "line": first + 1, "before": before, "after": start + text + end, "on_import": on_import}


def changes(tree: ast.AST, on_import: bool = True) -> Iterator[tuple[Any, str, bool]]:
    """Yield each node with the text that replaces it, and whether it runs when the module is imported."""
    on_import = on_import and not isinstance(tree, ast.FunctionDef | ast.Lambda)
    for name, value in ast.iter_fields(tree):
        for node in value if isinstance(value, list) else (value,):
            skipped = isinstance(node, ast.JoinedStr | ast.Import | ast.ImportFrom | ast.Raise)
            if name == "test" and isinstance(tree, ast.If | ast.While) and isinstance(node, ast.Name | ast.Call):
                yield node, f"(not {ast.unparse(node)})", on_import
            if isinstance(node, ast.AST) and name not in ("annotation", "returns", "decorator_list") and not skipped:
                yield from ((node, text, on_import) for text in texts(node))
                yield from changes(node, on_import)


def texts(node: ast.AST) -> Iterator[str]:
    """Yield the texts that may replace a node."""
    match node:
        case ast.Compare(ops=[op]) if type(op) in SWAPS:
            yield f"({ast.unparse(ast.Compare(node.left, [SWAPS[type(op)]()], node.comparators))})"
        case ast.BinOp() if type(node.op) in SWAPS and not is_sequence(node.left) and not is_sequence(node.right):
            yield f"({ast.unparse(ast.BinOp(node.left, SWAPS[type(node.op)](), node.right))})"
        case ast.BoolOp():
            yield f"({ast.unparse(ast.BoolOp(SWAPS[type(node.op)](), node.values))})"
        case ast.UnaryOp(op=ast.Not() | ast.USub()):
            yield f"({ast.unparse(node.operand)})"
        case ast.Constant(value=bool()):
            yield str(not node.value)
        case ast.Constant(value=int() | float() as number):
            yield from (repr(number + 1), f"({number - 1!r})")
        case ast.IfExp():
            yield f"({ast.unparse(ast.IfExp(node.test, node.orelse, node.body))})"
        case ast.keyword(arg=str()):
            yield ""
        case ast.Return(value=ast.AST()):
            yield "return None"
        case ast.AugAssign() | ast.Expr(value=ast.Call()):
            yield "pass"
        case _:
            pass


def is_sequence(node: ast.AST) -> bool:
    return isinstance(node, ast.JoinedStr | ast.List | ast.Tuple | ast.Constant) and not isinstance(
        getattr(node, "value", None), int | float
    )


if __name__ == "__main__":
    sys.exit(main())
