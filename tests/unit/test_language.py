"""The rules of the project's language that a machine can check; the rest is in CONTRIBUTING.md.

`pytest tests/unit/test_language.py -k pricing` checks one folder.
"""

import ast
import io
import json
import re
import tokenize
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

import archlab

ROOT = Path(__file__).parents[2]
LONGEST = 35  # words in a sentence

OPENINGS = re.compile(r"(Of|Where|What|So many|By|That|As)\b")
OLD_WORDS = re.compile(r"\banew\b|\b(is|are|was|were) not there\b|\bso many\b", re.IGNORECASE)
OLD_NAMES = re.compile(r"\b(told|among|held(?! out)|of which)\b|^test (of|what is no|where)\b")
NOT_A_MESSAGE = re.compile(r"(?<!there )\b(is|are) no (?!longer|more\b|less\b|better|worse)[\w{]", re.IGNORECASE)
BRITISH = re.compile(
    r"\b(optimis|normalis|regularis|initialis|quantis|tokenis|summaris|generalis|specialis|factoris|parametris|"
    r"randomis|serialis|organis|recognis|synchronis|minimis|maximis|equalis|modernis|linearis|vectoris|penalis|"
    r"colour|behaviour|neighbour|favour|centre|grey\b|labelled|modelling|cancelled|judgement|catalogue|analyse)",
    re.IGNORECASE,
)
SENTENCE = re.compile(r"(?<=[.!?:])[)\"'”`*]*\s+(?=[A-Z`\"'“(\[*\d]|archlab|transformers|torch)")
INLINE_TAG = re.compile(r"</?(a|abbr|b|cite|code|em|i|kbd|small|span|strong|sub|sup)\b[^>]*>")
BLOCK_TAG = re.compile(r"<(style|script)\b.*?</\1>|<[^>]*>", re.DOTALL)
PARAMETER = re.compile(r"(?m)^ *(?:[A-Z]\w+\n *-{4,}|[a-z_0-9]+)$")
"""A heading or a name in a section of a docstring, such as Parameters."""
SHORTENED = re.compile(r"\b(e\.g|i\.e|et al|cf|vs|Fig|Eq|Sec|no|St|approx)\.")
NAMES = re.compile(
    r"\brouter\.normalise\b|^normalise$|\bnormalise:|\bregularisation\b|\bmodernisation-ladder\b|aria-labelledby"
    r"|^optimiser$|`optimiser`|, optimiser$"
)
"""Names that stay: a field, studies, a kind of operation in JSON output, and an attribute of HTML."""
NOT_OURS = {"aliases", "name", "sources", "title", "try", "measured"}  # keys of YAML files


class Text(NamedTuple):
    path: Path
    line: int
    kind: str  # docstring, string, comment, prose, heading, cell, name
    text: str

    def __str__(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line}: {self.text}"


def of_python(path: Path) -> Iterator[Text]:
    source = path.read_text(encoding="utf-8")
    nodes = list(ast.walk(ast.parse(source)))
    docstrings = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    parts = {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            text = "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
            yield Text(path, node.lineno, "string", text)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts:
            yield Text(path, node.lineno, "docstring" if id(node) in docstrings else "string", node.value)
        else:
            yield from (Text(path, line, "name", name.replace("_", " ").strip()) for line, name in names_of(node))
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    tokens = [token for token in tokens if token.type == tokenize.COMMENT]
    yield from comments(path, [(t.start[0], t.line[: t.start[1]], t.string.lstrip("# ")) for t in tokens])


def names_of(node: ast.AST) -> Iterator[tuple[int, str]]:
    """The names that a piece of code defines: arguments, variables, attributes, functions and classes."""
    match node:
        case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
            yield node.lineno, name
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield node.lineno, name
        case ast.alias(asname=str(name)) | ast.MatchAs(name=str(name)) | ast.ExceptHandler(name=str(name)):
            yield node.lineno, name


def comments(path: Path, lines: list[tuple[int, str, str]]) -> Iterator[Text]:
    """The comments of a file, given as number of the line, what stands before the comment, and its text.

    Lines with nothing but a comment are one comment if they follow each other.
    """
    block, begun, end = "", 0, 0
    for number, before, text in lines:
        if block and (before.strip() or number != end + 1):
            yield Text(path, begun, "comment", block)
            block = ""
        begun = begun if block else number
        block, end = f"{block} {text}".strip(), -1 if before.strip() else number
    if block:
        yield Text(path, begun, "comment", block)


def of_yaml(path: Path) -> Iterator[Text]:
    def scalars(node: yaml.Node) -> Iterator[Text]:
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                if key.value not in NOT_OURS:
                    yield from scalars(value)
        elif isinstance(node, yaml.SequenceNode):
            for value in node.value:
                yield from scalars(value)
        elif isinstance(node, yaml.ScalarNode) and " " in node.value and node.style != "|":  # "|" holds formulas
            yield Text(path, node.start_mark.line + 1, "prose", node.value)

    source = path.read_text(encoding="utf-8")
    for document in yaml.compose_all(source):
        yield from scalars(document)
    lines = ((number, re.match(r"((?:[^'\"]*\s)?)#\s(.*)", line)) for number, line in enumerate(source.splitlines(), 1))
    yield from comments(path, [(number, match[1], match[2]) for number, match in lines if match])


def of_notebook(path: Path) -> Iterator[Text]:
    """The text of the Markdown cells. Lines are counted in each cell."""
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "markdown":
            yield from of_markdown(path, "".join(cell["source"]))


def of_markdown(path: Path, source: str | None = None) -> Iterator[Text]:
    """Headings, cells of tables, and blocks of lines between blank lines, items of lists apart; without code."""
    source = path.read_text(encoding="utf-8") if source is None else source
    source = re.sub(r"^```.*?^```", lambda code: "\n" * code[0].count("\n"), source, flags=re.M | re.S)
    block, begun = [], 1
    for number, line in enumerate([*source.splitlines(), ""], 1):
        if not line.strip() or re.match(r"\s*([-*]|\d+\.)\s|#|\|", line):
            if block:
                yield Text(path, begun, "prose", " ".join(block))
            block = []
        if line.startswith("#"):
            yield Text(path, number, "heading", line.lstrip("# "))
        elif line.startswith("|"):
            yield from (Text(path, number, "cell", cell.strip()) for cell in line.strip("|").split("|"))
        elif line.strip():
            begun = begun if block else number
            block.append(line.strip())


def of_template(path: Path) -> Iterator[Text]:
    """The text of an HTML page between tags of blocks, and the strings in its expressions and attributes."""
    source = path.read_text(encoding="utf-8")

    def at(offset: int) -> int:
        return source.count("\n", 0, offset) + 1

    for string in re.finditer(r"\"([^\"{}<>]* [^\"{}<>]*)\"(?=[^<>]*[%}>])", source):
        yield Text(path, at(string.start()), "string", string[1])

    def blank(match: re.Match[str], word: str = "") -> str:
        return word + "\n" * match[0].count("\n")

    page = re.sub(r"\{[%#].*?[%#]\}", blank, source, flags=re.DOTALL)
    page = re.sub(r"\{\{.*?\}\}", lambda match: blank(match, "X"), page, flags=re.DOTALL)
    page = BLOCK_TAG.sub(lambda match: "\0" + blank(match), INLINE_TAG.sub(blank, page))
    line = 1
    for block in page.split("\0"):
        if text := " ".join(block.split()):
            yield Text(path, line + block[: len(block) - len(block.lstrip())].count("\n"), "prose", text)
        line += block.count("\n")


def texts(folder: Path) -> list[Text]:
    readers = {".py": of_python, ".yaml": of_yaml, ".md": of_markdown, ".ipynb": of_notebook, ".jinja": of_template}
    paths = [folder] if folder.is_file() else sorted(folder.rglob("*.*"))
    paths = [path for path in paths if path.name != "notebook.md" and path != Path(__file__)]
    return [text for path in paths if path.suffix in readers for text in readers[path.suffix](path)]


FOLDERS = {
    **{path.stem: path for path in sorted((ROOT / "src/archlab").iterdir()) if path.name != "__pycache__"},
    **{path.name: path for path in sorted(ROOT.glob("*.md"))},
    **{name: ROOT / name for name in ("docs", "benchmarks", "examples", "tests")},
}


@pytest.fixture(params=FOLDERS, scope="module")
def written(request) -> list[Text]:
    return texts(FOLDERS[request.param])


def sentences(text: str) -> Iterator[str]:
    """The sentences of prose without examples, with code as one word each and links as their text."""
    text = PARAMETER.sub("X.", re.sub(r"(?m)^ *>>> (?:.+\n?)+", "", text))
    text = re.sub(r"`[^`]*`", "CODE", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(text.split())))
    yield from SENTENCE.split(SHORTENED.sub(r"\1", text))


def is_prose(text: Text) -> bool:
    return text.kind in ("docstring", "prose") and "  " not in text.text.strip().split("\n")[0]


def long_sentences(text: Text) -> Iterator[str]:
    if text.kind == "string" and not text.path.is_relative_to(ROOT / "tests"):  # where strings are patterns
        blocks = [line for line in text.text.split("\n") if "  " not in line]
    else:
        blocks = [text.text] if is_prose(text) or text.kind == "comment" else []
    for sentence in (sentence for block in blocks for sentence in sentences(block)):
        if len(re.findall(r"\w[\w'’.-]*", sentence)) > LONGEST:
            yield sentence


RULES: dict[str, Callable[[Text], object]] = {
    "a docstring says first what a thing is": lambda t: t.kind == "docstring" and OPENINGS.match(t.text.lstrip()),
    "no old words": lambda t: OLD_WORDS.search(t.text),
    "a name says what it holds": lambda t: t.kind == "name" and OLD_NAMES.search(t.text),
    "a message says what is wrong and what is allowed": (
        lambda t: t.kind in ("string", "name") and NOT_A_MESSAGE.search(t.text)
    ),
    "American spelling": lambda t: BRITISH.search(NAMES.sub("", t.text)),
    "short sentences": lambda t: list(long_sentences(t)),
}


@pytest.mark.parametrize("rule", RULES)
def test_the_texts_follow(rule, written):
    faults = [str(text) for text in written if RULES[rule](text)]
    assert not faults, "\n".join(faults)


LONG = " ".join(["word"] * (LONGEST + 1))


@pytest.mark.parametrize(
    ("rule", "file", "content"),
    [
        ("a docstring says first what a thing is", "a.py", 'def f():\n    """\n    Of which x.\n    """'),
        ("no old words", "a.py", 'raise UserError(f"{path} was not there")'),
        ("no old words", "a.py", "def test_it_runs_anew(): ..."),
        ("no old words", "a.md", "# So many ways"),
        ("no old words", "a.md", "| a | read anew |"),
        ("no old words", "a.ipynb", '{"cells": [{"cell_type": "markdown", "source": ["It is\\n", "read anew."]}]}'),
        ("no old words", "a.jinja", "<p>They are <b>not</b>\n{% if x %}there{% endif %}.</p>"),
        ("no old words", "a.jinja", '<p aria-label="read anew">{{ x }}</p>'),
        ("no old words", "a.jinja", '<p>{{ "read anew" if x else "" }}</p>'),
        ("a name says what it holds", "a.py", "def f(n_told): ..."),
        ("a name says what it holds", "a.py", "always_held, held_out = 1, 2"),
        ("a name says what it holds", "a.py", "class A:\n    among: int"),
        ("a name says what it holds", "a.py", "x.of_which = 1"),
        ("a name says what it holds", "a.py", "def test_what_is_no_x(): ..."),
        ("a message says what is wrong and what is allowed", "a.py", 'raise UserError(f"{x} is no {y}")'),
        ("a message says what is wrong and what is allowed", "a.py", "def test_a_file_is_no_folder(): ..."),
        ("American spelling", "a.py", "def normalising(): ..."),
        ("short sentences", "a.py", f"# {LONG[:20]}\n# {LONG[20:]}"),
        ("short sentences", "a.yaml", f"# {LONG[:20]}\n# {LONG[20:]}"),
        ("short sentences", "a.py", f'raise UserError("{LONG}")'),
        ("short sentences", "a.jinja", f"<p>{LONG}</p>"),
    ],
)
def test_a_rule_finds(rule, file, content, tmp_path):
    (tmp_path / file).write_text(content)
    assert [text for text in texts(tmp_path / file) if RULES[rule](text)]


def test_the_public_api_has_docstrings():
    """ruff asks for those of modules and classes; private helpers with plain names need none."""
    public = {name: getattr(archlab, name) for name in archlab.__all__ if name != "__version__"}
    for owner, value in list(public.items()):
        if isinstance(value, type):
            own = {name: member for name, member in vars(value).items() if callable(member) and name[0] != "_"}
            public |= {f"{owner}.{name}": member for name, member in own.items()}
    assert [name for name, value in public.items() if not value.__doc__] == []
