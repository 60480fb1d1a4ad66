"""What needs no model answers without importing what takes seconds to import."""

import json
import subprocess
import sys

import pytest

from beaconkv.cli.app import app
from beaconkv.cli.figure import NAMES
from beaconkv.evaluation.figures import FIGURES

CODE = """
import sys
from beaconkv.cli import main
try:
    main()
    code = 0
except SystemExit as left:
    code = left.code or 0
heavy = {"torch", "transformers", "numpy", "matplotlib", "sympy"} & set(sys.modules)
print("\\nheavy:", sorted(heavy), "code:", code)
"""
COMMANDS = [info.name or info.callback.__name__ for info in app.registered_commands]
TRACE = [info.name for info in app.registered_groups[0].typer_instance.registered_commands]


def start(*arguments):
    """The output, the heavy modules, and the exit code."""
    done = subprocess.run([sys.executable, "-c", CODE, *arguments], capture_output=True, text=True, check=True)
    output, _, told = done.stdout.rpartition("\nheavy: ")
    heavy, _, code = told.strip().partition(" code: ")
    return output + done.stderr, heavy, code


@pytest.mark.parametrize(
    "arguments",
    [("--version",), ("--help",), ("policies",), ("policies", "--json"), ("trace", "--help")]
    + [(command, "--help") for command in COMMANDS]
    + [("trace", command, "--help") for command in TRACE],
    ids=" ".join,
)
def test_what_is_answered_at_once(arguments):
    output, heavy, code = start(*arguments)
    assert (heavy, code) == ("[]", "0")
    assert output.strip()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("eval", "--nonsense"), "No such option"),
        (("generate", "hi", "--budget", "many"), "Invalid value for '--budget'"),
        (("nonsense",), "No such command"),
        (("trace", "nonsense"), "No such command"),
        (("plan",), "Missing argument"),
    ],
)
def test_slips_are_told_at_once(arguments, message):
    output, heavy, code = start(*arguments)
    assert (heavy, code) == ("[]", "2")
    assert message in output


def test_the_test_sees_what_is_heavy():
    _, heavy, code = start("generate", "hi", "-m", "no-such-model")
    assert "torch" in heavy
    assert code.startswith("error: unknown model")


def test_help_names_all_figures():
    assert NAMES.split(", ") == list(FIGURES)


def test_policies_of_a_folder_with_a_new_file(tmp_path):
    """The catalogue speaks for the files it was made of; with another file there, the registry is asked."""
    from beaconkv.cli.policies import FOLDER, known

    for name in ("base.py", "catalogue.json"):
        (tmp_path / name).write_bytes((FOLDER / name).read_bytes())
    catalogue = json.loads((tmp_path / "catalogue.json").read_text())
    catalogue |= {"files": ["base.py"], "policies": [{"name": "only in the catalogue"}]}
    (tmp_path / "catalogue.json").write_text(json.dumps(catalogue))
    assert known(tmp_path) == catalogue["policies"]
    (tmp_path / "mine.py").write_text("")
    assert [row["name"] for row in known(tmp_path)] == [row["name"] for row in known()]
