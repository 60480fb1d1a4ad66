"""One JSON object per line."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any


def read_records(path: str | Path) -> Iterator[dict[str, Any]]:
    """The records of a file, which another process may be writing: a line without its end is not counted.

    Raises:
        ValueError: a line that is no JSON object; the message starts with ``file:line``.
    """
    for record, _ in whole_lines(path):
        yield record


def whole_lines(path: str | Path) -> Iterator[tuple[dict[str, Any], int]]:
    """Each record with the offset in bytes of the end of its line. The errors are those of ``read_records``."""
    end = 0
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                return
            try:
                record = json.loads(line)
            except ValueError as error:
                raise ValueError(f"{path}:{number}: not JSON: {error}") from None
            if not isinstance(record, dict):
                raise ValueError(f"{path}:{number}: a record must be a JSON object, got {record!r}")
            end += len(line)
            yield record, end


def json_line(record: Mapping[str, Any]) -> bytes:
    """One line, the same bytes for equal records. Raises ``ValueError`` for NaN and infinity."""
    return json.dumps(record, sort_keys=True, allow_nan=False).encode("ascii") + b"\n"
