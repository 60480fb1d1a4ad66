#!/usr/bin/env bash
# vLLM with a bounded cache on one GPU, in under twenty minutes, without network:
#   benchmarks/vllm_gpu_check.sh [OUT]
# vLLM's own tokens with beaconkv's worker and no settings, and with a budget that is never reached; the positions that each layer
# and head keeps against those of BoundedCache in transformers on the same tokens; steps in graphs against eager ones;
# requests per second and latency of both in the same memory, with random weights of Qwen3-4B's size.
# Tables go to OUT/vllm_gpu.txt, one JSON line each to OUT/vllm_gpu.jsonl.
# Python is the one on PATH, or $PYTHON; it needs a vLLM that beaconkv supports (docs/serving.md), pytest and hypothesis.
set -u
cd "$(dirname "$0")/.."
. benchmarks/gpu_parts.sh
json="$out/vllm_gpu.jsonl"

load() { # title, options...
    local title=$1
    shift
    part 240 "$title" "$python" benchmarks/serving.py --model random:qwen3-4b --dtype bfloat16 --block-size 16 \
        --max-model-len 16384 --batched-tokens 2048 --policies beaconkv --budget 2048 --prompt 150 --rounds 1 \
        --out "$json" "$@"
}

{
    part 60 "device" "$python" -c "import torch, vllm; assert torch.cuda.is_available(), 'no CUDA device'; print(torch.cuda.get_device_name(), torch.__version__, vllm.__version__)"
    [ $failed = 0 ] || exit 1
    part 600 "tokens against vLLM's own, kept positions against transformers, in graphs and eager, and blocks that come back" "$python" -m pytest -q -p no:cacheprovider tests/integrations/vllm/test_gpu.py
    load "16 requests of 6,000 tokens in 32K tokens of cache: vLLM holds 5 at a time, budget 2,048 all 16" \
        --blocks 2048 --clients 16 --requests 16 --tokens 6000
    load "64 requests of 3,000 tokens in 64K tokens of cache" --blocks 4096 --clients 64 --requests 64 --tokens 3000
} | tee "$out/vllm_gpu.txt"
grep -q '^FAILED' "$out/vllm_gpu.txt" && exit 1
exit $failed
