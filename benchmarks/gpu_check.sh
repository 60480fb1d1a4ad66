#!/usr/bin/env bash
# All checks that need a GPU, in under half an hour on one of 80 to 140 GB, without network:
#   benchmarks/gpu_check.sh [OUT]
# Tests of the Triton kernels on the device; the operations; the three blocks of the paper's Table 4, and Table 5, with
# random Qwen3-4B weights (rates over 32K tokens, as integrals of a measured curve); the growth curve; a compiled step. Tables go to OUT/gpu.txt, one JSON line each to OUT/gpu.jsonl.
# Python is the one on PATH, or $PYTHON; it needs torch with CUDA, transformers, typer, rich, numpy, pytest, hypothesis.
set -u
cd "$(dirname "$0")/.."
. benchmarks/gpu_parts.sh
json="$out/gpu.jsonl"

{
    part 30 "device" "$python" -c "import torch; assert torch.cuda.is_available(), 'no CUDA device'; print(torch.cuda.get_device_name(), torch.__version__)"
    [ $failed = 0 ] || exit 1
    part 150 "Triton kernels against their references, on the device" "$python" -m pytest -q -p no:cacheprovider tests/ops
    part 60 "operations" "$python" benchmarks/operations.py --device cuda --dtype bfloat16 --out "$json"
    tables=(--phase-steps 64 --out "$json")
    part 300 "table 4, first block: full cache and BeaconKV, batch 14, budget 2,048" \
        "$python" benchmarks/decode.py --preset table4-full "${tables[@]}"
    part 400 "table 4, second block: RPC and BeaconKV, batch 192, budget 2,048" \
        "$python" benchmarks/decode.py --preset table4-2k "${tables[@]}"
    part 400 "table 5, and table 4's third block: SnapKV, RPC and BeaconKV, batch 320, budget 1,024" \
        "$python" benchmarks/decode.py --preset table5 "${tables[@]}"
    part 90 "growth" "$python" benchmarks/growth.py --model random:qwen3-4b --dtype bfloat16 --device cuda --batches 1,16 \
        --lengths 512,4096,16384,32000 --budgets 1024,2048 --cycles 1 --out "$json"
    part 120 "compiled step" "$python" benchmarks/decode.py --model random:qwen3-4b --dtype bfloat16 --device cuda --batch 8 \
        --fill 1900 --budget 2048 --tokens 200 --policies beaconkv --compiled --out "$json"
} | tee "$out/gpu.txt"
grep -q '^FAILED' "$out/gpu.txt" && exit 1
exit $failed
