"""Arrays of the page: checked, and written as base64."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

DTYPES = {"f4": np.dtype("<f4"), "i4": np.dtype("<i4"), "u1": np.dtype("u1")}
"""Names that the page's code supports (``data.js``) -> little-endian types."""


def encode(array: np.ndarray) -> dict[str, Any]:
    """``{"dtype", "shape", "data"}`` of an array of one of ``DTYPES``, row-major."""
    name = next(name for name, dtype in DTYPES.items() if dtype == array.dtype)
    data = base64.b64encode(np.ascontiguousarray(array).tobytes()).decode("ascii")
    return {"dtype": name, "shape": list(array.shape), "data": data}


def array(
    source: Mapping[str, Any], name: str, dtype: str, shape: Mapping[str, int | None], within: str = ""
) -> np.ndarray:
    """``source[name]`` as an array of ``dtype``.

    Args:
        source: where it is looked up.
        name: name of the field.
        dtype: one of ``DTYPES``.
        shape: name of each axis -> its length; None: any.
        within: the path of ``source``, for messages.

    Raises:
        ValueError: it is missing, has another shape or kind, or numbers that ``dtype`` cannot hold.
    """
    path = within + name
    given = np.asarray(field(source, name, within))
    axes = ", ".join(axis if length is None else f"{axis}={length}" for axis, length in shape.items())
    lengths = shape.values()
    fits = given.ndim == len(shape) and all(want in (None, got) for want, got in zip(lengths, given.shape, strict=True))
    if not fits:
        raise ValueError(f"{path} must have shape ({axes}), not {given.shape}")
    if given.dtype.kind not in ("fiu" if dtype.startswith("f") else "iub"):
        raise ValueError(f"{path} must hold {DTYPES[dtype].name}, not {given.dtype}")
    target = DTYPES[dtype]
    if dtype.startswith("f"):
        return given.astype(target)
    limits = np.iinfo(target)
    require(
        not given.size or (int(given.min()) >= limits.min and int(given.max()) <= limits.max),
        path,
        f"holds numbers beyond {target.name}",
    )
    return given.astype(target)


def field(source: Mapping[str, Any], name: str, within: str = "") -> Any:
    """``source[name]``; ValueError names what is missing."""
    if name not in source:
        raise ValueError(f"the report lacks {within}{name}")
    return source[name]


def integer(source: Mapping[str, Any], name: str, low: int, high: int | None = None, within: str = "") -> int:
    """A whole number in ``low..high``."""
    value = field(source, name, within)
    whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if not whole or value < low or (high is not None and value > high):
        limits = f"of at least {low}" if high is None else f"from {low} to {high}"
        raise ValueError(f"{within}{name} must be a whole number {limits}, not {value!r}")
    return int(value)


def string(source: Mapping[str, Any], name: str, within: str = "") -> str:
    """A string of the page."""
    value = field(source, name, within)
    require(isinstance(value, str), within + name, f"must be text, not {type(value).__name__}")
    return value


def strings(source: Mapping[str, Any], name: str) -> list[str]:
    """Several."""
    value = field(source, name)
    listed = isinstance(value, Sequence) and not isinstance(value, str)
    require(listed and all(isinstance(item, str) for item in value), name, "must be a list of texts")
    return list(value)


def require(holds: bool, path: str, message: str) -> None:
    """Raise ``ValueError`` unless the condition holds."""
    if not holds:
        raise ValueError(f"{path} {message}")
