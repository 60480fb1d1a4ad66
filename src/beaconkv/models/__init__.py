"""Real models by one door: bundled names, local folders, GGUF files, hub names."""

from .load import BUNDLED, LoadedModel, load, load_config
from .placement import choose_placement

__all__ = ["BUNDLED", "LoadedModel", "choose_placement", "load", "load_config"]
