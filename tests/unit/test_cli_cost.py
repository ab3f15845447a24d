"""Output of `archlab cost`: serving and training are separate, with a total if there is one."""

import json
import os
import re

import pytest

from archlab.cli import app
from archlab.exchange.configs import load_config
from archlab.pricing.hardware import load_hardware
from archlab.pricing.pass_time import ideal
from archlab.pricing.summary import cost

TRAINING = ("train.tokens=20B", "train.seq_len=8000", "train.batch_tokens=8M")


def printed(capsys, *arguments):
    assert app.main(["cost", "mistral-7b-v0.1", *arguments]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "number"),
    [("32K", 32_000), ("32Ki", 2**15), ("1mi", 2**20), ("0.5Gi", 2**29), ("4e6", 4_000_000), ("8192", 8192)],
)
def test_the_context_is_written_as_fields_are(text, number, capsys):
    assert json.loads(printed(capsys, "--context", text, "--json"))["context"] == number


@pytest.mark.parametrize("text", ["0", "abc", "12.7", "-1", "true", "["])
def test_invalid_contexts_are_refused(text, capsys):
    assert app.main(["cost", "gpt-2", "--context", text]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "Traceback" not in err


def test_the_context_served_does_not_move_the_cost_of_training(capsys):
    short, long = (
        printed(capsys, *TRAINING, "--context", text).split("training, windows of")[1].split("a pass,")[0].rstrip()
        for text in ("1K", "1M")
    )
    assert short == long
    assert "20B tokens" in short
    assert "9.49e+20" in short  # 3 * 15.8G * 20e9
    assert "hidden pairs" in short  # a window of 4096 in 8000 tokens goes through a mask


def test_no_total_is_made_up(capsys):
    assert "set train.tokens=N" in printed(capsys)
    assert json.loads(printed(capsys, "--json"))["training_flops"] is None


@pytest.mark.parametrize("model", ["tiny-llama", "mamba-2-2.7b"])
def test_memory_of_a_step(model, capsys):
    assert app.main(["cost", model]) == 0
    assert "peak memory of a step" in capsys.readouterr().out


def test_side_by_side_every_config_stands_beside_the_first(capsys):
    assert app.main(["cost", "llama-2-70b", "llama-2-7b", "--context", "4K,8K", "--batch", "1,64"]) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    lines = [line.split() for line in out.splitlines()]
    assert ["parameters", "69B", "6.74B", "0.10x"] in lines
    assert ["KV", "cache", "per", "token", "320", "KiB", "512", "KiB", "1.60x"] in lines
    assert [f"{b}x{c}" for b, _, c, word, *_ in filter(lambda cells: cells[3:4] == ["tokens"], lines)] == [
        "1x4,000", "64x4,000", "1x8,000", "64x8,000",
    ]  # fmt: skip


def test_overrides_hold_for_all_and_several_are_a_list_in_json(capsys):
    assert app.main(["cost", "tiny-llama", "llama-2-7b", "model.n_layers=1", "--batch", "1,2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(c["config"], c["batch"]) for c in found] == [
        (name, batch) for name in ("tiny-llama", "llama-2-7b") for batch in (1, 2)
    ]
    assert found[2]["kv_bytes_per_token"] == 2 * 2 * 4096


def test_the_default_context_suits_all_and_a_config_that_lacks_it_is_named(capsys):
    assert app.main(["cost", "llama-3-8b", "gpt-2", "--json"]) == 0
    assert {c["context"] for c in json.loads(capsys.readouterr().out)} == {1024}
    assert app.main(["cost", "llama-3-8b", "gpt-2", "--context", "8192"]) == 2
    assert "gpt-2: context is 8192, but learned positions end" in capsys.readouterr().err


@pytest.mark.slow
def test_a_page_with_pictures(tmp_path, capsys):
    page = tmp_path / "new" / "cost.html"
    names = ["gpt-2", "gemma-3-1b", "mamba-2-2.7b", "deepseek-v3"]
    assert app.main(["cost", *names, "--batch", "1,64", "--hardware", "a100-80gb", "--html", str(page)]) == 0
    assert capsys.readouterr().out.strip() == str(page)
    text = page.read_text()
    specs = json.loads(text.split('id="specs">')[1].split("</script>")[0])
    assert specs.keys() == {"roofline", "memory", "cache", "context", "batch", "heads"}
    kept = ["36 KiB kept per token", "9 KiB kept per token", "3 KiB kept per token", "6.75 KiB kept per token"]
    assert all(words in json.dumps(specs["heads"]) for words in kept)
    assert '"A100 SXM 80 GB: 80 GiB"' in json.dumps(specs["memory"])
    assert all(name in text for name in names)


@pytest.mark.parametrize(
    ("config", "shown", "words"),
    [
        (["gemma-3-1b"], {"heads", "cache", "context", "batch"}, "gemma-3-1b with other kinds of key and value heads"),
        (["mamba-2-2.7b", "tiny-llama"], {"heads", "cache", "context", "batch"}, "tiny-llama with other"),
        (["deepseek-v3"], {"cache", "context", "batch"}, "Kinds of heads are drawn only if"),
        (["t5-small"], {"heads", "cache", "context", "batch"}, "other kinds of key and value heads in the decoder"),
        (["t5-small", "model.encoder.cross={n_heads: 4}"], {"cache", "context", "batch"}, "Kinds of heads are drawn"),
        (["gpt-2", "model.attention.visibility=two_sided"], set(), "Nothing is decoded"),
    ],
)
@pytest.mark.slow
def test_a_page_shows_what_there_is_and_says_what_is_not(config, shown, words, tmp_path):
    """The chart of heads shows the first config whose heads can vary, and includes the config's own number."""
    page = tmp_path / "cost.html"
    assert app.main(["cost", *config, "--html", str(page)]) == 0
    text = page.read_text()
    specs = json.loads(text.split('id="specs">')[1].split("</script>")[0])
    assert specs.keys() == {"roofline", "memory"} | shown
    assert words in text
    if "tiny-llama" in config:
        assert "GQA, 2 heads" in json.dumps(specs["heads"])


@pytest.mark.slow
def test_heads_of_a_model_with_an_encoder_vary_in_the_decoder(tmp_path):
    """Compare with the costs of configs in which the user sets these heads. Latent attention cannot read an encoder."""
    _, specs = asked_on_a_page(tmp_path, "t5-small", "--batch", "64", "--source", "300")
    (rows,) = (rows for rows in specs["heads"]["datasets"].values() if "kind" in rows[0])
    assert [row["kind"] for row in rows] == ["MHA", "GQA, 2 heads", "MQA"]
    device = load_hardware("h100")
    for row, n in zip(rows, (8, 2, 1), strict=True):
        config = load_config("t5-small", f"model.attention.n_kv_heads={n}", "model.encoder.attention.n_kv_heads=8")
        priced = cost(config, 64, source=300)
        speed = ideal(priced.work["decoding"], device, priced.dtype, priced.tokens["decoding"]).tokens_per_second
        assert row["speed"] == pytest.approx(speed)
        assert row["text"].endswith(f"{n * 1.5:g} KiB kept per token")


def asked_on_a_page(tmp_path, *arguments):
    """Return the text of a page, and its charts."""
    page = tmp_path / "cost.html"
    assert app.main(["cost", *arguments, "--html", str(page)]) == 0
    text = page.read_text()
    return text, json.loads(text.split('id="specs">')[1].split("</script>")[0])


def values_of(spec, field):
    return {row[field] for rows in spec["datasets"].values() for row in rows if field in row}


@pytest.mark.slow
def test_every_chart_shows_the_contexts_that_were_asked_for(tmp_path):
    """8K is 8,000 tokens, between two powers of two; 128Ki is beyond what both models are built for."""
    text, specs = asked_on_a_page(tmp_path, "mamba-2-2.7b", "llama-3-8b", "--context", "8K,128Ki")
    assert specs.keys() == {"roofline", "memory", "cache", "context", "batch", "heads"}
    for name in ("cache", "context"):
        assert {8000, 131_072} <= values_of(specs[name], "x")
        axes = [axis for layer in specs[name]["layer"] if (axis := layer["encoding"]["x"].get("axis"))]
        assert axes
        assert all({8000, 131_072} <= {*axis["values"]} for axis in axes)
    assert values_of(specs["batch"], "context") == {"8,000", "131,072"}
    for name, field in (("roofline", "text"), ("memory", "config"), ("heads", "kind")):
        for context in ("8,000 tokens", "131,072 tokens"):
            assert any(context in value for value in values_of(specs[name], field)), (name, context)
    assert re.findall(r"<h3>1 x .*?</h3>", text) == ["<h3>1 x 8,000 tokens</h3>", "<h3>1 x 131,072 tokens</h3>"]
    assert text.count('data-label="llama-3-8b"') == text.count('data-label="mamba-2-2.7b"') > 20  # on a phone
    captions = [part.split("</figcaption>")[0] for part in text.split("<figcaption")[1:]]
    assert sum("8,000 and 131,072 tokens" in caption for caption in captions) == 4
    assert "llama-3-8b is built for at most 8,192 tokens (model.max_seq_len); costs for 131,072 tokens are" in text


@pytest.mark.slow
def test_a_line_is_dashed_beyond_the_limit_of_its_config(tmp_path):
    """Llama 3 ends at 8,192 tokens, where its line changes. Llama 3.1 ends at 131,072, the last context."""
    text, specs = asked_on_a_page(tmp_path, "llama-3-8b", "llama-3.1-405b", "--context", "4Ki,128Ki")
    rows = [row for rows in specs["context"]["datasets"].values() for row in rows if row["part"] == "beyond"]
    assert {row["config"] for row in rows} == {"llama-3-8b"}
    assert min(row["x"] for row in rows) == 8192  # where both parts meet
    assert "llama-3.1-405b is built for" not in text


@pytest.mark.slow
def test_kinds_of_heads_have_the_color_of_their_config(tmp_path):
    _, specs = asked_on_a_page(tmp_path, "deepseek-v3", "llama-3-8b")
    assert values_of(specs["heads"], "config") == {"llama-3-8b"}
    scale = specs["heads"]["layer"][0]["encoding"]["color"]["scale"]
    assert scale == specs["context"]["layer"][0]["encoding"]["color"]["scale"]
    assert scale["domain"] == ["deepseek-v3", "llama-3-8b"]


def test_the_speed_of_training_stands_once_whatever_the_contexts(capsys):
    arguments = ["cost", "llama-3-8b", "gpt-2", "--context", "512,1Ki", "--batch", "1,2", "--hardware", "h100"]
    assert app.main(arguments) == 0
    out = capsys.readouterr().out
    assert [out.count(f"tokens/s, {name}") for name in ("training", "decoding", "prefill")] == [1, 4, 4]


def test_a_context_beyond_the_limit_is_said(capsys):
    assert app.main(["cost", "llama-3-8b", "llama-3.1-405b", "--context", "8Ki,8193,128Ki", "--json"]) == 0
    out, err = capsys.readouterr()
    assert "built for at most 8,192 tokens (model.max_seq_len); costs for 8,193 and 131,072 tokens are" in err
    assert "llama-3.1-405b is built for" not in err
    assert {(c["config"], c["max_seq_len"]) for c in json.loads(out)} == {
        ("llama-3-8b", 8192), ("llama-3.1-405b", 131_072),
    }  # fmt: skip


def test_a_heading_says_the_number_that_was_asked_for(capsys):
    assert "serving, 8,000 tokens of context" in printed(capsys, "--context", "8K")
    assert "serving, 8,192 tokens of context" in printed(capsys, "--context", "8Ki")


def test_times_on_a_device(capsys):
    out = printed(capsys, "--hardware", "H100")
    assert "at best on one H100 SXM" in out
    assert app.main(["cost", "gpt-2", "--hardware", "h1000"]) == 2
    assert "unknown hardware 'h1000'" in capsys.readouterr().err


def test_serving_says_whether_it_fits(capsys):
    """Llama 3 8B: 16.06 GB of weights; 128 KiB a token in the cache, so 1 GiB for each text of 8,192 tokens."""
    assert app.main(["cost", "llama-3-8b", "--hardware", "h100"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "fits yes sequences of 8,192 tokens that fit 64" in out  # 79.65 GiB less 14.96, a GiB each
    assert app.main(["cost", "llama-3.1-405b", "--hardware", "rtx-4090"]) == 0
    assert "fits no" in " ".join(capsys.readouterr().out.split())
    assert app.main(["cost", "llama-3-8b", "--hardware", "h100x8"]) == 2
    assert "for one device" in capsys.readouterr().err


def test_an_encoder_has_no_cache_and_decodes_nothing(capsys):
    """Its pass over a text gives logits to all tokens, so that the head counts for each of them."""
    assert app.main(["cost", "bert-base", "--hardware", "h100"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"KV cache +none: nothing is decoded", out)
    assert "forward pass of 1 x 512 " in out
    assert all(word not in out for word in ("prefill", "decoding", "decoded token", "that fit", "0 B"))
    assert app.main(["cost", "bert-base", "roberta-base", "--hardware", "h100"]) == 0
    out = capsys.readouterr().out
    assert "tokens/s, forward pass, H100 SXM" in out
    assert all(word not in out for word in ("prefill", "decoding", "KV cache"))
    assert app.main(["cost", "bert-base", "gpt-2"]) == 0
    assert re.search(r"KV cache per token +- +36 KiB", capsys.readouterr().out)
    found = cost(load_config("bert-base"))
    head = found.products["prefill"]["head"].flops
    assert head == 512 * 2 * (768 * 768 + 768 * 30522)
    assert cost(load_config("gpt-2"), context=512).products["prefill"]["head"].flops == 2 * 768 * 50257


def test_json_has_the_times_of_a_device(capsys):
    assert app.main(["cost", "llama-3-8b", "--json", "--hardware", "h100"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["hardware"] == "H100 SXM"
    assert found["at_best"]["decoding"]["limit"] == "memory"
    assert found["room"]["fits"]
    assert found["room"]["texts"] == 64


def test_json_of_several_has_the_ratios_to_the_first(capsys):
    """Llama 2 70B has 8 KV heads in 80 layers, and Llama 2 7B has 32 in 32. Mamba-2 keeps nothing per token."""
    assert app.main(["cost", "llama-2-7b", "llama-2-70b", "--context", "2048,4096", "--json"]) == 0
    first, _, other, _ = json.loads(capsys.readouterr().out)
    assert "ratio_to_the_first" not in first
    assert other["ratio_to_the_first"]["KV cache and states"] == pytest.approx(8 * 80 / (32 * 32))
    assert other["ratio_to_the_first"]["parameters"] == other["parameters"]["total"] / first["parameters"]["total"]
    assert app.main(["cost", "mamba-2-2.7b", "gpt-2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[1]["ratio_to_the_first"]["KV cache per token"] is None


@pytest.mark.parametrize("kind", ["folder", "pipe"])
def test_a_page_replaces_files_only(kind, tmp_path, capsys):
    path = tmp_path / "there"
    path.mkdir() if kind == "folder" else os.mkfifo(path)
    assert app.main(["cost", "tiny-llama", "--html", str(path)]) == 2
    assert "allowed: a regular file" in capsys.readouterr().err
    assert not path.is_file()


def test_a_published_config_file_is_read_like_its_folder(tmp_path, capsys):
    file = tmp_path / "config.json"
    values = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 1000, "hidden_size": 64,
              "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "rms_norm_eps": 1e-5,
              "max_position_embeddings": 128}  # fmt: skip
    file.write_text(json.dumps(values))
    shown = []
    for source in (tmp_path, file):
        assert app.main(["cost", str(source)]) == 0
        shown.append(capsys.readouterr().out)
    assert shown[0] == shown[1]


def test_many_columns_are_split_into_two_tables(capsys):
    """Both tables fit in 80 columns, and each repeats the labels in full."""
    models = ["llama-3-8b", "gemma-2-9b", "qwen3-8b", "mistral-7b-v0.1", "olmo-2-7b", "phi-3-mini-3.8b"]
    assert app.main(["cost", *models, "--context", "8192"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert sum(line.startswith(" KV cache per token ") for line in lines) == 2
    headings = [line.split() for line in lines if line.startswith(" bfloat16 ")]
    assert [word for heading in headings for word in heading[1:]] == models


def test_all_mistakes_in_the_command_are_reported_at_once(capsys):
    command = ["cost", "llama-3-8b", "modl.n_layers=2", "--hardware", "h1oo", "--parallel", "shrd=8,tensr=2"]
    assert app.main(command) == 2
    message = capsys.readouterr().err
    for part in ("modl", "unknown hardware 'h1oo'; did you mean h100?", "'shrd=8'; did you mean shard?", "'tensr=2'"):
        assert part in message
