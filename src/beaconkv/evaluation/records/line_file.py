"""A JSONL file that grows by whole lines and survives a kill. All results are kept in such files."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from .files import lock_file, sync_folder
from .jsonl import whole_lines


class LineFile:
    """A file open for one process at a time, from the constructor to :meth:`close`.

    Args:
        path: the file; its folder is made.
        seen: called with each record that is there; a ``ValueError`` it raises is given file and line.
        sync_every: number of lines after which the disk is waited for. Each is passed to the system at once, so only a
            crash of the whole machine can lose those in between.

    Raises:
        ValueError: a line before the last is no JSON object, or ``seen`` raised for it (the message starts with
            ``file:line``); sync_every below 1.
        BlockingIOError: another process, or another object of this one, has the file open.
    """

    def __init__(self, path: Path, seen: Callable[[dict[str, Any]], None], sync_every: int = 1) -> None:
        if sync_every < 1:
            raise ValueError(f"sync_every must be at least 1, got {sync_every}")
        self.path, self.sync_every = path, sync_every
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: BinaryIO | None = None
        self._size = self._unsynced = 0
        self._lock = lock_file(path.with_name(path.name + ".lock"), path)
        try:
            for number, (record, end) in enumerate(whole_lines(path) if path.exists() else (), 1):
                try:
                    seen(record)
                except ValueError as error:
                    raise ValueError(f"{path}:{number}: {error}") from None
                self._size = end
        except BaseException:
            self.close()
            raise

    def start(self) -> None:
        """Open for appending: a last line that a kill cut off is removed, all before it stays."""
        self._file = open(self.path, "ab", buffering=0)  # noqa: SIM115
        self._file.truncate(self._size)
        sync_folder(self.path.parent)

    def append(self, line: bytes) -> None:
        """Write a whole line, its end included. Raises ``ValueError`` if the file is not open for appending."""
        file = self._opened()
        try:
            rest = memoryview(line)
            while rest:
                rest = rest[file.write(rest) :]
        except BaseException:  # a full disk: the next line must not follow half a line
            file.truncate(self._size)
            raise
        self._size += len(line)
        self._unsynced += 1
        if self._unsynced >= self.sync_every:
            os.fsync(file.fileno())
            self._unsynced = 0

    def stop(self) -> None:
        """End appending; the lock is kept, so that the file can be replaced. The errors are those of :meth:`append`."""
        file, self._file = self._opened(), None
        os.fsync(file.fileno())
        file.close()

    def close(self) -> None:
        """Close the file as it is. May be called twice."""
        if self._file is not None:
            self.stop()
        self._lock.close()

    def _opened(self) -> BinaryIO:
        if self._file is None:
            raise ValueError(f"{self.path} is closed")
        return self._file
