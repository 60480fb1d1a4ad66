"""The figures and tables, with their names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from . import paper_results as paper
from . import tables
from .fidelity import divergence, divergence_blocks
from .markdown import table
from .methods import PLAIN
from .plots import Block, Line, Measure, Plot, groups, make_lines, shares, task_title
from .results import Measured
from .tables import MEASURES, Found

MIB = 2**20
INTERVALS = "Bars and bands: 95% intervals over {over}; methods are shifted sideways so that bars can be seen."


@dataclass(frozen=True)
class Recipe:
    """The recipe of a figure.

    Attributes:
        title: Title of the figure.
        body: Function (measured, found, task, measure) -> Markdown of one task.
        wanted: Specs of the policies; None: all that the results have.
        full: Whether the full cache belongs to it.
        blocks: Function (measured, policies, measure) -> the picture; None: there is none.
        paper: Numbers of the paper, as Markdown.
        kind: Kind of the results.
        main_only: Whether only the task of all problems is shown.
        note: Note on the meaning of its numbers.
    """

    title: str
    body: Callable[[Measured, Found, str, str], str]
    wanted: tuple[str, ...] | None = None
    full: bool = False
    blocks: Callable[[Measured, Sequence[str], str], list[Block]] | None = None
    paper: str = ""
    kind: str = "eval"
    main_only: bool = False
    note: str = ""


def quality_blocks(measured: Measured, policies: Sequence[str], measure: str) -> list[Block]:
    """Quality against budget: all tasks in a large panel, each task in a small one."""
    ylabel = f"{MEASURES[measure]}, %"
    blocks = []
    for title, group in groups(policies):
        plots = []
        for task in measured.tasks:
            lines = make_lines(measured, task, group, _percent(measure))
            if any(not line.level for line in lines):
                title_of = task_title(measured, task)
                plots.append(Plot(title_of, lines, shares(measured, task), ylabel, (0, 100)))
        blocks.append(Block(title, tuple(plots)))
    return blocks


def memory_blocks(measured: Measured, policies: Sequence[str], measure: str) -> list[Block]:
    """Quality and bytes against budget."""
    task = measured.tasks[0]
    title, share = task_title(measured, task), shares(measured, task)
    left = make_lines(measured, task, policies, _percent(measure))
    sizes = make_lines(measured, task, policies, _size("kv_bytes", "state_bytes"))
    entries = make_lines(measured, task, policies[:1], _size("kv_bytes"))[-1]
    sizes = (Line("keys and values", PLAIN, entries.points), *sizes)
    plots = (
        Plot(title, left, share, f"{MEASURES[measure]}, %", (0, 100)),
        Plot("keys, values and state of a row", sizes, share, "MiB"),
    )
    return [Block("", plots, labelled=2)]


def _percent(measure: str) -> Measure:
    ends = ("mean", "low", "high")
    return lambda row: {end: 100 * row[measure][end] for end in ends} if measure in row else None


def _size(*fields: str) -> Measure:
    return lambda row: {"mean": sum(row[name] for name in fields) / MIB, "low": None, "high": None}


def _paper(body: str) -> str:
    return f"## What the paper reports\n\n{paper.SOURCE}; other models and problems, not measured here.\n\n{body}"


_TABLE2 = table(
    ["budget", "max over both", "mean over both"],
    [[str(budget), f"{most:.1f}", f"{mean:.1f}"] for budget, (most, mean) in paper.TABLE2.items()],
)
_TABLE3 = table(
    ["model, task", "initial_recent", "beaconkv", "difference"],
    [[f"{m}, {t}", f"{a:.2f}", f"{b:.2f}", f"{b - a:+.2f}"] for (m, t), (a, b) in paper.TABLE3.items()],
)

FIGURES = {
    "fig6": Recipe(
        "Quality against budget by choice of observation queries",
        tables.quality,
        ("beaconkv", "recent:16", "recent:32", "initial_recent", "random_history"),
        full=True,
        blocks=quality_blocks,
    ),
    "fig7": Recipe(
        "Quality and memory by choice of beacon queries",
        tables.memory,
        ("kmeans_centroid", "kmeans_nearest", "naive_fps", "beaconkv"),
        full=True,
        blocks=memory_blocks,
        main_only=True,
        note="Sizes are bytes, the most of any row. State is what a policy keeps, and positions.",
    ),
    "fig8": Recipe(
        "Quality against budget",
        tables.quality,
        full=True,
        blocks=quality_blocks,
        paper=_paper(f"Figure 8, {paper.FIGURE8}."),
    ),
    "table1": Recipe(
        "Splits of 32 observation queries",
        tables.splits,
        tuple(paper.TABLE1),
        paper=_paper("Table 1, in the last column. Its row 32 : 0 is RPC."),
    ),
    "table2": Recipe(
        "Pooling over queries and heads",
        tables.pooling,
        tuple(f"beaconkv:{queries}-{heads}" for queries in tables.POOLS for heads in tables.POOLS),
        paper=_paper(f"Table 2, {paper.TABLE2_SETTING}:\n\n{_TABLE2}"),
    ),
    "table3": Recipe(
        "First queries or beacon queries",
        tables.initial,
        ("initial_recent", "beaconkv"),
        paper=_paper(f"Table 3, {paper.TABLE3_SETTING}:\n\n{_TABLE3}"),
    ),
    "table6": Recipe(
        "Output length",
        tables.lengths,
        full=True,
        paper=_paper(f"Table 6, {paper.TABLE6}."),
        note="Cut off: answers that met the limit. Loops: answers cut off while they repeated themselves.",
    ),
    "fidelity": Recipe(
        "Divergence from the full cache",
        divergence,
        blocks=lambda measured, policies, measure: divergence_blocks(measured, policies),
        kind="fidelity",
    ),
}
"""Name -> recipe."""
