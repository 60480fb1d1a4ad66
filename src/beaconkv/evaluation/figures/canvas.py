"""A page to draw on, and writing it, with settings that no matplotlibrc changes, and without a global figure."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH = 7.2
"""Inches: both columns of a page."""
TEXT, SMALL = 7.0, 6.0
GREY, PALE = "#555555", "#DDDDDD"
RC = {
    "font.family": ["DejaVu Sans"],
    "font.size": TEXT,
    "axes.linewidth": 0.6,
    "axes.edgecolor": GREY,
    "axes.titlesize": TEXT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "svg.fonttype": "none",  # text stays text: it can be searched, and read aloud
    "svg.hashsalt": "beaconkv",  # the same figure gives the same bytes
}


@contextmanager
def looks() -> Iterator[None]:
    """The settings of the figures while one is drawn and written; those of the caller are restored after it.

    Raises:
        ModuleNotFoundError: matplotlib is missing; the message has the command that installs it.
    """
    try:
        import matplotlib
    except ModuleNotFoundError as error:
        if error.name != "matplotlib":
            raise
        raise ModuleNotFoundError(
            "pictures need the package 'matplotlib': pip install 'beaconkv[eval]'", name="matplotlib"
        ) from None
    # matplotlib.style would import pyplot, which keeps figures and looks for a display
    defaults = {name: value for name, value in matplotlib.rcParamsDefault.items() if not name.startswith("backend")}
    with matplotlib.rc_context({**defaults, **RC}):
        yield


class Page:
    """A figure measured in inches from its upper left corner.

    Args:
        height: height of all.
    """

    def __init__(self, height: float) -> None:
        from matplotlib.figure import Figure

        self.height = height
        self.figure: Figure = Figure(figsize=(WIDTH, height), facecolor="white")

    def axes(self, left: float, top: float, width: float, height: float) -> Axes:
        """New axes."""
        bottom = self.height - top - height
        return self.figure.add_axes((left / WIDTH, bottom / self.height, width / WIDTH, height / self.height))

    def text(self, left: float, top: float, text: str, **style: object) -> None:
        """Text whose upper left corner is at the given point."""
        self.figure.text(left / WIDTH, 1 - top / self.height, text, va="top", **style)

    def save(self, stem: Path) -> list[Path]:
        """Write ``stem.png`` and ``stem.svg``."""
        paths = [stem.with_name(stem.name + ending) for ending in (".png", ".svg")]
        self.figure.savefig(paths[0], dpi=220, metadata={"Software": "beaconkv"})
        self.figure.savefig(paths[1], metadata={"Date": None, "Creator": "beaconkv"})
        return paths


def wrap(text: str, width: int = 178) -> str:
    """Lines for the footnote; a long command is cut after two of its lines."""
    return "\n".join(
        line for part in text.split("\n") for line in textwrap.wrap(part, width, max_lines=2, placeholder=" ...")
    )
