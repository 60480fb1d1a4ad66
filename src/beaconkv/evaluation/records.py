"""Results on disk, one JSON line a sample, written as they come, so that a long run can be killed and resumed.

``samples.jsonl`` (any name) grows by whole lines in order of arrival. ``run.json`` beside it holds the settings
that made them, so one folder holds one run. ``finalize()`` sorts the lines; what a clock measured goes to
``samples.timing.jsonl``, so that the same samples always give the same bytes.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .files import lock_file, replace_file, sync_folder
from .jsonl import json_line, read_records, whole_lines
from .run_settings import compare_settings, write_settings

TIMING = "timing"
"""The field of a record for everything that differs from one run to the next: seconds, dates, machines."""
Key = tuple[Any, ...]


class RecordFile:
    """An append-only file of records, open for writing by one process at a time. Threads may share it."""

    def __init__(
        self,
        path: str | Path,
        settings: Mapping[str, Any],
        key: tuple[str, ...] = ("policy", "budget", "problem", "run"),
        sync_every: int = 1,
    ) -> None:
        """Open a new file, or resume one: a last line torn by a kill is cut off, all before it is kept.

        Args:
            path: the file; its folder is made.
            settings: what the samples depend on, as JSON values; kept in ``run.json`` and compared on resuming.
            key: fields that together name a sample; their values are texts, numbers or None.
            sync_every: after how many records the disk is waited for. Each is handed to the system at once, so
                only a crash of the whole machine can lose those in between.

        Raises:
            ValueError: settings or key differ from those of ``run.json``; a line before the last is no record
                or repeats a key (the message starts with ``file:line``); records without ``run.json``.
            BlockingIOError: another process, or another object of this one, has the file open.
        """
        if sync_every < 1:
            raise ValueError(f"sync_every must be at least 1, got {sync_every}")
        self.path, self.key, self.sync_every = Path(path), tuple(key), sync_every
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._mutex, self._unsynced, self._file = threading.Lock(), 0, None
        self._lock = lock_file(self.path.with_name(self.path.name + ".lock"), self.path)
        try:
            self._done, self._size = self._read()
            self._check_run({**settings, "record_key": list(self.key)})
            self._file = open(self.path, "ab", buffering=0)  # noqa: SIM115
            self._file.truncate(self._size)
            sync_folder(self.path.parent)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> RecordFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def done(self) -> set[Key]:
        """Keys of all records in the file."""
        with self._mutex:
            return set(self._done)

    def append(self, record: Mapping[str, Any]) -> None:
        """Write one record. Its field ``timing``, if any, does not take part in the finalized file.

        Raises:
            ValueError: a key field is missing or no text, number or None; the key is in the file already; a value
                is no JSON (NaN and infinity are none); the file is closed.
            TypeError: a value of a type that JSON does not have.
        """
        key, line = self._key_of(record), json_line(record)
        with self._mutex:
            file = self._opened()
            if key in self._done:
                raise ValueError(f"{self.path} has a record of {self._named(key)} already")
            try:
                rest = memoryview(line)
                while rest:
                    rest = rest[file.write(rest) :]
            except BaseException:  # a full disk: what follows must not be glued to half a line
                file.truncate(self._size)
                raise
            self._size += len(line)
            self._done.add(key)
            self._unsynced += 1
            if self._unsynced >= self.sync_every:
                os.fsync(file.fileno())
                self._unsynced = 0

    def finalize(self) -> None:
        """Sort the file by key, timings apart, and close it.

        The result depends on the records alone, not on their order or on interruptions. A kill at any moment
        leaves either the old file or the new one. A finalized file may be resumed and finalized again.

        Raises:
            ValueError: the file is closed.
        """
        with self._mutex:
            self._opened().close()
            self._file = None
            timing_path = self.path.with_name(f"{self.path.stem}.{TIMING}.jsonl")
            records, timings = {}, {}
            if timing_path.exists():
                timings = {self._key_of(row): row for row in read_records(timing_path)}
            for record in read_records(self.path):
                key = self._key_of(record)
                if TIMING in record:
                    timings[key] = dict(zip(self.key, key, strict=True)) | {TIMING: record.pop(TIMING)}
                records[key] = record
            # Timings first: after a kill in between, the next finalize() finds them in both files.
            if timings:
                replace_file(timing_path, (json_line(timings[key]) for key in sorted(timings, key=_order)))
            replace_file(self.path, (json_line(records[key]) for key in sorted(records, key=_order)))
        self.close()

    def close(self) -> None:
        """Close the file as it is. May be called twice."""
        with self._mutex:
            if self._file is not None:
                os.fsync(self._file.fileno())
                self._file.close()
                self._file = None
            self._lock.close()

    def _opened(self) -> Any:
        if self._file is None:
            raise ValueError(f"{self.path} is closed")
        return self._file

    def _read(self) -> tuple[set[Key], int]:
        """Keys of the whole lines, and the number of bytes they take."""
        done: set[Key] = set()
        size = 0
        for number, (record, end) in enumerate(whole_lines(self.path) if self.path.exists() else (), 1):
            try:
                key = self._key_of(record)
                if key in done:
                    raise ValueError(f"a second record of {self._named(key)}")
            except ValueError as error:
                raise ValueError(f"{self.path}:{number}: {error}") from None
            done.add(key)
            size = end
        return done, size

    def _check_run(self, settings: dict[str, Any]) -> None:
        path = self.path.with_name("run.json")
        if path.exists():
            compare_settings(path, settings)
        elif self._done:
            raise ValueError(f"{self.path} holds records, but {path} is gone: nobody knows the settings behind them")
        else:
            write_settings(path, settings)

    def _key_of(self, record: Mapping[str, Any]) -> Key:
        for name in self.key:
            if name not in record:
                raise ValueError(f"no field {name!r}; the key is {', '.join(self.key)}")
            value = record[name]
            if value is not None and not isinstance(value, (str, int, float)):
                raise ValueError(f"key field {name!r} must be a text, a number or None, got {value!r}")
        return tuple(record[name] for name in self.key)

    def _named(self, key: Key) -> str:
        return ", ".join(f"{name}={value!r}" for name, value in zip(self.key, key, strict=True))


def _order(key: Key) -> tuple:
    """None before numbers before texts: one field may hold several types."""
    return tuple((0, 0) if value is None else (1 + isinstance(value, str), value) for value in key)
