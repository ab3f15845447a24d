"""Progress of a long job: a bar no wider than the terminal, otherwise plain lines, and the time left when it is known."""

import io
import re
import sys
from types import SimpleNamespace

import pytest

from archlab import progress
from archlab.config.core.text import note
from archlab.progress import Bar, doing
from archlab.training.callback import Printing, StepMetrics
from archlab.training.evaluate import Score


class Terminal(io.StringIO):
    def isatty(self):
        return True

    def lines(self):
        """Return everything that was shown: frames of the bar, and the lines above it."""
        shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.getvalue())
        return [line.rstrip() for line in re.split(r"[\r\n]+", shown) if line.strip()]


def terminal(monkeypatch, width):
    """Replace stderr by a terminal. Call it in the test itself, because pytest sets stderr before each test."""
    made = Terminal()
    monkeypatch.setattr(sys, "stderr", made)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", str(width))
    return made


@pytest.fixture
def clock(monkeypatch):
    made = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(progress.time, "monotonic", lambda: made.now)
    return made


METRICS = StepMetrics(4500, 100_000, 2.3456, 52_013.0, 0.214, Score(1.0, 1.2345, None))


@pytest.mark.parametrize(
    ("width", "shown"),
    [
        (120, "training 4,500/100,000 [━╸]+ loss 2.346  1.234 bits/byte  52K tok/s  MFU 21%"),
        (80, "training 4,500/100,000 [━╸]+ loss 2.346  1.234 bits/byte  52K tok/s  MFU 21%"),
        (70, "training 4,500/100,000 [━╸]+ loss 2.346  1.234 bits/byte  52K tok/s"),
        (60, "training 4,500/100,000 [━╸]+ loss 2.346  1.234 bits/byte"),
        (40, "training 4,500/100,000 [━╸]+ loss 2.346"),
    ],
)
def test_a_bar_has_the_width_of_the_terminal_and_leaves_out_what_has_no_room(monkeypatch, width, shown):
    screen = terminal(monkeypatch, width)
    with Printing() as callback:
        callback.on_data("mine: 12 kB of text")
        callback.on_note("read twice")
        callback.on_weights("random, seed 0")
        callback.on_step(METRICS)
    lines = screen.lines()
    assert lines[:3] == ["weights: random, seed 0", "data: mine: 12 kB of text", "note: read twice"]
    assert max(map(len, lines)) <= width
    assert re.fullmatch(shown, lines[-1])


def test_a_long_line_above_the_bar_is_broken_between_words(monkeypatch):
    screen = terminal(monkeypatch, 80)
    with Bar() as bar:
        bar.print("word " * 40)
    lines = screen.lines()
    assert max(map(len, lines)) <= 80
    assert {word for line in lines for word in line.split()} == {"word"}


def test_a_note_is_broken_between_words_in_a_terminal_and_one_line_in_a_pipe(monkeypatch, capsys):
    text = "--context counts the tokens of one text, which is longer than the model was trained on, " * 2
    note(text)
    assert capsys.readouterr().err == f"note: {text}\n"
    screen = terminal(monkeypatch, 60)
    note(text)
    alone = screen.lines()
    with Bar() as bar:
        bar.update(0.5, "1/2")
        note(text)
    above_a_bar = [line for line in screen.lines()[len(alone) :] if "1/2" not in line]
    for lines in (alone, above_a_bar):
        assert max(map(len, lines)) <= 60
        assert " ".join(lines).split() == ["note:", *text.split()]


def test_lines_of_a_note_keep_their_indentation(monkeypatch):
    screen = terminal(monkeypatch, 30)
    note("left out: 2 invalid\n  a.jsonl, line 3: not valid JSON")
    assert screen.lines() == ["note: left out: 2 invalid", "  a.jsonl, line 3: not valid", "  JSON"]


def test_plain_lines_come_seldom_and_with_every_evaluation(capsys, clock):
    with Printing() as callback:
        for step in range(1, 41):
            clock.now += 1.0
            score = Score(1.0, 1.5, None) if step == 15 else None
            callback.on_step(StepMetrics(step, 400, 2.0, 1000.0, 0.5, score))
    assert capsys.readouterr().err.splitlines() == [
        "training 1/400  loss 2.000  1K tok/s  MFU 50%",
        "training 11/400  loss 2.000  1K tok/s  MFU 50%",
        "training 15/400  loss 2.000  1.500 bits/byte  1K tok/s  MFU 50%  6.42 min left",
        "training 25/400  loss 2.000  1K tok/s  MFU 50%  6.25 min left",
        "training 35/400  loss 2.000  1K tok/s  MFU 50%  6.08 min left",
    ]


@pytest.mark.parametrize(
    ("start", "took", "share", "left"),
    [
        (0.0, 90, 0.25, "4.5 min left"),
        (0.5, 20, 0.6, "80 s left"),  # a resumed run has not done the first half now
        (0.0, 1, 0.01, ""),
        (0.0, 12, 0.01, "19.8 min left"),
        (0.0, 100, 0.9999, ""),  # less than a second
        (0.0, 100, 1.0, ""),
        (0.5, 100, 0.5, ""),
        (0.5, 100, 0.25, ""),  # a training that went back to an earlier step
    ],
)
def test_the_time_left_is_said_when_it_is_known(clock, start, took, share, left):
    """The time before the first progress does not count, because loading libraries is not the pace of a job."""
    bar = Bar()
    assert bar.time_left(start) == ""
    clock.now += 1000
    assert bar.time_left(start + 1e-9) == ""
    clock.now += took
    assert bar.time_left(share) == left


def test_a_job_of_unknown_length_is_named_in_a_terminal_alone(monkeypatch, capsys):
    screen = terminal(monkeypatch, 80)
    with doing("learning a tokenizer"):
        pass
    assert screen.lines()[-1].startswith("learning a tokenizer ━")
    monkeypatch.undo()
    with doing("learning a tokenizer"):
        pass
    assert capsys.readouterr() == ("", "")


def test_nobody_reads_any_more(monkeypatch):
    """A closed terminal does not end a training."""

    refused = []

    class Closed(Terminal):
        def write(self, text):
            refused.append(text)
            raise OSError(5, "Input/output error")

        flush = write

    monkeypatch.setattr(sys, "stderr", Closed())
    with Bar(seconds_between_lines=0.0) as bar:
        bar.print("one")
        note("two")
        bar.update(0.5, "1/2")
    assert refused
