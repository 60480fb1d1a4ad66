"""``beaconkv serve``."""

from __future__ import annotations

import difflib
import importlib.util
import os
import shlex
import signal
import subprocess
import sys
from tempfile import TemporaryDirectory

import typer

from .common import add_settings, messages, parse_count, report
from .options import BUDGET_MIN, SCOPE, SETTING

SERVER = "vllm.entrypoints.openai.api_server"
METRICS = "PROMETHEUS_MULTIPROC_DIR"
OWN = ("--policy", "--budget", "--budget-min", "--scope", "--protect", "--prefill-chunk")
"""Our options, for suggestions after a typing error."""


def serve(
    context: typer.Context,
    model: str = typer.Argument(help="Name of the model: bundled, a local folder or a hub name."),
    policy: str = typer.Option("beaconkv", help="Method, or method:preset; `beaconkv policies` lists them."),
    budget: int | None = typer.Option(None, help="B_max, number of entries per layer and KV head. Default: 2048."),
    budget_min: int | None = typer.Option(None, help=BUDGET_MIN),
    scope: str | None = typer.Option(None, help=SCOPE),
    prefix: str | None = typer.Option(
        None, help="Number of first entries never evicted. Default: the method's, mostly 4."
    ),
    protect: str | None = typer.Option(
        None, help='Number of last entries never evicted, or "half" of what stays. Default: the method\'s, mostly 32.'
    ),
    prefill_chunk: int | None = typer.Option(
        None,
        help="Number of prompt tokens per chunk; an eviction may follow each. Default: vLLM's max-num-batched-tokens.",
    ),
    settings: list[str] = typer.Option([], "--set", help=SETTING),
    show: bool = typer.Option(False, "--show", help="Show the command and its environment, and start nothing."),
) -> None:
    """Start vLLM's OpenAI server with a bounded cache; prefix caching is off.

    Other options are passed on to vLLM: --port 8001, --max-model-len 65536, ... See docs/serving.md.
    """
    from ..integrations.vllm import WORKER, ServingSettings
    from ..models.load import resolve
    from ..policies import parse_policy

    spec = add_settings(policy, settings)
    if budget is None and parse_policy(spec).budget is None:
        budget = 2048
    ends = {"prefix": prefix, "protect": protect}
    chosen = ServingSettings(
        spec,
        budget,
        budget_min,
        scope,
        **{name: None if end is None else parse_count(end) for name, end in ends.items()},
        prefill_chunk=prefill_chunk,
    )
    given = [argument.split("=")[0].replace("_", "-") for argument in context.args]
    for option, argument in zip(given, context.args, strict=True):
        if option in ("--worker-cls", "--model"):
            raise ValueError(f"{option} is set by beaconkv serve: leave it out")
        if option == "--enable-prefix-caching":
            raise ValueError(f"a bounded cache does not work with prefix caching: leave out {option}")
        if close := difflib.get_close_matches(option, OWN, 1, 0.85):
            raise ValueError(f"there is no option {option}: did you mean {close[0]}?")
        if '"beaconkv"' in argument or option.startswith("--additional-config.beaconkv"):
            raise ValueError(f"settings of the bounded cache are options of beaconkv serve: leave out {argument}")
    place, _ = resolve(model, report)
    options = ["--model", place, "--worker-cls", WORKER, "--no-enable-prefix-caching"]
    if "--served-model-name" not in given:
        options += ["--served-model-name", model]
    command = [sys.executable, "-m", SERVER, *options, *context.args]
    variables = chosen.to_environment()
    if show:
        print(" ".join(f"{name}={shlex.quote(value)}" for name, value in variables.items()), shlex.join(command))
        return
    if importlib.util.find_spec("vllm") is None:
        raise ImportError("vLLM is not installed here: docs/serving.md names the releases that beaconkv supports")
    messages.print(f"bounded cache: {chosen.describe()}")
    for name, value in variables.items():
        messages.print(f"[dim]{name}={value}[/dim]")
    messages.print(f"[dim]{shlex.join(command)}[/dim]", soft_wrap=True)
    with TemporaryDirectory(prefix="beaconkv-metrics-") as folder:
        environment = {METRICS: folder, **ServingSettings.without(os.environ), **variables}
        sys.exit(_run(command, environment))


def _run(command: list[str], environment: dict[str, str]) -> int:
    """Run the server. Stopping this process stops the server."""
    process = subprocess.Popen(command, env=environment)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda received, frame: process.send_signal(received))
    code = process.wait()
    return 128 - code if code < 0 else code
