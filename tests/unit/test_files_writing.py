"""Writing completely or not at all. Leftovers of killed processes are removed, files that others are writing are not."""

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from archlab.errors import UserError
from archlab.files import TEMPORARY, folder_atomic, make_folder, write_atomic

KILLED = """
import os, sys
from pathlib import Path
from archlab.files import folder_atomic
with folder_atomic(Path(sys.argv[1])) as folder:
    (folder / "half").write_text("half")
    print(folder.name, flush=True)
    sys.stdin.read()
"""


def test_what_a_kill_left_is_removed_the_next_time(tmp_path):
    command = [sys.executable, "-c", KILLED, str(tmp_path / "out")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        left = tmp_path / other.stdout.readline().strip()
        with folder_atomic(tmp_path / "another"), folder_atomic(tmp_path / "out"):
            assert (left / "half").exists()  # its process is alive
        (tmp_path / "out").rmdir()
        other.kill()
    with folder_atomic(tmp_path / "another-out") as folder:
        (folder / "file").touch()
        assert left.exists()  # it belongs to another folder, which another process may use
    with folder_atomic(tmp_path / "out"):
        assert not left.exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["another", "another-out", "out"]


def test_one_that_is_removed_before_it_is_locked_is_made_again(tmp_path, monkeypatch):
    """Another process may then consider it abandoned."""
    lock, removed = fcntl.flock, []

    def late(descriptor, how):
        if not removed:
            removed.extend(tmp_path.iterdir())
            removed[0].rmdir()
        lock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", late)
    with folder_atomic(tmp_path / "out") as folder:
        (folder / "file").touch()
    assert len(removed) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert (tmp_path / "out" / "file").exists()


@pytest.mark.parametrize("name", ["a[b]c", "*", "é"])
def test_a_name_is_not_used_as_a_pattern(tmp_path, name):
    other = tmp_path / f"{TEMPORARY}1-abc"
    other.mkdir()
    with folder_atomic(tmp_path / name) as folder:
        (folder / "file").touch()
    assert other.exists()
    assert (tmp_path / name / "file").exists()


def test_a_folder_below_a_file_is_a_message(tmp_path):
    (tmp_path / "file").touch()
    for path in (tmp_path / "file" / "new", tmp_path / "file" / "new" / "newer"):
        with pytest.raises(UserError, match="cannot write: Not a directory"):
            make_folder(path)


@pytest.mark.parametrize("umask", [0o022, 0o027, 0o077])
def test_files_are_for_whom_the_umask_says(tmp_path, umask):
    before = os.umask(umask)
    try:
        with folder_atomic(tmp_path / "out") as folder:
            (folder / "below").mkdir()
            os.close(os.open(folder / "below" / "private", os.O_CREAT | os.O_WRONLY, 0o600))
    finally:
        os.umask(before)
    assert (tmp_path / "out" / "below" / "private").stat().st_mode & 0o777 == 0o666 & ~umask


@pytest.mark.parametrize("target", ["victim", "nowhere", "link"])
def test_a_link_is_replaced_and_never_followed(tmp_path, target):
    """os.replace does the same, also for a link that leads nowhere or to itself."""
    (tmp_path / "victim").write_text("precious")
    (tmp_path / "folder").mkdir()
    link = tmp_path / "folder" / "link"
    link.symlink_to(link if target == "link" else tmp_path / target)
    write_atomic(link, "a page")
    assert (link.is_symlink(), link.read_text()) == (False, "a page")
    assert (tmp_path / "victim").read_text() == "precious"
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize(("target", "what"), [("/dev/null", "a device"), (".", "a folder")])
def test_a_link_to_no_file_stays(tmp_path, target, what):
    (tmp_path / "link").symlink_to(target)
    with pytest.raises(UserError, match=f"{what}; allowed: a regular file"):
        write_atomic(tmp_path / "link", "a page")
    assert (tmp_path / "link").is_symlink()


def test_a_message_names_the_file_and_not_the_temporary_one(tmp_path):
    """Nobody can create a file in /proc, not even root, and a name of 250 characters is too long with a prefix."""
    for path in (Path("/proc/page.html"), tmp_path / ("a" * 250), tmp_path / "missing" / "page.html"):
        with pytest.raises(UserError, match="cannot write") as error:
            write_atomic(path, "a page")
        assert str(error.value).startswith(f"{path}: ")
        assert TEMPORARY not in str(error.value)
