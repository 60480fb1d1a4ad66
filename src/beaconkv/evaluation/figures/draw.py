"""From result files to a figure: choose the rows, remark on what is missing, write the files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from .canvas import looks
from .catalog import FIGURES, INTERVALS, Recipe
from .lines import draw_lines
from .markdown import sources
from .methods import find, own_budget
from .origin import command_for, footnote
from .results import Measured, merge, read_result
from .tables import MEASURES, Found, section


@dataclass(frozen=True)
class Drawn:
    """The files that were written.

    Attributes:
        files: Paths of the files.
        remarks: Remarks on missing rows and on the results.
    """

    files: list[Path]
    remarks: list[str]


def draw(
    name: str, paths: Sequence[str | Path], out: str | Path, measure: str = "accuracy", panels: bool = False
) -> Drawn:
    """Write ``NAME.md`` and, where a picture helps, ``NAME.png`` and ``NAME.svg``.

    Args:
        name: name of :data:`FIGURES`.
        paths: result files, or folders that hold one; parts of one run are put together.
        out: a folder; it is made.
        measure: "accuracy" or "steps_right".
        panels: show different models or problems in panels.

    Raises:
        ValueError: an unknown name or measure; a result of another kind; errors of :func:`merge`; results
            without any row of this figure (the message names the command that makes them).
        FileNotFoundError: no such result.
        ModuleNotFoundError: a picture without matplotlib.
    """
    for what, value, choices in (("figure", name, FIGURES), ("measure", measure, MEASURES)):
        if value not in choices:
            raise ValueError(f"unknown {what} {value!r}; choose from {', '.join(choices)}")
    recipe = FIGURES[name]
    results = [read_result(path) for path in paths]
    if not results:
        raise ValueError(f"{name} needs at least one result of beaconkv {recipe.kind}")
    for result in results:
        if result.kind != recipe.kind:
            raise ValueError(
                f"{result.path} is a result of beaconkv {result.kind}; {name} needs one of beaconkv {recipe.kind}"
            )
    measured = merge(results, panels)
    chosen = [(part, _choose(part, recipe)) for part in measured]
    chosen = [(part, found) for part, found in chosen if found]
    if not chosen:
        wanted = recipe.wanted or ("beaconkv", "rpc", "snapkv")
        command = command_for(results[0], ["full", *wanted], f"results/{name}")
        raise ValueError(f"{name} needs rows of {', '.join(wanted)}; none is there. This makes them:\n{command}")
    for part, _ in chosen:
        if recipe.kind == "eval" and not any(measure in row for row in part.rows.values()):
            raise ValueError(f"{part.results[0].path} has no {measure}; its tasks do not judge steps")
    remarks = [remark for part, found in chosen for remark in _remarks(name, recipe, part, found, len(chosen) > 1)]
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    files = [out / f"{name}.md"]
    files[0].write_text(_markdown(name, recipe, chosen, measure, remarks), encoding="utf-8")
    if recipe.blocks is not None:
        files += _picture(recipe, chosen, measure, out / name)
    return Drawn(files, remarks)


def _choose(measured: Measured, recipe: Recipe) -> Found:
    there = [policy for policy in measured.policies if measured.budgets([policy])]
    return {policy: policy for policy in there} if recipe.wanted is None else find(there, recipe.wanted)


def _remarks(name: str, recipe: Recipe, measured: Measured, found: Found, several: bool) -> list[str]:
    """Cells that are missing, with the command that computes them; budgets that were never reached; another scope."""
    task, start = measured.tasks[0], f"{measured.label}: " if several else ""
    absent = [policy for policy in recipe.wanted or () if policy not in found]
    if recipe.full and measured.full(task) is None:
        absent.append("full")
    budgets = measured.budgets([spec for spec in found.values() if own_budget(spec) is None])
    holes = [
        f"{spec} at {budget}"
        for spec in found.values()
        for budget in budgets
        if own_budget(spec) is None and (spec, budget, task) not in measured.rows
    ]
    remarks = []
    if absent or holes:
        remarks.append(f"{start}missing: {', '.join(absent + holes)}")
    if absent:
        command = command_for(measured.results[0], absent, f"results/{name}-more")
        remarks.append(f"{start}{command} makes what is missing")
    idle = [
        f"{policy} at {budget}"
        for (policy, budget, t), row in measured.rows.items()
        if t == task and budget is not None and policy in found.values()
        and (row["evictions"] == 0 if "never_evicted" not in row else row["never_evicted"] == row["samples"])
    ]  # fmt: skip
    if idle:
        remarks.append(f"{start}nothing was evicted: {', '.join(idle)}")
    schedules = [schedule for result in measured.results for schedule in result.document.get("schedules", [])]
    separate = dict.fromkeys(s["policy"] for s in schedules if s.get("scope") == "output")
    separate = [policy for policy in separate if policy in found.values()]
    if separate:
        remarks.append(f"{start}the prompt does not count in the budget of {', '.join(separate)}")
    return remarks


def _markdown(
    name: str, recipe: Recipe, chosen: Sequence[tuple[Measured, Found]], measure: str, remarks: Sequence[str]
) -> str:
    parts = [f"# {recipe.title}"]
    if recipe.blocks is not None:
        parts.append(f"![{recipe.title}]({name}.png)")
    over = "problems" if recipe.kind == "eval" else "texts"
    what = f"{MEASURES[measure].capitalize()} in %: mean" if recipe.kind == "eval" else "Mean"
    parts.append(f"{what} and [95% interval] over {over}. {recipe.note}".rstrip())
    for measured, found in chosen:
        if len(chosen) > 1:
            parts.append(f"## {measured.label}")
        tasks = measured.tasks[:1] if recipe.main_only else measured.tasks
        parts += [section(measured, task, recipe.body(measured, found, task, measure)) for task in tasks]
    if remarks:
        parts.append("\n".join(f"- {remark}" for remark in remarks))
    parts += [recipe.paper, sources([measured for measured, _ in chosen])]
    return "\n\n".join(part for part in parts if part) + "\n"


def _picture(recipe: Recipe, chosen: Sequence[tuple[Measured, Found]], measure: str, stem: Path) -> list[Path]:
    blocks = []
    for measured, found in chosen:
        own = recipe.blocks(measured, list(found.values()), measure)
        label = measured.label if len(chosen) > 1 else ""
        blocks += [replace(b, title=": ".join(t for t in (label, b.title) if t)) for b in own]
    explained = INTERVALS.format(over="texts" if recipe.kind == "fidelity" else "problems")
    if any(plot.shares for block in blocks for plot in block.plots):
        explained += " Budgets also in % of the full cache's mean length, prompt included."
    with looks():
        page = draw_lines(recipe.title, blocks, footnote([measured for measured, _ in chosen], explained))
        return page.save(stem)
