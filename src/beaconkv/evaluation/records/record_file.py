"""Results on disk, one JSON line per sample, written as they come, so that a long run can be killed and resumed.

``samples.jsonl`` (any name) grows by whole lines in order of arrival. ``run.json`` in the same folder holds their
settings, so one folder holds one run. ``finalize()`` sorts the lines; what a clock measured goes to
``samples.timing.jsonl``, so that the same samples always give the same bytes.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .files import replace_file
from .jsonl import json_line, read_records
from .line_file import LineFile
from .settings_file import compare_settings, write_settings

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
            path: Path of the file; its folder is made.
            settings: Settings that the samples depend on, JSON values; kept in ``run.json`` and compared on resuming.
            key: Names of the fields that together identify a sample; their values are texts, numbers or None.
            sync_every: Number of records after which the disk is waited for, see :class:`LineFile`.

        Raises:
            ValueError: settings or key differ from those of ``run.json``; a line before the last is no record
                or repeats a key (the message starts with ``file:line``); records without ``run.json``.
            BlockingIOError: another process, or another object of this one, has the file open.
        """
        self.path, self.key = Path(path), tuple(key)
        self._mutex, self._done = threading.Lock(), set()
        self._lines = LineFile(self.path, self._seen, sync_every)
        try:
            self._check_run({**settings, "record_key": list(self.key)})
            self._lines.start()
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
        """Write one record. Its field ``timing``, if any, is not in the finalized file.

        Raises:
            ValueError: a key field is missing or no text, number or None; the key is in the file already; a value
                is no JSON (NaN and infinity are none); the file is closed.
            TypeError: a value of a type that JSON does not have.
        """
        key, line = self._key_of(record), json_line(record)
        with self._mutex:
            if key in self._done:
                raise ValueError(f"{self.path} has a record of {self._named(key)} already")
            self._lines.append(line)
            self._done.add(key)

    def finalize(self) -> None:
        """Sort the file by key, move timings into a file of their own, and close it.

        The result depends on the records alone, not on their order or on interruptions. A kill at any moment
        leaves either the old file or the new one. A finalized file may be resumed and finalized again.

        Raises:
            ValueError: the file is closed.
        """
        with self._mutex:
            self._lines.stop()
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
            self._lines.close()

    def _seen(self, record: Mapping[str, Any]) -> None:
        key = self._key_of(record)
        if key in self._done:
            raise ValueError(f"a second record of {self._named(key)}")
        self._done.add(key)

    def _check_run(self, settings: dict[str, Any]) -> None:
        path = self.path.with_name("run.json")
        if path.exists():
            compare_settings(path, settings)
        elif self._done:
            raise ValueError(f"{self.path} holds records, but {path} is missing: their settings are unknown")
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
