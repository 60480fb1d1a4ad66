"""Real models by one door: bundled names, local folders, GGUF files, hub names."""

from .load import BUNDLED, LoadedModel, load, load_config

__all__ = ["BUNDLED", "LoadedModel", "load", "load_config"]
