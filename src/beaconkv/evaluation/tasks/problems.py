"""Problems with known answers, from JSONL files."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PROMPT_FIELDS = ("problem", "question", "prompt")


@dataclass(frozen=True)
class Problem:
    """One problem. ``meta`` holds the file's other fields as they are."""

    id: str
    prompt: str
    answer: str
    meta: Mapping[str, Any] = field(default_factory=dict, hash=False)


def load_problems(
    path: str | Path,
    limit: int | None = None,
    seed: int | None = None,
    *,
    prompt_field: str | None = None,
    answer_field: str = "answer",
    id_field: str = "id",
) -> list[Problem]:
    """Read one JSON object per line; blank lines are skipped.

    Args:
        path: the file, UTF-8.
        limit: maximum number of problems: the first ones, or a random sample if ``seed`` is given. Either way they
            stay in the order of the file.
        seed: random seed of the sample.
        prompt_field: name of the field with the problem; by default the first of ``PROMPT_FIELDS`` that is there.
        answer_field: name of the field with the answer, a text or a number.
        id_field: name of the field with the id, a text or a number. Where it is missing, an id is made from the
            problem's text, so that it stays the same when lines are added or moved.

    Raises:
        ValueError: bad JSON, a missing or blank field, an id or a problem that occurs twice, a file without
            problems (the message starts with ``file:line``); a limit below 1.
        OSError: the file cannot be read.
    """
    if limit is not None and limit < 1:
        raise ValueError(f"limit must be at least 1, got {limit}")
    path = Path(path)
    problems: list[Problem] = []
    seen: dict[tuple[str, str], int] = {}
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                problem = _problem(line, prompt_field, answer_field, id_field)
                for name, value in (("id", problem.id), ("problem", problem.prompt)):
                    first = seen.setdefault((name, value), number)
                    if first != number:
                        raise ValueError(f"{name} {value[:60]!r} is already in line {first}")
            except ValueError as error:
                raise ValueError(f"{path}:{number}: {error}") from None
            problems.append(problem)
    if not problems:
        raise ValueError(f"{path}:1: no problems in this file")
    if limit is not None and limit < len(problems):
        indices = range(limit) if seed is None else sorted(random.Random(seed).sample(range(len(problems)), limit))
        problems = [problems[i] for i in indices]
    return problems


def _problem(line: bytes, prompt_field: str | None, answer_field: str, id_field: str) -> Problem:
    try:
        row = json.loads(line.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8: {error}") from None
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"not JSON: {error}") from None
    if not isinstance(row, dict):
        raise ValueError(f"a problem must be a JSON object, got {type(row).__name__}")
    if prompt_field is None:
        prompt_field = next((name for name in PROMPT_FIELDS if name in row), None)
        if prompt_field is None:
            raise ValueError(f"none of the fields {', '.join(PROMPT_FIELDS)}; it has {', '.join(row) or 'none'}")
    prompt = _text(row, prompt_field)
    answer = _text(row, answer_field)
    made = hashlib.sha256(prompt.encode("utf-8", "surrogatepass")).hexdigest()[:12]
    name = _text(row, id_field) if id_field in row else made
    known = {prompt_field, answer_field, id_field}
    return Problem(name, prompt, answer, {key: value for key, value in row.items() if key not in known})


def _text(row: dict, name: str) -> str:
    if name not in row:
        raise ValueError(f"no field {name!r}; it has {', '.join(row) or 'none'}")
    value = row[name]
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise ValueError(f"field {name!r} must be a text or a number, got {value!r}")
    if not str(value).strip():
        raise ValueError(f"field {name!r} is blank")
    return str(value)
