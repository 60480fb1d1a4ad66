"""Start vLLM's OpenAI server with a bounded cache, ask it from a client, and read its metrics.

Run (in an environment that has vLLM; `make test-vllm` makes one in .venv-vllm, see docs/serving.md):

    python examples/serve_and_client.py

The script needs no network. It takes about a minute, nearly all of it for the start of the server, which
listens on this machine only.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from tempfile import TemporaryDirectory

from beaconkv.evaluation import load_tasks

START_SECONDS = 180


@contextmanager
def server(*options: str) -> Iterator[str]:
    """Run ``beaconkv serve`` on a free port, and stop it at the end. Yields the address."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    command = [
        sys.executable,
        "-m",
        "beaconkv",
        "serve",
        "reasoner",
        *options,
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
    ]
    # One GiB of memory for the cache of a CPU; the model is in the package, so no hub is asked.
    environment = {"VLLM_CPU_KVCACHE_SPACE": "1", **os.environ, "HF_HUB_OFFLINE": "1"}
    with TemporaryDirectory() as folder, open(f"{folder}/server.log", "w+") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)
        try:
            address = f"http://127.0.0.1:{port}"
            if not answers(address, process):
                log.seek(0)
                raise RuntimeError(f"the server did not start; its log ends with\n{log.read()[-3000:]}")
            yield address
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=60)


def answers(address: str, process: subprocess.Popen) -> bool:
    """Wait until the server answers; False if it ended, or did not answer in time."""
    for _ in range(START_SECONDS):
        try:
            urllib.request.urlopen(f"{address}/health", timeout=5).close()
            return True
        except OSError:
            if process.poll() is not None:
                return False
            time.sleep(1)
    return False


def complete(address: str, prompt: str, max_tokens: int) -> dict:
    """Ask the OpenAI API for a completion. Any OpenAI client does the same with base_url=f"{address}/v1"."""
    body = {"model": "reasoner", "prompt": prompt, "max_tokens": max_tokens, "temperature": 0}
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{address}/v1/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=300) as answer:
        return json.load(answer)


def main() -> None:
    """Serve, ask, and show what the bounded cache did."""
    problem = load_tasks("plan@0.33", samples=1)[0].problems[0]
    # Options that `beaconkv serve` does not know go on to vLLM; these make a small server start quickly on a CPU.
    small = ("--dtype", "float32", "--block-size", "32", "--max-model-len", "4096", "--enforce-eager")
    with server("--budget", "192", *small) as address:
        answer = complete(address, problem.prompt, max_tokens=600)
        print("prompt: ", problem.prompt[:100], "...")
        print("written:", answer["choices"][0]["text"][:100], "...")
        print("tokens: ", answer["usage"]["prompt_tokens"], "+", answer["usage"]["completion_tokens"])
        # The metrics page has the counters of the bounded cache beside those of vLLM.
        page = urllib.request.urlopen(f"{address}/metrics", timeout=30).read().decode()
        for line in page.splitlines():
            if line.startswith("beaconkv"):
                print(line)


if __name__ == "__main__":  # the server is another process, which must not start one of its own
    main()
