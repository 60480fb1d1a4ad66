"""Locking, and replacing a file as a whole."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO


def lock_file(path: Path, guarded: Path) -> BinaryIO:
    """Hold the lock ``path`` for as long as the returned file is open; the system frees it when a process dies.

    Raises:
        BlockingIOError: another process holds it; the message names ``guarded`` and that process.
    """
    file = open(path, "a+b")  # noqa: SIM115
    try:
        _lock(file)
    except OSError:
        file.seek(0)
        owner = file.read().decode("ascii", "replace").strip()
        file.close()
        raise BlockingIOError(f"{guarded} is being written by process {owner or '(unknown)'}") from None
    file.truncate(0)
    file.write(str(os.getpid()).encode())
    file.flush()
    return file


def replace_file(path: Path, lines: Iterable[bytes]) -> None:
    """Write a file so that at any moment, even after a kill, ``path`` has either the old or the new content."""
    new = path.with_name(path.name + ".new")
    with open(new, "wb") as file:
        file.writelines(lines)
        file.flush()
        os.fsync(file.fileno())
    os.replace(new, path)
    sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Write the names in a folder to the disk, where the system supports it."""
    if os.name != "posix":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _lock(file: BinaryIO) -> None:
    """Lock the file or raise ``OSError`` at once."""
    if os.name == "nt":
        import msvcrt

        # A byte far beyond the content: on Windows a locked byte cannot be read by others.
        file.seek(1 << 30)
        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
    else:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
