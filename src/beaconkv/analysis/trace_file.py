"""The file of a trace: safetensors, written chunk by chunk and read through a memory map.

The format is a length, a JSON header with names, dtypes, shapes and offsets, then the bytes; nothing in it is ever
executed. safetensors' own writer needs all tensors in memory at once, so this module writes the header itself.
"""

from __future__ import annotations

import errno
import json
import math
import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

FORMAT, VERSION = "beaconkv-trace", "1"
DTYPES = {"float32": (torch.float32, "F32"), "float16": (torch.float16, "F16"), "bfloat16": (torch.bfloat16, "BF16")}
INT32 = (torch.int32, "I32")
Layout = Mapping[str, tuple[torch.dtype, tuple[int, ...]]]
"""Name -> dtype and shape."""


class TraceError(ValueError):
    """A file that is no trace, or a damaged one. The message names the file and the damage."""


def size_of(layout: Layout) -> int:
    """Bytes of the tensors of a layout."""
    return sum(_bytes(dtype, shape) for dtype, shape in layout.values())


def _bytes(dtype: torch.dtype, shape: tuple[int, ...]) -> int:
    return math.prod(shape) * dtype.itemsize


class TraceWriter:
    """A file of known layout, filled in any order; it gets its name only when it is complete.

    Args:
        path: Path of the complete file.
        layout: Tensors of the file.
        info: Description, a JSON value.

    Attributes:
        tensors: Tensors over the file's bytes: values written to them are in the file.
    """

    def __init__(self, path: Path, layout: Layout, info: Mapping[str, Any]) -> None:
        codes = dict([*DTYPES.values(), INT32])
        header: dict[str, Any] = {
            "__metadata__": {"format": FORMAT, "version": VERSION, "info": json.dumps(info, ensure_ascii=False)}
        }
        offset = 0
        for name, (dtype, shape) in layout.items():
            stop = offset + _bytes(dtype, shape)
            header[name] = {"dtype": codes[dtype], "shape": list(shape), "data_offsets": [offset, stop]}
            offset = stop
        text = json.dumps(header, ensure_ascii=False).encode()
        text += b" " * (-len(text) % 8)
        self.path, self.partial = path, path.with_name(path.name + ".partial")
        size = 8 + len(text) + offset
        try:
            with open(self.partial, "wb") as file:
                file.write(struct.pack("<Q", len(text)) + text)
                if hasattr(os, "posix_fallocate"):  # if the disk filled up later, the process would be killed
                    os.posix_fallocate(file.fileno(), 0, size)
                file.truncate(size)
        except OSError as error:
            self.partial.unlink(missing_ok=True)
            raise OSError(error.errno, f"{error.strerror}: {size:,} bytes", str(path)) from None
        raw = torch.from_file(str(self.partial), shared=True, size=size, dtype=torch.uint8)[8 + len(text) :]
        self.tensors: dict[str, Tensor] = {}
        for name, (dtype, shape) in layout.items():
            start, stop = header[name]["data_offsets"]
            self.tensors[name] = raw[start:stop].view(dtype).view(shape)

    def __enter__(self) -> TraceWriter:
        return self

    def __exit__(self, kind: type | None, *rest: object) -> None:
        self.tensors = {}
        try:
            if kind is None:
                os.replace(self.partial, self.path)
        finally:
            self.partial.unlink(missing_ok=True)


class TraceReader:
    """An open trace file; tensors are read when they are used, and only the slices that are used.

    Raises:
        TraceError: no such format, another version, damage.
        FileNotFoundError: no such file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        if not path.is_file():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        try:
            self._file = safe_open(path, "pt")
            metadata = self._file.metadata() or {}
        except (SafetensorError, OSError, ValueError) as error:
            raise TraceError(f"{path} is no trace, or it is damaged: {error}") from None
        if metadata.get("format") != FORMAT:
            raise TraceError(f"{path} is no trace of BeaconKV (format {metadata.get('format')!r})")
        if metadata.get("version") != VERSION:
            raise TraceError(
                f"{path} is a trace of version {metadata.get('version')!r}; this release reads version {VERSION}"
            )
        try:
            self.info = json.loads(metadata.get("info", ""))
        except (json.JSONDecodeError, RecursionError) as error:
            raise TraceError(f"{path} is damaged: its description is no JSON: {error}") from None
        if not isinstance(self.info, dict):
            raise TraceError(f"{path} is damaged: its description is no object")

    def check(self, layout: Layout) -> None:
        """Raise :class:`TraceError` unless the file has exactly these tensors."""
        names = set(self._file.keys())
        if names != set(layout):
            odd = ", ".join(sorted(names ^ set(layout))[:4])
            raise TraceError(f"{self.path} is damaged: tensors missing or too many: {odd}")
        codes = dict([*DTYPES.values(), INT32])
        for name, (dtype, shape) in layout.items():
            part = self._file.get_slice(name)
            if tuple(part.get_shape()) != shape or part.get_dtype() != codes[dtype]:
                raise TraceError(
                    f"{self.path} is damaged: {name} is {part.get_dtype()} {part.get_shape()}, "
                    f"not {codes[dtype]} {list(shape)}"
                )

    def read(self, name: str, *part: slice) -> Tensor:
        """A part of a tensor, by slices of its first dimensions."""
        return self._file.get_slice(name)[part or (slice(None),)]
