"""Settings of a server, and what is refused before it starts."""

import json
import subprocess
import sys

import pytest

from beaconkv.integrations.vllm import WORKER, ServingSettings

from .engine import needs_vllm, reasoner


def test_settings_are_those_of_the_cache():
    settings = ServingSettings("rkv:code", 512, prefix=2, protect="half")
    assert settings.method.name == "rkv"
    assert vars(settings.schedule) | {"prefill_chunk": None} == dict(
        budget=512, budget_min=384, scope="total", prefix=2, protect=192, prefill_chunk=None, growth=0, early=0
    )


def test_a_spec_may_bring_its_own_budget():
    with pytest.raises(ValueError, match="growth=.* is not possible in vLLM"):
        ServingSettings("rpc:growing-1024")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (dict(policy="beaconkv"), "policy 'beaconkv' needs a budget"),
        (dict(policy="full"), "policy 'full' never evicts"),
        (dict(policy="full", budget=64), "policy 'full' never evicts"),
        (dict(policy="h2o", budget=64), "policy 'h2o' reads the entries at every step"),
        (dict(policy="nosuch", budget=64), "unknown policy 'nosuch'; choose from beaconkv"),
        (dict(budget=20), "budget=20, budget_min=17 leave no room"),
        (dict(budget="many"), "budget must be an integer >= 1"),
        (dict(budget=64, prefix="prompt"), 'prefix="prompt" is not possible in vLLM'),
        (dict(budget=64, scope="both"), "scope must be one of total, output"),
        (dict(budget=64, prefill_chunk=0), "prefill_chunk must be an integer >= 1"),
        (dict(bugdet=64), "there is no setting 'bugdet'"),
    ],
)
def test_settings_that_cannot_work(given, message):
    with pytest.raises(ValueError, match=message):
        ServingSettings.from_mapping(given)


def test_environment_and_back():
    settings = ServingSettings("beaconkv:n_recent=4", 256, 200, "output", 8, "half", 512)
    environment = settings.to_environment()
    assert environment["BEACONKV_BUDGET"] == "256"
    assert ServingSettings.from_environment({**environment, "PATH": "/bin", "BEACONKV_OPS": "fused"}) == settings
    assert ServingSettings.from_environment({"BEACONKV_OPS": "fused", "BEACONKV_BUDGET": ""}) is None
    with pytest.raises(ValueError, match="no setting 'bugdet'"):
        ServingSettings.from_environment({"BEACONKV_BUGDET": "64", "BEACONKV_POLICY": "rpc"})
    with pytest.raises(ValueError, match="no setting 'something'"):
        ServingSettings.from_environment({"BEACONKV_SOMETHING": "64"})
    assert ServingSettings.from_environment({"BEACONKV_SOMETHING": "64"}, strict=False) is None
    assert ServingSettings.without({**environment, "PATH": "/bin", "BEACONKV_OPS": "fused"}) == {
        "PATH": "/bin",
        "BEACONKV_OPS": "fused",
    }
    with pytest.raises(ValueError, match="budget must be an integer >= 1 or None, got 'many'"):
        ServingSettings.from_environment({"BEACONKV_BUDGET": "many"})


def serve(*options):
    command = [sys.executable, "-m", "beaconkv", "serve", "reasoner", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_the_command_says_what_it_would_start():
    done = serve("--budget", "128", "--policy", "rpc", "--show", "--max-model-len", "4096", "--set", "n_recent=8")
    assert done.returncode == 0, done.stderr
    assert "BEACONKV_POLICY=rpc:n_recent=8 BEACONKV_BUDGET=128 " in done.stdout
    assert f"--worker-cls {WORKER} --no-enable-prefix-caching --served-model-name reasoner" in done.stdout
    assert done.stdout.endswith(" --max-model-len 4096\n")
    assert "BEACONKV_BUDGET=2048 " in serve("--show").stdout


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--worker-cls", "x"], "--worker-cls is set by beaconkv serve"),
        (["--worker_cls=x"], "--worker-cls is set by beaconkv serve"),
        (["--additional-config", '{"beaconkv": {"budget": 512}}'], "are options of beaconkv serve"),
        (["--policy", "h2o"], "policy 'h2o' reads the entries"),
        (["--budgt", "128"], "no option --budgt: did you mean --budget?"),
        (["--enable-prefix-caching"], "does not work with prefix caching: leave out --enable-prefix-caching"),
        (["--budget", "12"], "leave no room"),
    ],
)
def test_the_command_refuses(options, message):
    done = serve(*options)
    assert done.returncode == 1
    assert message in done.stderr
    assert "Traceback" not in done.stderr


REFUSED = [
    (dict(enable_prefix_caching=True), {}, "prefix caching: start vLLM with --no-enable-prefix-caching"),
    (dict(kv_transfer_config=dict(kv_connector="ExampleConnector", kv_role="kv_both")), {}, "KV connectors"),
    (
        dict(speculative_config=dict(method="ngram", num_speculative_tokens=2, prompt_lookup_max=3)),
        {},
        "speculative decoding",
    ),
    (dict(pipeline_parallel_size=2, distributed_executor_backend="mp"), {}, "pipeline parallelism"),
    (dict(scheduler_reserve_full_isl=False), {}, "admission by the first chunk"),
    (dict(kv_cache_dtype="fp8"), {}, "--kv-cache-dtype fp8"),
    (dict(enable_lora=True), {}, "LoRA adapters"),
    (dict(additional_config={"beaconkv": {"budget": 64}}), {"budget": 96}, "and the environment says"),
    (dict(tensor_parallel_size=4, distributed_executor_backend="mp"), {}, "2 KV heads on 4 workers"),
    (
        dict(tensor_parallel_size=2, distributed_executor_backend="mp"),
        dict(policy="beaconkv:head_pool=all"),
        "head_pool=all pools over all heads",
    ),
]

CHECK = """
import json, os, sys
from vllm.engine.arg_utils import EngineArgs
from beaconkv.integrations.vllm.settings import ServingSettings
from beaconkv.integrations.vllm.server_checks import require_supported_config, settings_of
model, cases = json.load(sys.stdin)
messages = []
for engine, settings in cases:
    given = {"model": model, "dtype": "float32", "enable_prefix_caching": False} | engine
    config = EngineArgs(**given).create_engine_config()
    chosen = ServingSettings.from_mapping({"budget": 64} | settings)
    try:
        require_supported_config(config, chosen)
        if config.additional_config:
            os.environ.update(chosen.to_environment())
            settings_of(config)
        messages.append(None)
    except ValueError as error:
        messages.append(str(error))
json.dump(messages, open(sys.argv[1], "w"))
"""


@needs_vllm
def test_features_that_do_not_go_together_are_refused_by_name(tmp_path):
    """Real configurations of vLLM; the last one has nothing to refuse."""
    cases = [(engine, settings) for engine, settings, _ in REFUSED] + [({}, {})]
    result = tmp_path / "messages.json"
    done = subprocess.run(
        [sys.executable, "-c", CHECK, str(result)],
        input=json.dumps([reasoner(), cases]),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    messages = json.loads(result.read_text())
    for (_, _, expected), message in zip(REFUSED, messages, strict=False):
        assert message is not None, expected
        assert expected in message
    assert messages[-1] is None


@needs_vllm
def test_releases(monkeypatch):
    import vllm

    from beaconkv.integrations.vllm.server_checks import require_supported_release

    for version, fits in (("0.32.0", True), ("0.32.1+cpu", True), ("0.31.9", False), ("0.33.0rc1", False)):
        monkeypatch.setattr(vllm, "__version__", version)
        if fits:
            require_supported_release()
        else:
            with pytest.raises(ImportError, match=r"supports vLLM >=0.32,<0.33; found 0.3"):
                require_supported_release()
