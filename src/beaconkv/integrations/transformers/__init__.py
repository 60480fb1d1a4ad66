"""The bounded cache in Hugging Face transformers, through its public interfaces."""

from .cache import BoundedCache

__all__ = ["BoundedCache"]
