"""Every method at every budget on the same problems; each sample is written to disk as it is done.

A killed run resumes with the samples that are missing, and with no others. Samples are computed in batches, as large
as fits for each method and budget. The rounding of a matrix product depends on its size, so the last bits of a row
depend on the number of rows of its batch, which each sample records (``rows``).
"""

from __future__ import annotations

import gc
import hashlib
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from ..cells import Cell
from ..prompts import prompt_ids
from ..records.record_file import RecordFile
from ..tasks.load import Task
from ..tasks.problems import Problem
from .batch import KEY, Batch
from .batch_size import rows_that_fit
from .decoding import Sampling, Written, write_answers
from .progress import Progress
from .repetition import repetition_loop
from .run_settings import run_settings, weights_hash

logger = logging.getLogger(__name__)


class Evaluation:
    """An evaluation of one model on some tasks.

    Args:
        loaded: model and tokenizer.
        tasks: see :func:`beaconkv.evaluation.load_tasks`.
        cells: see :func:`beaconkv.evaluation.cells.make_cells`.
        sampling: max_new_tokens may be lowered by a task that knows its longest answer.
        runs: number of samples of each problem.
        seed: random seed of the sampling.
        batch_size: maximum number of problems computed together; None: as many as fit, for each cell by itself.
        overrides: those the cells were made with; all samples of a folder must share them.

    Example:
        >>> cells = make_cells(["full", "beaconkv"], budgets=[128])
        >>> evaluation = Evaluation(load("reasoner"), load_tasks("plan@0.25", samples=2), cells, Sampling(400))
        >>> samples = evaluation.execute(folder)  # resumes what is there
        >>> len(samples.read_text().splitlines())
        4

    Raises:
        ValueError: as :func:`check_runs`.
    """

    def __init__(
        self,
        loaded: Any,
        tasks: Sequence[Task],
        cells: Sequence[Cell],
        sampling: Sampling,
        *,
        runs: int = 1,
        seed: int = 0,
        batch_size: int | None = None,
        overrides: Mapping[str, Any] | None = None,
    ) -> None:
        check_runs(runs, batch_size, sampling)
        self.model, self.tokenizer = loaded
        self.tasks, self.cells, self.sampling = list(tasks), list(cells), sampling
        self.runs, self.seed, self.batch_size = runs, seed, batch_size
        self.overrides = dict(overrides or {})
        self.prompts = {(t.name, p.id): prompt_ids(self.tokenizer, p.prompt, t.chat) for t in tasks for p in t.problems}
        ends = self.model.generation_config.eos_token_id
        self.stop = [] if ends is None else [ends] if isinstance(ends, int) else list(ends)

    def settings(self) -> dict[str, Any]:
        """The settings that the samples depend on, except methods and budgets, which may be added to a run."""
        known = run_settings(self.tasks, self.sampling, self.seed, self.overrides)
        return {"weights": weights_hash(self.model), **known}

    def limit(self, task: Task) -> int:
        """Maximum number of tokens of an answer to a task."""
        return min(self.sampling.max_new_tokens, task.max_new_tokens or self.sampling.max_new_tokens)

    def groups(self) -> Iterator[Batch]:
        """All samples, grouped by what may be computed together: first one run of all methods, then the next."""
        for run in range(self.runs):
            for cell in self.cells:
                for task in self.tasks:
                    ordered = sorted(task.problems, key=lambda p: len(self.prompts[task.name, p.id]))
                    yield Batch(cell, task, run, tuple(ordered), self.limit(task))

    def keys(self) -> set[tuple[Any, ...]]:
        """The key of every sample."""
        return {group.key(problem) for group in self.groups() for problem in group.problems}

    def execute(self, out: Path, progress: Progress | None = None) -> Path:
        """Compute the samples that are missing in ``out/samples.jsonl``.

        Args:
            out: a folder.
            progress: called as the run advances.

        Returns:
            The file of samples.

        Raises:
            ValueError: the folder holds a run with other settings.
            BlockingIOError: another process is writing there.
            torch.OutOfMemoryError: a single row does not fit.
        """
        path, keys = out / "samples.jsonl", self.keys()
        progress = progress or Progress(len(keys))
        with RecordFile(path, self.settings(), KEY) as records:
            found = len(keys & records.done())
            logger.info("%s: %d of %d samples are there already", path, found, len(keys))
            progress.found(found)
            for group in self.groups():
                self._compute_missing(group, records, progress)
            records.finalize()
        return path

    def _compute_missing(self, group: Batch, records: RecordFile, progress: Progress) -> None:
        size = self.batch_size
        while missing := self._missing(group, records):
            if size is None:
                longest = len(self.prompts[group.task.name, missing[-1].id])
                size = rows_that_fit(self.model, group.cell, longest, group.limit) if len(missing) > 1 else 1
            parts = -(-len(missing) // size)
            rows = -(-len(missing) // parts)  # 51 with room for 50 are 26 and 25
            batch = Batch(group.cell, group.task, group.run, tuple(missing[:rows]), group.limit)
            progress.started(batch)
            if not self._fits(batch, records, progress):
                size = rows // 2  # answers that are complete are kept; the others are computed again, fewer at a time
                where = f"{batch.cell.name}, task {batch.task.name}"
                logger.warning("%s: not enough memory for %d rows; continuing with %d", where, rows, size)

    def _missing(self, group: Batch, records: RecordFile) -> list[Problem]:
        done = records.done()
        return [problem for problem in group.problems if group.key(problem) not in done]

    def _fits(self, batch: Batch, records: RecordFile, progress: Progress) -> bool:
        """Compute a batch; False if the memory of the device is too small for its rows."""
        try:
            self._compute(batch, records, progress)
        except torch.OutOfMemoryError:
            if len(batch.problems) == 1:
                raise
        else:
            return True
        gc.collect()  # the frames of the error hold its tensors
        if self.model.device.type == "cuda":
            torch.cuda.empty_cache()
        return False

    def _compute(self, batch: Batch, records: RecordFile, progress: Progress) -> None:
        cell, task = batch.cell, batch.task
        prompts = [self.prompts[task.name, p.id] for p in batch.problems]
        seeds = [_seed_of(self.seed, task.name, p.id, batch.run) for p in batch.problems]
        start = time.perf_counter()
        with cell.new_cache(self.model) as cache:

            def done(written: Written) -> None:
                problem = batch.problems[written.row]
                text = self.tokenizer.decode(written.tokens, skip_special_tokens=True)
                loop = repetition_loop(written.tokens) if written.capped else None
                stats = cache.stats
                records.append(
                    dict(zip(KEY, batch.key(problem), strict=True))
                    | task.grade(problem, text, written.capped)
                    | {
                        "prompt_tokens": len(prompts[written.row]),
                        "tokens": len(written.tokens),
                        "capped": written.capped,
                        "loop": loop is not None,
                        "evictions": written.evictions,
                        "kv_bytes": stats.kv_bytes // written.rows,
                        "state_bytes": stats.state_bytes // written.rows,
                        "rows": len(prompts),
                        "response": text,
                        "timing": {"seconds": round(time.perf_counter() - start, 3)},
                    }
                )
                progress.answered(len(written.tokens))

            sampling = Sampling(batch.limit, self.sampling.temperature, self.sampling.top_p)
            pad = self.tokenizer.pad_token_id
            write_answers(self.model, prompts, cache, sampling, seeds, self.stop, pad, done, progress.wrote)


def check_runs(runs: int, batch_size: int | None, sampling: Sampling) -> None:
    """Raise ``ValueError`` for numbers below 1, and for several runs without sampling: they would be copies of one."""
    for name, value in (("runs", runs), ("batch_size", batch_size)):
        if value is not None and value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    if runs > 1 and not sampling.temperature:
        raise ValueError(f"runs={runs} at temperature 0 would be copies of one run: choose a temperature")


def _seed_of(*parts: Any) -> int:
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:7], "big")
