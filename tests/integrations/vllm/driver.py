"""Runs one vLLM engine in a process of its own: a job as JSON on standard input, its result as JSON in a file.

    {"engine": {...}, "bounded": {...} or null, "rounds": [[{"prompt": [...], "max_tokens": 8, ...}, ...], ...]}

Each round is one batch; "abort_after" of a request aborts it after so many tokens. "reader" names the views of another
layout, which are used whatever the trial of them says, unless "tried" asks the worker to listen to it.
"""

import json
import os
import sys

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.update(HF_HUB_OFFLINE="1", VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_LOGGING_LEVEL="ERROR")

DEFAULTS = dict(
    dtype="float32",
    max_model_len=2048,
    block_size=32,
    enforce_eager=True,
    enable_prefix_caching=False,
    max_num_batched_tokens=128,
    max_num_seqs=16,
    skip_tokenizer_init=True,
)
WORKER = "beaconkv.integrations.vllm.worker.BoundedWorker"


def watch_evictions(events):
    """Note which positions each eviction leaves, per layer and head."""
    from beaconkv.integrations.vllm.requests import LayerGroup

    own = LayerGroup._evict

    def noted(self, request, index, numbers, table, count, keep, seen):
        own(self, request, index, numbers, table, count, keep, seen)
        name = next(name for name, known in self.requests.items() if known is request)
        for number, held in zip(numbers, request.held[index].chunk(len(numbers)), strict=True):
            layer = int(self.layers[number].name.split(".layers.")[1].split(".")[0])
            events.append((name.split("-")[0], layer, seen, held.sort(-1).values.tolist()))

    LayerGroup._evict = noted


def misread(reader, tried):
    """Read the CPU's caches by the views of another layout; the builder's trial, or also the worker's, is left out."""
    from beaconkv.integrations.vllm import cpu, entries, worker

    cpu.half_by_half = getattr(entries, reader)
    cpu.is_readable = lambda *args: True
    if not tried:
        worker.require_readable = lambda *args: None


def main(job):
    from vllm import LLM, SamplingParams

    events, most = [], {"blocks": 0, "used": 0, "preempted": 0}
    engine = DEFAULTS | job["engine"]
    if job["bounded"] is not None:
        engine["worker_cls"] = WORKER
        if job["bounded"]:
            engine["additional_config"] = {"beaconkv": job["bounded"]}
            watch_evictions(events)
            if job["reader"]:
                misread(job["reader"], job["tried"])
    llm = LLM(**engine)
    in_process = engine.get("tensor_parallel_size", 1) == 1
    if in_process:
        scheduler = llm.llm_engine.engine_core.engine_core.scheduler
        pool = scheduler.kv_cache_manager.block_pool
        managers = scheduler.kv_cache_manager.coordinator.single_type_managers
        own = scheduler.schedule

        def schedule(*args, **kwargs):
            output = own(*args, **kwargs)
            held = max((len(blocks) for manager in managers for blocks in manager.req_to_blocks.values()), default=0)
            most["blocks"] = max(most["blocks"], held)
            most["used"] = max(most["used"], pool.num_gpu_blocks - 1 - pool.get_num_free_blocks())
            most["preempted"] += len(output.preempted_req_ids or ())
            return output

        scheduler.schedule = schedule
    rounds, number = [], 0
    for requests in job["rounds"]:
        outputs, aborts = {}, {}
        for request in requests:
            sampling = {k: v for k, v in request.items() if k not in ("prompt", "abort_after")}
            params = SamplingParams(**{"temperature": 0, "ignore_eos": True, "detokenize": False} | sampling)
            llm.llm_engine.add_request(str(number), {"prompt_token_ids": request["prompt"]}, params)
            aborts[str(number)] = request.get("abort_after")
            outputs[str(number)] = {}
            number += 1
        while llm.llm_engine.has_unfinished_requests():
            for output in llm.llm_engine.step():
                for sample in output.outputs:
                    outputs[output.request_id][sample.index] = list(sample.token_ids)
                if 0 < (aborts[output.request_id] or 0) <= len(outputs[output.request_id][0]):
                    llm.llm_engine.abort_request([output.request_id])
        rounds.append([[samples[index] for index in sorted(samples)] for samples in outputs.values()])
    result = {"rounds": rounds, "events": events, **most}
    if in_process:
        result |= {"blocks_at_all": pool.num_gpu_blocks - 1, "blocks_free": pool.get_num_free_blocks()}
        result["holdings"] = sum(len(getattr(manager, "_held", ())) for manager in managers)
    if job["bounded"]:
        result["stats"] = llm.collective_rpc("bounded_stats")
    with open(sys.argv[1], "w") as file:
        json.dump(result, file)


if __name__ == "__main__":
    main(json.load(sys.stdin))
