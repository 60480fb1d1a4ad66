"""The bounded cache in Hugging Face transformers, through its public interfaces."""

from .cache import BoundedCache
from .compiled import CompiledDecoder
from .model_checks import cache_argument

__all__ = ["BoundedCache", "CompiledDecoder", "cache_argument"]
