"""What a person is told: missing files, files in the place of folders, devices, logs without bars, narrow screens."""

import io
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console

from beaconkv.cli import main
from beaconkv.cli.fidelity import _table as fidelity_table
from beaconkv.cli.progress import ShownProgress, seconds_in_words
from beaconkv.cli.quality import quality_table
from beaconkv.cli.replay import _table as replay_table
from tests.test_cli import folder  # noqa: F401
from tests.test_cli_trace import trace  # noqa: F401

NO_MODEL = ("-m", "no-such-model")
"""Whoever looks for it first says "unknown model"."""


def told(monkeypatch, *arguments):
    """The one line that a command ends with."""
    monkeypatch.setattr(sys, "argv", ["beaconkv", *map(str, arguments)])
    with pytest.raises(SystemExit) as left:
        main()
    assert "\n" not in str(left.value)
    return str(left.value)


@pytest.mark.parametrize(
    "arguments",
    [
        ("generate", "--prompt-file", "nowhere", *NO_MODEL),
        ("fidelity", "--texts", "nowhere", *NO_MODEL),
        ("trace", "record", "--texts", "nowhere", "--out", "x.trace", *NO_MODEL),
        ("trace", "info", "nowhere"),
        ("trace", "look", "nowhere"),
        ("replay", "nowhere"),
        ("report", "nowhere"),
        ("figure", "fig8", "nowhere"),
        ("eval", "--task", "nowhere.jsonl", *NO_MODEL),
        ("eval", "--task", "plan@0.1,nowhere.jsonl:choice", *NO_MODEL),
    ],
    ids=" ".join,
)
def test_a_missing_file(arguments, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert told(monkeypatch, *arguments) in ("error: no such file: nowhere", "error: no such file: nowhere.jsonl")
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.parametrize(
    "arguments",
    [
        ("eval", "--task", "plan@0.1", *NO_MODEL),
        ("fidelity", "--texts", "TEXTS", *NO_MODEL),
        ("demo",),
        ("figure", "fig8", "TEXTS"),
        ("replay", "TRACE", "--restore", "1", *NO_MODEL),
        ("trace", "look", "TRACE"),
    ],
    ids=" ".join,
)
def test_a_file_in_the_place_of_a_folder(arguments, trace, monkeypatch, tmp_path):  # noqa: F811
    (tmp_path / "taken").write_text("mine")
    places = {"TRACE": trace, "TEXTS": tmp_path / "texts.jsonl"}
    arguments = [places.get(argument, argument) for argument in arguments]
    for out in (tmp_path / "taken", tmp_path / "taken" / "below"):
        said = told(monkeypatch, *arguments, "--out", out)
        assert said == f"error: a folder is needed here, and this is a file: {out}"
    assert (tmp_path / "taken").read_text() == "mine"


@pytest.mark.parametrize(
    "arguments",
    [
        ("compare", *NO_MODEL),
        ("trace", "record", "--prompt", "t1", *NO_MODEL),
        ("report", "TRACE"),
    ],
    ids=" ".join,
)
def test_a_folder_in_the_place_of_a_file(arguments, trace, monkeypatch, tmp_path):  # noqa: F811
    arguments = [trace if argument == "TRACE" else argument for argument in arguments]
    (tmp_path / "taken").mkdir()
    said = told(monkeypatch, *arguments, "--out", tmp_path / "taken")
    assert said == f"error: a file is needed here, and this is a folder: {tmp_path / 'taken'}"


@pytest.mark.skipif(torch.backends.cuda.is_built(), reason="this torch is built with CUDA")
@pytest.mark.parametrize(
    "arguments",
    [
        ("generate", "t1", *NO_MODEL),
        ("eval", "--task", "plan@0.1", *NO_MODEL),
        ("compare", *NO_MODEL),
        ("demo",),
        ("trace", "record", "--prompt", "t1", "--out", "x.trace", *NO_MODEL),
        ("fidelity", "--texts", "nowhere", *NO_MODEL),
        ("replay", "nowhere"),
    ],
    ids=" ".join,
)
def test_a_device_that_is_not_there(arguments, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    said = told(monkeypatch, *arguments, "--device", "cuda")
    assert said.startswith("error: device 'cuda': this torch (")
    assert said.endswith("is built without CUDA; choose --device cpu, or install a torch that is built with it")
    assert not list(tmp_path.iterdir())


def test_a_log_holds_no_bars(folder, tmp_path):  # noqa: F811
    """Of no library: a file of carriage returns is hard to read."""
    out = tmp_path / "compare.json"
    command = [sys.executable, "-m", "beaconkv", "compare", "-m", folder, "--budget", "48", "--tokens", "8"]
    done = subprocess.run([*command, "--out", str(out)], capture_output=True, text=True, check=True)
    assert "\r" not in done.stderr + done.stdout
    assert "%|" not in done.stderr
    assert "Loading" not in done.stderr
    code = (
        "import sys; sys.argv = ['beaconkv', '--version']\nfrom beaconkv.cli import main\n"
        "try: main()\nexcept SystemExit: pass\n"
        "import tqdm, huggingface_hub.utils as hub; list(tqdm.tqdm(range(3))); print(hub.are_progress_bars_disabled())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "True"
    assert done.stderr == ""


NAMES = ["beaconkv:n_recent=4:n_beacon=28", "initial_recent", "full"]


def drawn(table):
    console = Console(width=80, file=io.StringIO())
    console.print(table)
    text = console.file.getvalue()
    assert max(map(len, text.splitlines())) <= 80
    return text


def estimate(mean):
    return {"mean": mean, "low": mean - 0.0123, "high": mean + 0.0123}


def test_names_are_whole_on_a_narrow_screen():
    budgets = {"full": [None]}
    rows = [(name, budget) for name in NAMES for budget in budgets.get(name, [64, 128, 256, 448, 704])]
    quality = [{"policy": p, "budget": b, "task": "all", "accuracy": estimate(0.888)} for p, b in rows]
    fidelity = [
        {
            "policy": p, "budget": b, "kl": estimate(0.1), "difference": {"kl": estimate(-0.1)}, "mass_lost": None,
            "agreement": estimate(0.9), "perplexity": estimate(9.5), "perplexity_full": estimate(9.0), "evictions": 123,
        }
        for p, b in rows
    ]  # fmt: skip
    numbers = dict.fromkeys(("lost", "oracle", "bound", "regret", "recall", "coverage"), 0.12345)
    replay = [{"policy": p, "budget": b or 64, "evictions": 123, "later_wanted": 123456, **numbers} for p, b in rows]
    from pathlib import Path

    class Opened:
        path, info = Path("a.trace"), SimpleNamespace(layers=[0, 1])

        def __len__(self):
            return 1000

    for table in (
        quality_table(quality, "accuracy"),
        fidelity_table("a model", fidelity, NAMES[0]),
        replay_table(Opened(), replay),
    ):
        text = drawn(table)
        for name in NAMES:
            assert f"{name} " in text
    assert drawn(quality_table(quality, "accuracy")).count("88.8") == 11


def test_a_log_has_a_line_now_and_then(monkeypatch):
    from beaconkv.cli import progress

    out = io.StringIO()
    monkeypatch.setattr(progress, "messages", Console(file=out, width=80))
    now = [0.0]
    cells = [SimpleNamespace(name="full"), SimpleNamespace(name="beaconkv at 96")]
    batch = [SimpleNamespace(cell=cell, task=SimpleNamespace(name="plan"), limit=1000) for cell in cells]
    evaluation = SimpleNamespace(keys=lambda: set(range(20)), cells=cells)
    with ShownProgress(evaluation, lambda: now[0]) as shown:
        for part in batch:
            shown.started(part)
            for step in range(200):
                now[0] += 0.5
                shown.wrote(10)
                if step == 100:
                    shown.answered(100)
    lines = out.getvalue().splitlines()
    assert len(lines) == 2 * 4  # at the start of a cell, and after 30, 60 and 90 of its 100 s
    assert lines[0] == "full (1 of 2), plan: 0 of 20 answers"
    assert lines[1] == "full (1 of 2), plan: 0 of 20 answers, at most 16 min left, 20 tokens/s"
    assert lines[4].startswith("beaconkv at 96 (2 of 2), plan: 1 of 20 answers, about ")


def test_a_narrow_screen_shows_what_is_left(monkeypatch):
    from beaconkv.cli import progress

    out, now = io.StringIO(), [0.0]
    monkeypatch.setattr(progress, "messages", Console(file=out, width=80, force_terminal=True, color_system=None))
    cell = SimpleNamespace(name="beaconkv:n_recent=4:n_beacon=28 at 448")
    evaluation = SimpleNamespace(keys=lambda: set(range(2000)), cells=[cell])
    with ShownProgress(evaluation, lambda: now[0]) as shown:
        shown.started(SimpleNamespace(cell=cell, task=SimpleNamespace(name="machine@0.66"), limit=1000))
        now[0] = 10.0
        shown.wrote(5000)
    assert "0 of 2,000 answers, at most 66 min left" in out.getvalue()
    assert "beaconkv:n_recent=4:n_beacon=28 at 448" in out.getvalue()


def test_seconds_in_words():
    said = [seconds_in_words(seconds) for seconds in (0.4, 89, 90, 3600, 5400, 36000)]
    assert said == ["0 s", "89 s", "2 min", "60 min", "1 h 30 min", "10 h 0 min"]
