"""Kernels compile for devices that are not here. The interpreter accepts much that the compiler refuses."""

import os
import subprocess
import sys
from importlib.metadata import version
from importlib.util import find_spec

import pytest
from packaging.version import Version

pytestmark = pytest.mark.skipif(
    find_spec("triton") is None or Version(version("triton")) < Version("3.3"),
    reason="Triton twins cannot be compiled without a device: no triton, or one before 3.3 that is told otherwise",
)

CODE = """
from importlib import import_module

from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile

for module, types, kernels in {cases!r}:
    for name, constants in kernels:
        kernel = getattr(import_module("beaconkv.ops.triton." + module), name)
        assert constants.keys() <= set(kernel.arg_names), (name, constants)
        signature = {{a: "constexpr" if a in constants else types.get(a, "i32") for a in kernel.arg_names}}
        indexed = {{(kernel.arg_names.index(a),): value for a, value in constants.items()}}
        compile(ASTSource(kernel, signature, indexed), target=GPUTarget("cuda", 80, 32))
        print(name, "compiled")
"""
ONES = dict(heads=1, group=1, n=1, size=1, dim=1, spans=1)
"""Triton compiles anew for arguments that are 1, with the number in their place."""
SCORING = dict(SOFTCAP=True, SCALES=True, QUERIES=16, ENTRIES=64, CHUNK=16, TENSOR_CORES=True)
LAST = dict(SPANS=4, SINKS=True, QUERY_MAX=True, GROUP_MAX=False)
CASES = [
    (
        "sampling",
        dict(queries="*bf16", picks="*i64", unit="*fp32", nearest="*fp32"),
        [
            ("_sample_matrix", dict(SIZE=16, DIM=16, CHUNK=16)),
            ("_sample_matrix", dict(SIZE=16, DIM=16, CHUNK=16, dim=1, stride_head=1, stride_query=1, stride_dim=1)),
            ("_unit_vectors", dict(BLOCK=64, DIM=16)),
            ("_sample", dict(BLOCK=64, DIM=16)),
            ("_sample", dict(BLOCK=64, DIM=16, dim=1)),
        ],
    ),
    *(
        (
            "scoring",
            dict(
                parts="*fp32",
                scores="*fp32",
                sinks="*bf16",
                queries=queries,
                keys=keys,
                query_positions="*i64",
                key_positions="*i32",
                scaling="fp32",
                softcap="fp32",
                scales="*fp32",
            ),
            [
                ("_span_totals", dict(SPAN=256, PARTS=parts, **SCORING)),
                ("_span_totals", dict(SPAN=256, PARTS=parts, **SCORING, **ONES)),
                ("_span_totals", dict(SPAN=256, PARTS=parts, **{**SCORING, "SCALES": False, "scales": None})),
                ("_pooled_weights", dict(PARTS=parts, **SCORING, **LAST)),
                ("_pooled_weights", dict(PARTS=parts, **SCORING, **{**LAST, "SINKS": False, "sinks": None}, **ONES)),
                ("_pooled_weights", dict(PARTS=parts, **LAST, **{**SCORING, "SCALES": False, "scales": None})),
            ],
        )
        for queries, keys, parts in [("*fp32", "*bf16", 3), ("*fp32", "*fp16", 0)]
    ),
    (
        "compaction",
        dict(tensor="*i16", source="*i64", index="*i64"),
        [
            ("_fill", dict(ROWS=True, SLOTS=16, WIDTH=128)),
            ("_fill", dict(ROWS=False, SLOTS=16, WIDTH=1, index=None, heads=1, new_length=1, width=1)),
        ],
    ),
    (
        "rope",
        dict(target="*bf16", x="*fp32", cos="*bf16", sin="*bf16"),
        [
            ("_unrotate", dict(NEIGHBOURS=False, ONCE=False, STEPS=1, DIM=128, heads=1, steps=1)),
            ("_unrotate", dict(NEIGHBOURS=False, ONCE=True, STEPS=16, DIM=128)),
            ("_unrotate", dict(NEIGHBOURS=True, ONCE=False, STEPS=16, DIM=128)),
            ("_unrotate", dict(NEIGHBOURS=True, ONCE=True, STEPS=16, DIM=128)),
        ],
    ),
]


def test_kernels_compile(tmp_path):
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", CODE.format(cases=CASES)],
        env={**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert run.stdout.count("compiled") == sum(len(kernels) for _, _, kernels in CASES), run.stdout + run.stderr
