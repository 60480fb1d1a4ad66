"""``beaconkv policies``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import typer

from .common import console, print_json
from .options import JSON

FOLDER = Path(__file__).parents[1] / "policies"


def known(folder: Path = FOLDER) -> list[dict[str, Any]]:
    """Every method of the library: from the catalogue, as long as it lists all files of the folder.

    Importing the registry imports torch, which takes longer than all the rest.
    """
    made = folder / "catalogue.json"
    if made.is_file():
        found = json.loads(made.read_text(encoding="utf-8"))
        if found["files"] == sorted(path.name for path in folder.glob("*.py")):
            return found["policies"]
    from ..policies.catalogue import catalogue

    return catalogue()["policies"]


def policies(as_json: bool = typer.Option(False, "--json", help=JSON)) -> None:
    """List the eviction methods, their settings, presets (method:preset) and where they come from."""
    rows = known()
    if as_json:
        print_json({"policies": rows})
        return
    for row in rows:
        console.print(f"[bold]{row['name']}[/bold]  {row['summary']}", highlight=False)
        if row["settings"]:
            console.print("    settings: " + ", ".join(f"{k}={v}" for k, v in row["settings"].items()), highlight=False)
        if row["prefix"] is not None:
            last = "newer half" if row["protect"] == "half" else f"last {row['protect']}"
            console.print(f"    never evicts the first {row['prefix']} and the {last} entries by default")
        for preset, form in row["presets"].items():
            settings = form["settings"] | {k: v for k, v in form.items() if k not in ("settings", "source", "note")}
            line = f"    {row['name']}:{preset}  " + ", ".join(f"{k}={v}" for k, v in settings.items())
            console.print(line + (f" ({form['note']})" if "note" in form else ""), highlight=False)
        console.print(f"    [dim]{row['source']}[/dim]", highlight=False)
