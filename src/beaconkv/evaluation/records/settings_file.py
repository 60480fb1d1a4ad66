"""The settings of a file of results, and the check that a resumed run has the same."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from .files import replace_file


def write_settings(path: Path, settings: Mapping[str, Any]) -> None:
    """Write settings as readable JSON."""
    replace_file(path, [json.dumps(settings, indent=2, sort_keys=True, allow_nan=False).encode() + b"\n"])


def compare_settings(path: Path, settings: Mapping[str, Any], without: Collection[str] = ()) -> None:
    """Raise ``ValueError`` if the file has other settings; the message has the dotted name and both values of each.

    Args:
        without: Names of settings in the file that are not known yet.
    """
    stored = json.loads(path.read_text("utf-8"))
    was = _flat({name: value for name, value in stored.items() if name not in without})
    now = _flat(json.loads(json.dumps(settings, allow_nan=False)))  # tuples become lists, as they did in the file
    changed = [
        f"{name} was {was.get(name, 'not set')!r}, is {now.get(name, 'not set')!r}"
        for name in sorted(was.keys() | now.keys())
        if name not in was or name not in now or was[name] != now[name]
    ]
    if changed:
        raise ValueError(
            f"{path} is of another run: {'; '.join(changed)}. Resume with its settings or use a new folder"
        )


def _flat(value: Any, name: str = "") -> dict[str, Any]:
    if not isinstance(value, dict) or (name and not value):
        return {name: value}
    flat: dict[str, Any] = {}
    for key, inner in value.items():
        flat |= _flat(inner, f"{name}.{key}" if name else key)
    return flat
