"""The screen of a choice: its pictures for the values in a link, its evidence, and its cost in the open model."""

import json
import re
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from archlab.cli.app import main
from archlab.evidence.claims import claims
from archlab.evidence.ledger import about
from archlab.evidence.topics import topics
from archlab.exchange.configs import load_config
from archlab.pricing.price import price
from archlab.pricing.units import binary, count, si
from archlab.report.drawings.pictures import pictures, pictures_of
from archlab.report.ledger.forest import forests
from archlab.ui.app import create_app
from archlab.ui.lab.processes import StudyProcesses

HERE = "http://127.0.0.1:8765"


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TestClient:
    monkeypatch.chdir(tmp_path)
    app = create_app(Path(), "the-token", 8765, ["127.0.0.1"], StudyProcesses())
    client = TestClient(app, base_url=HERE, raise_server_exceptions=False, follow_redirects=False)
    client.get("/?token=the-token")
    return client


def text_of(html: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", html))


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, _ in topics()])
def test_every_choice_has_a_screen_also_with_a_model(client: TestClient, name: str):
    answer = client.get(f"/choice/{name}?in=llama-3-8b&context=12")
    assert answer.status_code == 200, answer.text[-500:]
    assert f"archlab explain {name}" in answer.text


# --- pictures ---------------------------------------------------------------------------------------------------------


def picture(html: str) -> str:
    return html.partition('<div id="pictures"')[2].partition("<fieldset")[0]


@pytest.mark.parametrize(
    ("path", "changed"),
    [
        ("/choice/rope", "theta=500000"),
        ("/choice/rope", "scaling=yarn&factor=8&original=4096"),
        ("/choice/swiglu", "mlp=plain"),
        ("/choice/swiglu", "clamp=1.5"),
        ("/choice/sliding-window", "window=7"),
        ("/choice/causal", "visibility=two_sided"),
        ("/choice/gqa", "n_heads=12&n_kv_heads=3"),
        ("/choice/moe", "experts=16&active=4&skew=1&capacity=1.5"),
        ("/choice/alibi", "n_heads=6"),
        ("/choice/rmsnorm", "mean=3&eps=1"),
    ],
)
def test_a_link_contains_the_state_of_the_pictures(client: TestClient, path: str, changed: str):
    first, second = client.get(path), client.get(f"{path}?{changed}")
    assert picture(first.text) != picture(second.text)
    assert second.headers["hx-replace-url"] == f"{path}?{changed}"
    assert picture(client.get(second.headers["hx-replace-url"]).text) == picture(second.text)
    assert first.headers["hx-replace-url"] == path


def test_defaults_are_left_out_of_the_link(client: TestClient):
    answer = client.get("/choice/rope?theta=10000.0&head_dim=64&tokens=256")
    assert answer.headers["hx-replace-url"] == "/choice/rope?tokens=256"


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/choice/rope?theta=5", "theta is '5'; allowed: a number from 100 to 100,000,000"),
        ("/choice/rope?theta=nan", "theta is 'nan'; allowed: a number from 100 to 100,000,000"),
        ("/choice/rope?head_dim=7", "head_dim is '7'; allowed: a multiple of 2 from 8 to 256"),
        ("/choice/rope?fraction=0.08", "fraction is 0.08, which turns 5 of 64 dimensions"),
        ("/choice/rope?scaling=yarm", "scaling is 'yarm'; did you mean yarn? allowed: none, linear"),
        ("/choice/rope?thet=7", "unknown parameter 'thet'; did you mean theta?"),
        (
            "/choice/gqa?n_heads=8&n_kv_heads=3",
            "n_kv_heads is 3, which does not divide n_heads = 8; allowed: 1, 2, 4, 8",
        ),
        ("/choice/moe?experts=4&active=8", "active is 8; allowed: at most 4, the number of experts"),
        ("/choice/strided?stride=4&window=0", "model.attention.stride"),
        ("/choice/t5-bias?buckets=64&max_distance=32", "max_distance is 32; allowed: more than half of the 64 buckets"),
        ("/choice/sliding-window?window=<script>", "window is '<script>'; allowed: a whole number from 1 to 32"),
        ("/choice/pre-norm?theta=1", "unknown parameter 'theta'; allowed: none"),
        ("/choice/rope?in=nothing", "unknown model"),
        ("/choice/rope?in=llama-3-8b&model.n_layers=-3", "model.n_layers"),
        ("/choice/rope?model.n_layers=3", "model.n_layers is set, but no model"),
        ("/choice/rope?in=llama-3-8b&train.start=/etc", "train.start"),
    ],
)
def test_a_value_out_of_range_is_refused_with_one_message(client: TestClient, path: str, message: str):
    answer = client.get(path)
    assert answer.status_code == (404 if "in=nothing" in path else 422)
    text = text_of(answer.text).replace("&#39;", "'").replace("&lt;", "<").replace("&gt;", ">")
    assert message in text
    part = client.get(path, headers={"HX-Request": "true"})
    assert part.headers["hx-retarget"] == "#problem"


def test_pictures_start_at_the_topics_own_values_or_at_those_of_the_model(client: TestClient):
    def value(path: str, name: str) -> str:
        html = client.get(path).text
        option = re.search(rf'id="knob-{name}" name="{name}">(.*?)</select>', html, re.DOTALL)
        if option:
            return re.findall(r"<option selected>(\w+)", option[1])[0]
        return re.findall(rf'name="{name}" type="number" value="([^"]*)"', html)[0]

    assert value("/choice/yarn", "scaling") == "yarn"
    assert value("/choice/geglu", "activation") == "gelu"
    assert value("/choice/rope", "theta") == "10000"
    assert value("/choice/rope?in=llama-3-8b", "theta") == "500000"
    assert value("/choice/gqa?in=llama-3-8b", "n_heads") == "32"
    assert value("/choice/gqa?in=llama-3-8b&model.attention.n_kv_heads=2", "n_kv_heads") == "2"
    assert value("/choice/swiglu-limit", "mlp") == "gated"


def test_pictures_have_no_script_and_colors_of_both_modes(client: TestClient):
    html = picture(client.get("/choice/rope").text)
    assert html.count("<svg") == 2
    assert html.count("prefers-color-scheme: dark") == 2
    assert "<script" not in html
    ids = re.findall(r' id="([^"]+)"', html)
    assert len(ids) == len({*ids})


def test_a_topic_has_the_pictures_that_can_show_it():
    by_name = {name: list(pictures_of(topic)) for name, topic in topics()}
    assert by_name["swiglu"] == ["activation"]
    assert by_name["yarn"] == by_name["rope"] == ["rotation", "rotation-products"]
    assert by_name["longrope"] == []  # its lists of factors have no slider
    assert by_name["mqa"] == ["head-sharing"]
    assert by_name["rmsnorm"] == by_name["dyt"] == ["norm"]
    assert {name for names in by_name.values() for name in names} == pictures().keys()


# --- evidence ---------------------------------------------------------------------------------------------------------


def plots(name: str):
    topic = dict(topics())[name]
    return forests(name, about(topic))


@pytest.mark.parametrize("name", [name for name, topic in topics() if topic.claims])
def test_intervals_contain_their_points_and_axes_contain_all(name: str):
    for forest in plots(name):
        for row in forest.rows:
            places = [row.at, *(row.ends or ())]
            assert all(0 <= place <= 100 for place in (*places, forest.zero))
            assert row.ends is None or row.ends[0] <= row.at <= row.ends[1]
            assert row.caveat


def test_a_plot_places_values_on_its_axis_and_mixes_no_quantities():
    found = plots("gqa")
    assert len({forest.title for forest in found}) == len(found)
    for forest in found:
        (first, second), *_ = zip(forest.ticks, forest.ticks[1:], strict=False)
        scale = (float(second[1].split()[0]) - float(first[1].split()[0])) / (second[0] - first[0])
        for row in forest.rows:
            number = row.text.split()[0].replace(",", "")
            rounding = 10.0 ** -len(number.partition(".")[2])
            assert (row.at - forest.zero) * scale == pytest.approx(float(number), abs=rounding + abs(scale) / 20)
    units = [forest.title.rpartition(": ")[2] for forest in found]
    assert "difference in bits per byte (left is better)" in units
    assert "difference in tokens/s (right is better)" in units
    published = [forest for forest in found if "as published" in forest.title]
    assert [row.ends for forest in published for row in forest.rows] == [None, None]


def test_published_pairs_are_numbers_of_their_text():
    pairs = [(effect, pair) for claim in claims().values() for effect in claim.published for pair in effect.pairs]
    assert len(pairs) >= 10
    for effect, pair in pairs:
        numbers = [float(number) for number in re.findall(r"\d*\.\d+|\d+", effect.found)]
        assert {pair.value, pair.reference} <= {*numbers}, effect.found


def test_names_of_topics_are_those_that_exist():
    names = {name for name, _ in topics()}
    used = {
        topic for claim in claims().values() for effect in claim.published for p in effect.pairs for topic in p.topics
    }
    assert used <= names


def test_a_claim_can_be_replayed_at_the_smoke_scale(client: TestClient):
    html = client.get("/choice/gqa").text
    links = re.findall(r'href="(/studies/new[^"]*)"', html)
    assert "/studies/new?from=kv-heads&amp;scale=smoke" in links
    for link in links:
        form = client.get(link.replace("&amp;", "&"))
        assert form.status_code == 200
        assert "<textarea" in form.text


def test_common_errors_are_shown_here_and_in_the_json_of_explain(
    client: TestClient, capsys: pytest.CaptureFixture[str]
):
    html = text_of(client.get("/choice/gqa").text)
    assert "Llama 2 uses grouped-query attention.” In fact: Only the 34B and 70B models do." in html
    assert "Llama 2 uses" not in client.get("/choice/rope").text
    assert main(["explain", "gqa", "--json"]) == 0
    errors = json.loads(capsys.readouterr().out)["mistakes"]
    assert "Llama 2 uses grouped-query attention." in [error["said"] for error in errors]


def test_the_search_finds_claims(client: TestClient):
    html = client.get("/search?q=parallel+blocks").text
    address = re.search(r'href="(/choice/[^"]+)">5\. parallel blocks', html)
    assert address
    path, _, anchor = address[1].partition("#")
    assert f'id="{anchor}"' in client.get(path).text


@pytest.mark.parametrize(
    ("text", "title"),
    [("atention", "Attention"), ("ropee", "RoPE"), ("rmsnrom", "RMSNorm"), ("moe router", "Mixture of experts"), ("激活函数", "Activations"), ("swiglu vs geglu", "GEGLU")],
)  # fmt: skip
def test_the_search_knows_several_words_other_spellings_and_chapters(client: TestClient, text: str, title: str):
    assert title in re.findall(r">([^<>]+)</a>", client.get(f"/search?q={text}").text.partition("results")[2])


def test_the_search_finds_config_files_of_the_folder(
    client: TestClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    Path("deeper").mkdir()
    for name, text in {
        "own-one.yaml": "base: gpt-2", "deeper/own-two.yaml": "model: {}", "own-study.yaml": "{question: Why?, base: x}",
        "own-broken.yaml": "base: [", "own-other.yaml": "services: {}",
    }.items():  # fmt: skip
        Path(name).write_text(text)
    found = client.get("/search?q=own-").text
    assert {*re.findall(r'<li><a href="/m/([^"]+)"', found)} == {"own-one.yaml", "deeper/own-two.yaml"}
    assert 'value="own-one.yaml"' in client.get("/configs").text
    assert client.get("/m/own-one.yaml").status_code == 200


def test_the_search_finds_studies_and_runs_of_the_folder(client: TestClient, tmp_path: Path):
    for folder, file in (("studies/my-norms", "study.yaml"), ("runs/my-norms-first", "metrics.jsonl")):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / file).touch()
    html = client.get("/search?q=my-norms").text
    assert re.findall(r'<li><a href="([^"]+)">', html) == [
        "/studies/of/studies/my-norms",
        "/runs/of/runs/my-norms-first",
    ]


def test_settings_of_a_topic_lead_to_their_screens(client: TestClient):
    page = client.get("/choice/swiglu?in=llama-3-8b").text
    links = re.findall(r'<code><a href="(/choice/model[^"]+)">', page)
    assert links
    assert all(client.get(link).status_code == 200 for link in links)


def test_the_search_says_how_many_results_it_leaves_out(client: TestClient):
    page = client.get("/search?q=norm").text
    assert page.count("<li><a ") == 20
    assert re.search(r"And \d+ more", page)


def test_the_search_says_what_archlab_does_not_have(client: TestClient):
    assert "archlab has no choice of kernel" in client.get("/search?q=flash+attention").text


def test_an_unknown_topic_is_not_found(client: TestClient):
    assert client.get("/choice/no-such-choice").status_code == 404


# --- cost in the open model -------------------------------------------------------------------------------------------


def shown_cost(client: TestClient, path: str) -> tuple[str, dict[str, list[str]]]:
    html = client.get(path).text.partition('class="there"')[2].partition("</section>")[0]
    rows = re.findall(r'<tr><th scope="row">(.*?)</th>(.*?)</tr>', html)
    return text_of(html), {name: re.findall(r">([^<]+)</td>", cells) for name, cells in rows}


@pytest.mark.parametrize(
    ("path", "first", "second", "context"),
    [
        ("/choice/gqa?in=llama-3-8b", [], ["model.attention.n_kv_heads=32"], 8192),
        ("/choice/gqa?in=llama-3-8b&context=10", [], ["model.attention.n_kv_heads=32"], 1024),
        ("/choice/mqa?in=llama-3-8b", [], ["model.attention.n_kv_heads=1"], 8192),
        ("/choice/sliding-window?in=llama-3-8b", [], ["model.attention.window=1024"], 8192),
        (
            "/choice/tied-embeddings?in=llama-3-8b&model.n_layers=16",
            ["model.n_layers=16"],
            ["model.n_layers=16", "model.head.tied=true"],
            8192,
        ),
    ],
)
def test_the_cost_is_that_of_the_two_configs(client: TestClient, path: str, first, second, context: int):
    _, rows = shown_cost(client, path)
    costs = [price(load_config("llama-3-8b", *overrides), context) for overrides in (first, second)]
    assert rows["parameters"] == [count(cost.parameters) for cost in costs]
    assert rows["forward FLOPs per token"] == [si(cost.flops) for cost in costs]
    assert rows["KV cache and states"] == [binary(cost.state_bytes) for cost in costs]
    assert costs[0] != costs[1]


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/choice/rmsnorm?in=llama-3-8b", "llama-3-8b makes this choice. Without it: model.norm.kind=layernorm"),
        ("/choice/qkv-bias?in=llama-3-8b", "The first three digits of all costs stay the same"),
        ("/choice/mla?in=llama-3-8b", "does not make this choice. It needs a size for kv_rank"),
        ("/choice/sliding-window?in=gemma-2-9b", "makes this choice. It is set for each kind of layer"),
        ("/choice/sandwich-norm?in=gpt-2-xl", "does not make this choice."),
        ("/choice/warm-up?in=llama-3-8b", "This choice is not about the model, so it has no cost of its own."),
    ],
)
def test_a_number_that_would_mislead_is_not_shown(client: TestClient, path: str, words: str):
    text, _ = shown_cost(client, path)
    assert words in text


def test_the_workbench_links_to_choices_with_its_model(client: TestClient):
    html = client.get("/m/llama-3-8b?model.attention.n_kv_heads=2").text
    assert 'href="/choice/gqa?in=llama-3-8b&amp;model.attention.n_kv_heads=2"' in html or (
        "?in=llama-3-8b&amp;model.attention.n_kv_heads=2" in html
    )
