"""The guide: every topic once, in lecture order, every link leads somewhere, pictures stand where topics name them."""

import re
from html.parser import HTMLParser
from pathlib import Path

import altair as alt
import pytest

from archlab.cli.app import main
from archlab.evidence.read import claims, sources
from archlab.evidence.topics import chapters, topics
from archlab.report.drawings.pictures import pictures
from archlab.report.guide import write_guide


class Page(HTMLParser):
    """Ids, links and what a page would load."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.ids += [value for key, value in given.items() if key == "id" and value]
        self.links += [value for key, value in given.items() if key == "href" and value]
        self.loaded += [value for key, value in given.items() if key == "src" and value]
        if tag not in ("meta", "link", "br", "img", "hr"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Page]:
    folder = tmp_path_factory.mktemp("guide")
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
        assert not page.loaded
        assert len({*page.ids}) == len(page.ids)
        for link in page.links:
            if link in published:
                continue
            file, _, place = link.partition("#")
            file = file or name
            assert file in site, f"{name}: {link}"
            assert not place or place in site[file].ids, f"{name}: {link}"


def test_the_ledger_in_the_guide_has_its_pictures(site: dict[str, Page]):
    assert "chart-predictions-0" in site["ledger.html"].ids


def test_every_source_is_in_the_bibliography_with_its_topics_and_claims(site: dict[str, Page]):
    links = site["bibliography.html"].links
    cites = {name for name, _ in topics()} | {f"claim-{number}" for number in claims()}
    assert {link.partition("#")[2] for link in links if "#" in link} == cites


def test_a_source_is_cited_alike_on_the_pages_of_topics_and_in_the_bibliography(tmp_path: Path):
    write_guide(tmp_path, {})
    norms, bibliography = ((tmp_path / name).read_text() for name in ("01-norms.html", "bibliography.html"))
    source = sources()["zhang2019"]
    assert f"{source.cited}, arXiv 1910.07467" in norms
    line = re.search(f"<dt>Zhang and Sennrich 2019, {source.title}, arXiv 1910.07467.*?</dd>", bibliography, re.DOTALL)
    assert line
    assert "01-norms.html#rmsnorm" in line[0]
    assert "ledger.html#claim-2" in line[0]


def test_pictures_stand_where_topics_name_them(tmp_path: Path):
    chart = alt.Chart(alt.Data(values=[{"x": 1}])).mark_point().encode(x="x:Q")
    write_guide(tmp_path, {"rotation": lambda: chart, "pre-norm": lambda: "<svg><title>pre</title></svg>"})
    positions, norms, shapes = (
        (tmp_path / page).read_text(encoding="utf-8")
        for page in ("05-positions.html", "01-norms.html", "06-shapes.html")
    )
    assert norms.count("<svg>") == 1
    assert norms.index('id="pre-norm"') < norms.index("<svg>") < norms.index('id="post-norm"')
    assert positions.index('id="rope"') < positions.index('id="chart-rotation"') < positions.index('id="rope-theta"')
    assert "vegaEmbed" in positions
    assert "vegaEmbed" not in norms + shapes


def test_topics_name_pictures_and_claims_that_there_are():
    named = {picture for _, topic in topics() for picture in topic.pictures}
    assert named
    assert named <= pictures().keys()
    assert {number for _, topic in topics() for number in topic.claims} <= claims().keys()
