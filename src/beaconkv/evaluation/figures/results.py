"""Result files: reading them, and merging the parts of one run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..summary import ALL
from .methods import read

FILES = {"eval": "result.json", "fidelity": "fidelity.json"}
"""File that each command writes."""


@dataclass(frozen=True)
class Result:
    """One result file.

    Attributes:
        path: Path of the file.
        kind: Command that made it, "eval" or "fidelity".
        document: Content of the file.
    """

    path: Path
    kind: str
    document: dict[str, Any]

    @property
    def facts(self) -> dict[str, Any]:
        """The facts that must be equal in parts of one run."""
        document, settings = self.document, self.document.get("settings", {})
        if self.kind == "fidelity":
            texts = sorted({record["text"] for record in document.get("records", [])})
            facts = {name: document.get(name) for name in ("model", "dtype", "seed")}
            return facts | {"texts": texts, "mass_every": settings.get("mass_every")}
        names = ("weights", "tasks", "sampling", "seed", "runs")
        return {name: settings.get(name) for name in names} | {"dtype": document.get("dtype")}

    @property
    def model(self) -> str:
        """The model's name, without its folder."""
        return Path(str(self.document.get("model", "model"))).name


@dataclass(frozen=True)
class Measured:
    """All rows of one model on the same problems.

    Attributes:
        label: Name of the model, and the facts that distinguish it from other panels.
        results: Result files.
        rows: Rows by (policy, budget, task), in order of appearance. The task of a row of fidelity is "all".
    """

    label: str
    results: tuple[Result, ...]
    rows: dict[tuple[str, int | None, str], dict[str, Any]]

    @property
    def policies(self) -> list[str]:
        """Specs, in order of appearance."""
        return list(dict.fromkeys(policy for policy, _, _ in self.rows))

    @property
    def tasks(self) -> list[str]:
        """The tasks, that of all problems first: "all", or the only task."""
        return sorted(dict.fromkeys(task for _, _, task in self.rows), key=lambda task: task != ALL)

    def budgets(self, policies: Sequence[str] | None = None) -> list[int]:
        """Budgets of some policies, or of all, in ascending order."""
        chosen = self.policies if policies is None else policies
        return sorted({b for policy, b, _ in self.rows if b is not None and policy in chosen})

    def full(self, task: str) -> dict[str, Any] | None:
        """The row of the full cache."""
        return next((row for (_, b, t), row in self.rows.items() if b is None and t == task), None)


def read_result(path: str | Path) -> Result:
    """Read a result file, or the one in a folder.

    Raises:
        FileNotFoundError: the file does not exist.
        ValueError: the file is no result of ``beaconkv eval`` or ``beaconkv fidelity``.
    """
    path = Path(path)
    if path.is_dir():
        inside = [path / name for name in FILES.values() if (path / name).is_file()]
        if len(inside) != 1:
            raise FileNotFoundError(f"{path} must hold one of {' and '.join(FILES.values())}; it holds {len(inside)}")
        path = inside[0]
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        rows = document["rows"]
        kind = "fidelity" if "kl" in rows[0] else "eval"
        if any(not {"policy", "budget", "kl" if kind == "fidelity" else "accuracy"} <= row.keys() for row in rows):
            raise KeyError
    except (ValueError, KeyError, IndexError, TypeError, AttributeError):
        raise ValueError(f"{path} is no result of beaconkv eval or beaconkv fidelity") from None
    return Result(path, kind, document)


def merge(results: Sequence[Result], panels: bool = False) -> list[Measured]:
    """Merge the parts of a run.

    Args:
        results: results of one kind.
        panels: whether results that differ in weights, tasks, sampling, seed, runs or dtype may be shown in panels.
            Without it they are refused.

    Raises:
        ValueError: parts with different settings; a row that two files have; a policy with two schedules.
    """
    groups: list[list[Result]] = []
    for result in results:
        group = next((g for g in groups if g[0].facts == result.facts), None)
        if group is not None:
            group.append(result)
        elif panels or not groups:
            groups.append([result])
        else:
            first = groups[0][0]
            raise ValueError(
                f"{first.path} and {result.path} are no parts of one run, they differ in "
                f"{_differences(first.facts, result.facts)}; --panels draws them in panels"
            )
    return [Measured(_label(group, groups), tuple(group), _rows(group)) for group in groups]


def _without_budget(schedule: dict[str, Any]) -> dict[str, Any]:
    """What of a schedule is the same at all budgets: half of what stays is another number at each."""
    own = {k: v for k, v in schedule.items() if k not in ("policy", "budget", "budget_min")}
    stays = schedule.get("budget_min")
    spec = read(schedule["policy"])
    if spec is not None and spec.protect == "half" and stays is not None and own.get("protect") == stays // 2:
        own["protect"] = "half"
    return own


def _rows(group: list[Result]) -> dict[tuple[str, int | None, str], dict[str, Any]]:
    rows: dict[tuple[str, int | None, str], dict[str, Any]] = {}
    origin: dict[tuple[str, int | None, str], Path] = {}
    schedules: dict[str, tuple[dict[str, Any], Path]] = {}
    for result in group:
        for row in result.document["rows"]:
            key = (row["policy"], row["budget"], row.get("task", ALL))
            if key in rows:
                where = f"{origin[key]} and {result.path}" if origin[key] != result.path else f"{result.path} twice"
                at = "" if key[1] is None else f" at {key[1]}"
                raise ValueError(f"{key[0]}{at} (task {key[2]}) is in {where}: leave one out")
            rows[key], origin[key] = row, result.path
        for schedule in result.document.get("schedules", []):
            own = _without_budget(schedule)
            before, where = schedules.setdefault(schedule["policy"], (own, result.path))
            if before != own:
                raise ValueError(
                    f"{schedule['policy']} has one schedule in {where} and another in {result.path}: "
                    f"{_differences(before, own)}"
                )
    return rows


def _label(group: list[Result], groups: list[list[Result]]) -> str:
    """The model's name, and, where others have the same name, the facts that differ from the first of them."""
    first = group[0]
    others = [other[0] for other in groups if other[0].model == first.model and other is not group]
    differing = dict.fromkeys(k for other in others for k, v in first.facts.items() if other.facts.get(k) != v)
    return ", ".join([first.model, *(f"{name} {_short(first.facts[name])}" for name in differing)])


def _differences(first: dict[str, Any], second: dict[str, Any]) -> str:
    names = [name for name in {**first, **second} if first.get(name) != second.get(name)]
    return "; ".join(f"{name}: {_short(first.get(name))} and {_short(second.get(name))}" for name in names)


def _short(value: Any) -> str:
    text = json.dumps(value) if isinstance(value, dict | list) else str(value)
    return text if len(text) <= 60 else text[:57] + "..."
