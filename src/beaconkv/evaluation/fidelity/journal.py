"""Records of many settings in one JSONL file, each under its own key, from which a stopped run resumes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..records.jsonl import json_line
from ..records.line_file import LineFile


class Journal:
    """Records by their field ``key``, kept in a file if there is one; see :class:`LineFile` for kills.

    Attributes:
        done: Records by key.

    Raises:
        ValueError, BlockingIOError: as :class:`LineFile`.
    """

    def __init__(self, path: Path | None) -> None:
        self.done: dict[str, dict[str, Any]] = {}
        self._lines = None if path is None else LineFile(path, self._seen)
        if self._lines is not None:
            self._lines.start()

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        if self._lines is not None:
            self._lines.close()

    def append(self, record: dict[str, Any]) -> None:
        """Write a record, which has its ``key``."""
        if self._lines is not None:
            self._lines.append(json_line(record))
        self._seen(record)

    def _seen(self, record: dict[str, Any]) -> None:
        if "key" not in record:
            raise ValueError("no field 'key': no record of a measurement")
        self.done[record["key"]] = record
