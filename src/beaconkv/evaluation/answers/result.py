"""``result.json``: the answers of an evaluation, summarised, with its settings and their provenance."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from ...provenance import placed_as, provenance
from ..records.files import replace_file
from ..records.jsonl import read_records
from ..summary import first_wrong, summarize
from .batch import KEY
from .progress import Progress
from .run import Evaluation


def evaluate_and_write(
    evaluation: Evaluation, out: Path, reference: str, progress: Progress | None = None, **settings: Any
) -> dict[str, Any]:
    """Compute the missing samples of a folder, and write ``result.json`` there.

    Args:
        out: folder of the samples and the result.
        reference: spec of the policy that the others are compared with.
        progress: called as the run advances.
        settings: what else the result shall name, such as the model.

    Returns:
        The content of ``result.json``.

    Raises:
        ValueError, BlockingIOError, torch.OutOfMemoryError: as :meth:`Evaluation.execute`.
    """
    start = time.perf_counter()
    path = evaluation.execute(out, progress)
    wanted = evaluation.keys()
    records = [record for record in read_records(path) if tuple(record[k] for k in KEY) in wanted]
    order = {(cell.policy, cell.budget): i for i, cell in enumerate(evaluation.cells)}
    records.sort(key=lambda r: order[r["policy"], r["budget"]])
    wrong = [{"policy": p, "budget": b, **kinds} for (p, b), kinds in first_wrong(records).items()]
    result = {
        "rows": summarize(records, reference),
        "first_wrong": wrong,
        "schedules": [{"policy": c.policy, **vars(c.schedule)} for c in evaluation.cells],
        "settings": evaluation.settings() | {"runs": evaluation.runs, "reference": reference},
        "seconds": round(time.perf_counter() - start, 1),
        **provenance(seed=evaluation.seed, **placed_as(evaluation), **settings),
    }
    replace_file(out / "result.json", [json.dumps(result, indent=1).encode()])
    return result
