"""The architecture: imports go in one direction, down the list of folders in docs/architecture.md."""

import ast
import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import archlab
from archlab.code import normalized
from archlab.config.core.yaml_text import read_yaml
from archlab.families.registry import FAMILIES

HOME = Path(archlab.__file__).parent
FLOORS = (
    "config", "model", "pricing", "hf", "families", "exchange", "atlas", "review", "sizing", "flatten", "transplant", "testing", "data", "training", "infer", "measuring",
    "study", "evidence", "report", "ui", "cli",
)  # fmt: skip


def imported(file: Path) -> Iterator[str]:
    """Yield the folders of archlab that a file imports from, anywhere in the file."""
    for node in ast.walk(ast.parse(file.read_text())):
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        yield from (name.split(".")[1] for name in names if name.startswith("archlab."))


@pytest.mark.slow
def test_no_folder_imports_from_one_below_it():
    wrong = [
        f"{file.relative_to(HOME)} imports {other}"
        for place, floor in enumerate(FLOORS)
        for file in (HOME / floor).rglob("*.py")
        for other in imported(file)
        if other in FLOORS[place + 1 :]
    ]
    assert wrong == []


def test_only_commands_and_plug_ins_import_the_package_itself():
    """The package's public names come from all folders up to `report`. The files in `library` are plug-ins, like a
    user's."""
    users = {
        file.relative_to(HOME).parts[0]
        for file in HOME.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if (isinstance(node, ast.ImportFrom) and node.module == "archlab" and node.level == 0)
        or (isinstance(node, ast.Import) and any(alias.name == "archlab" for alias in node.names))
    }
    assert users == {"cli", "library"}


@pytest.mark.parametrize(("folder", "allowed"), [("core", {"core"}), ("components", {"core", "components"})])
def test_a_folder_of_config_imports_no_later_one(folder, allowed):
    wrong = [
        f"{file.name} imports {node.module}"
        for file in (HOME / "config" / folder).glob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("archlab.config.")
        if str(node.module).split(".")[2] not in allowed
    ]
    assert wrong == []


@pytest.mark.slow
def test_no_folder_imports_from_one_below_it_through_a_root_module():
    roots = {file.stem: set(imported(file)) for file in HOME.glob("*.py") if not file.stem.startswith("__")}

    def lowest(root: str, seen: tuple[str, ...] = ()) -> int:
        """Return the place of the lowest folder that a root module imports, directly or through other root modules."""
        places = [FLOORS.index(name) for name in roots[root] if name in FLOORS]
        through = [lowest(name, (*seen, root)) for name in roots[root] & roots.keys() if name not in seen]
        return max([*places, *through], default=0)

    wrong = [
        f"{file.relative_to(HOME)} imports {root}.py, which imports {FLOORS[lowest(root)]}"
        for place, floor in enumerate(FLOORS)
        for file in (HOME / floor).rglob("*.py")
        for root in set(imported(file)) & roots.keys()
        if lowest(root) > place
    ]
    assert wrong == []


def test_plug_ins_of_the_library_use_the_public_api():
    """Files named under `plugins` in a study of the library are user code that comes with archlab.

    They import only the public names.
    """
    library = HOME / "library" / "studies"
    named = {library / name for file in library.glob("*.yaml") for name in read_yaml(file).get("plugins", ())}
    assert named == set(library.glob("*.py"))
    assert [file.name for file in named if list(imported(file))] == []


PRIVATE_TORCH = re.compile(r"\btorch(\.[A-Za-z]\w*)*\._(?!_)\w+|\bfrom torch[\w.]* import (\([^)]*|[^\n(]*)\b_(?!_)\w+")


@pytest.mark.parametrize(
    ("text", "is_private"),
    [
        ("torch._dynamo.reset()", True),
        ("from torch._C import Graph", True),
        ("from torch.utils import _python_dispatch", True),
        ("from torch.utils import (\n    data,\n    _pytree,\n)", True),
        ("from torch import nn\nfrom mine import _own", False),
        ("torch.__version__", False),
    ],
)
def test_private_parts_of_torch_are_seen(text, is_private):
    assert bool(PRIVATE_TORCH.search(text)) == is_private


def test_private_parts_of_torch_are_used_in_one_module():
    sources = {file: re.sub(r'"""[\s\S]*?"""', "", file.read_text()) for file in HOME.rglob("*.py")}
    users = sorted(str(file.relative_to(HOME)) for file, text in sources.items() if PRIVATE_TORCH.search(text))
    assert users == ["model/torch_private.py"]


def test_every_page_is_rendered_by_one_function():
    users = [str(file.relative_to(HOME)) for file in HOME.rglob("*.py") if "import jinja2" in file.read_text()]
    assert users == ["report/html.py"]


def test_every_folder_has_its_place():
    assert sorted(path.parent.name for path in HOME.glob("*/__init__.py")) == sorted(FLOORS)


def test_what_sums_over_components_names_none():
    files = [*(HOME / "pricing").glob("*.py"), HOME / "config" / "describe.py"]
    assert [file.name for file in files if re.search("attention|mamba|moe|T5", normalized(file.read_text()))] == []


def defined(file: Path) -> set[str]:
    """Return the names that a module defines at its top level, without imported names."""
    found: set[str] = set()
    top = ast.parse(file.read_text()).body
    under_if = [inner for node in top if isinstance(node, ast.If) for inner in (*node.body, *node.orelse)]
    for node in [*top, *under_if]:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)}
    return found


@pytest.mark.slow
def test_every_name_is_imported_from_where_it_is_defined():
    names = {".".join(("archlab", *file.relative_to(HOME).with_suffix("").parts)): file for file in HOME.rglob("*.py")}
    tops = {name: defined(file) for name, file in names.items()}
    wrong = [
        f"{importer} has {alias.name} from {node.module}"
        for importer, file in names.items()
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module in tops
        for alias in node.names
        if alias.name not in tops[node.module]
    ]
    assert wrong == []


def test_families_have_the_names_of_their_files():
    files = {path.stem for path in (HOME / "families").glob("*.py")} - {"__init__", "registry"}
    assert {name.replace("-", "_") for name in FAMILIES} == files


def test_the_document_lists_them_in_this_order():
    document = (HOME.parent.parent / "docs" / "architecture.md").read_text()
    table = document[document.index("## Folders") :]
    places = [table.index(f"`{floor}/`") for floor in FLOORS]
    assert places == sorted(places)


def test_no_two_test_files_share_a_name():
    """pytest imports a test file by its name alone, so two files with the same name cannot run in one call."""
    names = Counter(file.name for file in Path(__file__).parents[1].rglob("test_*.py"))
    assert [name for name, files in names.items() if files > 1] == []


def test_it_can_be_installed_beside_others():
    """Upper bounds would keep other projects from the versions they need. constraints.txt has the pinned versions."""
    project = tomllib.loads((HOME.parent.parent / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    needed = [*project["dependencies"], *(n for name, extra in extras.items() if name != "dev" for n in extra)]
    assert [n for n in needed if not re.fullmatch(r"[\w-]+>=[\d.]+", n)] == []
    assert "torch==" in (HOME.parent.parent / "constraints.txt").read_text()


def test_random_values_are_drawn_on_the_device_of_their_generator():
    """Otherwise they would be drawn on the default device, and a user may set that to a GPU."""
    without = [
        f"{file.relative_to(HOME)}: {ast.unparse(call)}"
        for file in HOME.rglob("*.py")
        for call in ast.walk(ast.parse(file.read_text()))
        if isinstance(call, ast.Call) and re.fullmatch(r"torch\.\w+", ast.unparse(call.func))
        if (names := {word.arg for word in call.keywords}) >= {"generator"} and "device" not in names
    ]
    assert without == []
