"""Guide: documents, topics and reference as pages; working links; and pictures at their places."""

import ast
import importlib.util
import json
import re
import sys
import tomllib
from collections.abc import Iterator
from html.parser import HTMLParser
from importlib import import_module, resources
from pathlib import Path
from typing import get_args, get_origin

import altair as alt
import pytest
from pydantic import BaseModel

import archlab
from archlab.cli.app import TRUST_OPTION, VERBS, main
from archlab.cli.pages import commands
from archlab.config.core.base import Base
from archlab.config.core.registry import kinds
from archlab.evidence.claims import claims, sources
from archlab.evidence.field_help import field_help
from archlab.evidence.topics import chapters, topics
from archlab.evidence.words import words
from archlab.report.drawings.pictures import pictures
from archlab.report.guide.documents import documents, text_of
from archlab.report.guide.reference import ReferencePage, config_addresses, described, groups, reference_pages
from archlab.report.guide.site import bibliography, write_guide
from archlab.report.html import render_page, with_code
from archlab.report.ledger.words import citation
from archlab.study.authoring import SCHEMAS
from archlab.study.outcomes.schema import Outcome
from plugin_state import as_a_new_process
from schema_classes import classes_in

DOCS = Path(archlab.__file__).parent.parent.parent / "docs"


class Page(HTMLParser):
    """Parser of a page's ids, its links and the files that it would load."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.open: list[str] = []
        self.words = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.ids += [value for key, value in given.items() if key == "id" and value]
        self.links += [value for key, value in given.items() if key == "href" and value]
        self.loaded += [value for key, value in given.items() if key == "src" and value]
        if tag not in ("meta", "link", "br", "img", "hr", "input"):
            self.open.append(tag)

    def handle_data(self, data: str) -> None:
        self.words += "" if self.open[-1:] == ["script"] else data

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def of_field(site: dict[str, Page], path: str, kind: str = "config") -> str:
    """Return the name of the page about a field. Pages about fields of a study have their own prefix."""
    (name,) = (
        name
        for name, page in site.items()
        if re.match(r"reference-(?!commands|python)", name)
        and name.startswith("reference-study") == (kind == "study")
        and path in page.ids
    )
    return name


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("guide")


@pytest.fixture(scope="module")
def site(folder: Path) -> dict[str, Page]:
    as_a_new_process()
    reference_pages.cache_clear()
    config_addresses.cache_clear()
    assert main(["guide", "--out", str(folder)]) == 0
    return {path.name: Page(path.read_text(encoding="utf-8")) for path in folder.iterdir()}


def test_a_page_per_chapter_in_lecture_order(site: dict[str, Page]):
    pages = sorted(name for name in site if re.match(r"\d", name))
    assert [page[3:].removesuffix(".html") for page in pages] == list(chapters())
    shown = [name for page in pages for name in site[page].ids if name in dict(topics())]
    assert shown == [name for name, _ in topics()]


def test_every_link_leads_somewhere_and_nothing_is_loaded(site: dict[str, Page]):
    published = {source.address for source in sources().values()}
    for name, page in site.items():
        assert not page.open
        assert all(source.startswith("data:") for source in page.loaded)
        assert len({*page.ids}) == len(page.ids)
        for link in page.links:
            if link in published or re.match(r"https://github\.com/OWNER/archlab/blob/v[\d.]+/src/", link):
                continue
            file, _, place = link.partition("#")
            file = file or name
            assert file in site, f"{name}: {link}"
            assert not place or place in site[file].ids, f"{name}: {link}"


def test_every_page_can_be_reached_from_the_index(site: dict[str, Page]):
    reached, waiting = set[str](), ["index.html"]
    while waiting:
        reached.add(name := waiting.pop())
        linked = {link.partition("#")[0] or name for link in site[name].links} & site.keys()
        waiting += sorted(linked - reached - {*waiting})
    assert reached == site.keys()


def test_pages_lead_to_the_previous_and_the_next_page(site: dict[str, Page]):
    """The last link of a page leads to the next page."""
    place, seen = "index.html", list[str]()
    while place != "bibliography.html":
        seen.append(place)
        before, place = place, site[place].links[-1]
        assert before in site[place].links[-2:]
        assert place not in seen
    assert {*seen, place} == site.keys()


def test_the_ledger_has_the_navigation_of_the_guide(site: dict[str, Page]):
    assert {"index.html", "bibliography.html"} <= {*site["ledger.html"].links}
    assert "From memory" in site["ledger.html"].words.partition("All claims")[0]


def test_links_to_documents_have_their_titles(site: dict[str, Page]):
    """`plugins.md` in a tutorial is a link to ../plugins.md."""
    words = site["researcher.html"].words
    assert "copy two code blocks from Add your own component into files" in " ".join(words.split())
    assert "drawing.html" in site["command-draw.html"].links
    assert "docs/drawing.md" not in site["command-draw.html"].words


def test_commands_have_the_names_of_their_arguments(site: dict[str, Page]):
    assert "\narchlab show [OPTIONS] CONFIG [OVERRIDES...]\n" in site["command-show.html"].words
    for name in site:
        if name.startswith("command-"):
            assert "ARGS" not in site[name].words
            assert "default: ()" not in site[name].words


def test_no_line_breaks_inside_an_option():
    assert with_code("`archlab probe --steps`") == '<code>archlab probe <span class="flag">--steps</span></code>'


def test_a_page_is_listed_once_per_source():
    assert [source for source, links in bibliography().items() if len({*links}) < len(links)] == []


def test_every_document_but_the_notebook_is_a_page():
    found = {path.relative_to(DOCS).with_suffix("").as_posix() for path in DOCS.rglob("*.md")}
    assert {*documents()} == found - {"notebook", "README"}


def test_the_list_of_documents_has_their_titles():
    listed = re.findall(r"^- \[(.*)\]\((.*)\.md\)", text_of("README"), re.MULTILINE)
    assert listed == [(text_of(name).partition("\n")[0].removeprefix("# "), name) for _, name in listed]
    assert [name for _, name in listed] == [*documents(), "notebook"]


@pytest.mark.parametrize("name", documents())
def test_a_page_says_what_its_document_says(site: dict[str, Page], name: str):
    """The page has every line of code and every word of the headings."""
    text = (DOCS / f"{name}.md").read_text(encoding="utf-8")
    words = site[f"{Path(name).name}.html"].words
    for block in re.findall(r"^```\w*\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        assert block in words
    for heading in re.findall(
        r"^#+ (.*)", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL), re.MULTILINE
    ):
        assert heading.replace("`", "") in words


def test_every_link_between_documents_is_one_between_their_pages(site: dict[str, Page]):
    for name in documents():
        text = (DOCS / f"{name}.md").read_text(encoding="utf-8")
        for linked in re.findall(r"\]\((?:\.\./)*([a-z_/]+)\.md\)", text):
            if linked in documents():
                assert f"{Path(linked).name}.html" in site[f"{Path(name).name}.html"].links, f"{name}: {linked}"


def fields(schema: type[BaseModel], at: str = "") -> Iterator[tuple[str, str]]:
    """Return (dotted field, docstring) pairs, read from the classes themselves."""
    for name, field in schema.model_fields.items():
        yield at + name, field.description or ""
        is_mapping = get_origin(field.annotation) is dict
        is_of_outcomes = is_mapping and Outcome in get_args(field.annotation)
        for part in () if is_of_outcomes else classes_in(field.annotation):
            yield from fields(part, f"{at}{name}.{'NAME.' if is_mapping else ''}")


@pytest.mark.parametrize("kind", SCHEMAS)
def test_every_field_and_its_docstring_are_in_the_reference(site: dict[str, Page], kind: str):
    as_a_new_process()  # the guide has read studies, and one of them brings a plug-in
    pages = {name: " ".join(page.words.split()) for name, page in site.items()}
    for path, docstring in fields(SCHEMAS[kind]):
        page = of_field(site, path, kind)
        assert path.endswith("kind") or " ".join(docstring.replace("`", "").split()) in pages[page], path


def test_the_reference_has_no_kinds_of_plug_ins(site: dict[str, Page]):
    """The guide reads the study batch-norm, whose plug-in registers the norm `batch`."""
    assert "model.norm.kind" in site["reference-model-norm.html"].ids
    assert "evaluated_with" not in site["reference-model-norm.html"].words


def test_a_field_of_named_sections_is_explained_once(site: dict[str, Page]):
    assert [name for name in site["reference-data-mixture.html"].ids if re.match(r"data\.mixture.*path", name)] == [
        "data.mixture.NAME.path"
    ]


def test_every_outcome_has_its_place_in_the_reference(site: dict[str, Page]):
    words = " ".join(site["reference-study-measure.html"].words.split())
    for outcome in kinds(Outcome).values():
        assert " ".join((outcome.__doc__ or "missing").split()).replace("`", "") in words


def test_topics_and_fields_lead_to_each_other(site: dict[str, Page]):
    (norms,) = (page for page in site if page.endswith("-norms.html"))
    assert "reference-model-norm.html#model.norm.kind" in site[norms].links
    assert f"{norms}#rmsnorm" in site["reference-model-norm.html"].links
    for name, topic in topics():
        (chapter,) = (page for page in site if re.match(r"\d", page) and name in site[page].ids)
        for path in topic.fields:
            if not path.startswith("model.layers."):
                page = of_field(site, path)
                assert f"{page}#{path}" in site[chapter].links
                assert f"{chapter}#{name}" in site[page].links


def test_the_fields_of_a_study_link_to_their_explanations(site: dict[str, Page]):
    assert "studies.html#against" in site["reference-study.html"].links
    assert "studies.html#budgettokens" in site["reference-study-budget.html"].links


class Written(Base):
    """A file."""

    rate: float = 1.0
    """How far a step goes, at `most`."""


def test_a_docstring_reaches_the_page():
    page = ReferencePage("own.html", "Own", "", list(groups(field_help(Written))))
    shown = render_page(
        "guide_reference",
        here="own.html",
        parts=[],
        neighbors={},
        places=[],
        search_index="{}",
        page=page,
        addresses={},
        more={"rate": []},
    )
    assert "<p>How far a step goes, at <code>most</code>.</p>" in shown
    assert "<dd><code>1.0</code></dd>" in shown


def test_a_function_is_described_as_its_source_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "described_here.py").write_text(
        "class Thing:\n"
        '    """A thing."""\n\n'
        "    size: int = 3\n"
        '    """In metres."""\n\n'
        "    def __init__(self, a: int, /, b: str = 'x', *rest: int, c: float | None = None, **more: str) -> None: ...\n\n"
        "    def grow(self) -> int:\n"
        '        """By one."""\n\n'
        "    def _hidden(self) -> None: ...\n"
    )
    text = described("it.Thing", import_module("described_here").Thing)
    assert "class it.Thing(a: int, /, b: str = 'x', *rest: int, c: float | None = None, **more: str)\n" in text
    assert "A thing." in text
    assert "* `size: int = 3`\\\n  In metres." in text
    assert "* `grow() -> int`\\\n  By one." in text
    assert "_hidden" not in text


def test_every_public_name_is_in_the_reference(site: dict[str, Page]):
    public = [name for name in archlab.__all__ if not name.startswith("__")]
    assert {f"python-{name.lower()}.html" for name in public} <= {*site["reference-python.html"].links}
    assert "archlab.cost(" in site["python-cost.html"].words
    assert "config: Config" in site["python-cost.html"].words
    assert '>>> archlab.cost("llama-3-8b", context=8192).kv_cache_bytes\n1073741824\n' in site["python-cost.html"].words


@pytest.mark.parametrize("name", ["left_pad", "Decoder"])
def test_a_public_name_links_to_the_lines_of_its_source(site: dict[str, Page], name: str):
    (link,) = [link for link in site[f"python-{name.lower()}.html"].links if "/blob/" in link]
    matched = re.fullmatch(r"https://.*/blob/v[\d.]+/(src/archlab/.*\.py)#L(\d+)-L(\d+)", link)
    assert matched
    lines = Path(matched[1]).read_text().splitlines()[int(matched[2]) - 1 : int(matched[3])]
    (defined,) = ast.parse("\n".join(lines)).body
    assert isinstance(defined, ast.FunctionDef | ast.ClassDef)
    assert defined.name == name


def test_the_reference_of_commands_does_not_depend_on_how_python_was_started(monkeypatch: pytest.MonkeyPatch):
    started = importlib.util.find_spec("archlab.__main__")
    assert started is not None
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", started)
    monkeypatch.setattr(sys, "argv", [started.origin, "guide"])
    lines = [line for line in commands().splitlines() if "[OPTIONS]" in line]
    assert "archlab study run [OPTIONS] STUDY" in lines
    assert [line for line in lines if " -m " in line] == []


def test_every_command_is_in_the_reference_as_its_help_has_it(
    site: dict[str, Page], capsys: pytest.CaptureFixture[str]
):
    assert {f"command-{verb}.html" for verb, _, _ in VERBS} <= {*site["reference-commands.html"].links}
    assert "archlab-study-run" in site["command-study.html"].ids
    for typed in (["cost"], ["study", "run"], ["bench", "train"]):
        assert main([*typed, "--help"]) == 0
        options = re.findall(r"(?<!\S)--[\w-]+", capsys.readouterr().out)
        commands = site[f"command-{typed[0]}.html"].words
        section = commands.partition(f"\narchlab {' '.join(typed)} [OPTIONS] ")[2].partition("\narchlab ")[0]
        assert TRUST_OPTION in options
        assert {*re.findall(r"(?<!\S)--[\w-]+", section)} == {*options} - {TRUST_OPTION}
    assert TRUST_OPTION in site["reference-commands.html"].words, "it is named only once, for all commands"


def test_the_wheel_has_the_documents_inside_the_package():
    wheel = tomllib.loads((DOCS.parent / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert {*wheel["only-include"]} == {*wheel["sources"]} == {"src/archlab", "docs"}
    assert wheel["sources"]["docs"] == "archlab/docs"
    assert not any(Path(f"docs/{name}.md").match(left_out) for name in documents() for left_out in wheel["exclude"])


def test_the_ledger_in_the_guide_has_its_pictures(site: dict[str, Page]):
    assert "chart-predictions-0" in site["ledger.html"].ids


def test_every_source_is_in_the_bibliography_with_its_topics_and_claims(site: dict[str, Page]):
    links = site["bibliography.html"].links
    cites = {name for name, _ in topics()} | {f"claim-{number}" for number in claims()} | {"mistakes-heading"}
    assert {link.partition("#")[2] for link in links if re.match(r"(\d|ledger).*#", link)} == cites
    assert bibliography().keys() == {citation(source) for source in sources().values()}


def test_no_long_term_squeezes_what_stands_beside_it():
    """A first column as wide as its longest term left no room for the links of the bibliography, which was 119,042 pixels high."""
    templates = resources.files("archlab.report") / "templates"
    tracks = [
        track
        for file in templates.iterdir()
        if file.name.endswith((".css", ".jinja"))
        for track in re.findall(r"grid-template-columns: ([^;}]+)", file.read_text(encoding="utf-8"))
    ]
    assert len(tracks) > 5
    assert [track for track in tracks if track.startswith(("max-content", "auto "))] == []


def test_sources_stand_above_the_links_to_what_cites_them(site: dict[str, Page]):
    page = (resources.files("archlab.report") / "templates" / "guide_bibliography.html.jinja").read_text("utf-8")
    assert 'class="made"' not in page, "this class has two columns"
    assert len(site["bibliography.html"].links) > len(sources())


def test_a_source_is_cited_alike_on_the_pages_of_topics_and_in_the_bibliography(site: dict[str, Page]):
    source = sources()["zhang2019"]
    assert f"{source.cited}, arXiv 1910.07467" in site["01-norms.html"].words
    assert f"Zhang and Sennrich 2019, {source.title}, arXiv 1910.07467" in site["bibliography.html"].words
    assert {"01-norms.html#rmsnorm", "ledger.html#claim-2"} <= {*site["bibliography.html"].links}


def test_pictures_stand_where_topics_name_them(tmp_path: Path):
    chart = alt.Chart(alt.Data(values=[{"x": 1}]), description="Turns over x.").mark_point().encode(x="x:Q")
    pictures = {"rotation": lambda: chart, "pre-norm": lambda: "<svg><title>pre</title></svg>"}
    write_guide(tmp_path, pictures, "# Commands\n", "# From Python\n")
    positions, norms, shapes = (
        (tmp_path / page).read_text(encoding="utf-8")
        for page in ("05-positions.html", "01-norms.html", "06-shapes.html")
    )
    assert norms.count("<svg>") == 1
    assert norms.index('id="pre-norm"') < norms.index("<svg>") < norms.index('id="post-norm"')
    assert positions.index('id="rope"') < positions.index('id="chart-rotation"') < positions.index('id="rope-theta"')
    assert "vegaEmbed" in positions
    assert "<figcaption>Turns over x.</figcaption>" in positions
    assert "vegaEmbed" not in norms + shapes


@pytest.mark.parametrize(
    ("name", "other"),
    [("gated-mlp", "Plain MLP"), ("mlp-bias", "No biases"), ("gqa", "n_kv_heads=4"), ("mla", "tiny-llama")],
)
def test_the_cost_table_names_both_choices(site: dict[str, Page], name: str, other: str):
    (page,) = (page for file, page in site.items() if file[0].isdigit() and name in page.ids)
    title = dict(topics())[name].title
    assert re.search(rf"tiny-llama at 4096 tokens\s+{title}{other}", page.words)


def test_topics_name_pictures_and_claims_that_there_are():
    named = {picture for _, topic in topics() for picture in topic.pictures}
    assert named
    assert named <= pictures().keys()
    assert {number for _, topic in topics() for number in topic.claims} <= claims().keys()


class Searched(HTMLParser):
    """The index of the guide's search on a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.inside, self.index = False, ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.inside = ("id", "search-index") in attrs

    def handle_data(self, data: str) -> None:
        self.index += data if self.inside else ""


def test_every_result_of_the_search_is_a_place_on_a_page(site: dict[str, Page], folder: Path):
    found = json.loads(Searched((folder / "ledger.html").read_text(encoding="utf-8")).index)
    places = {(found["pages"][page], anchor) for _, page, anchor, *_ in found["entries"]}
    assert [place for place, anchor in places if anchor and anchor not in site[place].ids] == []
    assert {place for place, _ in places} == site.keys() - {"index.html"}
    titles = {title for title, *_ in found["entries"]}
    assert titles >= {topic.title for _, topic in topics()} | {*config_addresses()} | {"archlab train", "archlab.cost"}
    assert {*words()} <= {word for *_, spellings in found["entries"] for word in spellings}
