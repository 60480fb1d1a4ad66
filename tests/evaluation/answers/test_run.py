"""An evaluation that is killed and resumed gives the answers of one that ran through, and computes none twice."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from beaconkv.evaluation import load_tasks, read_records, summarize
from beaconkv.evaluation.answers.batch import KEY
from beaconkv.evaluation.answers.decoding import Sampling
from beaconkv.evaluation.answers.progress import Progress
from beaconkv.evaluation.answers.run import Evaluation
from beaconkv.evaluation.cells import make_cells
from beaconkv.models.load import LoadedModel
from beaconkv.models.reasoner import make_tokenizer
from tests.tiny import tiny

POLICIES, BUDGETS = ["full", "beaconkv:n_recent=4:n_beacon=4", "rkv"], [48, 64]


def reasoner():
    """A random model that reads the characters of the reasoning tasks."""
    import torch

    model = tiny("qwen3")
    if model.config.vocab_size != 127:
        torch.manual_seed(0)
        config = type(model.config)(**{**model.config.to_dict(), "vocab_size": 127, "eos_token_id": 1})
        model = type(model)(config).eval()
        for parameter in model.parameters():
            if parameter.ndim > 1:
                torch.nn.init.normal_(parameter, std=1.4 / parameter.shape[-1] ** 0.5)
    return LoadedModel(model, make_tokenizer())


def evaluation(policies=POLICIES, budgets=BUDGETS, tasks="machine,search", samples=3, tokens=24, **settings):
    cells = make_cells(policies, budgets)
    settings = {"batch_size": 2, **settings}
    return Evaluation(reasoner(), load_tasks(tasks, samples), cells, Sampling(tokens, temperature=1.0), **settings)


class RecordedProgress(Progress):
    """Records what is computed; raises KeyboardInterrupt after ``stop_after`` samples."""

    def __init__(self, answers, stop_after=None):
        super().__init__(answers)
        self.stop_after, self.batches = stop_after, []

    def started(self, batch):
        super().started(batch)
        self.batches.append(batch)

    def changed(self):
        if self.stop_after is not None and self.done >= self.stop_after:
            raise KeyboardInterrupt


def run(out, evaluation, stop_after=None):
    """Execute. What was computed, as keys, in batches."""
    progress = RecordedProgress(len(evaluation.keys()), stop_after)
    evaluation.execute(out, progress)
    assert progress.done == progress.answers == len(evaluation.keys())
    return [[batch.key(problem) for problem in batch.problems] for batch in progress.batches]


def samples(out):
    return (out / "samples.jsonl").read_bytes()


def answers(out):
    """The records without what depends on the rows beside them: their number, and a row's share of a slab that grew."""
    beside = ("rows", "kv_bytes", "state_bytes", "timing")
    return sorted(
        ({k: v for k, v in record.items() if k not in beside} for record in read_records(out / "samples.jsonl")),
        key=lambda record: [str(record[k]) for k in KEY],
    )


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    out = tmp_path_factory.mktemp("whole")
    assert sum(map(len, run(out, evaluation(runs=2)))) == 60
    return out


def test_every_sample_is_there_once(whole):
    records = list(read_records(whole / "samples.jsonl"))
    keys = {tuple(r[k] for k in KEY) for r in records}
    assert len(records) == len(keys) == (1 + 2 * 2) * 2 * 3 * 2
    assert {r["policy"] for r in records} == set(POLICIES)
    assert all(r["evictions"] > 0 for r in records if r["budget"] == 48)
    assert all(r["evictions"] == 0 for r in records if r["budget"] is None)
    assert all(r["kv_bytes"] > 0 for r in records)
    texts = [r["response"] for r in records if r["policy"] == "full"]
    assert len(set(texts)) == len(texts), "runs and problems must differ"


def test_killed_at_any_sample_and_resumed(whole, tmp_path):
    """Nothing that was finished is computed again, and the answers are those of the run that went through."""
    for i, stop_after in enumerate((1, 8, 59)):
        out = tmp_path / str(i)
        with pytest.raises(KeyboardInterrupt):
            run(out, evaluation(runs=2), stop_after)
        kept = {tuple(r[k] for k in KEY) for r in read_records(out / "samples.jsonl")}
        assert len(kept) == stop_after
        computed = [key for batch in run(out, evaluation(runs=2)) for key in batch]
        assert len(computed) == len(set(computed)) == 60 - stop_after
        assert not kept & set(computed)
        assert answers(out) == answers(whole)


def test_methods_and_budgets_may_be_added(whole, tmp_path):
    run(tmp_path, evaluation(["full"], [], runs=2))
    run(tmp_path, evaluation(POLICIES[:2], [64], runs=2))
    run(tmp_path, evaluation(runs=2))
    assert samples(tmp_path) == samples(whole)
    assert run(tmp_path, evaluation(["full"], [], runs=2)) == []
    assert samples(tmp_path) == samples(whole)


@pytest.mark.parametrize("size", [None, 1, 3])
def test_batches_of_another_size(size, whole, tmp_path):
    """They change how many rows a sample says it was computed with; in float32, no answer."""
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, evaluation(runs=2), stop_after=9)
    computed = run(tmp_path, evaluation(runs=2, batch_size=size))
    assert max(map(len, computed)) == (size or 3)
    assert answers(tmp_path) == answers(whole)
    sizes = {key: len(batch) for batch in computed for key in batch}
    for record in read_records(tmp_path / "samples.jsonl"):
        assert record["rows"] == sizes.get(tuple(record[k] for k in KEY), record["rows"])
    assert {r["rows"] for r in read_records(whole / "samples.jsonl")} == {1, 2}


def test_rows_that_do_not_fit_after_all_come_again_fewer_at_a_time(whole, tmp_path, caplog):
    """A device out of memory in the middle of a batch: what had ended stays, the rest is halved until it fits."""
    tried = evaluation(["full"], [], runs=2, batch_size=3)
    calls = []

    def forward(model, args, kwargs):
        calls.append(len(kwargs["input_ids"]))
        if calls[-1] > 1 and len(calls) % 10 == 0:
            raise torch.OutOfMemoryError

    hook = tried.model.register_forward_pre_hook(forward, with_kwargs=True)
    computed = run(tmp_path, tried)
    hook.remove()
    assert [len(batch) for batch in computed][:2] == [3, 1]
    assert "full, task machine: not enough memory for 3 rows; continuing with 1" in caplog.text
    kept = [record for record in answers(whole) if record["policy"] == "full"]
    assert answers(tmp_path) == kept
    hook = tried.model.register_forward_pre_hook(lambda *_: (_ for _ in ()).throw(torch.OutOfMemoryError))
    with pytest.raises(torch.OutOfMemoryError):
        run(tmp_path / "never", tried)
    hook.remove()


def test_a_killed_process(tmp_path):
    """kill -9 in the middle of the command, twice; then let it finish. A time that was measured tells who measured."""
    weights = tmp_path / "model"
    model, _ = reasoner()
    from beaconkv.models.reasoner import save

    save(model, weights)
    command = [sys.executable, "-W", "ignore", "-m", "beaconkv", "eval", "-m", str(weights), "--task", "plan"]
    command += ["--samples", "6", "--batch-size", "3", "--policies", "full,beaconkv", "--budgets", "64"]
    command += ["--max-new-tokens", "40", "--out"]
    subprocess.run([*command, str(tmp_path / "a")], check=True, capture_output=True)
    assert samples(tmp_path / "a").count(b"\n") == 12
    path = tmp_path / "b" / "samples.jsonl"
    kept = {}
    for _ in range(2):
        process = subprocess.Popen([*command, str(tmp_path / "b")], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        start = path.stat().st_size if path.exists() else 0
        while process.poll() is None and (not path.exists() or path.stat().st_size <= start):
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.wait()
        found = {tuple(r[k] for k in KEY): r for r in read_records(path)}
        assert kept.items() <= found.items()
        kept = found
    assert kept
    subprocess.run([*command, str(tmp_path / "b")], check=True, capture_output=True)
    assert answers(tmp_path / "b") == answers(tmp_path / "a")
    times = {tuple(r[k] for k in KEY): r for r in read_records(path.with_name("samples.timing.jsonl"))}
    for record in read_records(path):
        key = tuple(record[k] for k in KEY)
        if key in kept and "timing" in kept[key]:
            assert record | {"timing": times[key]["timing"]} == kept[key]
    result = json.loads((tmp_path / "b" / "result.json").read_text())
    assert result["rows"][0]["samples"] == 6
    assert result["command"][1:4] == ["eval", "-m", str(weights)]
    assert os.environ.get("HOME") is None or Path(result["command"][0]).name == result["command"][0]


def test_another_run_in_the_same_folder_is_refused(whole):
    with pytest.raises(ValueError, match="seed"):
        run(whole, evaluation(runs=2, seed=1))
    with pytest.raises(ValueError, match="tasks"):
        run(whole, evaluation(tasks="machine", runs=2))
    with pytest.raises(ValueError, match="schedule"):
        run(whole, evaluation(runs=2, overrides=dict(protect=16, prefix=None)))


@pytest.mark.parametrize(
    ("policies", "budgets", "message"),
    [
        (["beaconkv", "beacon"], [64], "unknown policy 'beacon'; choose from"),
        (["beaconkv"], [], "policy 'beaconkv' needs at least one budget"),
        (["beaconkv"], [64, 64], "budgets repeat themselves: 64, 64"),
        (["rkv", "rkv"], [64], "policies repeat themselves: rkv, rkv"),
        (["beaconkv"], [16], "budget=16.*leave no room"),
    ],
)
def test_cells_that_cannot_work_are_refused(policies, budgets, message):
    with pytest.raises(ValueError, match=message):
        make_cells(policies, budgets)


def test_other_refusals():
    with pytest.raises(ValueError, match="runs=3 at temperature 0 would be copies"):
        Evaluation(reasoner(), load_tasks("plan", 1), make_cells(["full"], []), Sampling(5), runs=3)
    with pytest.raises(ValueError, match="unknown task 'maze': choose from reasoning, machine"):
        load_tasks("maze", 1)
    with pytest.raises(ValueError, match="given twice: plan"):
        load_tasks("plan,reasoning", 1)
    with pytest.raises(ValueError, match="no task named"):
        load_tasks(" , ", 1)


def test_shorter_problems():
    (short,), (whole,) = load_tasks("plan@0.5", 4), load_tasks("plan", 4)
    assert short.name == "plan@0.5"
    assert 0.4 < sum(p.meta["tokens"] for p in short.problems) / sum(p.meta["tokens"] for p in whole.problems) < 0.6
    assert [task.name for task in load_tasks("reasoning@0.25", 1)][0] == "machine@0.25"
    for bad in ("plan@", "plan@2", "plan@0", "plan@half"):
        with pytest.raises(ValueError, match=r"the length of task 'plan@.*' must be a number in .0, 1."):
            load_tasks(bad, 1)


def test_a_file_of_problems(tmp_path):
    path = tmp_path / "sums.jsonl"
    path.write_text("".join(json.dumps({"problem": f"{i}+1=", "answer": str(i + 1)}) + "\n" for i in range(4)))
    (task,) = load_tasks(str(path), None)
    assert (task.name, len(task.problems), task.chat) == ("sums", 4, True)
    assert task.grade(task.problems[2], "so it is \\boxed{3}.", False)["correct"]
    assert not task.grade(task.problems[2], "so it is 3.", False)["correct"]
    (task,) = load_tasks(f"{path}:exact", 2, seed=1)
    assert len(task.problems) == 2


def test_a_summary(whole):
    records = list(read_records(whole / "samples.jsonl"))
    rows = summarize(records, "rkv")
    assert [(r["policy"], r["budget"], r["task"]) for r in rows[:3]] == [
        ("beaconkv:n_recent=4:n_beacon=4", 48, "machine"),
        ("beaconkv:n_recent=4:n_beacon=4", 48, "all"),
        ("beaconkv:n_recent=4:n_beacon=4", 48, "search"),
    ]
    row = next(r for r in rows if (r["policy"], r["budget"], r["task"]) == ("rkv", 64, "all"))
    own = [r for r in records if (r["policy"], r["budget"]) == ("rkv", 64)]
    assert row["samples"] == len(own) == 12
    assert row["problems"] == 6
    assert row["steps_right"]["mean"] == pytest.approx(sum(r["steps_right"] for r in own) / 12, abs=1e-4)
    assert row["steps_right"]["low"] <= row["steps_right"]["mean"] <= row["steps_right"]["high"]
    assert "against" not in row
    other = next(r for r in rows if r["policy"].startswith("beacon") and r["budget"] == 64 and r["task"] == "all")
    theirs = [r for r in records if r["policy"].startswith("beacon") and r["budget"] == 64]
    difference = sum(r["steps_right"] for r in theirs) / 12 - row["steps_right"]["mean"]
    assert other["against"]["steps_right"]["mean"] == pytest.approx(difference, abs=2e-4)
    assert other["against"]["policy"] == "rkv"
    full = next(r for r in rows if r["policy"] == "full" and r["task"] == "all")
    assert "against" not in full
    assert full["never_evicted"] == 12
