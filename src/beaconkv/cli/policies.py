"""``beaconkv policies``."""

from __future__ import annotations

from dataclasses import fields

import typer

from ..policies import policies as registered
from .common import console, print_json


def policies(as_json: bool = typer.Option(False, "--json", help="Print JSON instead of a table.")) -> None:
    """List the eviction methods, their settings and where they come from."""
    rows = [
        {
            "name": name,
            "summary": cls.__doc__.strip().splitlines()[0].replace("``", ""),
            "settings": {f.name: f.default for f in fields(cls)},
            "prefix": cls.default_prefix if cls.evicts else None,
            "protect": cls.default_protect if cls.evicts else None,
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
            console.print(
                f"    never evicts the first {row['prefix']} and the last {row['protect']} entries unless told"
            )
        console.print(f"    [dim]{row['source']}[/dim]", highlight=False)
