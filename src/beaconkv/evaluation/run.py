"""Every method at every budget on the same problems; each sample is written down as it is done.

The unit of work is a batch: (policy, budget, task, run, batch of problems). A killed run goes on with the batches that
are not complete. An incomplete batch is computed again as a whole and only its missing samples are written, so that
what a row writes never depends on when a run was killed: the rounding of a matrix product depends on its size.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .cells import Cell
from .decoding import Sampling, Written, write_answers
from .problems import Problem
from .records import RecordFile
from .repetition import repetition_loop
from .tasks import Task

KEY = ("policy", "budget", "task", "problem", "run")


@dataclass(frozen=True)
class Batch:
    """Problems that are computed together."""

    cell: Cell
    task: Task
    run: int
    number: int
    problems: tuple[Problem, ...]

    def key(self, problem: Problem) -> tuple[Any, ...]:
        """The key of one of its samples."""
        return self.cell.policy, self.cell.budget, self.task.name, problem.id, self.run


class Evaluation:
    """An evaluation of one model on some tasks.

    Args:
        loaded: model and tokenizer.
        tasks: see :func:`beaconkv.evaluation.load_tasks`.
        cells: see :func:`beaconkv.evaluation.cells.make_cells`.
        sampling: max_new_tokens may be lowered by a task that knows its longest answer.
        runs: samples of each problem.
        seed: of the sampling.
        batch_size: problems that are computed together.
        overrides: those the cells were made with; all samples of a folder must share them.

    Raises:
        ValueError: several runs without sampling would be copies of one.
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
        batch_size: int = 50,
        overrides: Mapping[str, Any] | None = None,
    ) -> None:
        if runs < 1 or batch_size < 1:
            raise ValueError(f"runs and batch_size must be at least 1, got {runs} and {batch_size}")
        if runs > 1 and not sampling.temperature:
            raise ValueError(f"runs={runs} at temperature 0 would be copies of one run: choose a temperature")
        self.model, self.tokenizer = loaded
        self.tasks, self.cells, self.sampling = list(tasks), list(cells), sampling
        self.runs, self.seed, self.batch_size = runs, seed, batch_size
        self.overrides = {name: value for name, value in (overrides or {}).items() if value is not None}
        self.prompts = {(t.name, p.id): self._encode(t, p) for t in tasks for p in t.problems}
        ends = self.model.generation_config.eos_token_id
        self.stop = [] if ends is None else [ends] if isinstance(ends, int) else list(ends)

    def settings(self) -> dict[str, Any]:
        """What the samples depend on, methods and budgets aside: those may be added to a run."""
        tasks = {task.name: hashlib.sha256(repr(task.problems).encode()).hexdigest()[:16] for task in self.tasks}
        return {
            "weights": weights_hash(self.model),
            "tasks": tasks,
            "sampling": asdict(self.sampling),
            "seed": self.seed,
            "batch_size": self.batch_size,
            "schedule": self.overrides,
        }

    def batches(self) -> Iterator[Batch]:
        """All batches: first one run of all methods, then the next."""
        for run in range(self.runs):
            for cell in self.cells:
                for task in self.tasks:
                    ordered = sorted(task.problems, key=lambda p: len(self.prompts[task.name, p.id]))
                    for number, start in enumerate(range(0, len(ordered), self.batch_size)):
                        yield Batch(cell, task, run, number, tuple(ordered[start : start + self.batch_size]))

    def execute(self, out: Path, started: Callable[[Batch], None], advance: Callable[[int], None]) -> Path:
        """Compute what is missing in ``out/samples.jsonl``.

        Args:
            out: a folder.
            started: called with each batch before it is computed.
            advance: called with the number of samples that are done, computed now or before.

        Returns:
            The file of samples.

        Raises:
            ValueError: the folder holds a run with other settings.
            BlockingIOError: another process is writing there.
        """
        path = out / "samples.jsonl"
        with RecordFile(path, self.settings(), KEY) as records:
            for batch in self.batches():
                done = records.done()
                missing = [problem for problem in batch.problems if batch.key(problem) not in done]
                advance(len(batch.problems) - len(missing))
                if missing:
                    started(batch)
                    self._compute(batch, {problem.id for problem in missing}, records, advance)
            records.finalize()
        return path

    def _compute(self, batch: Batch, missing: set[str], records: RecordFile, advance: Callable[[int], None]) -> None:
        cell, task = batch.cell, batch.task
        limit = min(self.sampling.max_new_tokens, task.max_new_tokens or self.sampling.max_new_tokens)
        prompts = [self.prompts[task.name, p.id] for p in batch.problems]
        seeds = [_seed_of(self.seed, task.name, p.id, batch.run) for p in batch.problems]
        start = time.perf_counter()
        with cell.new_cache(self.model) as cache:

            def done(written: Written) -> None:
                problem = batch.problems[written.row]
                if problem.id not in missing:
                    return
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
                        "response": text,
                        "timing": {"seconds": round(time.perf_counter() - start, 3)},
                    }
                )
                advance(1)

            sampling = Sampling(limit, self.sampling.temperature, self.sampling.top_p)
            pad = self.tokenizer.pad_token_id
            write_answers(self.model, prompts, cache, sampling, seeds, self.stop, pad, done)

    def _encode(self, task: Task, problem: Problem) -> list[int]:
        if task.chat and self.tokenizer.chat_template is not None:
            message = [{"role": "user", "content": problem.prompt}]
            text = self.tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True)
            return self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return self.tokenizer(problem.prompt)["input_ids"]


def weights_hash(model: Any) -> str:
    """A short hash of a model's weights: a sample of each parameter, so that large models are hashed in seconds."""
    digest = hashlib.sha256()
    for name, parameter in sorted(model.named_parameters()):
        flat = parameter.detach().flatten()
        some = flat[:: max(1, flat.numel() // 4096)][:4096].float().cpu()
        digest.update(f"{name}{tuple(parameter.shape)}".encode() + some.numpy().tobytes())
    return digest.hexdigest()[:16]


def _seed_of(*parts: Any) -> int:
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:7], "big")
