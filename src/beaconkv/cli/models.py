"""Shared code of the commands that load a model: the options, and loading."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .common import report

if TYPE_CHECKING:
    from ..models import LoadedModel

MODEL = "Name of the model: bundled (reasoner, smollm2-135m), a folder, a .gguf file or a hub name."
DTYPE = (
    "Data type: float32, bfloat16, float16 or auto (the checkpoint's). Default: auto on an accelerator, float32 on the "
    "CPU."
)
DEVICE = "Device: cpu, cuda, cuda:1, mps, ..., or auto (spread). Default: the accelerator if there is one, else cpu."


def placement(device: str | None, dtype: str | None) -> dict[str, Any]:
    """Arguments of ``load``, checked before anything takes time. Raises ``ValueError``."""
    from ..models import choose_placement

    return choose_placement(device, dtype)


def load_model(name: str, placed: dict[str, Any]) -> LoadedModel:
    """The model and its tokenizer, without the bars of other libraries."""
    import transformers

    from ..models import load

    transformers.utils.logging.disable_progress_bar()  # the commands report what takes time themselves
    return load(name, **placed, report=report)
