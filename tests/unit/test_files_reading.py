"""Reading files: only regular files of a limited size. For any other file, one message names it."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from archlab.cli import app
from archlab.errors import UserError
from archlab.files import expand_user, read_object, read_text


def as_link_to_itself(path: Path) -> None:
    path.symlink_to(path)


def as_sparse_file(path: Path) -> None:
    path.touch()
    os.truncate(path, 10**12)


NOT_A_FILE: dict[str, tuple[Callable[[Path], object], str]] = {
    "pipe": (os.mkfifo, "a pipe; allowed: a regular file"),
    "folder": (Path.mkdir, "Is a directory"),
    "device": (lambda path: path.symlink_to("/dev/zero"), "a device; allowed: a regular file"),
    "loop": (as_link_to_itself, "Too many levels of symbolic links"),
    "huge": (as_sparse_file, "bytes; allowed: up to"),
    "absent": (lambda path: None, "No such file"),
    "binary": (lambda path: path.write_bytes(b"a\xff"), r"not a text file in UTF-8 \(byte 1\)"),
}


@pytest.mark.parametrize("kind", NOT_A_FILE)
def test_a_file_without_text_is_reported_without_waiting(kind, tmp_path):
    make, said = NOT_A_FILE[kind]
    make(tmp_path / "x")
    with pytest.raises(UserError, match=f"{tmp_path / 'x'}: .*{said}"):
        read_text(tmp_path / "x")


@pytest.mark.parametrize("kind", [kind for kind in NOT_A_FILE if kind not in ("absent", "folder")])
def test_nothing_else_than_a_file_takes_the_place_of_a_config(kind, tmp_path, capsys):
    for name in ("mine.yaml", "config.json"):
        NOT_A_FILE[kind][0](tmp_path / name)
    assert app.main(["show", str(tmp_path / "mine.yaml")]) == 2
    assert app.main(["inspect", str(tmp_path)]) == 2
    assert capsys.readouterr().err.count(str(tmp_path)) == 2


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[" * 100_000, "too many nested brackets"),
        ('{"a": ' * 100_000, "too many nested brackets"),
        (f'{{"a": {"9" * 5000}}}', "Exceeds the limit"),
        ('{"a": 1', "not valid JSON"),
        ("[1]", "expected a JSON object, found list"),
        ("null", "expected a JSON object, found NoneType"),
    ],
)
def test_files_without_a_json_object_are_refused(text, said, tmp_path, capsys):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(UserError, match=f"config.json: .*{said}"):
        read_object(tmp_path / "config.json")
    assert app.main(["inspect", str(tmp_path)]) == app.main(["show", str(tmp_path)]) == 2
    assert capsys.readouterr().err.count("config.json: ") == 2


def test_a_byte_order_mark_is_removed_from_the_text(tmp_path):
    (tmp_path / "config.json").write_bytes(b'\xef\xbb\xbf{"a": 1}')
    assert read_object(tmp_path / "config.json") == {"a": 1}


def test_nobody_has_that_home(tmp_path, capsys):
    with pytest.raises(UserError, match="~nosuchuser/text: unknown user 'nosuchuser'"):
        expand_user("~nosuchuser/text")
    assert app.main(["data", "~nosuchuser/text", "--out", str(tmp_path / "x")]) == 2
    assert app.main(["train", "tiny-llama", "data.path=~nosuchuser/text", "--out", str(tmp_path / "x")]) == 2
    assert capsys.readouterr().err.count("unknown user 'nosuchuser'") == 2
