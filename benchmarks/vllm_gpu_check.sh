#!/usr/bin/env bash
# vLLM with a bounded cache on one GPU, in under fifteen minutes, without network:
#   benchmarks/vllm_gpu_check.sh [OUT]
# vLLM's own tokens with our worker and no settings; the entries kept on the GPU against transformers; requests a second,
# latency and blocks of both in the same memory, with graphs and without. Random weights of Qwen3-4B's size.
# Tables go to OUT/vllm_gpu.txt, one JSON line each to OUT/vllm_gpu.jsonl.
# Python is the one on PATH, or $PYTHON; it needs a vLLM that beaconkv supports (docs/serving.md), pytest and hypothesis.
set -u
cd "$(dirname "$0")/.."
out=${1:-results/gpu}
python=${PYTHON:-python}
mkdir -p "$out"
export PYTHONPATH=src:. HF_HUB_OFFLINE=1
json="$out/vllm_gpu.jsonl"
failed=0

part() { # seconds, title, command...
    local limit=$1 title=$2
    shift 2
    printf '\n== %s\n' "$title"
    timeout "$limit" "$@" 2>"$out/last.err" || {
        printf 'FAILED (%s): %s\n' "$?" "$title"
        tail -n 25 "$out/last.err"
        failed=1
    }
}

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
    part 240 "entries kept, and tokens with and without graphs" "$python" -m pytest -q -p no:cacheprovider tests/integrations/vllm/test_gpu.py
    load "16 requests of 6,000 tokens in 32K tokens of cache: vLLM holds 5 at a time, budget 2,048 all 16" \
        --blocks 2048 --clients 16 --requests 16 --tokens 6000
    load "64 requests of 3,000 tokens in 64K tokens of cache" --blocks 4096 --clients 64 --requests 64 --tokens 3000
} | tee "$out/vllm_gpu.txt"
grep -q '^FAILED' "$out/vllm_gpu.txt" && exit 1
exit $failed
