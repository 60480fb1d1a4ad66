"""Drawing values against budget: panels with lines, intervals and labels at their ends."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import log2
from typing import TYPE_CHECKING

from .canvas import GREY, PALE, SMALL, TEXT, WIDTH, Page, wrap
from .labels import spread, thin_out
from .plots import Block, Line, Plot

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LEFT, RIGHT = 0.46, 0.08
TITLE, HEAD, FOOT = 0.27, 0.26, 0.5
"""Space in inches: over all blocks, over the panels of one, and under a panel for its budgets."""
LINE = 0.125
"""Distance in inches from one label to the next."""
LABEL = 32
"""Maximum number of characters of a label."""


def draw_lines(title: str, blocks: Sequence[Block], footnote: str) -> Page:
    """Draw one block under the other. It must be called inside of :func:`~beaconkv.evaluation.figures.canvas.looks`."""
    footnote = wrap(footnote)
    heights = [_height(block) for block in blocks]
    note = 0.12 + 0.1 * len(footnote.split("\n"))
    page = Page(TITLE + sum(heights) + note)
    page.text(0.08, 0.08, title, fontsize=TEXT + 1.5, fontweight="bold")
    top = TITLE
    for block, height in zip(blocks, heights, strict=True):
        _draw_block(page, block, top, height)
        top += height
    page.text(0.08, top + 0.04, footnote, fontsize=SMALL - 0.7, color=GREY, linespacing=1.25)
    return page


def _height(block: Block) -> float:
    most = max(len(plot.lines) for plot in block.plots)
    rows = -(-(len(block.plots) - block.labelled) // 2)
    panel = max(1.7, LINE * most, rows * 1.05 + (rows - 1) * (HEAD + FOOT - 0.06))
    return panel + HEAD + FOOT + (0.18 if block.title else 0)


def _draw_block(page: Page, block: Block, top: float, height: float) -> None:
    if block.title:
        page.text(0.08, top + 0.05, block.title, fontsize=TEXT, color=GREY)
        top, height = top + 0.18, height - 0.18
    top, height = top + HEAD, height - HEAD - FOOT
    names = [line.name for plot in block.plots[: block.labelled] for line in plot.lines]
    label = 0.33 + 0.053 * min(LABEL, max(map(len, names)))
    small = block.plots[block.labelled :]
    columns = min(2, len(small))
    aside = 0.4 + columns * 1.12 + (columns - 1) * 0.14 if small else 0.0
    width = (WIDTH - LEFT - RIGHT - aside - block.labelled * label - (block.labelled - 1) * LEFT) / block.labelled
    left = LEFT
    for plot in block.plots[: block.labelled]:
        axes = page.axes(left, top, width, height)
        _draw_panel(axes, plot, width)
        axes.set_xlabel("budget, entries in each layer and KV head" if width > 2 else "budget, entries")
        _draw_labels(axes, plot, width, height)
        left += width + label + LEFT
    left = WIDTH - RIGHT - aside + 0.4
    rows = -(-len(small) // 2)
    each = (height - (rows - 1) * (HEAD + FOOT - 0.06)) / rows if rows else 0.0
    for number, plot in enumerate(small):
        row, column = divmod(number, 2)
        axes = page.axes(left + column * 1.26, top + row * (each + HEAD + FOOT - 0.06), 1.12, each)
        _draw_panel(axes, plot, 1.12, small=True)
        axes.tick_params(labelsize=SMALL - 0.5, labelleft=column == 0)


def _draw_panel(axes: Axes, plot: Plot, width: float, small: bool = False) -> None:
    # the title names the measure, not the axis: it is easy to read, and wide numbers do not move it off the page
    title = plot.title if small else f"{plot.title}: {plot.ylabel}"
    axes.set_title(title, loc="left", fontsize=SMALL if small else TEXT, pad=4)
    axes.set_axisbelow(True)
    axes.grid(axis="y", color=PALE, linewidth=0.4)
    axes.set_xscale("log", base=2)
    budgets = plot.budgets
    axes.set_xlim(budgets[0] / 2**0.3, budgets[-1] * 2**0.3)
    _value_scale(axes, plot.log)
    _draw_budgets(axes, plot, width, 0.05 if small else 0.06)
    for line in plot.lines:
        if line.level:
            _draw_level(axes, line)
        else:
            _draw_line(axes, line, _shift(line, plot), 0.75 if small else 1.0)
    if plot.limits is not None:
        axes.set_ylim(*plot.limits)
    elif not plot.log:
        axes.set_ylim(0, 1.06 * max(_highest(line) for line in plot.lines))


def _highest(line: Line) -> float:
    return max(value for _, e in line.points for value in (e["mean"], e["high"]) if value is not None)


def _value_scale(axes: Axes, log: bool) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    if log:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _number(value)))


def _number(value: float) -> str:
    """At most six characters: ``0.002``, ``1.2e-4``."""
    return (
        f"{value:.4g}" if value == 0 or abs(value) >= 1e-3 else f"{value:.1e}".replace(".0e", "e").replace("e-0", "e-")
    )


def _draw_budgets(axes: Axes, plot: Plot, width: float, digit: float) -> None:
    """The real budgets as ticks, with their share of the length; ``digit`` is the width of one in inches."""
    from matplotlib.ticker import FixedLocator, NullLocator

    low, high = axes.get_xlim()
    places = [width * log2(budget / low) / log2(high / low) for budget in plot.budgets]
    longest = max(len(str(plot.budgets[-1])), 4 if plot.shares else 0)  # "12%" is as wide as four digits
    shown = thin_out(places, digit * (longest + 0.5))
    labels = []
    for budget, show in zip(plot.budgets, shown, strict=True):
        share = plot.shares.get(budget)
        labels.append((f"{budget}" if share is None else f"{budget}\n{share:.0f}%") if show else "")
    axes.xaxis.set_major_locator(FixedLocator(plot.budgets))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticks(plot.budgets, labels)


def _shift(line: Line, plot: Plot) -> float:
    """Factor of the budget by which lines with intervals are shifted, so that no bar hides another."""
    with_bars = [one for one in plot.lines if one.points[0][1]["low"] is not None]
    lines = [one for one in with_bars if not (one.level or one.style.leading)]
    if line not in lines:
        return 1.0
    gaps = [log2(after / before) for before, after in pairwise(plot.budgets)]
    place = lines.index(line) - (len(lines) - 1) / 2
    return 2 ** (min(0.035, 0.6 * min(gaps, default=1.0) / len(lines)) * (place + (0.5 if place >= 0 else -0.5)))


def _draw_level(axes: Axes, line: Line) -> None:
    estimate = line.points[0][1]
    axes.axhline(
        estimate["mean"], color=line.style.colour, linewidth=0.9, dashes=line.style.dashes, zorder=1.5, clip_on=False
    )
    if estimate["low"] is not None and estimate["low"] < estimate["high"]:
        axes.axhspan(estimate["low"], estimate["high"], color=line.style.colour, alpha=0.07, linewidth=0, zorder=0.5)


def _draw_line(axes: Axes, line: Line, shift: float, scale: float) -> None:
    style, estimates = line.style, [estimate for _, estimate in line.points]
    x, y = [budget * shift for budget, _ in line.points], [estimate["mean"] for estimate in estimates]
    low, high = ([e["mean"] if e[end] is None else e[end] for e in estimates] for end in ("low", "high"))
    order = 4 if style.leading else 2
    if style.leading and len(x) > 1:
        axes.fill_between(x, low, high, color=style.colour, alpha=0.18, linewidth=0, zorder=order - 1)
    else:
        axes.vlines(x, low, high, color=style.colour, linewidth=0.7 * scale, alpha=0.6 * scale, zorder=order)
    # not clipped: at 0 and 100 half of a line is outside
    axes.plot(x, y, color=style.colour, zorder=order + 0.5, clip_on=False, gid=line.name, **_look(line, scale))


def _look(line: Line, scale: float) -> dict[str, object]:
    style = line.style
    look = dict(marker=style.marker, markersize=(4.2 if style.leading else 3.2) * scale, markeredgewidth=0)
    look |= dict(linewidth=(2.0 if style.leading else 0.9) * scale)
    return look | (dict(dashes=style.dashes) if style.dashes[0] is not None else {})


def _draw_labels(axes: Axes, plot: Plot, width: float, height: float) -> None:
    """Names at the right, each with a segment of its line, and a hairline from where the line ends."""
    right = axes.get_xlim()[1]
    axes.get_ylim()  # computes the scale
    to_axes = (axes.transData + axes.transAxes.inverted()).transform
    ends = []
    for line in plot.lines:
        budget, estimate = line.points[-1]
        x, y = to_axes((right if line.level else budget * _shift(line, plot), estimate["mean"]))
        ends.append((float(x), min(max(float(y), 0.0), 1.0)))
    half = LINE / height / 2
    places = spread([y for _, y in ends], LINE / height, -half, 1 + half)
    start, stop, text = (1 + inches / width for inches in (0.07, 0.25, 0.29))
    for line, (x, y), place in zip(plot.lines, ends, places, strict=True):
        style = line.style
        common = dict(transform=axes.transAxes, clip_on=False, color=style.colour)
        axes.plot([x, start], [y, place], linewidth=0.35, alpha=0.6, zorder=1, **common)
        look = _look(line, 0.9) | ({"marker": ""} if line.level else {})
        axes.plot([start, (start + stop) / 2, stop], [place] * 3, markevery=[1], zorder=5, **look, **common)
        axes.text(
            text, place, _cut(line.name), transform=axes.transAxes, va="center_baseline", color=style.colour,
            fontsize=TEXT - 0.5, fontweight="bold" if style.leading else "normal",
        )  # fmt: skip


def _cut(name: str) -> str:
    return name if len(name) <= LABEL else name[: LABEL - 3] + "..."
