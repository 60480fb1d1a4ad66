"""``import beaconkv`` is light, and has every name all the same."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import beaconkv


def test_every_name_is_there():
    assert set(beaconkv.__all__) <= set(dir(beaconkv))
    for name in beaconkv.__all__:
        assert getattr(beaconkv, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'BoundedCash'"):
        beaconkv.BoundedCash  # noqa: B018
    with pytest.raises(ImportError, match="cannot import name 'BoundedCash'"):
        exec("from beaconkv import BoundedCash")


def test_type_checkers_see_the_same_names():
    body = ast.parse(Path(beaconkv.__file__).read_text()).body
    (block,) = (node for node in body if isinstance(node, ast.If))
    assert ast.unparse(block.test) == "TYPE_CHECKING"
    assert sorted(alias.name for node in block.body for alias in node.names) == sorted(beaconkv.__all__)


@pytest.mark.parametrize(
    "first", ["beaconkv.policies", "beaconkv.cache", "beaconkv.evaluation.answers.run", "beaconkv"]
)
def test_policies_is_the_function_whatever_was_imported_first(first):
    """A subpackage has the function's name; importing it must not put it in the function's place."""
    code = f"import {first}, beaconkv\nfrom beaconkv import policies\nassert 'rkv' in policies() == beaconkv.policies()"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_importing_imports_nothing_heavy():
    code = "import sys, beaconkv; assert not {'torch', 'transformers', 'numpy', 'typer', 'rich'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
