"""What `archlab cost` prints: serving and training apart, and a total where there is one."""

import json

import pytest

from archlab.cli import app

TRAINING = ("train.tokens=20B", "train.seq_len=8000", "train.batch_tokens=8M")


def printed(capsys, *arguments):
    assert app.main(["cost", "mistral-7b-v0.1", *arguments]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(("text", "number"), [("32K", 32_000), ("4e6", 4_000_000), ("8192", 8192)])
def test_the_context_is_written_as_fields_are(text, number, capsys):
    assert json.loads(printed(capsys, "--context", text, "--json"))["context"] == number


@pytest.mark.parametrize("text", ["0", "abc", "12.7", "-1", "true", "["])
def test_what_is_no_context(text, capsys):
    assert app.main(["cost", "gpt-2", "--context", text]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "Traceback" not in err


def test_the_context_served_does_not_move_the_cost_of_training(capsys):
    short, long = (
        printed(capsys, *TRAINING, "--context", text).split("training, windows of")[1] for text in ("1K", "1M")
    )
    assert short == long
    assert "20B tokens" in short
    assert "9.49e+20" in short  # 3 * 15.8G * 20e9
    assert "hidden pairs" in short  # a window of 4096 in 8000 tokens goes through a mask


def test_no_total_is_made_up(capsys):
    assert "say train.tokens=N" in printed(capsys)
    assert json.loads(printed(capsys, "--json"))["training_flops"] is None


def test_what_is_not_counted_is_said(capsys):
    assert "activations and logits" in printed(capsys)
