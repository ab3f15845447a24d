"""The rules of the project's language that a machine can check; the rest is in CONTRIBUTING.md.

`pytest tests/unit/test_language.py -k pricing` checks one folder.
"""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

import archlab

ROOT = Path(__file__).parents[2]
LONGEST = 35  # words in a sentence

OPENINGS = re.compile(r"(Of|Where|What|So many|By|That|As)\b")
OLD_WORDS = re.compile(r"\banew\b|\b(is|are) not there\b|\bso many\b", re.IGNORECASE)
NOT_A_MESSAGE = re.compile(r"(?<![Tt]here )\b(is|are) no (?!longer|more\b|less\b|better|worse)\w+")
BRITISH = re.compile(
    r"\b(optimis|normalis|regularis|initialis|quantis|tokenis|summaris|generalis|specialis|factoris|parametris|"
    r"randomis|serialis|organis|recognis|synchronis|minimis|maximis|equalis|modernis|linearis|vectoris|penalis|"
    r"colour|behaviour|neighbour|favour|centre|grey\b|labelled|modelling|cancelled|judgement|catalogue|analyse)",
    re.IGNORECASE,
)
SENTENCE = re.compile(r"(?<=[.!?:])[)\"'”`*]*\s+(?=[A-Z`\"'“(\[*\d]|archlab|transformers|torch)")
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
    kind: str  # docstring, string, comment, prose
    text: str

    def __str__(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line}: {self.text}"


def of_python(path: Path) -> Iterator[Text]:
    source = path.read_text(encoding="utf-8")
    tree = ast.parse(source)
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    parts = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            text = "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
            yield Text(path, node.lineno, "string", text)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts:
            yield Text(path, node.lineno, "docstring" if id(node) in docstrings else "string", node.value)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield Text(path, token.start[0], "comment", token.string.lstrip("# "))


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
    for number, line in enumerate(source.splitlines(), 1):
        if match := re.match(r"(?:[^'\"]*\s)?#\s(.*)", line):
            yield Text(path, number, "comment", match[1])


def of_markdown(path: Path) -> Iterator[Text]:
    """A block of lines between blank lines, items of lists apart; without code and tables."""
    source = path.read_text(encoding="utf-8")
    source = re.sub(r"^```.*?^```", lambda code: "\n" * code[0].count("\n"), source, flags=re.M | re.S)
    block, begun = [], 1
    for number, line in enumerate([*source.splitlines(), ""], 1):
        if not line.strip() or re.match(r"\s*([-*]|\d+\.)\s|#|\|", line):
            if block:
                yield Text(path, begun, "prose", " ".join(block))
            block = []
        if line.strip() and not line.startswith(("|", "#")):
            begun = begun if block else number
            block.append(line.strip())


def texts(folder: Path) -> list[Text]:
    readers = {".py": of_python, ".yaml": of_yaml, ".md": of_markdown}
    paths = [folder] if folder.is_file() else sorted(folder.rglob("*.*"))
    paths = [path for path in paths if path.name != "notebook.md" and path != Path(__file__)]
    return [text for path in paths if path.suffix in readers for text in readers[path.suffix](path)]


FOLDERS = {
    **{path.stem: path for path in sorted((ROOT / "src/archlab").iterdir()) if path.name != "__pycache__"},
    **{name: ROOT / name for name in ("README.md", "CONTRIBUTING.md", "docs", "benchmarks", "tests")},
}


@pytest.fixture(params=FOLDERS, scope="module")
def written(request) -> list[Text]:
    return texts(FOLDERS[request.param])


def sentences(text: str) -> Iterator[str]:
    """The sentences of prose, with code as one word each and links as their text."""
    text = PARAMETER.sub("X.", text)
    text = re.sub(r"`[^`]*`", "CODE", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(text.split())))
    yield from SENTENCE.split(SHORTENED.sub(r"\1", text))


def is_prose(text: Text) -> bool:
    return text.kind in ("docstring", "prose") and "  " not in text.text.strip().split("\n")[0]


def lines(found: list[Text]) -> str:
    return "\n".join(str(text) for text in found)


def test_a_docstring_says_first_what_a_thing_is(written):
    found = [text for text in written if text.kind == "docstring" and OPENINGS.match(text.text)]
    assert not found, lines(found)


def test_words_of_other_times_are_gone(written):
    found = [text for text in written if OLD_WORDS.search(text.text)]
    assert not found, lines(found)


def test_a_message_says_what_is_wrong_and_what_is_allowed(written):
    found = [text for text in written if text.kind == "string" and NOT_A_MESSAGE.search(text.text)]
    assert not found, lines(found)


def test_spelling_is_american(written):
    found = [text for text in written if BRITISH.search(NAMES.sub("", text.text))]
    assert not found, lines(found)


def test_sentences_are_short(written):
    found = [
        text._replace(text=sentence)
        for text in written
        if is_prose(text)
        for sentence in sentences(text.text)
        if len(re.findall(r"\w[\w'’.-]*", sentence)) > LONGEST
    ]
    assert not found, lines(found)


def test_the_public_api_has_docstrings():
    """ruff asks for those of modules and classes; private helpers with plain names need none."""
    public = {name: getattr(archlab, name) for name in archlab.__all__ if name != "__version__"}
    for owner, value in list(public.items()):
        if isinstance(value, type):
            own = {name: member for name, member in vars(value).items() if callable(member) and name[0] != "_"}
            public |= {f"{owner}.{name}": member for name, member in own.items()}
    assert [name for name, value in public.items() if not value.__doc__] == []
