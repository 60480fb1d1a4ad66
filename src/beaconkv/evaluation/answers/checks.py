"""Checks for errors and surprises before anything is computed.

The first two need no model; :func:`check_prompts` needs its tokenizer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..grading.equivalence import LONGEST, clean, has_open_braces, is_readable, require_math_verify
from ..grading.grade import get_grader, known_answer
from ..records.settings_file import compare_settings
from ..tasks.load import Task
from ..tasks.problems import Problem

if TYPE_CHECKING:
    from .run import Evaluation


def check_answers(tasks: Sequence[Task]) -> list[str]:
    """Check that every known answer can be matched.

    Returns:
        Remarks on those that only an identical text can match.

    Raises:
        ValueError: an answer that nothing can match; the message names task and problem.
        ImportError: a grader's package is missing.
    """
    remarks = []
    for task in tasks:
        unread = []
        if task.grader == "math":
            require_math_verify()
        for problem in task.problems if task.grader else ():
            try:
                get_grader(task.grader)("", problem.answer)
                if task.grader == "math" and not _can_be_read(problem):
                    unread.append(problem)
            except ValueError as error:
                raise ValueError(f"task {task.name}, problem {problem.id!r}: {error}") from None
        if unread:
            remarks.append(
                f"task {task.name}: {len(unread)} known answers cannot be read as mathematics: only an answer "
                f"with the same characters is right. The first is {unread[0].answer!r} of problem {unread[0].id!r}"
            )
    return remarks


def _can_be_read(problem: Problem) -> bool:
    text = clean(known_answer(problem.answer))
    if not text or len(text) > LONGEST:
        raise ValueError(
            f"the known answer has {len(text)} characters; answers of 1 to {LONGEST} characters are compared"
        )
    if has_open_braces(text):
        raise ValueError(f"the braces of the known answer {problem.answer!r} do not balance: no box can hold it")
    return is_readable(text)


def check_folder(out: Path, settings: Mapping[str, Any]) -> None:
    """Raise ``ValueError`` if the folder holds a run that differs in what is known before the model is loaded.

    Args:
        settings: Settings from :func:`beaconkv.evaluation.answers.run_settings.run_settings`.
    """
    path = out / "run.json"
    if path.is_file():
        compare_settings(path, settings, without=("weights", "record_key"))


def check_prompts(evaluation: Evaluation) -> list[str]:
    """Check that every method supports the model, and that its budget leaves room for every prompt.

    Returns:
        Remarks on tasks whose longest text is longer than the model was made for.

    Raises:
        ValueError: a method or budget that cannot work; the message names method, task and problem.
    """
    for cell in evaluation.cells:
        cell.new_cache(evaluation.model).detach()
        for (task, problem), prompt in evaluation.prompts.items():
            try:
                if cell.budget is not None:
                    cell.schedule.kept_for(len(prompt))
            except ValueError as error:
                raise ValueError(f"{cell.name}, task {task}, problem {problem!r}: {error}") from None
    config = evaluation.model.config
    made_for = getattr(config.get_text_config(decoder=True), "max_position_embeddings", None)
    remarks = []
    for task in evaluation.tasks:
        prompt = max(len(evaluation.prompts[task.name, problem.id]) for problem in task.problems)
        limit = evaluation.limit(task)
        if made_for and prompt + limit > made_for:
            remarks.append(
                f"task {task.name}: the longest prompt has {prompt:,} tokens and an answer may have {limit:,}; "
                f"the model is made for {made_for:,} together (max_position_embeddings); --max-new-tokens makes it less"
            )
    return remarks
