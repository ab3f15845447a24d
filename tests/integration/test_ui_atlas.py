"""The screens of published models: their selection and their numbers are those of the command line."""

import json
import re
import shlex
import subprocess
import sys
from collections import Counter, defaultdict
from html import unescape
from pathlib import Path
from urllib.parse import quote

import pytest
from starlette.testclient import TestClient

from archlab.atlas.adoption import CHOICES, Choice
from archlab.atlas.models import AtlasRow, rows
from archlab.atlas.select import value_of
from archlab.atlas.words import NOTHING
from archlab.cli.app import main
from archlab.config.identity import flatten, resolved
from archlab.config.io import facts, presets, read_entry
from archlab.exchange.configs import load_config
from archlab.ui.app import create_app
from archlab.ui.atlas.axes import AXES, axis_of, places
from archlab.ui.atlas.published import config_axes
from archlab.ui.atlas.screen import models_screen
from archlab.ui.atlas.view import ModelsView
from archlab.ui.lab.processes import StudyProcesses

HERE = "http://127.0.0.1:8765"
ROWS = rows()


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> TestClient:
    app = create_app(tmp_path_factory.mktemp("root"), "token", 8765, ["127.0.0.1"], StudyProcesses())
    client = TestClient(app, base_url=HERE, raise_server_exceptions=False, follow_redirects=False)
    assert client.get("/?token=token").status_code == 303
    return client


def listed(html: str) -> list[str]:
    """Return the models of the table."""
    return re.findall(r'<tbody role="rowgroup" id="model-([^"]*)"', html)


def dots(html: str) -> list[str]:
    return re.findall(r'<a href="/models/([^"]*)" aria-label', html)


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    """Return the models that `archlab list presets` prints."""
    assert main(["list", "presets", *arguments, "--json"]) == 0
    return [row["preset"] for row in json.loads(capsys.readouterr().out)["published"]]


# --- selection --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "arguments"),
    [
        ("", []),
        ("heads=GQA&year=2024", ["--filter", "heads=GQA", "year=2024"]),
        ("year>=2024&sort=-size", ["--filter", "year>=2024", "--sort", "-size"]),
        ("d_ff_over_d%3E4", ["--filter", "d_ff_over_d>4"]),
        ("position=T5|TransfoXL&x=year&y=n_layers", ["--filter", "position=T5|TransfoXL"]),
        ("reach==local", ["--filter", "reach==local"]),
        ("year!=2024&n_heads=null|71", ["--filter", "year!=2024", "n_heads=null|71"]),
        ("sort=d_over_layers", ["--sort", "d_over_layers"]),
        ("model.attention.n_kv_heads%3C8&y=model.norm.eps", ["--filter", "model.attention.n_kv_heads<8"]),
        (
            "add=model.position.kind=rope&sort=-model.position.theta",
            ["--filter", "model.position.kind=rope", "--sort", "-model.position.theta"],
        ),
        ("heads=MQA&add=year%3C2024", ["--filter", "heads=MQA", "year<2024"]),
    ],
)
def test_the_selection_is_that_of_the_command(
    client: TestClient, capsys: pytest.CaptureFixture[str], query: str, arguments: list[str]
):
    answer = client.get(f"/models?{query}")
    assert answer.status_code == 200
    names = printed(capsys, *arguments)
    assert listed(answer.text) == names
    assert f"<b>{len(names)}</b> of {len(ROWS)} models" in answer.text
    shown = unescape(re.sub("</?span[^>]*>", "", re.findall(r'<pre class="commands">(.*?)\n', answer.text)[0]))
    assert shlex.split(shown) == ["archlab", "list", "presets", *arguments]


def test_the_selection_is_that_of_a_count_over_the_presets(client: TestClient):
    """Counted from the configs themselves: more query heads than KV heads, and more than one of these."""

    def has_groups(name: str) -> bool:
        values = flatten(resolved(load_config(name)))
        n_heads, n_kv_heads = (values.get(f"model.attention.{field}") for field in ("n_heads", "n_kv_heads"))
        return n_kv_heads is not None and 1 < n_kv_heads < n_heads

    of_2024 = [name for name, file in presets().items() if (about := read_entry(file)[0]) and about.year == 2024]
    expected = {name for name in of_2024 if has_groups(name)}
    assert len(expected) > 20
    shown = set(listed(client.get("/models?heads=GQA&year=2024").text))
    assert shown & presets().keys() == expected


def test_the_address_is_the_state(client: TestClient):
    query = "heads=GQA&year%3E=2024&x=year&y=context&color=norm&sort=-size&mine=llama-3-8b"
    answer = client.get(f"/models?{query}")
    assert answer.headers["HX-Push-Url"] == f"/models?{query}"
    assert client.get(answer.headers["HX-Push-Url"]).text == answer.text
    added = client.get("/models?heads=GQA&x=size&y=&add=+year=2024+").headers["HX-Push-Url"]
    assert added == "/models?heads=GQA&year=2024"


def test_a_click_sets_a_condition_and_a_second_one_removes_it():
    view = ModelsView(("heads=GQA", "year>=2023"))
    assert view.toggled("year=2024").conditions == ("heads=GQA", "year=2024")
    assert view.toggled("norm=RMSNorm", "year=2024").conditions == ("heads=GQA", "norm=RMSNorm", "year=2024")
    assert view.toggled("heads=GQA").conditions == ("year>=2023",)
    assert view.sorted_by("size").sorted_by("size").sort == "-size"


@pytest.mark.parametrize("choice", CHOICES, ids=lambda choice: choice.field)
def test_each_option_leads_to_its_models(client: TestClient, choice: Choice):
    page = client.get("/models").text
    options = dict.fromkeys(choice.of(row) for row in ROWS if choice.of(row) != NOTHING)
    for option in options:
        link = re.search(
            rf'<a id="{choice.field}-\d+" href="([^"]*)"[^>]*><span[^>]*></span>{re.escape(option)} <', page
        )
        assert link, option
        expected = [row.preset for row in ROWS if choice.of(row) == option]
        assert listed(client.get(unescape(link[1])).text) == expected


def test_only_options_with_models_are_links(client: TestClient):
    page = client.get("/models?heads=GQA&year=2024").text
    options = re.findall(r"<li>(<a|<span)[^>]*>.*?</span>[^<]* <small>(\d+)", page)
    assert {tag for tag, n in options if n == "0"} == {"<span"}
    assert {tag for tag, n in options if n != "0"} == {"<a"}


def test_two_conditions_can_be_added_at_once(client: TestClient):
    page = client.get("/models?add=d_ff_over_d>4 year>=2024").text
    assert "Remove d_ff_over_d&gt;4" in page
    assert "Remove year&gt;=2024" in page


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("x=sise", "did you mean size"),
        ("y=name", "y is &#39;name&#39;"),
        ("color=size", "color is &#39;size&#39;"),
        ("yaer=2024", "did you mean year"),
        ("model.attention.n_kv_hads%3C8", "did you mean model.attention.n_kv_heads"),
        ("x=model.norm.esp", "did you mean model.norm.eps"),
        ("year=2016", "no model meets year=2016"),
        ("sort=sise", "did you mean size"),
        ("mine=lama-3-8b", "did you mean llama-3-8b"),
        ("mine=llama-3-8b+model.n_layers=x", "model.n_layers"),
        ("mine=llama-3-8b+train.start=/etc", "a link cannot set this field"),
        ("mine=../../etc/passwd", "unknown model"),
        ("=<script>", "cannot read"),
    ],
)
def test_a_wrong_address_is_one_message(client: TestClient, query: str, message: str):
    answer = client.get(f"/models?{query}")
    assert answer.status_code in (404, 422)
    assert message in answer.text
    assert "<script>" not in answer.text


# --- charts -----------------------------------------------------------------------------------------------------------


def families(chosen: list[AtlasRow], year: int) -> dict[str, list[str]]:
    """Map each family of a year to the kinds of heads of its models."""
    found: dict[str, list[str]] = {}
    for row in chosen:
        if row.about.year == year and row.heads != NOTHING:
            found.setdefault(row.family, []).append(row.heads)
    return found


@pytest.mark.parametrize("feed_forward", ["", "feed_forward=mixture"])
def test_bars_count_families_without_the_conditions_on_their_choice_and_year(feed_forward: str):
    conditions = ("heads=GQA", "year=2024", *filter(None, [feed_forward]))
    screen = models_screen(ModelsView(conditions), Path())
    panel = next(panel for panel in screen.panels if panel.choice.field == "heads")
    compared = [row for row in ROWS if not feed_forward or row.feed_forward == "mixture"]
    for year, parts in panel.years.items():
        by_family = families(compared, year)
        shares: defaultdict[str, float] = defaultdict(float)
        for kinds in by_family.values():
            for kind in kinds:
                shares[kind] += 1 / len(kinds) / len(by_family)
        assert {part.option: part.share for part in parts} == pytest.approx(dict(shares))
        assert all(part.is_chosen == (part.option == "GQA" and year == 2024) for part in parts)
    counted = Counter(row.about.year for row in compared if row.heads == "GQA")
    assert {year.year: year.n for year in screen.years} == {year.year: counted[year.year] for year in screen.years}


@pytest.mark.parametrize("x", AXES)
def test_any_field_can_be_on_an_axis(client: TestClient, x: str):
    page = client.get(f"/models?x={x}&y=n_layers&sort={x}")
    assert page.status_code == 200
    known = [row for row in ROWS if value_of(row, x) is not None]
    assert len(dots(page.text)) == len(known)
    assert (f"{len(ROWS) - len(known)} selected model" in page.text) == (len(known) < len(ROWS))
    places = [float(place) for place in re.findall(r'c[xy]="(-?[\d.]+)%"', page.text)]
    assert len(places) >= 2 * len(dots(page.text))
    assert all(0 <= place <= 100 for place in places)


def test_any_field_of_the_config_can_be_on_an_axis():
    for field in config_axes():
        values = [value_of(row, field) for row in ROWS]
        axis = axis_of(field, values)
        placed = places(ROWS, axis, axis)
        assert len(placed) == len(ROWS) - values.count(None), field
        assert all(0 <= place.left <= 100 and 0 <= place.top <= 100 for place in placed.values()), field


def test_a_field_of_the_config_has_the_value_of_the_resolved_config():
    alike = [row for row in ROWS if row.config.model.layers is None]
    assert len(alike) > 80
    for row in alike:
        values = flatten(resolved(row.config))
        assert all(
            value_of(row, field) == values.get(field) for field in ("model.attention.n_kv_heads", "model.norm.eps")
        )
    assert next(row for row in ROWS if row.preset == "gemma-3-4b").config_fields["model.attention.window"] == 1024


def test_dots_are_in_the_order_of_their_values():
    screen = models_screen(ModelsView(x="size", y="d_over_layers"), Path())
    by_size = sorted(screen.scatter.chosen, key=lambda dot: dot.row.size or 0)
    assert [dot.place.left for dot in by_size] == sorted(dot.place.left for dot in by_size)
    by_aspect = sorted(screen.scatter.chosen, key=lambda dot: -dot.row.d_over_layers)
    assert [dot.place.top for dot in by_aspect] == sorted(dot.place.top for dot in by_aspect)
    assert screen.scatter.x.is_logarithmic


def test_the_config_of_the_user_is_a_star(client: TestClient):
    mine = quote("llama-3-8b model.n_layers=16")
    page = client.get(f"/models?mine={mine}&x=n_layers&y=d_over_layers").text
    assert "llama-3-8b model.n_layers=16: Layers 16, d_model / layers 256" in page
    assert "is left out" in client.get(f"/models?mine={mine}&x=year").text
    assert re.search(r'role="img" aria-label="llama-3-8b: Year 2024', client.get("/models?mine=llama-3-8b&x=year").text)


@pytest.mark.parametrize(
    "variant", ["llama-3-8b model.n_layers=16", "gemma-2-9b model.layers.pattern=[local, local, full]"]
)
def test_the_workbench_leads_to_its_star(client: TestClient, variant: str):
    name, _, change = variant.partition(" ")
    page = client.get(f"/m/{name}", params=[tuple(change.split("="))]).text
    link = re.search(r'href="(/models\?mine=[^"]*)"', page)
    assert link
    assert f"★ {variant}" in client.get(unescape(link[1])).text


@pytest.mark.parametrize("conditions", ["d_ff_over_d%3E4", "year=2017|2025"])
def test_models_of_years_with_gaps_are_saved(client: TestClient, conditions: str):
    answer = client.get(f"/save/models?{conditions}")
    assert answer.status_code == 200
    assert len(listed(client.get(f"/models?{conditions}").text)) == answer.text.count('id="model-')


# --- page of a model --------------------------------------------------------------------------------------------------


def test_every_published_model_has_a_page(client: TestClient):
    for name in [*(row.preset for row in ROWS), *facts()]:
        assert client.get(f"/models/{name}").status_code == 200, name


@pytest.mark.parametrize("name", ["llama-3-8b", "deepseek-v3", "mamba-2-2.7b", "t5-small", "palm-540b"])
def test_the_page_has_the_facts_of_the_command(client: TestClient, capsys: pytest.CaptureFixture[str], name: str):
    assert main(["list", "presets", "--filter", f"preset=={name}", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["published"]
    page = client.get(f"/models/{name}").text
    text = unescape(re.sub(r"<[^>]*>", "", page))
    assert all(source in text for source in row["about"]["source"])
    assert all(note in text for note in row["about"]["notes"])
    assert all(field in text for field in row["about"]["unverified"])
    assert all(trick in text for trick in row["tricks"])
    facts_shown = dict(re.findall(r'<th scope="row">([^<]*)</th><td[^>]*>([^<]*)</td>', page))
    assert facts_shown["Layers"] == str(row["n_layers"])
    assert facts_shown["Width (d_model)"] == f"{row['d_model']:,}"
    assert facts_shown.get("Query and KV heads", NOTHING) == row["heads"]
    assert sum(other.norm == row["norm"] for other in ROWS) == sum(
        map(int, re.findall(r">(\d+) of \d+ models(?:, (\d+) more unverified)?<", page)[0])
    )
    assert "archlab-drawing" in page


def test_every_field_has_its_value_and_certainty(client: TestClient):
    page = client.get("/models/bloom-176b").text
    cells = re.findall(
        r'">(model\.[\w.]+)</a></th><td data-label="Value">([^<]*)</td><td data-label="Certainty">([^<]*)<', page
    )
    shown = {field: (value, certainty) for field, value, certainty in cells}
    values = flatten(resolved(load_config("bloom-176b")))
    assert shown.keys() == {field for field in values if field.startswith("model.")}
    about, _ = read_entry(presets()["bloom-176b"])
    assert about
    assert shown["model.n_layers"] == ("70", about.certainty)
    assert {field for field, (_, certainty) in shown.items() if certainty == "unverified"} == {
        "model.norm.eps", "model.max_seq_len",
    }  # fmt: skip


def test_other_names_lead_to_the_model(client: TestClient):
    assert client.get("/models/Llama-3_8B").headers["location"] == "/models/llama-3-8b"
    assert client.get("/models/tiny-llama").headers["location"] == "/m/tiny-llama"
    assert "The architecture is not published" in client.get("/models/gpt-4").text
    unknown = client.get("/models/lama-3-8b")
    assert (unknown.status_code, "did you mean llama-3-8b" in unknown.text) == (404, True)
    assert client.get("/models/../../etc/passwd").status_code == 404
    assert 'href="/models/gemma-2-9b"' in client.get("/search?q=gemma-2-9b").text


def test_the_screens_do_not_load_torch():
    code = (
        "import sys; from pathlib import Path; from archlab.ui.atlas.screen import models_screen; from archlab.ui.atlas.view import ModelsView; "
        "from archlab.ui.atlas.one_model import model_page; models_screen(ModelsView(mine='llama-3-8b'), Path()); "
        "model_page('llama-3-8b'); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("topic", "choice", "field", "value"),
    [
        ("rope", "Positions", "model.position.kind", "rope"),
        ("rmsnorm", "Norm", "model.norm.kind", "rmsnorm"),
        ("pre-norm", "Place of the norm", "model.norm.placement", "pre"),
    ],
)
def test_all_screens_count_the_models_with_a_choice_alike(
    client: TestClient, topic: str, choice: str, field: str, value: str
):
    """The page of a model counts those that make the choice in all layers, and says so."""

    def words(path: str) -> str:
        return unescape(re.sub(r"\s+", " ", re.sub("<.*?>", " ", client.get(path).text)))

    used = re.search(
        r"Used by (\d+) of archlab's (\d+) models(?:, (\d+) of them only in some layers)?", words(f"/choice/{topic}")
    )
    assert used
    model = words("/models/llama-3-8b")
    assert re.search(rf"{field} {value} verified {used[1]} ", model)
    found = re.search(rf" {choice} \S+ (\d+) of (\d+) models(?:, (\d+) more unverified)?", model)
    assert found
    assert (int(found[1]), found[2]) == (int(used[1]) - int(used[3] or 0), used[2])
    changed = words(f"/vs/llama-3-8b/{'gpt-2' if field == 'model.norm.kind' else 'transformer-base'}")
    assert f" {value} {used[1]} models " in changed
    selected = re.search(r"(\d+) of \d+ models", words(f"/models?{choice_condition(client, choice)}"))
    assert selected
    assert int(selected[1]) == int(found[1]) + int(found[3] or 0)


def choice_condition(client: TestClient, choice: str) -> str:
    """Return the condition to which a choice on the page of Llama 3 8B leads."""
    row = client.get("/models/llama-3-8b").text.partition(f'<th scope="row">{choice}</th>')[2]
    return unescape(re.findall(r'href="/models\?(.*?)"', row)[0])
