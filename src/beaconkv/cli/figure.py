"""``beaconkv figure``."""

from __future__ import annotations

from pathlib import Path

import typer

from .common import console, messages, report
from .outputs import require_folder

NAMES = "fig6, fig7, fig8, table1, table2, table3, table6, fidelity"


def figure(
    name: str = typer.Argument(help=f"Name of the figure or table: {NAMES}."),
    results: list[Path] = typer.Argument(
        help="Files that beaconkv eval or beaconkv fidelity wrote, or their folders; parts of a run are joined."
    ),
    out: Path = typer.Option(Path("results/figures"), help="Folder of the files."),
    measure: str = typer.Option("accuracy", help="Measure: accuracy, or steps_right where steps are checked."),
    panels: bool = typer.Option(False, "--panels", help="Show results of different models or problems in panels."),
) -> None:
    """Draw a figure or table of the paper from results: NAME.md, and NAME.png and NAME.svg where there is a picture."""
    from ..evaluation.figures import FIGURES, draw

    if name not in FIGURES:
        raise ValueError(f"unknown figure {name!r}; choose from {', '.join(FIGURES)}")
    require_folder(out)
    drawn = draw(name, results, out, measure, panels)
    for remark in drawn.remarks:
        messages.print(remark, style="yellow", highlight=False, soft_wrap=True)
    report("written:")
    for path in drawn.files:
        console.print(str(path), highlight=False, soft_wrap=True)
