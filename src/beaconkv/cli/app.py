"""The commands, one file each.

Packages that take long to import (torch, transformers, matplotlib) are imported inside a command, when it runs: help,
the version and errors in the options are shown at once.
"""

from __future__ import annotations

import typer

from .. import __version__
from .common import show_log
from .compare import compare
from .demo import demo
from .evaluate import evaluate
from .fidelity import fidelity
from .figure import figure
from .generate import generate
from .plan import plan
from .policies import policies
from .replay import replay
from .report import report
from .serve import serve
from .trace import app as trace

app = typer.Typer(
    help="Long reasoning in a small, fixed KV cache.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for command in (generate, policies, plan, demo, compare, fidelity, figure, replay, report):
    app.command()(command)
app.command("eval")(evaluate)
app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(serve)
app.add_typer(trace, name="trace")


@app.callback(invoke_without_command=True)
def version(
    show: bool = typer.Option(False, "--version", help="Show the version and exit."),
    verbose: int = typer.Option(0, "--verbose", "-v", count=True, help="Show the library's log; -vv shows all of it."),
) -> None:
    """Options of the program itself."""
    if show:
        typer.echo(__version__)
        raise typer.Exit
    if verbose:
        show_log(verbose)
