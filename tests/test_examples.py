"""The examples run as their docstrings say. The one that needs vLLM is tested in tests/integrations/vllm."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
SCRIPTS = sorted(path.name for path in EXAMPLES.glob("*.py"))
NEEDS_VLLM = "serve_and_client.py"
SHOWN = {
    "quickstart.py": "at most 256 entries per layer and KV head",
    "batch_of_problems.py": "4 of 4 answers exact",
    "own_policy.py": "'norm_and_age' has no setting",
    "trace_and_page.py": "the best possible eviction loses",
}
"""What the output of each script must contain."""


def environment():
    """An environment in which no hub is asked."""
    return {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}


def test_every_script_is_run_somewhere():
    assert set(SCRIPTS) == {*SHOWN, NEEDS_VLLM}


@pytest.mark.parametrize("name", SCRIPTS)
def test_docstring_says_how_to_run(name):
    text = ast.get_docstring(ast.parse((EXAMPLES / name).read_text(encoding="utf-8")))
    assert f"python examples/{name}" in text


@pytest.mark.parametrize("name", SHOWN)
def test_script_runs(name, tmp_path):
    done = subprocess.run(
        [sys.executable, EXAMPLES / name], capture_output=True, text=True, timeout=300, cwd=tmp_path, env=environment()
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert SHOWN[name] in done.stdout


def test_notebook_runs(tmp_path, monkeypatch):
    nbformat = pytest.importorskip("nbformat", reason="nbclient is not installed here: pip install -e '.[dev]'")
    nbclient = pytest.importorskip("nbclient")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    notebook = nbformat.read(EXAMPLES / "tour.ipynb", as_version=4)
    nbformat.validate(notebook)
    codes = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert not any(cell.outputs for cell in codes), "the notebook is stored without outputs"
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": tmp_path}}).execute()
    shown = [output for cell in codes for output in cell.outputs]
    assert any("image/png" in output.get("data", {}) for output in shown), "the picture is missing"
    assert (tmp_path / "results/tour/page.html").stat().st_size > 100_000
