"""`archlab ui`: who may use it, and that its numbers are those of the command line."""

import json
import os
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from archlab.cli.app import main
from archlab.pricing.units import binary, count, si
from archlab.ui.app import create_app
from archlab.ui.guard import LONGEST_BODY, LONGEST_QUERY, MOST_FIELDS
from archlab.ui.lab.processes import StudyProcesses

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


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "evil.example:8765", "", "[::", "a" * 300])
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
        (f"/m/llama-3-8b?{'a' * LONGEST_QUERY}=1", 414),
        ("/m/llama-3-8b?" + "&".join(f"f{n}=1" for n in range(MOST_FIELDS + 1)), 400),
        ("/m/llama-3-8b?data.path=/etc", 422),
        ("/m/llama-3-8b?train.start=/etc", 422),
        ("/m/llama-3-8b?plugins.x=os", 422),
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


def test_other_methods_and_long_forms_are_refused(client: TestClient):
    assert client.request("DELETE", "/m/llama-3-8b").status_code == 405
    long = client.post("/m/llama-3-8b", content=b"x" * (LONGEST_BODY + 1), headers={"origin": HERE})
    assert long.status_code == 413


def test_a_link_that_leads_out_of_the_folder_is_not_followed(
    client: TestClient, tmp_path_factory: pytest.TempPathFactory
):
    outside = tmp_path_factory.mktemp("outside") / "secret.yaml"
    outside.write_text("base: llama-3-8b\n")
    Path("inside.yaml").write_text("base: llama-3-8b\n")
    os.symlink(outside, "link.yaml")
    assert client.get("/m/inside.yaml").status_code == 200
    assert client.get("/m/link.yaml").status_code == 404


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
    assert f"archlab cost llama-3-8b {change} --context 16384 --batch 8 --hardware h100" in page


def test_an_address_without_effect_leads_to_the_shorter_one(client: TestClient):
    answer = client.get("/m/llama-3-8b?model.attention.n_kv_heads=8&model.mlp.d_ff=8192&context=13")
    assert (answer.status_code, answer.headers["location"]) == (303, "/m/llama-3-8b?model.mlp.d_ff=8192")
    added = client.get("/m/llama-3-8b?add=model.attention.softcap&value=50")
    assert added.headers["location"] == "/m/llama-3-8b?model.attention.softcap=50"


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


@pytest.mark.parametrize(
    ("change", "lock"), [("model.n_layers=16", "model.mlp.d_ff"), ("model.mlp.d_ff=4096", "model.n_layers")]
)
def test_a_locked_size_stays_within_a_percent(
    client: TestClient, capsys: pytest.CaptureFixture[str], change: str, lock: str
):
    moved = client.get(f"/m/llama-3-8b?{change}&lock={lock}").headers["location"]
    fields = dict(part.split("=") for part in moved.partition("?")[2].split("&"))
    assert (fields.pop("lock"), {*fields}) == (lock, {change.partition("=")[0], lock})
    printed = printed_cost(capsys, "llama-3-8b", *(f"{field}={value}" for field, value in fields.items()))
    assert printed["parameters"]["total"] == pytest.approx(8_030_261_248, rel=0.01)
    assert client.get(moved).status_code == 200
    assert client.get(f"/m/llama-3-8b?{change}&lock=model.vocab_size").status_code == 422


def test_the_config_and_the_model_can_be_taken_along(client: TestClient, capsys: pytest.CaptureFixture[str]):
    change = "model.attention.n_kv_heads=2"
    assert main(["show", "llama-3-8b", change]) == 0
    assert client.get(f"/yaml/llama-3-8b?{change}").text == capsys.readouterr().out
    assert main(["flatten", "llama-3-8b", change]) == 0
    assert client.get(f"/flatten/llama-3-8b?{change}").text == capsys.readouterr().out


@pytest.mark.parametrize("name", ["t5-small", "bert-base", "deepseek-v3", "mamba-2-2.7b", "palm-540b"])
def test_every_kind_of_model_has_a_page(client: TestClient, name: str):
    answer = client.get(f"/m/{name}")
    assert answer.status_code == 200
    assert "archlab-drawing" in answer.text


def test_a_model_without_a_published_architecture_is_refused(client: TestClient):
    answer = client.get("/m/gpt-4")
    assert answer.status_code == 422
    assert "not published" in answer.text
