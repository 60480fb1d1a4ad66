"""``beaconkv figure`` as a person would call it."""

import os
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from beaconkv.cli.app import app
from tests.evaluation.figures.data import eval_result, write

pytest.importorskip("matplotlib")


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    document = eval_result(["full", "beaconkv", "rpc"], [128, 256], ("machine",), 6)
    return write(tmp_path_factory.mktemp("eval") / "result.json", document)


def run(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments], catch_exceptions=False)


def test_figure_writes_files_and_says_where(result, tmp_path):
    printed = run("figure", "fig8", result.parent, "--out", tmp_path / "figures")
    assert printed.exit_code == 0
    paths = [tmp_path / "figures" / name for name in ("fig8.md", "fig8.png", "fig8.svg")]
    assert printed.stdout.split() == [str(path) for path in paths]
    assert all(path.stat().st_size > 500 for path in paths)


def test_what_is_missing_is_said_on_stderr(result, tmp_path):
    printed = run("figure", "table3", result, "--out", tmp_path)
    assert printed.stdout.split() == [str(tmp_path / "table3.md")]
    assert "missing: initial_recent" in printed.stderr
    assert "--policies initial_recent" in printed.stderr


def test_panels_and_measure(result, tmp_path):
    other = write(tmp_path / "o.json", eval_result(["full", "beaconkv"], [128], ("machine",), 6, seed=3))
    run("figure", "fig8", result, other, "--panels", "--measure", "steps_right", "--out", tmp_path)
    text = (tmp_path / "fig8.md").read_text()
    assert "## reasoner, seed 0" in text
    assert "## reasoner, seed 3" in text
    assert "Right steps in %" in text


def test_errors_are_short_and_no_display_is_needed(result, tmp_path):
    environment = {name: value for name, value in os.environ.items() if name not in ("DISPLAY", "WAYLAND_DISPLAY")}

    def call(*arguments):
        command = [sys.executable, "-m", "beaconkv", "figure", *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, env=environment)

    assert call("fig8", result, "--out", tmp_path).returncode == 0
    assert (tmp_path / "fig8.png").exists()
    failed = call("fig8", result, result, "--out", tmp_path)
    assert failed.returncode == 1
    assert "full (task machine) is in" in failed.stderr
    assert "Traceback" not in failed.stderr
