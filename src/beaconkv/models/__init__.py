"""Loading of models: bundled names, local folders, GGUF files, hub names.

Importing is cheap: the reasoning tasks import their alphabet from this package, and need no torch.
"""

from typing import TYPE_CHECKING

from .load import BUNDLED, LoadedModel, load, load_config

if TYPE_CHECKING:
    from .placement import choose_placement

__all__ = ["BUNDLED", "LoadedModel", "choose_placement", "load", "load_config"]


def __getattr__(name: str):
    if name != "choose_placement":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .placement import choose_placement

    return choose_placement
