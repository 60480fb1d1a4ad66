"""The bounded cache in Hugging Face transformers, through its public interfaces."""

from .cache import BoundedCache
from .compiled import CompiledDecoder
from .side_by_side import SideBySide
from .support import cache_argument

__all__ = ["BoundedCache", "CompiledDecoder", "SideBySide", "cache_argument"]
