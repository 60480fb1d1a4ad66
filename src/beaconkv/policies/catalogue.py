"""What there is to choose from, as plain data: ``catalogue.json`` in this folder.

The registry is the only source; the file is made from it (``make catalogue``), so that the command line can list
methods without importing torch. A test compares the two.
"""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

from .registry import policies

PATH = Path(__file__).with_name("catalogue.json")


def catalogue() -> dict[str, Any]:
    """The files of this folder, and each registered policy: settings, ends that are never evicted, presets, source."""
    rows = [
        {
            "name": name,
            "summary": cls.__doc__.strip().splitlines()[0].replace("``", ""),
            "settings": {f.name: f.default for f in fields(cls)},
            "prefix": cls.default_prefix if cls.evicts else None,
            "protect": cls.default_protect if cls.evicts else None,
            "presets": {preset: form.describe() for preset, form in cls.presets.items()},
            "source": cls.source,
        }
        for name, cls in policies().items()
        if cls.__module__.startswith(__package__ + ".")
    ]
    return {"files": sorted(path.name for path in PATH.parent.glob("*.py")), "policies": rows}


def write(path: Path = PATH) -> None:
    """Write the file."""
    path.write_text(json.dumps(catalogue(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
