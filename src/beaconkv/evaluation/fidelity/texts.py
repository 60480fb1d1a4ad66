"""Texts for fidelity: a prompt, and a given continuation."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..prompts import prompt_ids


@dataclass(frozen=True)
class Text:
    """Tokens of a prompt and of its continuation.

    Attributes:
        name: Name in results.
        ids: Token ids, the prompt first.
        prompt_length: Number of tokens of the prompt.

    Raises:
        ValueError: no prompt, or nothing after it.
    """

    name: str
    ids: tuple[int, ...]
    prompt_length: int

    def __post_init__(self) -> None:
        if not 1 <= self.prompt_length < len(self.ids):
            raise ValueError(
                f"text {self.name!r}: a prompt of {self.prompt_length} out of {len(self.ids)} tokens; "
                "at least one token must be the prompt, and one must follow it"
            )

    @property
    def predictions(self) -> int:
        """Tokens after the prompt: each is predicted once."""
        return len(self.ids) - self.prompt_length

    @property
    def digest(self) -> str:
        """Hash of the tokens and of the end of the prompt."""
        return hashlib.sha256(repr((self.prompt_length, self.ids)).encode()).hexdigest()


def read_rows(path: Path, samples: int | None = None) -> list[dict[str, Any]]:
    """The first ``samples`` rows (None: all) of a JSONL file, each with "problem" and "response", or with "text".

    Raises:
        ValueError: no row, a line that is not such an object, or samples < 1.
        OSError: the file cannot be read.
    """
    if samples is not None and samples < 1:
        raise ValueError(f"samples must be at least 1, got {samples}")
    rows: list[dict[str, Any]] = []
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if len(rows) == samples:
                break
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except json.JSONDecodeError as error:
                raise ValueError(f"{path}, line {number}: no JSON: {error}") from None
            fields = [
                f for f in ("problem", "response", "text") if isinstance(row, dict) and isinstance(row.get(f), str)
            ]
            if "text" not in fields and fields != ["problem", "response"]:
                raise ValueError(f'{path}, line {number}: needs strings "problem" and "response", or "text"')
            rows.append({"id": f"line {number}", **row})
    if not rows:
        raise ValueError(f"{path} holds no text")
    return rows


def read_row(path: Path, number: int) -> dict[str, Any]:
    """One row of a JSONL file as :func:`read_rows` reads it, by its number from 0.

    Raises:
        ValueError: as there; or the file has fewer rows.
        OSError: the file cannot be read.
    """
    rows = read_rows(path, number + 1)
    if len(rows) <= number:
        raise ValueError(f"{path} has {len(rows)} texts; row must be below that, got {number}")
    return rows[number]


def tokenize(rows: Sequence[dict[str, Any]], tokenizer: Any, tokens: int | None, prompt_tokens: int) -> list[Text]:
    """Texts of rows from :func:`read_rows`.

    A problem becomes a chat message, if the tokenizer has a template, and is the prompt; its response follows
    as the model's answer. Of a plain text, the first ``prompt_tokens`` are the prompt.

    Args:
        tokens: maximum number of tokens of a text, prompt included; None: all.

    Raises:
        ValueError: a text that has nothing left after its prompt.
    """
    texts = []
    for row in rows:
        if "response" in row and "problem" in row:
            # Tokenized separately, as the model gets them: no token may reach across the end of the prompt.
            ids = prompt_ids(tokenizer, row["problem"])
            prompt = len(ids)
            ids = ids + tokenizer(row["response"], add_special_tokens=False)["input_ids"]
        else:
            ids, prompt = tokenizer(row["text"])["input_ids"], prompt_tokens
        texts.append(Text(str(row["id"]), tuple(ids[:tokens]), prompt))
    return texts
