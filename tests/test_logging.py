"""The library's log: silent by default, shown with --verbose."""

import logging
import subprocess
import sys

import pytest
import torch

from beaconkv import BoundedCache
from beaconkv.evaluation.answers import batch_size
from beaconkv.evaluation.cells import Cell
from tests.test_cli import folder, run  # noqa: F401
from tests.tiny import tiny


@pytest.fixture(autouse=True)
def _own_handlers():
    """What --verbose sets is taken back."""
    logger = logging.getLogger("beaconkv")
    handlers, level = list(logger.handlers), logger.level
    yield
    logger.handlers[:] = handlers
    logger.setLevel(level)


def test_it_is_silent_where_the_program_has_no_handler():
    code = (
        "import beaconkv, logging; logger = logging.getLogger('beaconkv.anywhere'); logger.error('unseen');"
        "assert not logger.isEnabledFor(logging.INFO)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == done.stderr == ""


def test_a_new_cache_is_logged_once(caplog):
    model = tiny("qwen3")
    with caplog.at_level(logging.INFO, "beaconkv"), BoundedCache(model, "recent", 24, protect=8) as cache:
        model(torch.arange(1, 41)[None], past_key_values=cache)
    (record,) = caplog.records
    said = record.getMessage()
    assert record.name == "beaconkv.integrations.transformers.cache"
    for part in (type(model).__name__, "policy Recent", "budget=24", "protect=8", "bounded layers: [0, "):
        assert part in said, said


def test_each_eviction_is_logged_at_debug(caplog):
    model = tiny("qwen3")
    with (
        caplog.at_level(logging.DEBUG, "beaconkv.cache.eviction"),
        BoundedCache(model, "recent", 24, protect=8) as cache,
    ):
        model(torch.arange(1, 41)[None], past_key_values=cache)
        model(torch.tensor([[7]]), past_key_values=cache)
    said = [record.getMessage() for record in caplog.records]
    heads = model.config.num_key_value_heads
    assert said == [f"recent: 1 rows, {heads} heads: 21 of 40 entries stay"] * model.config.num_hidden_layers


def test_rows_that_fit_are_logged(caplog):
    with caplog.at_level(logging.INFO, batch_size.logger.name):
        rows = batch_size.rows_that_fit(tiny("qwen3"), Cell("recent", 64), 16, 16)
    assert f"recent at 64: {rows} rows fit: " in caplog.text


@pytest.mark.parametrize(("options", "level"), [((), None), (("-v",), logging.INFO), (("-vv",), logging.DEBUG)])
def test_verbose(folder, options, level):  # noqa: F811
    result = run(*options, "generate", "t1 t2 t3", "-m", folder, "--budget", 48, "--max-new-tokens", 2, "--json")
    assert result.exit_code == 0, result.stderr
    assert ("bounded cache of" in " ".join(result.stderr.split())) == (level is not None)
    if level is not None:
        assert logging.getLogger("beaconkv").level == level
