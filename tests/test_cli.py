"""The command line on a tiny saved model, as a person would call it."""

import json
import subprocess
import sys

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import PreTrainedTokenizerFast
from typer.testing import CliRunner

from beaconkv.cli.app import app
from beaconkv.units import human_bytes
from tests.tiny import tiny

PROMPT = " ".join(f"t{i}" for i in range(1, 25))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("model")
    model = tiny("qwen3")
    model.save_pretrained(path)
    tokenizer = Tokenizer(WordLevel({f"t{i}": i for i in range(model.config.vocab_size)}, unk_token="t0"))
    tokenizer.pre_tokenizer = Whitespace()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="t0", pad_token="t0")
    fast.chat_template = "{% for m in messages %}{{ m['content'] }} {% endfor %}"
    fast.save_pretrained(path)
    return str(path)


def run(*arguments, **kwargs):
    return CliRunner().invoke(app, [str(a) for a in arguments], catch_exceptions=False, **kwargs)


def test_generate_streams_text_and_says_what_the_cache_holds(folder):
    result = run("generate", PROMPT, "-m", folder, "--budget", 48, "--protect", 8, "--max-new-tokens", 90)
    assert result.exit_code == 0
    words = result.stdout.split()
    assert len([w for w in words if w.startswith("t")]) >= 80
    status = " ".join(result.stderr.split())
    assert "of 113 tokens" in status
    assert "evictions" in status
    assert "90 tokens," in status


def test_generate_json(folder):
    result = run(
        "generate", PROMPT, "-m", folder, "--budget", 48, "--protect", 8, "--max-new-tokens", 90, "--json",
        "--set", "n_recent=4", "--set", "query_pool=mean",
    )  # fmt: skip
    document = json.loads(result.stdout)
    assert document["prompt_tokens"] == 24
    assert document["new_tokens"] == len(document["text"].split()) == 90
    assert document["stats"]["evictions"] > 5
    assert document["policy"]["n_recent"] == 4
    assert document["policy"]["query_pool"] == "mean"
    assert document["schedule"]["budget"] == 48
    assert {"versions", "machine", "seed", "command", "time", "model"} <= set(document)


def test_generate_with_a_preset(folder):
    arguments = ("generate", PROMPT, "-m", folder, "--max-new-tokens", 180, "--json")
    document = json.loads(run(*arguments, "--policy", "rkv:code:n_recent=4", "--budget", 150).stdout)
    assert document["policy"]["redundancy_weight"] == 0.93
    assert document["policy"]["n_recent"] == 4
    assert document["policy"]["spec"] == "rkv:code:n_recent=4"
    chosen = {k: document["schedule"][k] for k in ("budget", "budget_min", "prefix", "protect")}
    assert chosen == dict(budget=150, budget_min=22, prefix=0, protect=8)
    assert document["stats"]["evictions"] == 1
    explicit = ("--policy", "h2o", "--budget", 48, "--protect", "half", "--prefix", 2, "--budget-min", 40)
    schedule = json.loads(run(*arguments, *explicit).stdout)["schedule"]
    assert (schedule["budget_min"], schedule["prefix"], schedule["protect"]) == (40, 2, 20)


def test_generate_reads_standard_input_and_files(folder, tmp_path):
    (tmp_path / "prompt.txt").write_text(PROMPT)
    common = ("-m", folder, "--max-new-tokens", 5, "--json")
    texts = {
        json.loads(run("generate", PROMPT, *common).stdout)["text"],
        json.loads(run("generate", *common, input=PROMPT).stdout)["text"],
        json.loads(run("generate", *common, "--prompt-file", tmp_path / "prompt.txt").stdout)["text"],
    }
    assert len(texts) == 1


def test_generate_says_when_nothing_was_evicted(folder):
    result = run("generate", PROMPT, "-m", folder, "--max-new-tokens", 5)
    assert "nothing was evicted: 28 tokens fit the budget of 2048" in " ".join(result.stderr.split())


def test_sampling_needs_one_seed_for_one_text(folder):
    def text(seed):
        arguments = ("--temperature", 0.9, "--seed", seed, "--max-new-tokens", 30, "--json")
        return json.loads(run("generate", PROMPT, "-m", folder, *arguments).stdout)["text"]

    assert text(1) == text(1) != text(2)


def test_full_policy_needs_no_budget(folder):
    document = json.loads(
        run("generate", PROMPT, "-m", folder, "--policy", "full", "--max-new-tokens", 5, "--json").stdout
    )
    assert document["schedule"]["budget"] is None


def test_policies():
    document = json.loads(run("policies", "--json").stdout)
    rows = {row["name"]: row for row in document["policies"]}
    assert rows["beaconkv"]["settings"]["n_beacon"] == 16
    assert rows["rkv"]["presets"]["code"]["settings"]["redundancy_weight"] == 0.93
    assert rows["rkv"]["presets"]["code"]["every"] == 128
    table = run("policies").stdout
    for name, row in rows.items():
        assert name in table
        for preset in row["presets"]:
            assert f"{name}:{preset}" in table


def test_plan(folder):
    arguments = ("plan", folder, "--budget", 64, "--length", 4096, "--memory", 0.01, "--dtype", "float32")
    document = json.loads(run(*arguments, "--json").stdout)
    assert document["plan"]["bytes_per_token"] == 2 * 3 * 2 * 16 * 4
    assert document["plan"]["batch_bounded"] > document["plan"]["batch_full"]
    table = " ".join(run(*arguments).stdout.split())
    assert "saves memory for sequences of" in table
    assert f"{document['plan']['break_even_length']:,} tokens on" in table
    grows = (*arguments, "--policy", "naive_fps")
    document = json.loads(run(*grows, "--json").stdout)
    assert document["plan"]["break_even_length"] == "never"
    assert document["plan"]["state_row"] > 3 * 6 * 4000 * 16 * 4
    table = " ".join(run(*grows).stdout.split())
    assert "never" in table
    assert "What naive_fps remembers grows by 1.1 KiB with each token." in table


def test_compare_writes_a_table_and_a_file(folder, tmp_path):
    out = tmp_path / "sub" / "compare.json"
    result = run("compare", "-m", folder, "--budget", 48, "--tokens", 40, "--out", out)
    document = json.loads(out.read_text())
    full, bounded = document["rows"][:2]
    assert full["stats"]["evictions"] == 0
    assert bounded["stats"]["evictions"] > 0
    assert bounded["stats"]["kv_bytes"] == bounded["stats"]["formula_bytes"]
    assert 0 < bounded["agreement"] <= 1
    assert len(bounded["same_until"]) == 3
    assert "beaconkv" in result.stdout


def test_compare_agreement_is_one_when_nothing_is_evicted(folder, tmp_path):
    out = tmp_path / "compare.json"
    run("compare", "-m", folder, "--budget", 4096, "--tokens", 30, "--policies", "beaconkv", "--out", out)
    row = json.loads(out.read_text())["rows"][1]
    assert row["agreement"] == 1.0
    assert row["same_until"] == [30, 30, 30]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("generate", "t1", "--budget", "10"), "error: budget=10"),
        (("generate", "t1", "--policy", "best"), "error: unknown policy 'best'; choose from"),
        (
            ("generate", "t1", "--set", "n_beacon"),
            "error: --set: 'n_beacon' is no setting=value; write --set setting=value",
        ),
        (
            ("generate", "t1", "--set", "beacons=3"),
            "error: policy 'beaconkv' has no setting 'beacons'; it has n_recent",
        ),
        (("generate", "  "), "error: the prompt is empty"),
        (("generate", "t1", "--temperature", "-1"), "error: temperature must be >= 0"),
        (("generate", "t1", "--prompt-file", "nowhere.txt"), "nowhere.txt"),
        (("generate", "t1", "--top-p", "7"), "error: top-p must be in (0, 1], got 7"),
        (("generate", "t1", "--prefix", "²"), "error: prefix must be an integer >= 0 or \"prompt\", got '²'"),
        (("compare", "--policies", "beaconkv,snap"), "error: unknown policy 'snap'"),
        (("compare", "--policies", "rkv:best"), "error: policy 'rkv' has no preset 'best'; it has paper, code"),
        (
            ("generate", "t1", "--policy", "rkv:paper", "--budget", "64"),
            "error: rkv:paper evicts once in every=128 steps, which budget=64 does not allow",
        ),
        (
            ("generate", "t1", "--policy", "rpc:growing-1024", "--budget", "64"),
            "error: rpc:growing-1024 has a schedule of its own: budget must be None or 1024, got 64",
        ),
        (("plan", "FOLDER", "--memory", "nan"), "error: memory_gib must be positive, got nan"),
        (("plan", "EMPTY"), "has no config.json"),
        (("plan", "nothing-known"), "error: unknown model 'nothing-known': choose a bundled one"),
        (("plan", "FOLDER", "--dtype", "int4"), "error: unknown dtype 'int4'; choose from float32"),
    ],
)
def test_errors_are_one_line_without_traceback(folder, tmp_path, arguments, message):
    arguments = [{"FOLDER": folder, "EMPTY": str(tmp_path)}.get(a, a) for a in arguments]
    if arguments[0] == "generate":
        arguments += ["-m", folder]
    done = subprocess.run([sys.executable, "-m", "beaconkv", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_long_paragraphs_keep_the_status_on_the_screen():
    """On a terminal, rows of a paragraph are printed as they fill; only the last row and the status are live."""
    from types import SimpleNamespace

    from rich.console import Console

    from beaconkv.cache import CacheStats
    from beaconkv.cli import live

    console = Console(force_terminal=True, width=40, height=8, record=True)
    original, live.console = live.console, console
    try:
        cache = SimpleNamespace(stats=CacheStats(700, 60, 64, 9, 1, 2048, 1024, 2048, 2048))
        with live.LiveText(None, cache, quiet=False) as streamer:
            for i in range(300):
                streamer.on_finalized_text(f"word{i} ")
                assert len(streamer.line) <= 40
            streamer.on_finalized_text("", stream_end=True)
    finally:
        live.console = original
    text = console.export_text()
    for i in range(300):
        assert f"word{i} " in text.replace("\n", " ")
    assert "9 evictions" in text


def test_version_and_help():
    assert run("--version").stdout.strip() == __import__("beaconkv").__version__
    shown = run("--help").stdout
    for command in ("generate", "policies", "plan", "demo", "compare", "eval", "fidelity", "figure"):
        assert command in shown
    for command in ("trace", "replay", "report"):
        assert command in shown


def test_units():
    assert [human_bytes(n) for n in (0, 1023, 1024, 5 << 20, 3 << 30, 5 << 40)] == [
        "0 B", "1023 B", "1.0 KiB", "5.0 MiB", "3.0 GiB", "5120.0 GiB",
    ]  # fmt: skip
