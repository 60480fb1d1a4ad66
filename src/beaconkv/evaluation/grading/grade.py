r"""Right or wrong: a model's whole output, compared with the known answer."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from .boxes import last_box
from .equivalence import NoVerdictError, equivalent

CHOICES = "ABCD"
_CLOSED = "</think>"
_CHOICE = re.compile(r"(?:\\[A-Za-z]+(?![A-Za-z])|[\s({\[$*])*([A-Za-z])(?!\w)")


@dataclass(frozen=True)
class Grade:
    """One verdict.

    Attributes:
        correct: Whether the output gives the answer.
        extracted: Text that was compared with the answer, or None when there was nothing to compare.
        reason: Reason in a few words; the same few sentences everywhere, so that they can be counted.
    """

    correct: bool
    extracted: str | None
    reason: str


def final_text(response: str, truncated: bool = False) -> str | None:
    """The text after the last ``</think>``; the whole output if there is none.

    None if the output was cut off before any ``</think>``: the output is then thought alone, and the boxes in a
    thought are guesses. The opening tag has no effect, since some templates write it and others leave it to
    the model; the same output must not get two grades.
    """
    _, closed, final = response.rpartition(_CLOSED)
    return None if truncated and not closed else final


def grade(response: str, answer: str, truncated: bool = False) -> Grade:
    r"""Grade a mathematical answer: the last complete ``\boxed{}`` of the final text, and nothing else.

    Args:
        response: Whole output of the model.
        answer: Known answer, with or without math delimiters or a box.
        truncated: Whether the output ended at a length limit, not by the model's own end token.

    Returns:
        A grade. A response without a box is wrong. No response raises an error.

    Raises:
        ValueError: ``answer`` is blank.
        ImportError: math-verify is not installed (extra ``eval``).
    """
    gold = known_answer(answer)
    extracted, refusal = _boxed(response, truncated)
    if extracted is None:
        return refusal
    try:
        return _verdict(equivalent(extracted, gold), extracted)
    except NoVerdictError:
        return Grade(False, extracted, "the comparison took too long")


def grade_choice(response: str, answer: str, truncated: bool = False) -> Grade:
    r"""Grade a multiple choice: the letter at the start of the last box, as in ``\boxed{\text{(B)}}``.

    Raises:
        ValueError: ``answer`` is not one of ``CHOICES``.
    """
    gold = _letter(known_answer(answer))
    if gold is None:
        raise ValueError(f"answer {answer!r} is no choice; the choices are {', '.join(CHOICES)}")
    extracted, refusal = _boxed(response, truncated)
    if extracted is None:
        return refusal
    letter = _letter(extracted)
    return Grade(False, extracted, "no choice in the box") if letter is None else _verdict(letter == gold, letter)


def grade_exact(response: str, answer: str, truncated: bool = False, pattern: str | None = None) -> Grade:
    """Grade a text: the last non-empty line of the final text, or the last match of ``pattern``, must be the answer.

    Args:
        pattern: Regular expression; its first group counts if it has one. Blanks at both ends never count.

    Raises:
        ValueError: ``answer`` is blank.
    """
    gold = known_answer(answer)
    if truncated:  # "12" may be the beginning of "1234"
        return Grade(False, None, "cut off")
    final = final_text(response)
    if pattern is None:
        found = [line.strip() for line in final.splitlines() if line.strip()]
    else:
        found = [(match.group(match.re.groups and 1) or "").strip() for match in re.finditer(pattern, final)]
    return _verdict(found[-1] == gold, found[-1]) if found else Grade(False, None, "no answer")


GRADERS: dict[str, Callable[..., Grade]] = {"choice": grade_choice, "exact": grade_exact, "math": grade}
"""Name -> grader(response, answer, truncated=False)."""


def get_grader(name: str) -> Callable[..., Grade]:
    """The grader of that name. Raises ``ValueError`` for an unknown one, with the choices."""
    if name not in GRADERS:
        raise ValueError(f"unknown grader {name!r}; choose from {', '.join(sorted(GRADERS))}")
    return GRADERS[name]


def known_answer(answer: str) -> str:
    """A known answer without its box, if it has one. Raises ``ValueError`` for a blank one."""
    if not answer.strip():
        raise ValueError("the known answer is blank: nothing can be graded against it")
    return last_box(answer) or answer.strip()


def _boxed(response: str, truncated: bool) -> tuple[str, None] | tuple[None, Grade]:
    final = final_text(response, truncated)
    if final is None:
        return None, Grade(False, None, "cut off within the thought")
    extracted = last_box(final)
    if extracted is None:
        return None, Grade(False, None, "no box")
    return extracted, None


def _letter(text: str) -> str | None:
    match = _CHOICE.match(text)
    letter = match.group(1).upper() if match else ""
    return letter if letter and letter in CHOICES else None


def _verdict(correct: bool, extracted: str) -> Grade:
    return Grade(correct, extracted, "right" if correct else "wrong")
