"""A simulated disk that loses unsynced data in a power cut. It follows a real folder while a process writes to it."""

import os
import random
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

MODES = ("synced", "names", "torn")
"""Data left after a cut: only synced data; all names as well (a journal) but no bytes of unsynced files; or some of those bytes."""


class Disk:
    """Records the syncs and renames of this process below `root`, and shows what a power cut would leave at any moment."""

    def __init__(self, root: Path, patch: pytest.MonkeyPatch, happened: Callable[[], None]) -> None:
        """`happened` is called before and after every sync and rename."""
        self.root = root
        self._files: dict[int, bytes] = {}
        self._folders: dict[int, dict[str, tuple[int, bool]]] = {}
        self._open: list[int] = []  # so that no new file gets the number of a removed one
        self._sync(os.open(root, os.O_RDONLY))

        def watched(call: Callable, note: Callable = lambda *_: None) -> Callable:
            def wrapper(*arguments, **options):
                happened()
                call(*arguments, **options)
                note(*arguments)
                happened()

            return wrapper

        patch.setattr(os, "fsync", watched(os.fsync, self._sync))
        patch.setattr(os, "replace", watched(os.replace))
        patch.setattr(os, "rename", watched(os.rename))

    def _sync(self, descriptor: int) -> None:
        self._open.append(os.dup(descriptor))
        found = os.fstat(descriptor)
        if stat.S_ISDIR(found.st_mode):
            self._folders[found.st_ino] = _entries(f"/proc/self/fd/{descriptor}")
        else:
            self._files[found.st_ino] = Path(f"/proc/self/fd/{descriptor}").read_bytes()

    def cut(self, to: Path, mode: str, draw: random.Random) -> None:
        """Write the data that a power cut would leave now into a new folder."""
        self._copy(self.root, self.root.stat().st_ino, to, mode, draw)

    def _copy(self, folder: Path, number: int, to: Path, mode: str, draw: random.Random) -> None:
        to.mkdir()
        entries = self._folders.get(number, {}) if mode == "synced" else _entries(folder)
        for name, (inode, is_folder) in entries.items():
            if is_folder:
                self._copy(folder / name, inode, to / name, mode, draw)
                continue
            content = self._files.get(inode, b"")
            if mode == "torn" and (now := (folder / name).read_bytes()) != content:
                content = now[: draw.randrange(len(content), len(now) + 1)] if len(content) < len(now) else now
            (to / name).write_bytes(content)

    def close(self) -> None:
        """Close the files."""
        for descriptor in self._open:
            os.close(descriptor)


def _entries(folder: Path | str) -> dict[str, tuple[int, bool]]:
    return {entry.name: (entry.inode(), entry.is_dir()) for entry in os.scandir(folder)}
