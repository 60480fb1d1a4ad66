"""Loading tasks: the bundled reasoning tasks, and any file of problems and answers."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..grading.grade import get_grader
from . import reasoning
from .problems import Problem, load_problems


@dataclass(frozen=True)
class Task:
    """Problems of one kind and the function that grades their answers.

    Attributes:
        name: as it stands in results.
        problems: in a fixed order.
        grade: (problem, response, capped) -> fields of the record; "correct" among them, and "steps_right" (share
            of steps) where steps can be judged.
        chat: whether the problem is a user's message (a chat template is applied) or raw text.
        max_new_tokens: a limit that no right answer exceeds, or None where it is unknown.
        grader: name of the grader behind ``grade``; None where the task judges steps itself.
    """

    name: str
    problems: list[Problem]
    grade: Callable[[Problem, str, bool], dict[str, Any]]
    chat: bool
    max_new_tokens: int | None = None
    grader: str | None = None


def load_tasks(names: str, samples: int | None, seed: int = 0) -> list[Task]:
    """Tasks from a list like ``machine,search`` or ``reasoning`` or ``problems.jsonl:choice``.

    Args:
        names: separated by commas: a reasoning task; "reasoning", all of them; either with a length, as in
            ``machine@0.5`` for half as many steps; or a JSONL file of problems, with the name of a grader behind
            a colon (default: math).
        samples: problems of each task; None: a whole file, or 50 of a reasoning task.
        seed: random seed of the reasoning problems, and of the sample drawn from a file.

    Example:
        >>> [(task.name, len(task.problems)) for task in load_tasks("machine,plan@0.5", samples=2)]
        [('machine', 2), ('plan@0.5', 2)]

    Raises:
        ValueError: an unknown task or grader (the message lists the choices), a task given twice, a bad file.
        FileNotFoundError: no such file.
    """
    if samples is not None and samples < 1:
        raise ValueError(f"samples must be at least 1, got {samples}")
    tasks: list[Task] = []
    for name in filter(None, (part.strip() for part in names.split(","))):
        kind, at, scale = name.partition("@")
        if kind == "reasoning" or kind in reasoning.TASKS:
            kinds = reasoning.TASKS if kind == "reasoning" else [kind]
            length = _scale(name, scale) if at else 1.0
            tasks += [_reasoning_task(kind, samples or 50, seed, length) for kind in kinds]
        else:
            tasks.append(_file_task(name, samples, seed))
    twice = {task.name for task in tasks if sum(task.name == other.name for other in tasks) > 1}
    if twice:
        raise ValueError(f"given twice: {', '.join(sorted(twice))}")
    if not tasks:
        raise ValueError(f"no task named; choose from {_choices()}")
    return tasks


def load_problem(name: str, row: int, seed: int = 0) -> Problem:
    """One problem of one task, by its number from 0.

    Raises:
        ValueError: as :func:`load_tasks`; several tasks; or the task has fewer problems.
    """
    tasks = load_tasks(name, row + 1, seed)
    if len(tasks) != 1:
        raise ValueError(f"choose one task, for example plan@0.66; got {name!r}")
    problems = tasks[0].problems
    if len(problems) <= row:
        raise ValueError(f"{name} has {len(problems)} problems; row must be below that, got {row}")
    return problems[row]


def _choices() -> str:
    return f"reasoning, {', '.join(reasoning.TASKS)}, or a .jsonl file of problems and answers"


def _scale(name: str, text: str) -> float:
    try:
        scale = float(text)
    except ValueError:
        scale = 0.0
    if not 0 < scale <= 1:
        raise ValueError(f"the length of task {name!r} must be a number in (0, 1], got {text!r}")
    return scale


def _reasoning_task(kind: str, samples: int, seed: int, length: float) -> Task:
    full = reasoning.SIZES[kind]
    size = replace(full, steps=max(1, round(full.steps * length)))
    task = kind if length == 1 else f"{kind}@{length:g}"
    drawn = {f"{task}/{seed}/{i}": reasoning.draw_problem(kind, f"{seed}/{i}", size) for i in range(samples)}

    def grade(problem: Problem, response: str, capped: bool) -> dict[str, Any]:
        return grade_chain(drawn[problem.id], response, capped)

    problems = [Problem(name, p.prompt, p.answer, {"tokens": len(p.chain)}) for name, p in drawn.items()]
    longest = max(len(p.chain) for p in drawn.values())
    return Task(task, problems, grade, chat=False, max_new_tokens=longest + longest // 8)


def grade_chain(problem: reasoning.ReasoningProblem, response: str, capped: bool) -> dict[str, Any]:
    """Judge a chain: the answer, the share of right steps, and the kind of the first wrong step.

    A step is right if it follows from the model's own earlier steps. The share is out of the steps of the reference (or
    of the model's own, if it wrote more), so that steps that were not written count as wrong.
    """
    steps = problem.check(response + ("" if capped else reasoning.END))
    number = max(len(problem.check(problem.chain)), len(steps))
    wrong = next((step for step in steps if not step.right), None)
    answer = response.rpartition("=")[2] if steps and steps[-1].kind == "answer" else None
    return {
        "correct": answer == problem.answer and not capped,
        "answer": answer,
        "steps_right": round(sum(step.right for step in steps) / number, 4),
        "first_wrong": wrong and {"kind": wrong.kind, "at": wrong.start, "expected": wrong.expected},
    }


def _file_task(name: str, samples: int | None, seed: int) -> Task:
    path, colon, grader = name.rpartition(":")
    if not colon or path and not Path(path).suffix:
        path, grader = name, "math"
    if not Path(path).exists() and (Path(path).suffix or len(Path(path).parts) > 1):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    if not Path(path).is_file():
        raise ValueError(f"unknown task {name!r}: choose from {_choices()}")
    judge = get_grader(grader)

    def grade(problem: Problem, response: str, capped: bool) -> dict[str, Any]:
        verdict = judge(response, problem.answer, capped)
        return {"correct": verdict.correct, "answer": verdict.extracted, "reason": verdict.reason}

    problems = load_problems(path, samples, seed if samples else None)
    return Task(Path(path).stem, problems, grade, chat=True, grader=grader)
