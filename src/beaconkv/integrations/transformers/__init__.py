"""The bounded cache in Hugging Face transformers, through its public interfaces."""

from .cache import BoundedCache
from .support import cache_argument

__all__ = ["BoundedCache", "cache_argument"]
