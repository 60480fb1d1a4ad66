"""``beaconkv policies``."""

from __future__ import annotations

from dataclasses import fields

import typer

from ..policies import policies as registered
from .common import console, print_json


def policies(as_json: bool = typer.Option(False, "--json", help="Print JSON instead of a table.")) -> None:
    """List the eviction methods, their settings, presets (method:preset) and where they come from."""
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
        for name, cls in registered().items()
    ]
    if as_json:
        print_json({"policies": rows})
        return
    for row in rows:
        console.print(f"[bold]{row['name']}[/bold]  {row['summary']}", highlight=False)
        if row["settings"]:
            console.print("    settings: " + ", ".join(f"{k}={v}" for k, v in row["settings"].items()), highlight=False)
        if row["prefix"] is not None:
            last = "newer half" if row["protect"] == "half" else f"last {row['protect']}"
            console.print(f"    never evicts the first {row['prefix']} and the {last} entries unless told")
        for preset, form in row["presets"].items():
            settings = form["settings"] | {k: v for k, v in form.items() if k not in ("settings", "source", "note")}
            line = f"    {row['name']}:{preset}  " + ", ".join(f"{k}={v}" for k, v in settings.items())
            console.print(line + (f" ({form['note']})" if "note" in form else ""), highlight=False)
        console.print(f"    [dim]{row['source']}[/dim]", highlight=False)
