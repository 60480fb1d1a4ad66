"""``beaconkv eval``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from .common import console, messages, parse_budgets, parse_count, print_json, split
from .models import DEVICE, DTYPE, MODEL, load_model, placement
from .options import BUDGET_MIN, BUDGETS, JSON, POLICIES, PREFIX, PROTECT, SCOPE, TEMPERATURE, TOP_P
from .outputs import require_folder
from .quality import remarks, show_quality

if TYPE_CHECKING:
    from ..evaluation.answers.run import Evaluation


def evaluate(
    model: str = typer.Option("reasoner", "--model", "-m", help=MODEL),
    task: str = typer.Option(
        "reasoning",
        help="Tasks, separated by commas: reasoning, machine, ledger, plan, search (NAME@0.5: half as long), or "
        "FILE.jsonl[:grader].",
    ),
    policies: str = typer.Option("full,beaconkv,rpc,snapkv,rkv,streaming_llm", help=POLICIES),
    budgets: str = typer.Option("128,256,512", help=BUDGETS),
    samples: int | None = typer.Option(None, help="Number of problems of each task. Default: 50, or the whole file."),
    runs: int = typer.Option(1, help="Number of samples of each problem; more than one needs a temperature."),
    seed: int = typer.Option(0, help="Random seed of the problems and of the sampling."),
    max_new_tokens: int = typer.Option(
        32768, help="Maximum number of tokens of an answer; reasoning tasks have limits of their own."
    ),
    temperature: float = typer.Option(0.0, help=TEMPERATURE),
    top_p: float = typer.Option(0.95, help=TOP_P),
    batch_size: int | None = typer.Option(
        None, help="Number of problems computed together. Default: as many as fit, for each method and budget."
    ),
    prefix: str | None = typer.Option(None, help=PREFIX),
    protect: str | None = typer.Option(None, help=PROTECT),
    budget_min: int | None = typer.Option(None, help=BUDGET_MIN),
    scope: str | None = typer.Option(None, help=SCOPE),
    reference: str | None = typer.Option(
        None, help="Method that the others are compared with. Default: beaconkv, if it is given."
    ),
    dtype: str | None = typer.Option(None, help=DTYPE),
    device: str | None = typer.Option(None, help=DEVICE),
    out: Path = typer.Option(
        Path("results/eval"), help="Folder of the samples and the result; an unfinished run there is resumed."
    ),
    as_json: bool = typer.Option(False, "--json", help=JSON),
) -> None:
    """Measure accuracy against budget: every method on the same problems, with intervals. Resumes."""
    from ..evaluation import load_tasks
    from ..evaluation.answers.checks import check_answers, check_folder
    from ..evaluation.answers.decoding import Sampling
    from ..evaluation.answers.run import Evaluation, check_runs
    from ..evaluation.answers.run_settings import run_settings
    from ..evaluation.cells import make_cells

    names = split(policies)
    limits = {"prefix": prefix and parse_count(prefix), "protect": protect and parse_count(protect)}
    limits |= {"budget_min": budget_min, "scope": scope}
    cells = make_cells(names, parse_budgets(budgets), **limits)
    if reference is not None and reference not in names:
        raise ValueError(f"reference must be one of the policies {', '.join(names)}; got {reference!r}")
    sampling = Sampling(max_new_tokens, temperature, top_p)
    check_runs(runs, batch_size, sampling)
    placed = placement(device, dtype)
    tasks = load_tasks(task, samples, seed)
    for remark in check_answers(tasks):
        warn(remark)
    check_folder(out, run_settings(tasks, sampling, seed, limits))
    require_folder(out)
    loaded = load_model(model, placed)
    settings = dict(runs=runs, seed=seed, batch_size=batch_size, overrides=limits)
    evaluation = Evaluation(loaded, tasks, cells, sampling, **settings)
    result = run_evaluation(evaluation, out, reference or "beaconkv", model=model)
    if as_json:
        print_json(result)
        return
    show_quality(result["rows"])
    for line in remarks(result["rows"]):
        console.print(line, style="yellow", highlight=False)
    console.print(f"written to {out / 'result.json'}, samples in the same folder", highlight=False, soft_wrap=True)


def warn(remark: str) -> None:
    """Print a remark on stderr: it is no error, but the result may suffer."""
    messages.print(remark, style="yellow", highlight=False, markup=False, soft_wrap=True)


def run_evaluation(evaluation: Evaluation, out: Path, reference: str, model: str) -> dict[str, Any]:
    """Check what depends on the model, and evaluate with progress shown. Returns the result."""
    from ..evaluation.answers.checks import check_prompts
    from ..evaluation.answers.result import evaluate_and_write
    from .progress import ShownProgress

    for remark in check_prompts(evaluation):
        warn(remark)
    with ShownProgress(evaluation) as progress:
        return evaluate_and_write(evaluation, out, reference, progress, model=model)
