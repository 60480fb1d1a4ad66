"""``beaconkv demo``: does the bundled reasoner still find its answers in a small cache?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from .common import bar, console, parse_budgets, print_json, split
from .evaluate import run_evaluation, show_quality
from .models import DEVICE, DTYPE, load_model, placement
from .options import BUDGETS, JSON, POLICIES
from .outputs import require_folder, require_package

if TYPE_CHECKING:
    from ..models import LoadedModel


def demo(
    task: str = typer.Option("plan@0.5", help="Reasoning tasks, see `beaconkv eval`."),
    policies: str = typer.Option("full,beaconkv,beaconkv:soft,rkv,streaming_llm", help=POLICIES),
    budgets: str = typer.Option("192,384", help=BUDGETS),
    samples: int = typer.Option(32, help="Number of problems of each task."),
    dtype: str | None = typer.Option(None, help=DTYPE),
    device: str | None = typer.Option(None, help=DEVICE),
    out: Path = typer.Option(Path("results/demo"), help="Folder of samples, result and picture; emptied first."),
    as_json: bool = typer.Option(False, "--json", help=JSON),
) -> None:
    """Solve problems with the bundled reasoner, with the full cache and with small ones: answers, a picture, a page."""
    from ..evaluation import load_tasks
    from ..evaluation.answers.decoding import Sampling
    from ..evaluation.answers.run import Evaluation
    from ..evaluation.cells import make_cells
    from ..evaluation.figures import draw

    cells = make_cells(split(policies), parse_budgets(budgets))
    if all(cell.policy != "full" for cell in cells) or all(cell.budget is None for cell in cells):
        raise ValueError(
            f"the demo compares with the full cache: policies must hold full and another; got {policies!r}"
        )
    tasks = load_tasks(task, samples)
    placed = placement(device, dtype)
    require_package("matplotlib", "eval", "the picture of the demo")
    require_folder(out)
    loaded = load_model("reasoner", placed)
    evaluation = Evaluation(loaded, tasks, cells, Sampling(32768))
    for name in ("samples.jsonl", "samples.timing.jsonl", "run.json", "result.json"):
        (out / name).unlink(missing_ok=True)  # an older version of the library may have written them
    result = run_evaluation(evaluation, out, "beaconkv", model="reasoner")
    picture = draw("fig8", [out / "result.json"], out, "steps_right").files
    if as_json:
        print_json(result)
        return
    full = next(row for row in result["rows"] if row["policy"] == "full")
    show_quality(result["rows"])
    console.print(
        f"Each problem: a prompt of {full['prompt_tokens']:.0f} tokens, then about {full['tokens']:.0f} tokens of "
        "reasoning that comes back to the prompt again and again. Budgets: entries kept, a layer and KV head.",
        style="dim",
        highlight=False,
    )
    console.print(f"picture: {picture[1]}, numbers: {picture[0]}, samples: {out / 'samples.jsonl'}", highlight=False)
    small = [(cell.policy, cell.budget) for cell in cells if cell.budget == min(c.budget for c in cells if c.budget)]
    page = _page(loaded, small[:2], out)
    console.print(f"page to explore what the model looks back at: {page}", highlight=False)


def _page(loaded: LoadedModel, cells: list[tuple[str, int | None]], out: Path) -> Path:
    """A page about the first answer with the full cache: what it looked back at, and what was dropped."""
    from ..analysis.recorder import record
    from ..analysis.report.write import write_page
    from ..evaluation import load_tasks, read_records
    from ..provenance import provenance

    solved = next(record for record in read_records(out / "samples.jsonl") if record["policy"] == "full")
    number = int(solved["problem"].rsplit("/", 1)[1])
    prompt = load_tasks(solved["task"], number + 1)[0].problems[number].prompt
    ids = loaded.tokenizer(prompt)["input_ids"]
    answer = loaded.tokenizer(solved["response"], add_special_tokens=False)["input_ids"]
    trace = record(
        loaded.model,
        loaded.tokenizer,
        ids + answer,
        len(ids),
        out / "demo.trace",
        name="reasoner",
        provenance=provenance(model="reasoner"),
    )
    page = out / "page.html"
    # The keys that a small head attends to are few, and a chain of some hundred tokens is short.
    with bar("looking", 1.0, counts=False) as advance:
        write_page(trace, cells, page, top_keys=8, distance=100, advance=advance)
    return page
