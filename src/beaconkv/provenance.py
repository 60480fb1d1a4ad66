"""Where a number comes from: command, versions, machine."""

from __future__ import annotations

import os
import platform
import sys
from datetime import datetime, timezone
from typing import Any


def provenance(**settings: Any) -> dict[str, Any]:
    """The fields of every result file. ``settings`` (seed, model, ...) are added as they are."""
    import torch
    import transformers

    from . import __version__

    accelerator = None
    if torch.cuda.is_available():
        accelerator = torch.cuda.get_device_name()
    return {
        "command": [os.path.basename(sys.argv[0]), *sys.argv[1:]],
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "versions": {
            "beaconkv": __version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
        "machine": {
            "platform": platform.platform(),
            "processor": _processor(),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "accelerator": accelerator,
        },
        **settings,
    }


def placed_as(loaded: Any) -> dict[str, str]:
    """Device and dtype of a model, as loaded.

    Args:
        loaded: Object with a ``model``.
    """
    return {"device": str(loaded.model.device), "dtype": str(loaded.model.dtype).removeprefix("torch.")}


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            names = [line.split(":", 1)[1].strip() for line in file if line.startswith("model name")]
        return names[0] if names else platform.machine()
    except OSError:
        return platform.processor() or platform.machine()
