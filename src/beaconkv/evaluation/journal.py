"""Records of many settings in one JSONL file, each under a key of its own; a stopped run goes on from there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


class Journal:
    """Records by key, kept in a JSONL file if there is one. A last line that was cut off is thrown away."""

    def __init__(self, path: Path | None) -> None:
        self.path, self.done = path, {}
        if path is None:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        whole = text[: text.rfind("\n") + 1]
        if whole != text:
            path.write_text(whole, encoding="utf-8")
        for line in whole.splitlines():
            record = json.loads(line)
            self.done[record["key"]] = record

    def append(self, record: dict[str, Any]) -> None:
        """Write a record, which has its ``key``."""
        self.done[record["key"]] = record
        if self.path is not None:
            with open(self.path, "a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
