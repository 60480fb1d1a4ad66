"""The example of a server and its client, run as its docstring says."""

import re
import subprocess
import sys
from pathlib import Path

from .engine import needs_vllm

pytestmark = needs_vllm
EXAMPLE = Path(__file__).parents[3] / "examples" / "serve_and_client.py"


def test_example_serves_and_asks():
    done = subprocess.run([sys.executable, EXAMPLE], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    tokens = re.search(r"^tokens: +(\d+) \+ (\d+)$", done.stdout, re.MULTILINE)
    assert tokens, done.stdout
    assert int(tokens[2]) > 192, "the text is shorter than the budget: nothing had to be evicted"
    evictions = re.search(r"^beaconkv:evictions_total(?:{.*})? ([0-9.e+]+)$", done.stdout, re.MULTILINE)
    assert evictions, done.stdout
    assert float(evictions[1]) > 0
