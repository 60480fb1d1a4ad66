"""One text as one model read it: tokens, queries, keys and values of chosen layers and heads."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .. import ops
from ..types import AttentionParams, Rope, RotaryFn
from .trace_file import DTYPES, Layout, TraceError, TraceReader

ROTATIONS: dict[str, RotaryFn] = {name: layout.apply for name, layout in ops.LAYOUTS.items()}
ROTATIONS["identity"] = ops.apply_identity
"""Name in a trace -> the rotation of its queries."""

MOST = 1 << 14
"""Maximum number of layers, and of KV heads, of any model: only a damaged file has more."""


@dataclass(frozen=True)
class TraceInfo:
    """The description of a trace, as plain JSON values.

    Attributes:
        model: name it was loaded by.
        num_tokens, prompt_length: T, and how many of them are the prompt.
        layers: indices in the model of the recorded layers.
        kv_heads: indices of the recorded KV heads, the same in every layer.
        group: query heads per KV head (GQA), all recorded.
        dim, value_dim, rope_dim: dimensions of a query and key, of a value, of cos and sin.
        dtype: dtype of queries, keys and values: float32, bfloat16 or float16.
        has_values: whether values were recorded.
        rotary: per layer, one of :data:`ROTATIONS`.
        rope_of: per layer, number of its cos and sin among those stored.
        scaling: per layer, factor on q·k.
        softcap: per layer, or None.
        has_sinks: whether the layers have learned sinks.
        pieces: text of each token.
        config: config of the model, as transformers writes it.
        provenance: command, versions, machine.
    """

    model: str
    num_tokens: int
    prompt_length: int
    layers: list[int]
    kv_heads: list[int]
    group: int
    dim: int
    value_dim: int
    rope_dim: int
    dtype: str
    has_values: bool
    rotary: list[str]
    rope_of: list[int]
    scaling: list[float]
    softcap: list[float | None]
    has_sinks: bool
    pieces: list[str]
    config: dict[str, Any] = field(default_factory=dict)
    provenance: dict[str, Any] = field(default_factory=dict)

    @property
    def num_heads(self) -> int:
        """Query heads recorded in a layer."""
        return self.group * len(self.kv_heads)

    @property
    def heads(self) -> list[int]:
        """Indices in the model of the recorded query heads."""
        return [kv * self.group + i for kv in self.kv_heads for i in range(self.group)]

    def layout(self) -> Layout:
        """The tensors of the file."""
        data, tokens = DTYPES[self.dtype][0], self.num_tokens
        tensors = {"tokens": (torch.int32, (tokens,))}
        for number in sorted(set(self.rope_of)):
            tensors |= {f"{name}.{number}": (torch.float32, (tokens, self.rope_dim)) for name in ("cos", "sin")}
        for layer in self.layers:
            tensors[f"queries.{layer}"] = data, (self.num_heads, tokens, self.dim)
            tensors[f"keys.{layer}"] = data, (len(self.kv_heads), tokens, self.dim)
            if self.has_values:
                tensors[f"values.{layer}"] = data, (len(self.kv_heads), tokens, self.value_dim)
            if self.has_sinks:
                tensors[f"sinks.{layer}"] = torch.float32, (self.num_heads,)
        return tensors

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class Trace:
    """A recorded text, read from its file as it is needed.

    Queries are stored as the attention function received them, after RoPE, so that a replay has bit for bit the input
    of a cache; :meth:`queries_before_rope` returns those before RoPE.

    Args:
        path: path of the file.

    Raises:
        TraceError: the file is none, is damaged, or of another version.
        FileNotFoundError: no such file.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._file = TraceReader(self.path)
        self.info = read_info(self._file.info, self.path)
        self._file.check(self.info.layout())
        self.tokens: list[int] = self._file.read("tokens").tolist()
        if min(self.tokens) < 0:
            raise TraceError(f"{self.path} is damaged: a token is {min(self.tokens)}")

    def __len__(self) -> int:
        return self.info.num_tokens

    def number(self, layer: int) -> int:
        """The index of a layer among the recorded ones. Raises ``ValueError`` with the choices."""
        if layer not in self.info.layers:
            raise ValueError(f"layer {layer} was not recorded; choose from {', '.join(map(str, self.info.layers))}")
        return self.info.layers.index(layer)

    def params(self, layer: int) -> AttentionParams:
        """Parameters of the layer's logits."""
        number = self.number(layer)
        sinks = self._file.read(f"sinks.{layer}") if self.info.has_sinks else None
        return AttentionParams(self.info.scaling[number], self.info.softcap[number], sinks)

    def rope(self, layer: int) -> Rope:
        """cos and sin (1, T, D_rot) float32 of all tokens, and the function that applies them."""
        number = self.number(layer)
        cos, sin = (self._file.read(f"{name}.{self.info.rope_of[number]}").unsqueeze(0) for name in ("cos", "sin"))
        return Rope(cos, sin, ROTATIONS[self.info.rotary[number]])

    def queries(self, layer: int, start: int = 0, stop: int | None = None) -> Tensor:
        """(1, H, n, D) after RoPE, of tokens ``[start, stop)``."""
        return self._tokens("queries", layer, start, stop)

    def keys(self, layer: int, start: int = 0, stop: int | None = None) -> Tensor:
        """(1, H_kv, n, D) after RoPE, of tokens ``[start, stop)``."""
        return self._tokens("keys", layer, start, stop)

    def values(self, layer: int, start: int = 0, stop: int | None = None) -> Tensor:
        """(1, H_kv, n, D_v) of tokens ``[start, stop)``. Raises ``ValueError`` if none were recorded."""
        if not self.info.has_values:
            raise ValueError(f"{self.path} was recorded without values")
        return self._tokens("values", layer, start, stop)

    def queries_before_rope(self, layer: int, start: int = 0, stop: int | None = None) -> Tensor:
        """(1, H, n, D) float32 before RoPE, of tokens ``[start, stop)``."""
        stop = len(self) if stop is None else stop
        return ops.unrotate(self.queries(layer, start, stop), self.rope(layer).steps(start, stop))

    def _tokens(self, name: str, layer: int, start: int, stop: int | None) -> Tensor:
        self.number(layer)
        tensor = self._file.read(f"{name}.{layer}", slice(None), slice(start, stop)).unsqueeze(0)
        if not tensor.isfinite().all():
            raise TraceError(f"{self.path} is damaged: {name}.{layer} holds NaN or infinite values")
        return tensor


def read_info(info: dict[str, Any], path: Path) -> TraceInfo:
    """The description in a trace's header, checked.

    Raises:
        TraceError: a field that is missing, of the wrong type or out of range.
    """

    def require(holds: bool, what: str) -> None:
        if not holds:
            raise TraceError(f"{path} is damaged: {what}")

    names = {f.name for f in fields(TraceInfo)}
    require(set(info) == names, f"its description has {', '.join(sorted(set(info) ^ names)[:4])} missing or too many")
    checked = TraceInfo(**info)
    for name in ("num_tokens", "prompt_length", "group", "dim", "value_dim", "rope_dim"):
        value = info[name]
        require(type(value) is int and 1 <= value < 2**31, f"{name} is {value!r}")
    for name, kinds in (("model", str), ("dtype", str), ("config", dict), ("provenance", dict)):
        require(isinstance(info[name], kinds), f"{name} is {info[name]!r}")
    for name in ("has_values", "has_sinks"):
        require(isinstance(info[name], bool), f"{name} is {info[name]!r}")
    for name in ("layers", "kv_heads", "rotary", "rope_of", "scaling", "softcap", "pieces"):
        require(isinstance(info[name], list), f"{name} is no list")
    require(checked.dtype in DTYPES, f"dtype is {checked.dtype!r}")
    require(checked.prompt_length <= checked.num_tokens, "the prompt is longer than the text")
    for name in ("layers", "kv_heads"):
        numbers = info[name]
        whole = all(type(n) is int and 0 <= n < MOST for n in numbers)
        require(bool(numbers) and whole and sorted(set(numbers)) == numbers, f"{name} is {numbers!r:.60}")
    for name in ("rotary", "rope_of", "scaling", "softcap"):
        require(len(info[name]) == len(checked.layers), f"{name} has {len(info[name])} items")
    require(
        all(isinstance(kind, str) and kind in ROTATIONS for kind in checked.rotary), f"rotary is {checked.rotary!r}"
    )
    require(all(type(n) is int and 0 <= n < len(checked.layers) for n in checked.rope_of), "rope_of is out of range")
    for name, also in (("scaling", ()), ("softcap", (None,))):
        numbers = (n for n in info[name] if n not in also)
        require(all(type(n) in (int, float) and abs(n) < 1e30 for n in numbers), f"{name} holds no numbers")
    require(
        len(checked.pieces) == checked.num_tokens and all(isinstance(piece, str) for piece in checked.pieces),
        "the texts of its tokens are not one for each token",
    )
    return checked
