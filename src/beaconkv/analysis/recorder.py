"""Recording a trace: a model reads a text with the full cache, and its queries, keys and values go to a file."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..instruments import QueryRecorder, bounded_layers
from ..integrations.transformers import BoundedCache, cache_argument
from ..types import Rope, RotaryFn
from .trace import ROTATIONS, Trace, TraceInfo
from .trace_file import DTYPES, TraceWriter, size_of


def pieces_of(tokenizer: Any, ids: Sequence[int]) -> list[str]:
    """The text that each token adds. A character of several tokens is added by the last of them alone."""
    pieces, start = [], 0
    for stop in range(1, len(ids) + 1):
        # One token of context: some tokenizers drop a space at the beginning of what they decode.
        before = tokenizer.decode(ids[max(start - 1, 0) : start]) if start else ""
        text = tokenizer.decode(ids[max(start - 1, 0) : stop])[len(before) :]
        whole = not text.endswith("\ufffd") or stop - start >= 4  # no character has more bytes
        pieces.append(text if whole else "")
        start = stop if whole else start
    return pieces


def require_choice(model: nn.Module, layers: Sequence[int] | None, kv_heads: Sequence[int] | None) -> None:
    """Raise ``ValueError`` for layers or KV heads that the model does not have, before anything is computed."""
    with BoundedCache(model, QueryRecorder()) as cache:
        if layers is not None:
            _require_known("layer", layers, [index for index, _ in bounded_layers(cache)])
    heads = getattr(model.config.get_text_config(decoder=True), "num_key_value_heads", None)
    if kv_heads is not None and heads is not None:
        _require_known("KV head", kv_heads, list(range(heads)))


@torch.inference_mode()
def record(
    model: nn.Module,
    tokenizer: Any,
    ids: Sequence[int],
    prompt_length: int,
    path: str | Path,
    *,
    name: str = "",
    layers: Sequence[int] | None = None,
    kv_heads: Sequence[int] | None = None,
    values: bool = False,
    dtype: str | None = None,
    chunk: int = 512,
    provenance: dict[str, Any] | None = None,
    announce: Callable[[int], None] = lambda size: None,
    advance: Callable[[int], None] = lambda tokens: None,
) -> Trace:
    """Let a model read a text with the full cache, and write its queries, keys and values to a file.

    Args:
        model: a transformers decoder that can be bounded.
        tokenizer: for the text of each token.
        ids: all tokens, the prompt first.
        prompt_length: how many are the prompt.
        path: the file; it appears when it is complete.
        name: name of the model, for the record.
        layers: indices of full-attention layers; None: all of them.
        kv_heads: KV heads whose groups are recorded, the same in every layer; None: all.
        values: record values, too.
        dtype: "float32", "float16" or "bfloat16"; None: as the model computes.
        chunk: tokens of one forward pass. What several tokens compute at once differs from single steps in the
            last bits; 1 reads as a model writes.
        provenance: command, versions, machine.
        announce: called with the size in bytes before anything is written.
        advance: called with the number of tokens that were read.

    Raises:
        ValueError: an empty text or prompt, layers or heads that do not exist, an unknown dtype.
        OSError: the disk has not enough room.
    """
    ids, path = [int(i) for i in ids], Path(path)
    if path.is_dir():
        raise ValueError(f"{path} is a folder; give the name of a file")
    if not 1 <= prompt_length <= len(ids):
        raise ValueError(f"prompt_length must be between 1 and {len(ids)}, the length of the text; got {prompt_length}")
    if chunk < 1:
        raise ValueError(f"chunk must be at least 1, got {chunk}")
    if dtype is not None and dtype not in DTYPES:
        raise ValueError(f"unknown dtype {dtype!r}; choose from {', '.join(DTYPES)}")
    tokens = torch.tensor([ids], device=model.device)
    writer, decoder = None, model.get_decoder()
    with BoundedCache(model, QueryRecorder()) as cache, ExitStack() as stack:
        hosts = dict(bounded_layers(cache))
        chosen = sorted(hosts) if layers is None else sorted(set(layers))
        _require_known("layer", chosen, sorted(hosts))
        for start in range(0, len(ids), chunk):
            stop = min(start + chunk, len(ids))
            decoder(tokens[:, start:stop], use_cache=True, **{cache_argument(): cache})
            if writer is None:
                info = TraceInfo(
                    **_describe({i: hosts[i] for i in chosen}, kv_heads, values, dtype),
                    model=name,
                    num_tokens=len(ids),
                    prompt_length=prompt_length,
                    pieces=pieces_of(tokenizer, ids),
                    config=model.config.to_dict(),
                    provenance=provenance or {},
                )
                size = size_of(info.layout())
                announce(size)
                _require_room(path, size)
                writer = stack.enter_context(TraceWriter(path, info.layout(), info.to_json()))
                writer.tensors["tokens"].copy_(tokens[0])
            for index, host in hosts.items():
                queries = host.layer.state.take()
                if index in chosen:
                    _write(writer.tensors, info, index, host, queries, slice(start, stop))
            advance(stop - start)
    return Trace(path)


def _describe(hosts: dict[int, Any], kv_heads: Sequence[int] | None, values: bool, dtype: str | None) -> dict[str, Any]:
    """The description of the layers, which is known after the first chunk."""
    states = [host.layer.state for host in hosts.values()]
    first = next(iter(hosts.values()))
    shapes = {(*h.keys.shape[:2], h.keys.shape[3], h.values.shape[3]) for h in hosts.values()}
    if len(shapes) > 1:
        raise ValueError(f"layers of different shape cannot be in one trace: {sorted(shapes)}; choose layers")
    _, num_kv, dim, value_dim = shapes.pop()
    heads = list(range(num_kv)) if kv_heads is None else sorted(set(kv_heads))
    _require_known("KV head", heads, list(range(num_kv)))
    ropes: list[Rope] = []
    rope_of = []
    for state in states:
        rope = state.rope
        same = (i for i, r in enumerate(ropes) if torch.equal(r.cos, rope.cos) and torch.equal(r.sin, rope.sin))
        number = next(same, len(ropes))
        if number == len(ropes):
            ropes.append(rope)
        rope_of.append(number)
    if len({r.cos.shape[-1] for r in ropes}) > 1:
        raise ValueError("layers with rotary embeddings of different size cannot be in one trace; choose layers")
    group = states[0].num_heads // num_kv
    known = {torch_dtype: name for name, (torch_dtype, _) in DTYPES.items()}
    if dtype is None and first.keys.dtype not in known:
        raise ValueError(f"the model computes in {first.keys.dtype}; choose dtype from {', '.join(DTYPES)}")
    sinks = [state.params.sinks is not None for state in states]
    if len(set(sinks)) > 1:
        raise ValueError("layers with and without sinks cannot be in one trace; choose layers")
    return dict(
        layers=list(hosts),
        kv_heads=heads,
        group=group,
        dim=dim,
        value_dim=value_dim,
        rope_dim=ropes[0].cos.shape[-1],
        dtype=dtype or known[first.keys.dtype],
        has_values=values,
        rotary=[_rotation_name(state.rope.apply) for state in states],
        rope_of=rope_of,
        scaling=[float(state.params.scaling) for state in states],
        softcap=[None if s.params.softcap is None else float(s.params.softcap) for s in states],
        has_sinks=sinks[0],
    )


def _write(tensors: dict[str, Tensor], info: TraceInfo, index: int, host: Any, queries: Tensor, part: slice) -> None:
    """Write the queries, keys and values of one layer for the tokens ``part``."""
    state, number = host.layer.state, info.layers.index(index)
    heads = info.heads
    written = [tensors[f"queries.{index}"], tensors[f"keys.{index}"]]
    tensors[f"queries.{index}"][:, part] = queries[0, heads]
    tensors[f"keys.{index}"][:, part] = host.keys[0, info.kv_heads, part]
    if info.has_values:
        tensors[f"values.{index}"][:, part] = host.values[0, info.kv_heads, part]
        written.append(tensors[f"values.{index}"])
    if not all(tensor[:, part].isfinite().all() for tensor in written):
        raise ValueError(
            f"layer {index} has queries, keys or values that {info.dtype} does not hold, or that are no numbers; "
            "store another dtype"
        )
    for name in ("cos", "sin"):
        tensors[f"{name}.{info.rope_of[number]}"][part] = getattr(state.rope, name)[0]
    if info.has_sinks:
        tensors[f"sinks.{index}"][:] = state.params.sinks[heads]


def _rotation_name(apply: RotaryFn) -> str:
    """The name of a rotation; hosts support no other."""
    return next(name for name, known in ROTATIONS.items() if known is apply)


def _require_known(what: str, chosen: Sequence[int], known: Sequence[int]) -> None:
    unknown = [n for n in chosen if n not in known]
    if unknown or not chosen:
        raise ValueError(f"{what} {unknown[0] if unknown else '(none)'}: choose from {', '.join(map(str, known))}")


def _require_room(path: Path, size: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(path.parent).free
    if size > free:
        raise OSError(f"{path} would take {size:,} bytes, and the disk has {free:,} left; record fewer layers")
