"""`archlab ui`: who may use it, and that its numbers are those of the command line."""

import fcntl
import html
import json
import os
import re
import shlex
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from archlab.cli.app import main
from archlab.pricing.units import binary, count, si
from archlab.ui.app import create_app
from archlab.ui.configs import own_configs
from archlab.ui.guard import LONGEST_ADDRESS, LONGEST_BODY, MOST_FIELDS
from archlab.ui.lab.plan import MOST_ARMS
from archlab.ui.lab.processes import StudyProcesses
from sample_run import STEPS, begun

TOKEN, PORT = "the-token", 8765
HERE = f"http://127.0.0.1:{PORT}"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return Path()


def stranger(root: Path) -> TestClient:
    app = create_app(root, TOKEN, PORT, ["127.0.0.1", "localhost"], StudyProcesses())
    return TestClient(app, base_url=HERE, raise_server_exceptions=False, follow_redirects=False)


@pytest.fixture
def client(root: Path) -> TestClient:
    client = stranger(root)
    assert client.get(f"/?token={TOKEN}").status_code == 303
    return client


# --- guard ------------------------------------------------------------------------------------------------------------


def test_the_token_is_exchanged_once_for_a_cookie(root: Path):
    client = stranger(root)
    assert client.get("/m/llama-3-8b").status_code == 403
    assert client.get("/?token=wrong").status_code == 403
    answer = client.get(f"/m/llama-3-8b?token={TOKEN}&context=12")
    assert (answer.status_code, answer.headers["location"]) == (303, "/m/llama-3-8b?context=12")
    cookie = answer.headers["set-cookie"]
    assert cookie.startswith(f"archlab-{PORT}=")
    assert TOKEN not in cookie
    assert {"httponly", "samesite=strict"} <= {part.strip().lower() for part in cookie.split(";")}
    assert client.get("/m/llama-3-8b").status_code == 200
    client.cookies.clear()
    assert client.get(f"/?token={TOKEN}").status_code == 403


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "127.0.0.1.evil.example",
        "evil.example:8765",
        "",
        "[::",
        "evil.example:80@localhost",
        "localhost:99999",
        "127.0.0.1:8765/evil",
        "127.0.0.1?evil",
        "127.0.0.1:8765?",
        "127.0.0.1:8765#",
        "a" * 300,
    ],
)
def test_another_host_name_is_refused(client: TestClient, host: str):
    assert client.get("/m/llama-3-8b", headers={"host": host}).status_code == 421


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:9", f"{HERE}.evil.example", ""])
def test_another_origin_is_refused(client: TestClient, origin: str):
    assert client.get("/m/llama-3-8b", headers={"origin": origin}).status_code == 403
    assert client.post("/m/llama-3-8b", headers={"origin": origin}).status_code == 403


def test_a_part_of_another_site_is_refused_and_a_page_of_this_server_is_not(client: TestClient):
    embedded = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}
    assert client.get("/static/ui.js", headers=embedded).status_code == 403
    own = {"sec-fetch-site": "same-origin", "sec-fetch-mode": "cors", "origin": HERE}
    assert client.get("/m/llama-3-8b", headers=own).status_code == 200


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/m/../../etc/passwd", 404),
        ("/m/..%2f..%2fetc%2fpasswd", 404),
        ("/m/%2fetc%2fpasswd", 404),
        ("/static/..%2f..%2fguard.py", 404),
        ("/static/../app.py", 404),
        ("/m/a%00b", 404),
        ("/m/" + "a" * 5_000, 404),
        ("/m/owner/name", 404),
        ("/nothing", 404),
        (f"/m/llama-3-8b?{'a' * LONGEST_ADDRESS}=1", 414),
        ("/m/" + "a" * LONGEST_ADDRESS, 414),
        ("/m/llama-3-8b?" + "&".join(f"f{n}=1" for n in range(MOST_FIELDS + 1)), 400),
        ("/m/llama-3-8b?data.path=/etc", 422),
        ("/m/llama-3-8b?train.start=/etc", 422),
        ("/m/llama-3-8b?plugins.x=os", 422),
        ("/m/llama-3-8b?n_kv_heads=2", 422),
        ("/yaml/llama-3-8b?model=gpt-2", 422),
        ("/vs/gpt-2/llama-3-8b?n_layers=2", 422),
        ("/m/llama-3-8b?context=1e9", 422),
        ("/m/llama-3-8b?batch=-1", 422),
        ("/m/llama-3-8b?hardware=../../x", 422),
        ("/m/llama-3-8b?model.d_model=<script>", 422),
        ("/m/llama-3-8b?model.n_layers=99999999999", 422),
    ],
)
def test_a_hostile_address_is_refused(client: TestClient, path: str, status: int):
    answer = client.get(path)
    assert answer.status_code == status
    assert "root:" not in answer.text
    assert "<script>" not in answer.text.replace('<script src="', "")


@pytest.mark.parametrize("field", ["plugins", "train.start", "data.path"])
def test_a_typed_field_opens_no_file_either(client: TestClient, field: str):
    answer = client.get(f"/m/llama-3-8b?add={field}&value=[/etc/passwd]")
    assert answer.status_code == 422
    assert f"{field}: a link cannot set this field" in answer.text


def test_the_exchange_of_the_token_does_not_lead_to_another_host(root: Path):
    for path in ("//evil.example/", "///evil.example/", "/%5Cevil.example/"):
        location = stranger(root).get(f"{HERE}{path}?token={TOKEN}").headers["location"]
        assert re.match(r"/[^/\\]", location)


def test_other_methods_and_long_forms_are_refused(client: TestClient):
    assert client.request("DELETE", "/m/llama-3-8b").status_code == 405
    long = client.post("/m/llama-3-8b", content=b"x" * (LONGEST_BODY + 1), headers={"origin": HERE})
    assert long.status_code == 413


@pytest.mark.parametrize("path", ["/studies/plan", "/studies/start", "/studies/pause/x", "/studies/resume/x"])
def test_a_form_with_too_many_fields_is_refused(client: TestClient, path: str):
    many = "&".join(f"f{n}=" for n in range(10_000))
    for fields in (many, many[:600]):
        assert client.post(path, content=fields, headers={"origin": HERE}).status_code in (400, 413)


def test_a_link_that_leads_out_of_the_folder_is_not_followed(
    client: TestClient, tmp_path_factory: pytest.TempPathFactory
):
    outside = tmp_path_factory.mktemp("outside") / "secret.yaml"
    outside.write_text("base: llama-3-8b\n")
    Path("inside.yaml").write_text("base: llama-3-8b\n")
    os.symlink(outside, "link.yaml")
    assert client.get("/m/inside.yaml").status_code == 200
    assert client.get("/m/link.yaml").status_code == 404


@pytest.mark.parametrize("field", ["extends: {}", "start: {}", "set: {{data.path: {}}}"])
@pytest.mark.parametrize("path", ["link", "link/secret.yaml", "../outside", "/etc"])
def test_a_study_reads_nothing_outside_the_folder(
    client: TestClient, tmp_path_factory: pytest.TempPathFactory, field: str, path: str
):
    os.symlink(tmp_path_factory.mktemp("outside"), "link")
    rest = "question: q\nbase: tiny-llama\nbudget: {tokens: 20K}\narms: {a: {}, b: {model.norm.kind: layernorm}}\n"
    form = {"name": "one", "text": f"{field.format(path)}\n{rest}"}
    for address in ("/studies/plan", "/studies/start"):
        answer = client.post(address, data=form, headers={"origin": HERE})
        assert answer.status_code == 422
        assert "paths below the current folder" in answer.text


@pytest.mark.parametrize(
    "arms",
    [
        "arms: {" + ", ".join(f"a{n}: {{model.mlp.d_ff: {n}}}" for n in range(8, 808, 8)) + "}",
        "cross: {train.seed: [0, 1, 2, 3, 4, 5, 6, 7], train.lr: [1e-3, 2e-3, 3e-3, 4e-3, 5e-3, 6e-3, 7e-3]}",
    ],
)
def test_a_study_with_many_arms_is_refused_at_once(client: TestClient, monkeypatch: pytest.MonkeyPatch, arms: str):
    """A form of allowed length could otherwise keep the server busy for a minute."""
    monkeypatch.setattr("archlab.ui.lab.plan.arms", None)
    text = f"question: q\nbase: tiny-llama\nbudget: {{tokens: 20K}}\n{arms}\n"
    answer = client.post("/studies/plan", data={"name": "one", "text": text}, headers={"origin": HERE})
    assert answer.status_code == 422
    assert f"arms; allowed in the browser: up to {MOST_ARMS}" in answer.text


def test_a_config_of_the_folder_runs_no_plug_in(client: TestClient):
    Path("own.py").write_text("import pathlib; pathlib.Path('RAN').touch()")
    Path("mine.yaml").write_text("base: tiny-llama\nplugins: [own.py]\n")
    answer = client.get("/m/mine.yaml")
    assert answer.status_code == 422
    assert "a folder&#39;s config names this code" in answer.text
    rest = "question: q\nbudget: {tokens: 20K}\narms: {a: {}, b: {model.norm.kind: layernorm}}\n"
    for text in (f"base: mine.yaml\n{rest}", f"base: tiny-llama\nplugins: [own.py]\n{rest}"):
        form = {"name": "one", "text": text}
        for path in ("/studies/plan", "/studies/start"):
            assert client.post(path, data=form, headers={"origin": HERE}).status_code == 422
    assert not Path("RAN").exists()


def test_every_answer_has_the_headers_of_a_page_that_loads_nothing_else(client: TestClient):
    for path in ("/m/llama-3-8b", "/static/ui.js", "/nothing", "/m/llama-3-8b?batch=x"):
        headers = client.get(path).headers
        assert headers["referrer-policy"] == "no-referrer"
        assert "default-src 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"


# --- workbench --------------------------------------------------------------------------------------------------------


def printed_cost(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict:
    assert main(["cost", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("change", ["model.attention.n_kv_heads=2", "model.mlp.d_ff=8192", "model.norm.kind=layernorm"])
def test_numbers_are_those_of_the_command_line(client: TestClient, capsys: pytest.CaptureFixture[str], change: str):
    page = client.get(f"/m/llama-3-8b?{change}&context=14&batch=3").text
    printed = printed_cost(capsys, "llama-3-8b", change, "--context", "16384", "--batch", "8", "--hardware", "h100")
    assert f"<b>{count(printed['parameters']['total'])}</b>" in page
    assert f"<b>{binary(printed['kv_cache_bytes'])}</b>" in page
    assert f"<b>{si(printed['at_best']['decoding']['tokens_per_second'])}</b>" in page
    assert f"archlab cost llama-3-8b {change} --context 16384 --batch 8 --hardware h100" in commands_of(page)


@pytest.mark.parametrize(
    "model", ["llama-3-8b", "gpt-2", "falcon-7b", "mixtral-8x7b", "deepseek-v3", "t5-11b", "qwen3-next-80b-a3b"]
)
def test_a_box_has_the_same_name_in_the_table_as_in_the_diagram(client: TestClient, model: str):
    page = client.get(f"/m/{model}").text
    in_diagram = set(re.findall(r'<g class="box (?:attention|mlp|mixer)"[^>]*>.*?<text class="bold"[^>]*>(.*?)<', page))
    in_table = set(re.findall(r'<tr data-key="[^"]*/[^"]*"><th scope="row">(.*?), ', page))
    assert in_diagram
    assert in_diagram <= in_table


def test_an_address_without_effect_leads_to_the_shorter_one(client: TestClient):
    answer = client.get("/m/llama-3-8b?model.attention.n_kv_heads=8&model.mlp.d_ff=8192&context=13")
    assert (answer.status_code, answer.headers["location"]) == (303, "/m/llama-3-8b?model.mlp.d_ff=8192")
    added = client.get("/m/llama-3-8b?add=model.attention.softcap&value=50")
    assert added.headers["location"] == "/m/llama-3-8b?model.attention.softcap=50"


@pytest.mark.parametrize(
    ("address", "power", "below", "longest"),
    [
        ("deepseek-v3?", 17, "131,072", "163,840"),
        ("tiny-llama?model.max_seq_len=8000&", 12, "4,096", "8,000"),
    ],
)
def test_the_slider_reaches_a_maximum_and_the_power_of_two_below_it(
    client: TestClient, address: str, power: int, below: str, longest: str
):
    page = client.get(f"/m/{address}context={power}").text
    assert f"<output>{below} tokens</output>" in page
    assert re.search(rf'name="context" [^>]*value="{power}"', page)
    link = re.search(rf'<a href="([^"]*)">maximum: {longest}</a>', page)
    assert link
    page = client.get(html.unescape(link[1])).text
    assert f"<output>{longest} tokens</output>" in page
    assert re.search(rf'name="context" [^>]*value="{power + 1}"', page), "the power of two is another position"


@pytest.mark.parametrize(("name", "most"), [("gpt-2", 10), ("llama-3-8b", 20), ("bart-base", 10)])
def test_the_slider_ends_where_learned_positions_end(client: TestClient, name: str, most: int):
    page = client.get(f"/m/{name}").text
    assert re.search(r'name="context" min="\d+" max="(\d+)"', page)[1] == str(most)  # type: ignore[index]
    assert client.get(f"/m/{name}?context={most}").status_code in (200, 303)


def test_values_are_shown_as_people_write_them(client: TestClient):
    page = client.get("/m/llama-3-8b").text
    assert 'name="model.position.theta" value="500000"' in page
    assert 'name="model.attention.softcap" value="" placeholder="none"' in page
    for text in ("500000", "5e5", "500000.0"):
        answer = client.get(f"/m/llama-3-8b?model.position.theta={text}")
        assert (answer.status_code, answer.headers.get("location")) == (303, "/m/llama-3-8b")
    off = client.get("/m/gemma-2-9b?model.attention.softcap=null").text
    assert 'name="model.attention.softcap" value="null"' in off
    models = re.sub(r"<.*?>", " ", client.get("/models/deepseek-v3").text + client.get("/vs/gpt-2/llama-3-8b").text)
    assert not {"{}", "null", "500000.0", "1000000.0"} & set(models.split())
    assert {"none", "500,000", "163,840"} <= set(models.split())


def test_values_that_follow_from_others_are_marked_and_long_ones_folded(client: TestClient):
    page = html.unescape(client.get("/vs/gemma-2-9b/deepseek-v3").text)
    assert "59.867, from sqrt_d_model" in page
    assert re.search(r">256, derived\s*<details class=\"users\">", page)
    assert re.search(r">128(?! *,)\s*<details class=\"users\">", page), "the config of DeepSeek-V3 sets v_dim"
    assert "layers.sparse<" not in page
    for path in ("/vs/gemma-2-9b/deepseek-v3", "/models/deepseek-v3"):
        text = re.sub(r"<details class=\"value\"><summary>.*?</summary>.*?</details>", "", client.get(path).text)
        assert "[dense, dense, dense" not in text
        assert "[dense, dense, dense" in client.get(path).text


def test_a_wrong_value_is_one_message_and_the_page_stays(client: TestClient):
    answer = client.get("/m/llama-3-8b?model.attention.n_kv_heads=7", headers={"HX-Request": "true"})
    assert "7 does not divide n_heads = 32" in answer.text
    assert (answer.headers["HX-Retarget"], answer.headers["HX-Push-Url"]) == ("#problem", "false")
    whole = client.get("/m/llama-3-8b?model.attention.n_kv_heads=7")
    assert whole.status_code == 422
    assert "7 does not divide n_heads = 32" in whole.text
    unknown = client.get("/m/lama-3-8b")
    assert unknown.status_code == 404
    assert "did you mean llama-3-8b" in unknown.text


def test_a_study_downloads_nothing(client: TestClient):
    rest = "question: q\nbase: tiny-llama\nbudget: {tokens: 20K}\narms: {a: {}, b: {model.norm.kind: layernorm}}\n"
    for field in ("start: org/model", "set: {train.start: org/model}", "set: {data.tokenizer: org/model}"):
        answer = client.post(
            "/studies/plan", data={"name": "one", "text": f"{field}\n{rest}"}, headers={"origin": HERE}
        )
        assert answer.status_code == 422
        assert "the browser downloads nothing" in answer.text


def test_the_numbers_of_a_mixture_name_all_its_matrices(client: TestClient):
    page = client.get("/m/deepseek-v3").text
    assert (
        "router 7,168 × 256; each of 256 experts: up 7,168 × 2,048, gate 7,168 × 2,048, down 2,048 × 7,168; shared."
        in page
    )


def test_the_field_that_keeps_the_size_cannot_be_typed(client: TestClient):
    page = client.get("/m/llama-3-8b?lock=model.mlp.d_ff").text
    assert re.findall(r'name="(model[^"]+)"[^>]* readonly', page) == ["model.mlp.d_ff"]
    assert 'value="model.mlp.d_ff"' not in client.get("/m/mamba-2-2.7b").text, "the model has no hidden width"
    refused = client.get("/m/llama-3-8b?lock=model.mlp.d_ff&model.n_layers=400").text
    assert "llama-3-8b, changed like this, has " in html.unescape(refused)
    assert "or choose another field that keeps the size" in refused


@pytest.mark.parametrize(
    ("change", "lock"), [("model.n_layers=16", "model.mlp.d_ff"), ("model.mlp.d_ff=4096", "model.n_layers")]
)
def test_a_locked_size_stays_within_a_percent(
    client: TestClient, capsys: pytest.CaptureFixture[str], change: str, lock: str
):
    moved = client.get(f"/m/llama-3-8b?{change}&lock={lock}").headers["location"]
    fields = dict(part.split("=") for part in moved.partition("?")[2].split("&"))
    assert (fields.pop("lock"), {*fields}) == (lock, {change.partition("=")[0], lock})
    assert lock == "model.n_layers" or int(fields[lock]) % 64 == 0
    printed = printed_cost(capsys, "llama-3-8b", *(f"{field}={value}" for field, value in fields.items()))
    assert printed["parameters"]["total"] == pytest.approx(8_030_261_248, rel=0.01)
    assert client.get(moved).status_code == 200
    assert client.get(f"/m/llama-3-8b?{change}&lock=model.vocab_size").status_code == 422


def test_the_config_and_the_model_are_copied_as_the_commands_print_them(
    client: TestClient, capsys: pytest.CaptureFixture[str]
):
    change = "model.attention.n_kv_heads=2"
    assert main(["show", "llama-3-8b", change]) == 0
    assert client.get(f"/yaml/llama-3-8b?{change}").text == capsys.readouterr().out
    assert main(["flatten", "llama-3-8b", change]) == 0
    assert client.get(f"/flatten/llama-3-8b?{change}").text == capsys.readouterr().out


# --- compare and save -------------------------------------------------------------------------------------------------


def commands_of(page: str) -> list[str]:
    """Return the commands that a screen shows."""
    block = page.partition('<pre class="commands">')[2].partition("</pre>")[0]
    return html.unescape(re.sub(r"</?span[^>]*>", "", block)).splitlines()


def links_of(page: str) -> list[str]:
    return [html.unescape(link) for link in re.findall(r'href="([^"]+)"', page)]


@pytest.mark.parametrize(
    ("screen", "verb"),
    [
        ("/m/llama-3-8b?model.attention.n_kv_heads=2&context=12&batch=2&hardware=a100-80gb", "cost"),
        ("/m/gpt-2?model.layers={a: {attention.window: 64}, b: {}, pattern: [a, b]}", "check"),
        ("/vs/gpt-2/gpt-2?b.model.n_layers=6&a.model.norm.eps=1e-6", "diff"),
        ("/vs/llama-3-8b/gemma-2-9b", "diff"),
        ("/vs/llama-3-8b/gemma-2-9b/gpt-2", "cost"),
        ("/m/gpt-2?model.n_layers=6", "cost"),
        ("/runs/of/runs/one", "report"),
        ("/models?heads=GQA&year=2024", "list"),
    ],
)
def test_a_screen_saves_the_page_that_its_command_writes(client: TestClient, screen: str, verb: str):
    begun(Path("runs/one"), steps=STEPS, ended="finished")
    page = client.get(screen).text
    command = next(command for command in commands_of(page) if command.startswith(f"archlab {verb} "))
    assert main([*shlex.split(command)[1:], "--out" if verb == "report" else "--html", "written.html"]) == 0
    kind = {"report": "run/", "list": r"models\?"}.get(verb, f"{verb}s?/")
    (address,) = [link for link in links_of(page) if re.match(rf"/save/{kind}", link)]
    saved = client.get(address)
    assert saved.content == Path("written.html").read_bytes()
    assert re.fullmatch(r'attachment; filename="[\w.-]+\.html"', saved.headers["content-disposition"])
    assert "sandbox" in saved.headers["content-security-policy"]


def test_a_printed_command_reads_a_file_whose_name_looks_like_an_option(
    client: TestClient, capsys: pytest.CaptureFixture[str]
):
    for name in ("-dash.yaml", "--out.yaml"):
        assert main(["show", "gpt-2"]) == 0
        Path(name).write_text(capsys.readouterr().out)
    for screen in (
        "/m/-dash.yaml?model.n_layers=6",
        "/vs/-dash.yaml/gpt-2",
        "/vs/-dash.yaml/--out.yaml?b.model.n_layers=6",
        "/choice/rmsnorm?in=-dash.yaml&model.n_layers=6",
    ):
        blocks = client.get(screen).text.split('<pre class="commands">')[1:]
        commands = [command for block in blocks for command in commands_of(f'<pre class="commands">{block}')]
        assert any("./-dash.yaml" in command for command in commands), screen
        for command in commands:
            assert main(shlex.split(command)[1:]) == 0, command


@pytest.mark.parametrize(("path", "named"), [("/vs/", "0 configs"), ("/vs/gpt-2", "1 config")])
def test_a_comparison_of_fewer_than_two_configs_is_refused(client: TestClient, path: str, named: str):
    answer = client.get(path)
    assert answer.status_code == 422
    assert f"{named}; add another name" in answer.text


def test_a_changed_config_is_compared_with_its_changes(client: TestClient, capsys: pytest.CaptureFixture[str]):
    change = "model.attention.n_kv_heads=2"
    page = client.get(f"/m/llama-3-8b?{change}").text
    field, value = re.search(r'type="hidden" name="(a\.[^"]+)" value="([^"]+)"', page).groups()  # pyright: ignore[reportOptionalMemberAccess]
    answer = client.get("/vs/llama-3-8b", params={field: value, "with": "gemma-2-9b"})
    assert answer.headers["location"] == f"/vs/llama-3-8b/gemma-2-9b?a.{change}"
    compared = client.get(answer.headers["location"]).text
    assert main(["diff", "llama-3-8b", "gemma-2-9b", f"a.{change}", "--model-only", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["model.attention.n_kv_heads"] == [2, 8]
    for field, values in printed.items():  # an empty section is not shown
        assert (f">{field.removeprefix('model.')}</a>" in compared) == ({} not in values), field
    alike = client.get(f"/vs/llama-3-8b/gemma-2-9b?b.{change}&a.{change}").text
    assert ">attention.n_kv_heads</a>" not in alike
    assert f"/m/llama-3-8b?{change}" in links_of(compared)


@pytest.mark.parametrize(
    "path",
    [
        "/save/compare/gpt-2/llama-3-8b/gemma-2-9b?a.model.n_layers=6",
        "/save/choice/rope?theta=500000&in=llama-3-8b",
        "/save/choices",
        "/save/model/gpt-2",
        "/save/studies",
    ],
)
def test_a_screen_without_a_page_of_its_own_is_saved_as_one_file(client: TestClient, path: str):
    saved = client.get(path)
    assert re.fullmatch(r'attachment; filename="[\w.-]+\.html"', saved.headers["content-disposition"])
    screen = path.replace("/save/compare", "/vs").replace("/model/", "/models/").removeprefix("/save")
    shown = client.get(screen).text
    headings = re.findall(r"<h[12][^>]*>([^<]+)</h[12]>", saved.text)
    assert len(headings) >= 4
    assert set(headings) <= set(re.findall(r"<h[12][^>]*>([^<]+)</h[12]>", shown)) | {"In llama-3-8b"}
    assert saved.text.count("<svg") == shown.count("<svg")
    assert not re.search(r'<(script|form|button|input|link rel="stylesheet)|(href|src)="/', saved.text)
    assert path.partition("?")[0] in shown


@pytest.mark.parametrize(
    ("field", "topic"),
    [
        ("model.attention.n_kv_heads", "gqa"),
        ("model.attention.kind", "attention"),
        ("model.position.kind", "rope"),
        ("model.norm.kind", "rmsnorm"),
        ("model.mlp.kind", "gated-mlp"),
        ("model.norm.placement", "pre-norm"),
    ],
)
def test_help_opens_the_topic_of_the_choice(client: TestClient, field: str, topic: str):
    page = client.get("/m/llama-3-8b?context=12").text
    (address,) = re.findall(rf'href="([^"]+)" aria-label="[^"]+" title="{re.escape(field)}"', page)
    assert html.unescape(address) == f"/choice/{topic}?in=llama-3-8b&context=12"
    assert 'href="/choices?in=llama-3-8b&amp;context=12"' in page
    listed = client.get("/choices?in=llama-3-8b&context=12").text
    assert f'href="{address}"' in listed


def test_the_header_of_a_flattened_file_is_that_of_the_command(client: TestClient, capsys: pytest.CaptureFixture[str]):
    Path("mine.yaml").write_text("base: tiny-llama\n")
    assert main(["flatten", "mine.yaml", "model.n_layers=2"]) == 0
    assert client.get("/flatten/mine.yaml?model.n_layers=2").text == capsys.readouterr().out


def test_the_study_of_a_changed_config_has_the_change_as_its_arm(client: TestClient):
    change = "b.model.mlp.activation=gelu"
    study = client.get(f"/study/tiny-llama/tiny-llama?{change}").text
    assert "model.mlp.activation: gelu" in study
    assert "model.norm" not in study
    assert client.get("/study/tiny-llama/tiny-llama").status_code == 422


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("model.n_layers=6", "allowed: a.model.n_layers, b.model.n_layers"),
        ("c.model.n_layers=6", "allowed: a.model.n_layers, b.model.n_layers"),
        ("a.data.path=/etc", "data.path: a link cannot set this field"),
        ("b.train.start=/etc", "train.start: a link cannot set this field"),
        ("b.n_layers=6", "n_layers: a link cannot set this field; did you mean model.n_layers"),
        ("b.model.n_layers=x", "model.n_layers"),
    ],
)
def test_a_comparison_refuses_other_fields(client: TestClient, query: str, message: str):
    answer = client.get(f"/vs/gpt-2/llama-3-8b?{query}")
    assert answer.status_code == 422
    assert message in answer.text
    assert client.get(f"/save/diff/gpt-2/llama-3-8b?{query}").status_code == 422


def test_configs_are_compared_only_if_they_differ(client: TestClient):
    for names in ("gpt-2", "gpt-2/gpt-2", "gpt-2/llama-3-8b/gpt-2", "gpt-2/llama-3-8b/gemma-2-9b/mistral-7b"):
        assert client.get(f"/vs/{names}").status_code == 422
    assert client.get("/save/diff/gpt-2/llama-3-8b/gemma-2-9b").status_code == 422


def test_saved_costs_name_the_changes_and_keep_configs_apart(client: TestClient):
    saved = client.get("/save/costs/gpt-2/gpt-2?a.model.n_layers=6").text
    assert "<title>Cost of gpt-2 with model.n_layers=6, gpt-2</title>" in saved
    long = "&".join(
        f"{side}.model.d_model={width}&{side}.model.attention.head_dim=64&{side}.model.mlp.d_ff=3072"
        for side, width in (("a", 768), ("b", 1024))
    )
    page = client.get(f"/save/costs/gpt-2/gpt-2?{long}").text
    assert page.count("gpt-2 with 3 fields changed (a)") > 1
    assert page.count("gpt-2 with 3 fields changed (b)") > 1


def test_a_value_names_the_models_that_have_it(client: TestClient):
    page = client.get("/vs/llama-3-8b/gemma-2-9b").text
    (row,) = re.findall(r">head.softcap</a>.*?</tr>", page, re.DOTALL)
    assert "6 models" in row
    named = re.findall(r'href="/models/([^"]+)"', row)
    assert named[:2] == ["gemma-4-31b", "gemma-4-26b-a4b"]
    assert named[2:] == ["recurrentgemma-2b", "gemma-2-27b", "gemma-2-9b", "gemma-2-2b"]
    (row,) = re.findall(r">norm.kind</a>.*?</tr>", client.get("/vs/gpt-2/llama-3-8b").text, re.DOTALL)
    assert re.search(r"and \d+ earlier", row)


def test_what_is_known_has_measured_and_published_results(client: TestClient):
    page = client.get("/vs/gpt-2/llama-3-8b").text
    (known,) = re.findall(r'<h3><a href="/choice/rmsnorm".*?(?=<h3>)', page, re.DOTALL)
    assert 'class="own"' in known
    assert 'class="published"' in known


def test_diagrams_of_three_configs_mark_what_not_all_have(client: TestClient):
    page = client.get("/vs/llama-3-8b/qwen3-8b/gemma-2-9b").text
    drawings = re.findall(r'<div class="diagram">(.*?)</div>', page, re.DOTALL)
    marked = [re.findall(r'<text[^>]*class="[^"]*differs[^"]*"[^>]*>([^<]*)<', drawing) for drawing in drawings]
    assert "QK-norm: RMSNorm" in marked[1]
    assert "scores capped at 50" in marked[2]
    assert not any("Grouped-query attention" in texts for texts in marked)


def test_each_of_three_configs_has_the_cost_of_its_own_value(client: TestClient):
    page = client.get("/vs/llama-3-8b/qwen3-8b/gemma-2-9b").text
    (row,) = re.findall(r">n_layers</a>.*?</tr>", page, re.DOTALL)
    layers = {"qwen3-8b": 36, "gemma-2-9b": 42}
    for name, n in layers.items():  # all layers of llama-3-8b are equal, so its cache is proportional to their number
        assert re.search(rf"{name}: [^<]*cache {re.escape(format(n / 32 - 1, '+.1%'))}", row), row


def test_a_kind_is_priced_with_the_sizes_of_its_model(client: TestClient, capsys: pytest.CaptureFixture[str]):
    """The default sizes of a mixture are those of neither model."""
    page = client.get("/vs/llama-3-8b/mixtral-8x7b").text
    (row,) = re.findall(r">mlp.kind</a>.*?</tr>", page, re.DOTALL)

    def total(*overrides: str) -> int:
        assert main(["cost", "llama-3-8b", *overrides, "--json"]) == 0
        return json.loads(capsys.readouterr().out)["parameters"]["total"]

    ratio = total("model.mlp={kind: moe, experts: 8, active: 2, d_ff: 14336}") / total()
    assert f"with all of mlp: parameters {ratio - 1:+.1%}" in row


def test_layers_of_several_kinds_are_priced_together(client: TestClient, capsys: pytest.CaptureFixture[str]):
    """Gemma 2 keeps 4,096 tokens in half of its layers: 3/4 of the cache at 8,192 tokens."""
    page = client.get("/vs/llama-3-8b/gemma-2-9b").text
    rows = {field: row for row in page.split("<tr>") for field in re.findall(r">(layers\.[\w.]+)</a>", row)}
    assert len(rows) == 2
    assert all("cache -25.0%" in row for row in rows.values())
    back = client.get("/vs/gemma-2-9b/llama-3-8b").text
    assert back.count("cache +33.3%") == 2


def test_topics_about_all_configs_are_known_and_each_row_leads_to_a_screen(client: TestClient):
    page = client.get("/vs/llama-3-8b/gemma-2-9b/deepseek-v3").text
    topics = re.findall(r'<h3><a href="/choice/([\w-]+)"', page)
    assert {"attention-softcap", "mla"} <= {*topics}
    links = {*re.findall(r'<th scope="row"><a href="(/choice/[^"]+)"', page)}
    assert {link: client.get(link).status_code for link in links} == dict.fromkeys(links, 200)


@pytest.mark.parametrize(
    ("field", "kind", "needed"),
    [
        ("model.attention.kind", "latent", {"kv_rank": "512", "nope_dim": "128", "rope_dim": "64"}),
        ("model.position.scaling.kind", "yarn", {"factor": "40.0", "original_max_seq_len": "4096"}),
    ],
)
def test_a_kind_comes_with_the_usual_values_of_the_fields_that_it_needs(
    client: TestClient, field: str, kind: str, needed: dict[str, str]
):
    answer = client.get(f"/m/llama-3-8b?{field}={kind}", follow_redirects=True)
    section = field.rpartition(".")[0]
    assert answer.status_code == 200
    assert dict(answer.url.params.items()) == {field: kind, **{f"{section}.{name}": v for name, v in needed.items()}}


def test_a_study_of_differences_sets_the_kinds_that_both_configs_have(client: TestClient):
    """Both models have a norm of queries and keys, with another offset. The small model has none."""
    study = client.get("/study/qwen3-8b/gemma-3-1b?b.model.block.parallel=none&b.model.layers=null").text
    assert "model.attention.qk_norm.kind: rmsnorm" in study
    assert "model.attention.qk_norm.unit_offset: true" in study
    form = client.get("/studies/new/gpt-2/llama-3-8b").text
    assert html.unescape(form).count("choices of gpt-2") == 1


@pytest.mark.parametrize("path", ["/studies/plan", "/studies/start"])
def test_a_study_with_an_error_stays_in_the_form(client: TestClient, path: str):
    text = "question: Why?\nbase: tiny-llama\narms: ["
    answer = client.post(path, data={"name": "one", "text": text}, headers={"origin": HERE})
    assert answer.status_code == 422
    assert "not valid YAML" in answer.text
    assert text in html.unescape(answer.text)
    assert client.get("/studies/plan").headers["location"] == "/studies/new"  # a reload of the address of the plan


# --- runs -------------------------------------------------------------------------------------------------------------


def test_runs_of_the_command_line_are_listed_with_their_state(client: TestClient):
    begun(Path("runs/new"), steps=0)
    begun(Path("runs/stopped"))
    begun(Path("runs/done"), steps=STEPS, ended="finished")
    begun(Path("lost"), ended="diverged")
    begun(Path("studies/x/runs/0123"), ended="finished")
    Path("studies/x/study.yaml").write_text("question: q\nbase: tiny-llama\narms: {a: {}}\nbudget: {tokens: 1M}\n")
    begun(Path("y/runs/0123"), ended="finished")
    Path("y/study.yaml").write_text(Path("studies/x/study.yaml").read_text())

    def rows() -> dict[str, list[str]]:
        page = client.get("/studies").text.partition('id="runs"')[2].partition("</section>")[0]
        found = re.findall(r'href="/runs/of/[^"]*">([^<]*)</a></th>(.*?)</tr>', page)
        return {name: re.findall(r"<td[^>]*>([^<]*)</td>", cells)[:3] for name, cells in found}

    stopped = f"{3.0 + 2.0 / 300 - 0.1 * 0.99975584:.3f}"
    assert rows() == {
        "runs/stopped": ["stopped", stopped, "19.2K of 32K tokens"],
        "runs/done": ["finished", "2.957", "32K of 32K tokens"],
        "lost": ["diverged", stopped, "19.2K of 32K tokens"],
    }
    with Path("runs/stopped/.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert rows()["runs/stopped"][0] == "training"
        assert "Machine" in client.get("/runs/of/runs/stopped").text
    assert rows()["runs/stopped"][0] == "stopped"


def test_the_page_of_a_run_grows_with_its_metrics(client: TestClient):
    folder = begun(Path("runs/one"), steps=100)
    assert client.get("/runs/of/runs/one").text.count("<polyline") == 1
    assert client.get("/runs/of/runs/none").status_code == 404
    begun(folder, steps=300)
    page = client.get("/runs/of/runs/one").text
    assert page.count("<polyline") == 2
    ends = [float(points.split(",")[-2].split()[-1]) for points in re.findall(r'points="([^"]+)"', page)]
    assert ends == [606.0, 606.0]


def test_evaluations_before_training_are_not_part_of_a_curve(client: TestClient):
    """A run that begins again has two of them. If the second one is the latest, the curve has no width."""
    begun(Path("runs/one"), steps=100)
    begun(Path("runs/one"), steps=1)
    answer = client.get("/runs/of/runs/one")
    assert answer.status_code == 200
    assert answer.text.count("<polyline") == 1  # the training loss; a single evaluation has no line


def test_a_study_that_another_process_trains_is_running(client: TestClient):
    run = begun(Path("x/runs/0123"))
    Path("x/study.yaml").write_text(
        "question: q\nbase: tiny-llama\narms: {a: {}, b: {model.norm.kind: layernorm}}\nbudget: {tokens: 20K}\nseeds: 2\n"
    )
    assert ">not finished</td>" in client.get("/studies").text
    assert "/studies/resume/x" in client.get("/studies/of/x").text
    with (run / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert ">training in another process</td>" in client.get("/studies").text
        page = client.get("/studies/of/x").text
    assert "training in another process" in page
    assert "/studies/resume/x" not in page


def test_a_damaged_run_is_a_message(client: TestClient):
    begun(Path("runs/one"), steps=10)
    with Path("runs/one/metrics.jsonl").open("a") as metrics:
        metrics.write("{no json}\n")
    assert "damaged" in client.get("/studies").text
    answer = client.get("/runs/of/runs/one")
    assert (answer.status_code, "damaged" in answer.text) == (200, True)


def test_the_first_page_needs_few_packages(root: Path):
    code = """
import sys
import threading
from pathlib import Path
from starlette.testclient import TestClient
import archlab.ui.server
from archlab.ui.app import create_app
from archlab.ui.configs import own_configs
from archlab.ui.lab.processes import StudyProcesses
client = TestClient(create_app(Path(), "t", 1, ["127.0.0.1"], StudyProcesses()), base_url="http://127.0.0.1:1")
assert client.get("/?token=t").status_code == 200
assert {"torch", "altair", "numpy", "vl_convert", "markdown_it", "archlab.ui.screens"} & sys.modules.keys() == set()
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_server_and_its_pages_of_runs_and_new_studies_do_not_load_torch(root: Path):
    begun(Path("runs/one"), steps=100)
    code = """
import sys
import threading
from pathlib import Path
from archlab.ui import app
from archlab.ui.lab import plan, runs
assert runs.run_state(Path("runs/one")).charts
assert len(runs.RunList(Path()).runs()) == 1
assert plan.plan(plan.checked(plan.first_text("", None), Path())).arms
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_file_that_no_screen_opens_is_not_found(client: TestClient):
    Path("small-enough.yaml").write_text("base: tiny-llama\n")
    Path("too-large.yaml").write_text("base: tiny-llama\n" + "# comment\n" * 150_000)
    found = client.get("/search", params={"q": "yaml"}).text
    assert "small-enough.yaml" in found
    assert "too-large.yaml" not in found


def test_a_pipe_is_not_read_as_a_config(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe.yaml")
    (tmp_path / "own.yaml").write_text("base: tiny-llama\n")
    found: list[str] = []
    waiting = threading.Thread(target=lambda: found.extend(own_configs(tmp_path)), daemon=True)
    waiting.start()
    waiting.join(30)
    assert found == [str(tmp_path / "own.yaml")]


def test_a_folder_with_the_name_of_a_model_has_an_address_of_its_own(client: TestClient):
    """The bare name means the published model, as on the command line."""
    begun(Path("gpt-2"), steps=100)
    found = client.get("/search", params={"q": "gpt-2"}).text
    assert 'href="/m/.%2Fgpt-2"' in found
    assert "50257" in client.get("/m/gpt-2").text
    own = client.get("/m/.%2Fgpt-2").text
    assert "50257" not in own
    assert "archlab show ./gpt-2" in own
