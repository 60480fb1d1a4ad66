"""beaconkv eval and demo as a user runs them."""

import json
import sys

import pytest
from typer.testing import CliRunner

from beaconkv.cli import main
from beaconkv.cli.app import app


def run(*arguments):
    done = CliRunner().invoke(app, [str(a) for a in arguments], catch_exceptions=False)
    assert done.exit_code == 0
    return done


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory):
    out = tmp_path_factory.mktemp("eval")
    arguments = ["eval", "--task", "plan@0.2,machine@0.1", "--samples", 4, "--budgets", "64,1024", "--out", out]
    arguments += ["--policies", "full,streaming_llm,beaconkv"]
    return out, arguments, run(*arguments)


def test_table_and_files(evaluated):
    out, _, done = evaluated
    assert "exact answers in %, 95% interval (8 problems)" in done.stdout
    assert "right steps in %, 95% interval (8 problems)" in done.stdout
    for task in ("plan@0.2", "machine@0.1"):
        for measure in ("exact answers", "right steps"):
            assert f"task {task}: {measure} in %, 95% interval (4 problems)" in done.stdout
    for text in ("full", "streaming_llm", "beaconkv", "64", "1024"):
        assert text in done.stdout
    result = json.loads((out / "result.json").read_text())
    assert len(result["rows"]) == 5 * 3
    assert result["seed"] == 0
    assert result["model"] == "reasoner"
    assert {"versions", "machine", "seconds", "schedules", "first_wrong"} <= result.keys()
    full = next(row for row in result["rows"] if row["policy"] == "full" and row["task"] == "all")
    assert full["accuracy"]["mean"] >= 0.75  # the reasoner reasons
    assert full["steps_right"]["mean"] >= 0.75
    assert (out / "samples.timing.jsonl").exists()


def test_a_budget_that_was_never_reached_is_told(evaluated):
    said = " ".join(evaluated[2].stdout.split())
    assert "beaconkv at 1024: nothing was evicted" in said
    assert "beaconkv at 64: nothing was evicted" not in said


def test_a_second_call_computes_nothing_and_tells_the_same(evaluated):
    out, arguments, first = evaluated
    before = (out / "samples.jsonl").read_bytes()
    again = run(*arguments)
    assert again.stdout == first.stdout
    assert (out / "samples.jsonl").read_bytes() == before


def test_demo(tmp_path):
    options = ("--task", "plan@0.2", "--samples", 2, "--policies", "full,streaming_llm", "--budgets", "64")
    done = run("demo", *options, "--out", tmp_path)
    assert "exact answers in %, 95% interval (2 problems)" in done.stdout
    assert (tmp_path / "fig8.png").read_bytes().startswith(b"\x89PNG")
    assert "streaming_llm" in (tmp_path / "fig8.md").read_text()
    assert str(tmp_path / "page.html") in done.stdout.replace("\n", "")
    page = (tmp_path / "page.html").read_text()
    assert "streaming_llm at 64 keeps at most 64 entries" in page
    document = json.loads(run("demo", *options, "--out", tmp_path, "--json").stdout)
    assert {row["policy"] for row in document["rows"]} == {"full", "streaming_llm"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("eval", "--task", "maze"), "error: unknown task 'maze': choose from reasoning, machine, ledger, plan"),
        (("eval", "--policies", "beacon"), "error: unknown policy 'beacon'; choose from"),
        (("eval", "--budgets", "64,many"), "error: budgets are whole numbers, with commas between them; got 'many'"),
        (("eval", "--budgets", "20", "--policies", "beaconkv"), "error: budget=20, budget_min=17 leave no room"),
        (("eval", "--runs", "2"), "error: runs=2 at temperature 0 would be copies of one run"),
        (("eval", "--batch-size", "0"), "error: batch_size must be at least 1, got 0"),
        (
            ("eval", "--reference", "rpc", "--policies", "full,rkv"),
            "error: reference must be one of the policies full, rkv; got 'rpc'",
        ),
        (("eval", "--dtype", "int4", "-m", "no-such-model"), "error: unknown dtype 'int4'; choose from float32"),
        (("eval", "--device", "gpu", "-m", "no-such-model"), "error: unknown device 'gpu'; choose cpu, cuda"),
        (("eval", "--task", "sums.jsonl", "-m", "no-such-model"), "error: no such file: sums.jsonl"),
        (("eval", "--budget-min", "64", "--budgets", "64"), "error: budget=64, budget_min=64 leave no room"),
        (("eval", "--samples", "0"), "error: samples must be at least 1, got 0"),
        (("eval", "-m", "no-such-model"), "error: unknown model 'no-such-model'"),
        (("demo", "--policies", "beaconkv,rkv"), "error: the demo compares with the full cache"),
        (("demo", "--task", "plan@7"), "error: the length of task 'plan@7' must be a number in (0, 1], got '7'"),
    ],
)
def test_bad_input_is_one_line(arguments, message, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["beaconkv", *arguments, "--out", str(tmp_path)])
    with pytest.raises(SystemExit) as left:
        main()
    assert str(left.value).startswith(message)
    assert "\n" not in str(left.value)
    assert not list(tmp_path.iterdir())
