"""Change the source in one place at a time, and see whether a test notices.

pip install coverage pytest-cov
python benchmarks/mutations.py cover              # runs the tests once; 20 minutes on two cores
python benchmarks/mutations.py run --mutants 150  # writes records/mutations.json
python benchmarks/mutations.py again              # the mutants of the record, in the source as it is now

Each mutant is tested by the tests that execute its line, one of each test function first, up to 60 s of them or the
first that fails. A line that runs when its module is imported is tested by the tests that execute other lines of the
file, or that are named after it. mutmut has no place here: it wraps every function, and archlab reads its own source
(`archlab flatten`) and counts compiled graphs; cosmic-ray would run all tests for each mutant.
"""

import argparse
import ast
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue
from typing import Any
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent
COVER = ROOT / "build" / "mutations"
RECORD = ROOT / "benchmarks" / "records" / "mutations.json"
TARGETS = ("model", "pricing", "config/components", "study/stats.py", "training/step.py", "families")
"""Of src/archlab. Each gets an equal share of the mutants."""
TESTS = ("tests/unit", "tests/integration", "tests/parity", "tests/invariants")
SECONDS = 60
SWAPS: dict[type, type] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult,
}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("cover", "run", "again"))
    parser.add_argument("targets", nargs="*", default=TARGETS, help="folders or files of src/archlab")
    parser.add_argument("--mutants", type=int, default=150)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--also", nargs="*", default=[], help="tests written since `cover`, which come first")
    parser.add_argument("--cover", type=Path, default=COVER, help="folder of what `cover` writes")
    options = parser.parse_args()
    if options.action == "cover":
        return cover(options.cover)
    if options.action == "again":
        mutants = [moved(mutant) for mutant in json.loads(RECORD.read_text())["mutants"]]
    else:
        mutants = drawn(options.targets, options.mutants, random.Random(options.seed))
    with tempfile.TemporaryDirectory() as home, ThreadPoolExecutor(options.workers) as pool:
        copies, tests = Queue[Path](), Tests(options.cover)
        for n in range(options.workers):
            ignored = shutil.ignore_patterns(".git", ".venv", "build", "__pycache__")
            copies.put(Path(shutil.copytree(ROOT, Path(home) / str(n), ignore=ignored)))
        for n, _ in enumerate(pool.map(lambda mutant: judge(mutant, tests, copies, options.also), mutants)):
            mutant = mutants[n]
            print(f"{n + 1}/{len(mutants)} {mutant['result']}: {mutant['file']}:{mutant['line']}", flush=True)
            write(mutants, options.seed)
    return 0


def write(mutants: list[dict[str, Any]], seed: int) -> None:
    results = Counter("equivalent" if "reason" in m else m["result"] for m in mutants if "result" in m)
    counted = results["noticed"] + results["survived"] + results["not covered"]
    share = round(results["noticed"] / max(counted, 1), 3)
    body = {"benchmark": "mutations", "seed": seed, "share_noticed": share, "results": results}
    RECORD.write_text(json.dumps(body | {"mutants": mutants}, indent=1) + "\n")


def cover(home: Path) -> int:
    """Run the tests once, remembering which of them executes which line and how long each takes."""
    home.mkdir(parents=True, exist_ok=True)
    wanted = ("--cov=src/archlab", "--cov-context=test", "--cov-report=", f"--junitxml={home / 'tests.xml'}")
    run = (sys.executable, "-m", "pytest", *TESTS, "-n", "auto", "--dist", "worksteal", *wanted)
    return subprocess.run(
        run, cwd=ROOT, env=environment(ROOT) | {"COVERAGE_FILE": str(home / "tests.coverage")}
    ).returncode


def environment(root: Path) -> dict[str, str]:
    path = os.pathsep.join((str(root / "src"), os.environ.get("PYTHONPATH", "")))
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}


class Tests:
    """Which tests execute a line, and how long each takes."""

    def __init__(self, home: Path) -> None:
        from coverage import CoverageData  # pyright: ignore[reportMissingImports]

        self.data = CoverageData(no_disk=True)
        for file in home.glob("*.coverage"):
            part = CoverageData(str(file))
            part.read()
            self.data.update(part)
        self.files = {file.partition("/src/archlab/")[2]: file for file in self.data.measured_files()}
        self.seconds: dict[str, float] = {}
        for file in home.glob("*.xml"):
            for case in ElementTree.parse(file).iter("testcase"):
                name = f"{(case.get('classname') or '').replace('.', '/')}.py::{case.get('name')}"
                self.seconds[name] = float(case.get("time") or 0)

    def of(self, mutant: dict[str, Any]) -> list[str]:
        """The tests for a mutant: that which noticed it before, then one of each function, the fastest first."""
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


def judge(mutant: dict[str, Any], tests: Tests, copies: "Queue[Path]", also: list[str]) -> None:
    """Set the mutant's result, and by which test it was noticed."""
    if mutant.get("result") == "gone":
        return
    names = [*also, *tests.of(mutant)]
    if not names:
        mutant |= {"result": "not covered", "by": None}
        return
    copy = copies.get()
    file = copy / "src" / "archlab" / mutant["file"]
    source = file.read_text()
    lines, first = source.split("\n"), mutant["line"] - 1
    lines[first : first + mutant["before"].count("\n") + 1] = [mutant["after"]]
    file.write_text("\n".join(lines))
    options = ("-x", "-q", "-rfE", "--no-header", "--tb=no", "-p", "no:cacheprovider")
    run = (sys.executable, "-m", "pytest", *options, *names)
    try:
        done = subprocess.run(run, cwd=copy, env=environment(copy), text=True, capture_output=True, timeout=3 * SECONDS)
        failed = re.findall(r"^(?:FAILED|ERROR) (.*?)(?: - .*)?$", done.stdout, re.MULTILINE)
        if done.returncode:
            broken = not failed or "::" not in failed[0]
            mutant |= {"result": "broken on import" if broken else "noticed", "by": (failed or ["conftest.py"])[0]}
        else:
            mutant |= {"result": "survived", "by": f"{len(names)} tests passed"}
    except subprocess.TimeoutExpired:
        mutant |= {"result": "noticed", "by": "a test that did not end"}
    finally:
        file.write_text(source)
        copies.put(copy)


def moved(mutant: dict[str, Any]) -> dict[str, Any]:
    """The mutant where its text stands now: in the file it had, in one of that name, or in another."""
    home, name = ROOT / "src" / "archlab", Path(mutant["file"]).name
    files = {str(file.relative_to(home)): file for file in sorted(home.rglob("*.py"))}
    for path in sorted(files, key=lambda path: (path != mutant["file"], Path(path).name != name)):
        before, found, _ = f"\n{files[path].read_text()}".partition(f"\n{mutant['before']}\n")
        if found:
            return mutant | {"file": path, "line": before.count("\n") + 1}
    return mutant | {"result": "gone"}


def drawn(targets: list[str], number: int, draw: random.Random) -> list[dict[str, Any]]:
    """An equal share of the mutants of each target."""
    chosen: list[dict[str, Any]] = []
    for n, target in enumerate(targets):
        place = ROOT / "src" / "archlab" / target
        files = sorted(place.rglob("*.py")) if place.is_dir() else [place]
        every = [mutant for file in files for mutant in mutants_of(file)]
        chosen += draw.sample(every, number * (n + 1) // len(targets) - number * n // len(targets))
    draw.shuffle(chosen)
    return chosen


def mutants_of(file: Path) -> Iterator[dict[str, Any]]:
    """Every change of one file: the lines as they are, and as they become."""
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
    """Nodes with the text that takes their place, and whether they run when the module is imported."""
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
    """What may stand in place of a node."""
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
