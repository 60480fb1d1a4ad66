"""The bounded cache in Hugging Face transformers, through its public interfaces."""

from .cache import BoundedCache
from .compiled import CompiledDecoder
from .model_checks import cache_argument
from .side_by_side import SideBySide

__all__ = ["BoundedCache", "CompiledDecoder", "SideBySide", "cache_argument"]
