"""Evaluation data that is not part of the project: a folder named by BEACONKV_DATA, or ../shared/data."""

import json
import os
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def rows(name):
    """All rows of a JSONL file; skips the test if it is not there."""
    folder = Path(os.environ.get("BEACONKV_DATA", ROOT.parent / "shared" / "data"))
    if not (folder / name).exists():
        pytest.skip(f"{name} is not in {folder}; set BEACONKV_DATA to the folder that holds it")
    return [json.loads(line) for line in (folder / name).read_text("utf-8").splitlines()]
