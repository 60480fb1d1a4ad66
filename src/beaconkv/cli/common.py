"""What the commands share: consoles, units, settings of a policy."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

console = Console()
messages = Console(stderr=True)
"""Progress and remarks; stdout is kept for results."""


def show_log(verbose: int) -> None:
    """Show the library's log on stderr.

    Args:
        verbose: Number of times that the option was given: 1 shows INFO, more DEBUG, too.
    """
    from rich.logging import RichHandler

    logger = logging.getLogger("beaconkv")
    for handler in [handler for handler in logger.handlers if isinstance(handler, RichHandler)]:
        logger.removeHandler(handler)
    logger.addHandler(RichHandler(console=messages, show_path=False))
    logger.setLevel(logging.INFO if verbose == 1 else logging.DEBUG)


def report(message: str) -> None:
    """Report what takes time."""
    messages.print(f"[dim]{message}[/dim]")


def print_json(result: dict[str, Any]) -> None:
    """One JSON document on stdout, unstyled."""
    print(json.dumps(result, indent=2, ensure_ascii=False))


def add_settings(policy: str, settings: list[str]) -> str:
    """The spec of a policy with the settings of ``--set``, which come last and so win.

    Raises:
        ValueError: a setting that is no ``setting=value``.
    """
    from ..policies.spec import parse_settings

    parse_settings(settings, "--set", "--set setting=value")
    return ":".join([policy, *settings])


def parse_count(text: str) -> int | str:
    """An int where the text is one, else the text itself, which the schedule checks."""
    try:
        return int(text)
    except ValueError:
        return text


def split(text: str) -> list[str]:
    """``a, b`` as a list of two."""
    return [part.strip() for part in text.split(",") if part.strip()]


def parse_budgets(text: str) -> list[int]:
    """``128, 256`` as a list of two. Raises ``ValueError``."""
    budgets = []
    for part in split(text):
        try:
            budgets.append(int(part))
        except ValueError:
            raise ValueError(f"budgets are whole numbers, with commas between them; got {part!r}") from None
    return budgets


def name_column(table: Table, heading: str, names: Iterable[str]) -> None:
    """A first column of names. They are never wrapped or cut, however narrow the screen: users copy them."""
    table.add_column(heading, no_wrap=True, min_width=max(map(len, (heading, *names))))


@contextmanager
def bar(name: str, total: float, counts: bool = True) -> Iterator[Callable[[float], None]]:
    """A progress bar on a terminal; what is yielded moves it forward.

    Args:
        counts: show numbers next to the bar.
    """
    columns = [TextColumn(name), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn()]
    if counts:
        columns.insert(2, MofNCompleteColumn())
    with Progress(*columns, console=messages, disable=not messages.is_terminal) as progress:
        task = progress.add_task("", total=total)
        yield lambda done: progress.advance(task, done)
