"""The real server, started by the real command, asked by the real client."""

import asyncio
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request

from .engine import needs_vllm

pytestmark = needs_vllm
BLOCKS = 60


def free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


class Server:
    """``beaconkv serve`` in a process of its own."""

    def __init__(self, log, *options):
        self.address, self.log = f"http://127.0.0.1:{(port := free_port())}", log
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
        command = [sys.executable, "-m", "beaconkv", "serve", "reasoner", *options, "--port", str(port)]
        self.process = subprocess.Popen(command, env=environment, stdout=log.open("w"), stderr=subprocess.STDOUT)

    def __enter__(self):
        for _ in range(120):
            try:
                urllib.request.urlopen(f"{self.address}/health", timeout=5)
                return self
            except OSError:
                assert self.process.poll() is None, self.log.read_text()[-3000:]
                time.sleep(1)
        raise TimeoutError(self.log.read_text()[-3000:])

    def __exit__(self, *exc):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(timeout=60)

    def metric(self, name):
        """The sum of a metric over its labels."""
        page = urllib.request.urlopen(f"{self.address}/metrics").read().decode()
        values = re.findall(rf"^{name}(?:{{.*}})? ([0-9.e+-]+)$", page, re.MULTILINE)
        assert values, f"{name} is not in\n{page}"
        return sum(map(float, values))


async def ask(client, prompt, tokens, stop_after=None):
    """The text that comes back; with ``stop_after``, the client hangs up after so many chunks of it."""
    stream = await client.completions.create(
        model="reasoner",
        prompt=prompt,
        max_tokens=tokens,
        temperature=0,
        stream=True,
        extra_body={"ignore_eos": True},
    )
    chunks = []
    async for part in stream:
        chunks.append(part.choices[0].text)
        if stop_after is not None and len(chunks) == stop_after:
            await stream.close()
            break
    return "".join(chunks)


def drawn(count, seed):
    """(prompt, tokens, when to hang up) of random requests."""
    from beaconkv.evaluation import load_tasks

    rng = random.Random(seed)
    prompts = [problem.prompt for task in load_tasks("reasoning@0.66", count // 4, seed) for problem in task.problems]
    requests = []
    for prompt in prompts:
        prompt = prompt[: rng.choice([1, 9, 30, 60, 400])]
        tokens = rng.randrange(20, 260)
        requests.append((prompt, tokens, rng.randrange(1, tokens) if rng.random() < 0.2 else None))
    rng.shuffle(requests)
    return requests


def test_sixty_four_at_once_are_each_as_alone(tmp_path):
    import openai

    options = ["--budget", "96", "--dtype", "float32", "--block-size", "32", "--enforce-eager"]
    options += ["--max-model-len", "4096", "--num-gpu-blocks-override", str(BLOCKS), "--max-num-batched-tokens", "128"]
    requests = drawn(64, seed=3)
    assert sum(stop is not None for _, _, stop in requests) > 5
    with Server(tmp_path / "server.log", *options, "--max-num-seqs", "64") as server:
        client = openai.AsyncOpenAI(base_url=f"{server.address}/v1", api_key="none", max_retries=0, timeout=300)

        async def together():
            async def later(delay, request):
                await asyncio.sleep(delay)
                return await ask(client, *request)

            rng = random.Random(5)
            return await asyncio.gather(*(later(rng.random() * 2, request) for request in requests))

        async def alone():
            return [await ask(client, prompt, tokens) for prompt, tokens, _ in requests]

        async def both():
            results = await together()
            crowded = server.metric("vllm:num_preemptions_total")
            return results, crowded, await alone()

        texts, preemptions, expected = asyncio.run(both())
        assert preemptions > 3
        for (_, _, stop), text, whole in zip(requests, texts, expected, strict=True):
            if stop is None:
                assert text == whole
            else:
                assert text
                assert whole.startswith(text)
        assert len(set(expected)) > 40
        asyncio.run(ask(openai.AsyncOpenAI(base_url=f"{server.address}/v1", api_key="none"), "%", 1))
        assert server.metric("vllm:num_requests_running") == 0
        assert server.metric("vllm:kv_cache_usage_perc") == 0
        assert server.metric("beaconkv:evictions_total") > 300
        assert server.metric("beaconkv:tokens_seen_total") > 2 * sum(tokens for _, tokens, stop in requests if not stop)
        assert server.metric("beaconkv:running_seen_tokens") <= 2
        assert server.metric("beaconkv:state_bytes") > 0
    assert "Bounded cache: " in (tmp_path / "server.log").read_text()
