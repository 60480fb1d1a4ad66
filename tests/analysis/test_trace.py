"""What is recorded is what the model's attention saw; what is damaged is refused, never run, never half read."""

import copy
import json
import os
import struct

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from beaconkv import ops
from beaconkv.analysis.recorder import pieces_of, record
from beaconkv.analysis.trace import Trace
from beaconkv.analysis.trace_file import TraceError
from beaconkv.models import load
from beaconkv.types import AttentionParams
from tests.analysis.traces import Letters, random_ids, tiny_trace
from tests.tiny import FAMILIES, FULL_ATTENTION, tiny


@pytest.mark.parametrize("chunk", [1, 7, 512])
@pytest.mark.parametrize("family", FAMILIES)
def test_attention_can_be_computed_from_a_trace(family, chunk, tmp_path):
    """The model's own attention weights, layer by layer, from nothing but the file."""
    trace = tiny_trace(tmp_path, family, 40, chunk=chunk)
    model = tiny(family, "eager")
    with torch.no_grad():
        weights = model(torch.tensor([trace.tokens]), use_cache=False, output_attentions=True).attentions
    at = torch.arange(40)
    for layer in trace.info.layers:
        queries = trace.queries(layer)
        found = ops.attention_weights(
            queries, trace.keys(layer), trace.params(layer), at[None], at.expand(1, len(trace.info.kv_heads), -1)
        )
        torch.testing.assert_close(found[0].flatten(0, 1), weights[layer][0], atol=2e-5, rtol=1e-3)
        back = ops.rotate(trace.queries_before_rope(layer), trace.rope(layer))
        torch.testing.assert_close(back, queries, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("family", FULL_ATTENTION)
def test_queries_before_rope_do_not_know_their_position(family, tmp_path):
    """In the first layer of a text of one token repeated, all of them are equal."""
    trace = record(tiny(family), Letters(), [5] * 40, 3, tmp_path / "same.trace")
    queries = trace.queries_before_rope(0)
    torch.testing.assert_close(queries, queries[:, :, :1].expand_as(queries), atol=1e-4, rtol=1e-3)
    if family != "smollm3":
        turned = trace.queries(0)
        assert (turned - turned[:, :, :1]).abs().max() > 0.1


def test_queries_before_rope_are_those_of_the_module(tmp_path):
    """Also where cos and sin have each frequency once, and layers of one kind only are recorded."""
    model, seen, handles = tiny("gpt-oss"), {}, []
    for layer in model.model.layers:
        attention = layer.self_attn

        def keep(module, arguments, out, number=attention.layer_idx):
            seen[number] = out

        handles.append(attention.q_proj.register_forward_hook(keep))
    trace = tiny_trace(tmp_path, "gpt-oss", 30)
    for handle in handles:
        handle.remove()
    for layer in trace.info.layers:
        expected = seen[layer].view(1, 30, trace.info.num_heads, trace.info.dim).transpose(1, 2)
        torch.testing.assert_close(trace.queries_before_rope(layer), expected, atol=1e-4, rtol=1e-3)


def test_hybrid_models_have_their_full_layers_recorded(tmp_path):
    config = tiny("gemma3").config
    full = [i for i, kind in enumerate(config.layer_types) if kind == "full_attention"]
    assert tiny_trace(tmp_path, "gemma3", 24).info.layers == full


def test_chosen_layers_and_heads(tmp_path):
    whole = tiny_trace(tmp_path, length=30, values=True)
    part = tiny_trace(tmp_path, length=30, seed=0, layers=[2, 0], kv_heads=[1], values=True, dtype="float16")
    assert (part.info.layers, part.info.kv_heads, part.info.heads) == ([0, 2], [1], [3, 4, 5])
    for layer in (0, 2):
        for name in ("keys", "values"):
            expected = getattr(whole, name)(layer)[:, 1:].half()
            assert torch.equal(getattr(part, name)(layer), expected)
        assert torch.equal(part.queries(layer), whole.queries(layer)[:, 3:].half())
    assert torch.equal(whole.queries(1, 5, 9), whole.queries(1)[:, :, 5:9])
    with pytest.raises(ValueError, match="layer 1 was not recorded; choose from 0, 2"):
        part.keys(1)


def test_values_that_were_not_recorded(tmp_path):
    with pytest.raises(ValueError, match="without values"):
        tiny_trace(tmp_path, length=24).values(0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"layers": [9]}, "layer 9: choose from 0, 1, 2"),
        ({"layers": []}, r"layer \(none\)"),
        ({"kv_heads": [2]}, "KV head 2: choose from 0, 1"),
        ({"dtype": "int8"}, "unknown dtype 'int8'; choose from float32"),
        ({"chunk": 0}, "chunk"),
        ({"prompt": 0}, "prompt_length must be between 1 and 30"),
        ({"prompt": 31}, "prompt_length"),
    ],
)
def test_what_cannot_be_recorded_is_refused_and_leaves_no_file(arguments, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        tiny_trace(tmp_path, length=30, **arguments)
    assert list(tmp_path.iterdir()) == []


def test_a_broken_recording_leaves_no_file_and_an_old_one_in_place(tmp_path):
    old = tiny_trace(tmp_path, length=30)
    before = old.path.read_bytes()

    def stop(tokens):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tiny_trace(tmp_path, length=30, chunk=10, advance=stop)
    assert [path.name for path in tmp_path.iterdir()] == [old.path.name]
    assert old.path.read_bytes() == before


def test_the_size_is_said_before_anything_is_written(tmp_path):
    said = []
    trace = tiny_trace(tmp_path, length=30, announce=lambda size: said.append((size, list(tmp_path.iterdir()))))
    ((size, files),) = said
    assert files == []
    header = struct.unpack("<Q", trace.path.read_bytes()[:8])[0]
    assert trace.path.stat().st_size == 8 + header + size


def test_any_safetensors_reader_reads_it(tmp_path):
    trace = tiny_trace(tmp_path, length=30)
    tensors = load_file(trace.path)
    assert torch.equal(tensors["queries.1"].unsqueeze(0), trace.queries(1))
    assert tensors["tokens"].tolist() == random_ids(30)


def test_the_model_is_left_as_it_was(tmp_path):
    model = tiny()
    kernel = model.config._attn_implementation
    tiny_trace(tmp_path, length=30)
    assert model.config._attn_implementation == kernel
    assert not any(module._forward_pre_hooks for module in model.modules())


class Bytes:
    """A tokenizer whose tokens are single bytes, and which drops a space at the start, as Llama's does."""

    def decode(self, ids):
        return bytes(ids).decode("utf-8", "replace").removeprefix(" ")


@given(st.text(max_size=30).filter(lambda s: not s.startswith(" ")))
def test_pieces_are_the_text(text):
    pieces = pieces_of(Bytes(), list(text.encode()))
    assert "".join(pieces) == text
    assert len(pieces) == len(text.encode())


def test_pieces_of_bytes_that_are_no_text():
    pieces = pieces_of(Bytes(), [0xFF, 0xFF, 0x41, 0xE2, 0x82, 0x42, 0x43, 0x44])
    assert len(pieces) == 8
    assert pieces[-1] == "D"


def test_pieces_of_the_bundled_model():
    tokenizer = load("reasoner").tokenizer
    ids = tokenizer("@n-82;(ⓕⓙ);>")["input_ids"]
    assert pieces_of(tokenizer, ids) == [tokenizer.decode([i]) for i in ids]


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return tiny_trace(tmp_path_factory.mktemp("trace"), length=24, layers=[0]).path


def test_foreign_files(tmp_path, small):
    path = tmp_path / "x.trace"
    with pytest.raises(FileNotFoundError, match=r"x\.trace"):
        Trace(path)
    for content in (b"", b"hello", b"\x80\x04K\x01.", json.dumps({"a": 1}).encode() * 9):
        path.write_bytes(content)
        with pytest.raises(TraceError, match=r"x\.trace is no trace"):
            Trace(path)
    save_file({"tokens": torch.zeros(3)}, path)
    with pytest.raises(TraceError, match="no trace of BeaconKV"):
        Trace(path)
    header, info, body = unpack(small)
    header["__metadata__"]["version"] = "7"
    path.write_bytes(pack(header, body))
    with pytest.raises(TraceError, match="version '7'; this release reads version 1"):
        Trace(path)


def unpack(path):
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + size])
    return header, json.loads(header["__metadata__"]["info"]), data[8 + size :]


def pack(header, body):
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + body


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 2**40) | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)


@settings(max_examples=300)
@given(data=st.data())
def test_a_damaged_description_is_refused(small, data, tmp_path):
    """Whatever stands in a field, the file is refused by name or reads as what it says it is."""
    header, info, body = unpack(small)
    name = data.draw(st.sampled_from(sorted(info)))
    if data.draw(st.integers(0, 9)) == 0:
        del info[name]
    else:
        info[name] = data.draw(JSON)
    header["__metadata__"]["info"] = json.dumps(info)
    path = tmp_path / "damaged.trace"
    path.write_bytes(pack(header, body))
    try:
        trace = Trace(path)
    except TraceError:
        return
    free = ("model", "prompt_length", "config", "provenance", "scaling", "softcap", "pieces", "kv_heads", "rotary")
    free += ("value_dim",)  # there are no values
    assert name in free or trace.info.to_json()[name] == unpack(small)[1][name]
    assert trace.queries(trace.info.layers[0]).shape == (1, trace.info.num_heads, len(trace), trace.info.dim)
    assert isinstance(trace.params(trace.info.layers[0]), AttentionParams)


@settings(max_examples=300)
@given(data=st.data())
def test_damaged_bytes_never_crash(small, data, tmp_path):
    raw = bytearray(small.read_bytes())
    size = 8 + struct.unpack("<Q", raw[:8])[0]
    kind = data.draw(st.sampled_from(["cut", "flip", "header"]))
    if kind == "cut":
        raw = raw[: data.draw(st.integers(0, len(raw) - 1))]
    else:
        last = size if kind == "header" else len(raw)
        for _ in range(data.draw(st.integers(1, 4))):
            raw[data.draw(st.integers(0, last - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path / "damaged.trace"
    path.write_bytes(bytes(raw))
    try:
        trace = Trace(path)
    except TraceError:
        return
    assert trace.keys(trace.info.layers[0]).shape[2] == len(trace)


def test_record_reads_single_steps_as_a_model_writes(tmp_path):
    """With one token a pass, keys are those of decode steps, bit for bit."""
    model, ids = tiny(), random_ids(30)
    trace = record(model, Letters(), ids, 10, tmp_path / "x.trace", chunk=1)
    cache = None
    with torch.no_grad():
        for i in ids:
            out = model(torch.tensor([[i]]), past_key_values=cache, use_cache=True)
            cache = out.past_key_values
    for layer in range(3):
        torch.testing.assert_close(trace.keys(layer), cache.layers[layer].keys, atol=0, rtol=0)


def test_numbers_that_are_none_are_refused_by_name(small, tmp_path):
    header, info, body = unpack(small)
    start, stop = header["keys.0"]["data_offsets"]
    path = tmp_path / "nan.trace"
    path.write_bytes(pack(header, body[:start] + b"\xff" * (stop - start) + body[stop:]))
    with pytest.raises(TraceError, match=r"nan\.trace is damaged: keys\.0 holds NaN"):
        Trace(path).keys(0)
    path.write_bytes(pack(header, b"\xff" * len(body)))
    with pytest.raises(TraceError, match="a token is -1"):
        Trace(path)


def test_what_a_dtype_cannot_hold_is_not_stored(tmp_path):
    model = copy.deepcopy(tiny())
    with torch.no_grad():
        model.model.layers[1].self_attn.k_proj.weight.mul_(3e5)
    with pytest.raises(ValueError, match="layer 1 has queries, keys or values that float16 does not hold"):
        tiny_trace(tmp_path, length=24, model=model, dtype="float16")
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_is_too_small_is_an_error_and_leaves_nothing(tmp_path, monkeypatch):
    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full, raising=False)
    with pytest.raises(OSError, match="No space left on device: [0-9,]+ bytes"):
        tiny_trace(tmp_path, length=24)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_is_no_file(tmp_path):
    (tmp_path / "llama-24-0.trace").mkdir()
    with pytest.raises(ValueError, match="is a folder"):
        tiny_trace(tmp_path, length=24)
