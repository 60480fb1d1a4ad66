"""The number of rows of one method at one budget that are computed together."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from ...integrations.transformers import cache_argument
from ...units import human_bytes
from ..cells import Cell

CPU_ROWS, ACCELERATOR_ROWS = 50, 256
"""Maximum number of rows; more are hardly faster."""
SHARE = {"cpu": 0.5}
"""Share of the free memory for caches; 0.6 on other devices. The rest is for activations, and for slabs that are copied
to grow."""
PROBE = 256
"""Number of tokens from whose cost the growth of a cache is measured: slabs without a budget grow by this many."""

logger = logging.getLogger(__name__)


def rows_that_fit(model: nn.Module, cell: Cell, prompt: int, tokens: int) -> int:
    """Number of rows for which the free memory of the model's device has room; at least 1.

    Args:
        prompt: Number of tokens of the longest prompt.
        tokens: Maximum number of tokens written after it.
    """
    most = CPU_ROWS if model.device.type == "cpu" else ACCELERATOR_ROWS
    free = free_bytes(model.device)
    if free is None:
        return CPU_ROWS
    share = SHARE.get(model.device.type, 0.6)
    row = max(1, row_bytes(model, cell, prompt, tokens))
    rows = max(1, min(most, int(free * share) // row))
    logger.info("%s: %d rows fit: %s are free, a row takes %s", cell.name, rows, human_bytes(free), human_bytes(row))
    return rows


def row_bytes(model: nn.Module, cell: Cell, prompt: int, tokens: int) -> int:
    """Bytes of one row's cache at the end: measured after the prompt, plus the measured growth from then on.

    The entries of sliding-window layers are not included.
    """
    at_first = _measured(model, cell, prompt)[0]
    # With scope="output" an input of several tokens evicts for itself as a prompt does; the growth is measured without.
    before, after = _measured(model, replace(cell, overrides={"scope": "total", "prefix": 0}), PROBE, PROBE)
    return at_first + max(0, after - before) * tokens // PROBE


@torch.inference_mode()
def _measured(model: nn.Module, cell: Cell, *lengths: int) -> list[int]:
    """Bytes of a cache after inputs of these lengths."""
    sizes = []
    with cell.new_cache(model) as cache:
        for length in lengths:
            ids = torch.zeros(1, length, dtype=torch.int64, device=model.device)
            model(input_ids=ids, use_cache=True, logits_to_keep=1, **{cache_argument(): cache})
            sizes.append(cache.stats.kv_bytes + cache.stats.state_bytes)
    return sizes


def free_bytes(device: torch.device) -> int | None:
    """Free memory of a device in bytes; None where it is unknown."""
    if device.type == "cpu":
        return _free_on_host()
    if device.type == "mps":
        return torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory()
    module = getattr(torch, device.type, None)
    if not hasattr(module, "mem_get_info"):
        return None
    held = module.memory_reserved(device) - module.memory_allocated(device)  # reserved by the allocator, and unused
    return module.mem_get_info(device)[0] + held


def _free_on_host() -> int | None:
    """Free memory of the machine, or of its container if that has less."""
    found = []
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        found += [int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")]
        limit, used = (Path("/sys/fs/cgroup", name).read_text() for name in ("memory.max", "memory.current"))
        found.append(int(limit) - int(used))
    except (OSError, ValueError):  # no Linux, no container, or one without a limit ("max")
        pass
    return max(0, min(found)) if found else None
