"""Writing whole or not at all: what kills leave is removed, what others are writing is not."""

import fcntl
import os
import subprocess
import sys
import time

import pytest

from archlab.errors import UserError
from archlab.files import TEMPORARY, folder_atomic, make_folder

KILLED = """
import os, sys
from pathlib import Path
from archlab.files import folder_atomic
with folder_atomic(Path(sys.argv[1])) as folder:
    (folder / "half").write_text("half")
    print(folder.name, flush=True)
    sys.stdin.read()
"""


def aged(path):
    """As if it had been there for a while: a new one may belong to somebody who has not locked it yet."""
    os.utime(path, (time.time() - 60,) * 2)


def test_what_a_kill_left_is_removed_the_next_time(tmp_path):
    command = [sys.executable, "-c", KILLED, str(tmp_path / "out")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        left = tmp_path / other.stdout.readline().strip()
        aged(left)
        with folder_atomic(tmp_path / "another"), folder_atomic(tmp_path / "out"):
            assert (left / "half").exists()  # its process lives
        (tmp_path / "out").rmdir()
        other.kill()
    with folder_atomic(tmp_path / "another-out") as folder:
        (folder / "file").touch()
        assert left.exists()  # of another folder, which may be anybody's
    with folder_atomic(tmp_path / "out"):
        assert not left.exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["another", "another-out", "out"]


def test_what_is_held_or_brand_new_is_left_alone(tmp_path):
    held, new = (tmp_path / f"{TEMPORARY}{n}-out" for n in (1, 2))
    held.mkdir()
    aged(held)
    descriptor = os.open(held, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    new.mkdir()
    with folder_atomic(tmp_path / "out"):
        assert held.exists()
        assert new.exists()
    os.close(descriptor)


@pytest.mark.parametrize("name", ["a[b]c", "*", "é"])
def test_a_name_is_no_pattern(tmp_path, name):
    other = tmp_path / f"{TEMPORARY}1-abc"
    other.mkdir()
    aged(other)
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
