"""The commands that made results, and those that would make what is missing."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from .results import Measured, Result


def commands(measured: Measured) -> list[str]:
    """The command that made each file."""
    return [shlex.join(["beaconkv", *_arguments(result)]) for result in measured.results if _arguments(result)]


def command_for(result: Result, policies: Sequence[str], out: str) -> str:
    """The command of a result with other policies and another folder: the same model, problems and budgets."""
    arguments = _arguments(result) or [result.kind, "--model", result.model]
    kept, skip = [], False
    for argument in arguments:
        name = argument.partition("=")[0]
        if skip or name in ("--policies", "--out", "--against", "--json"):
            skip = not skip and "=" not in argument and name != "--json"
            continue
        kept.append(argument)
    return shlex.join(["beaconkv", *kept, "--policies", ",".join(policies), "--out", out])


def _arguments(result: Result) -> list[str]:
    return [str(part) for part in result.document.get("command", [])[1:]]


def footnote(panels: Sequence[Measured], explained: str) -> str:
    """The footnote of a picture: model, problems, seed, commands."""
    lines = [explained]
    for measured in panels:
        result = measured.results[0]
        facts, rows = result.facts, measured.rows.values()
        row = next(row for (_, _, task), row in measured.rows.items() if task == measured.tasks[0])
        facts_shown = [measured.label]
        if facts.get("weights"):
            facts_shown.append(f"weights {facts['weights']}")
        facts_shown.append(
            f"{row['problems']} problems" if "problems" in row else f"{max(r['texts'] for r in rows)} texts"
        )
        if facts.get("runs"):
            facts_shown.append(f"{facts['runs']} run{'s' if facts['runs'] > 1 else ''} of each")
        facts_shown += [f"seed {facts.get('seed')}", str(facts.get("dtype"))]
        lines.append(", ".join(facts_shown) + ".")
        made = [_shortened(command) for command in commands(measured)]
        lines += made[:2] + ([f"and {len(made) - 2} more commands"] if len(made) > 2 else [])
    return "\n".join(lines)


def _shortened(command: str) -> str:
    """The command without the names of all methods, which the picture shows."""
    parts = shlex.split(command)
    cut = {i for i, part in enumerate(parts) if i and parts[i - 1] == "--policies" and len(part) > 40}
    return " ".join("..." if i in cut else shlex.quote(part) for i, part in enumerate(parts))
