"""``beaconkv trace``, ``replay`` and ``report``, as a person would call them."""

import io
import json
import re

import pytest
from rich.console import Console

from beaconkv.analysis.trace import Trace
from beaconkv.analysis.trace_file import TraceError
from beaconkv.cli.replay import _restored_table
from tests.test_cli import folder, run  # noqa: F401

WORDS = " ".join(f"t{1 + (i * i + 7) % 60}" for i in range(150))
SMALL = ("--prefix", 2, "--protect", 6)


@pytest.fixture
def trace(folder, tmp_path):  # noqa: F811
    texts = tmp_path / "texts.jsonl"
    texts.write_text(
        "\n".join(json.dumps(r) for r in ({"text": "t1 t2 t3 t4"}, {"problem": WORDS[:60], "response": WORDS}))
    )
    path = tmp_path / "a.trace"
    result = run("trace", "record", "-m", folder, "--texts", texts, "--row", 1, "--tokens", 130, "--out", path)
    assert result.exit_code == 0, result.stderr
    assert "writing" in result.stderr
    assert "130 tokens" in " ".join(result.stdout.split())
    return path


def test_a_given_text_is_recorded(trace, folder):  # noqa: F811
    opened = Trace(trace)
    assert (len(opened), opened.info.model, opened.info.has_values) == (130, str(folder), False)
    assert "".join(opened.info.pieces).startswith(WORDS[:20])
    assert {"command", "versions", "machine", "seed"} <= set(opened.info.provenance)
    info = json.loads(run("trace", "info", trace, "--json").stdout)
    assert info["num_tokens"] == 130
    assert "pieces" not in info


def test_a_text_that_the_model_writes(folder, tmp_path):  # noqa: F811
    path = tmp_path / "b.trace"
    common = ("trace", "record", "-m", folder, "--prompt", "t5 t9 t2", "--max-new-tokens", 20)
    more = ("--layers", "0,2", "--kv-heads", 1, "--values", "--store", "float16")
    assert run(*common, *more, "--out", path).exit_code == 0
    opened = Trace(path)
    assert (opened.info.layers, opened.info.kv_heads, opened.info.dtype) == ([0, 2], [1], "float16")
    assert len(opened) == opened.info.prompt_length + 20
    again = tmp_path / "c.trace"
    assert run(*common, *more, "--out", again).exit_code == 0
    assert Trace(again).tokens == opened.tokens


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "choose one of --prompt, --task and --texts; got none"),
        (("--prompt", "a", "--task", "plan"), "got --prompt, --task"),
        (("--task", "machine,plan"), "choose one task"),
        (("--task", "nonsense"), "nonsense"),
        (("--texts", "{texts}", "--row", 5), "has 1 texts; row must be below that, got 5"),
        (("--prompt", "t1", "--layers", "x"), "layers are whole numbers"),
        (("--prompt", "t1", "--layers", "9", "--max-new-tokens", 2), "layer 9: choose from 0, 1, 2"),
        (("--prompt", "t1", "--row", -1), "row must be at least 0"),
        (("--texts", "{texts}", "--tokens", -5), "tokens must be at least 1"),
        (("--prompt", "t1", "--kv-heads", 7), "KV head 7: choose from 0, 1"),
    ],
)
def test_what_cannot_be_recorded_is_said(folder, tmp_path, arguments, message):  # noqa: F811
    texts = tmp_path / "one.jsonl"
    texts.write_text(json.dumps({"text": WORDS}))
    arguments = [str(a).replace("{texts}", str(texts)) for a in arguments]
    with pytest.raises(ValueError, match=re.escape(message)):
        run("trace", "record", "-m", folder, "--out", tmp_path / "x.trace", *arguments)
    assert not (tmp_path / "x.trace").exists()


def test_looking_writes_numbers_and_pictures(trace, tmp_path):
    out = tmp_path / "sub" / "look"
    result = run("trace", "look", trace, "--top-keys", 10, "--distance", 20, "--out", out)
    assert result.exit_code == 0, result.stderr
    document = json.loads((out / "diagnosis.json").read_text())
    assert {"versions", "machine", "command", "global_share", "clusters"} <= set(document)
    assert f"{100 * document['global_share']:.1f}% of queries are global" in " ".join(result.stdout.split())
    for name in ("frequency", "attention", "cosines", "clusters"):
        assert (out / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    chosen = run("trace", "look", trace, "--layer", 1, "--head", 2, "--out", out, "--json")
    assert json.loads(chosen.stdout)["distance"] == 200
    for arguments, message in (
        (("--layer", 1), "layer and head together"),
        (("--layer", 8, "--head", 0), "layer 8 was not recorded"),
        (("--layer", 1, "--head", 77), "head 77 was not recorded"),
        (("--start", 90, "--stop", 20), "choose a range"),
    ):
        with pytest.raises(ValueError, match=message):
            run("trace", "look", trace, *arguments)


def test_replaying_tells_every_eviction(trace, tmp_path):
    out = tmp_path / "replay"
    common = ("replay", trace, "--policies", "beaconkv,streaming_llm", "--budgets", "40,56", *SMALL, "--out", out)
    result = run(*common, "--restore", 2, "--window", 10)
    assert result.exit_code == 0, result.stderr
    document = json.loads((out / "replay.json").read_text())
    assert [(row["policy"], row["budget"]) for row in document["rows"]] == [
        ("beaconkv", 40), ("beaconkv", 56), ("streaming_llm", 40), ("streaming_llm", 56),
    ]  # fmt: skip
    for row, events, restored in zip(document["rows"], document["events"], document["restored"], strict=True):
        assert row["evictions"] == len(events["events"]) > 5
        assert 0 <= row["bound"] <= row["oracle"] <= row["lost"]
        assert len(restored["entries"]) == 2
        assert restored["kl_evicted"] > 0
        assert restored["window"] == 10
        place = restored["entries"][0]
        assert place["dropped_in"] >= 1
        assert place["missed"] >= restored["entries"][1]["missed"]
        assert f"{restored['kl_evicted']:.4f}" in " ".join(result.stdout.split())
    assert document["schedules"][0]["prefix"] == 2
    assert (out / "replay.png").read_bytes().startswith(b"\x89PNG")
    again = json.loads(run(*common, "--json").stdout)
    assert again["rows"] == document["rows"]
    assert "restored" not in again


def test_it_says_when_nothing_was_evicted(trace, tmp_path):
    result = run("replay", trace, "--policies", "beaconkv", "--budgets", 500, "--out", tmp_path, "--restore", 1)
    assert result.exit_code == 0, result.stderr
    assert "nothing was evicted: 130 tokens fit the budget of 500" in " ".join(result.stderr.split())


@pytest.mark.parametrize("command", [("trace", "info"), ("trace", "look"), ("replay",), ("report",)])
def test_a_damaged_trace_is_refused_by_name(command, trace, tmp_path):
    bad = tmp_path / "bad.trace"
    bad.write_bytes(trace.read_bytes()[:-7])
    with pytest.raises(TraceError, match=r"bad\.trace is no trace, or it is damaged"):
        run(*command, bad)
    with pytest.raises(FileNotFoundError, match="No such file"):
        run(*command, tmp_path / "none.trace")


@pytest.mark.parametrize("policies", ["beaconkv,recent", "none"])
def test_a_page_is_one_file(trace, tmp_path, policies):
    out = tmp_path / "sub" / "page.html"
    common = ("report", trace, "--top-keys", 10, "--distance", 20, "--budgets", 64)
    result = run(*common, "--policies", policies, "--heads", 4, "--out", out)
    assert result.exit_code == 0, result.stderr
    assert "</html>" in out.read_text()
    with pytest.raises(ValueError, match="heads must be at least 1"):
        run(*common, "--heads", 0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--restore", -1), "restore must be at least 0"),
        (("--restore", 1, "--window", 0), "window must be at least 1"),
        (("--event", 3), "give --restore, too"),
    ],
)
def test_numbers_out_of_range_are_refused(trace, arguments, message):
    with pytest.raises(ValueError, match=message):
        run("replay", trace, "--policies", "beaconkv", "--budgets", 40, *SMALL, *arguments)


def test_an_eviction_after_the_last_token(trace, tmp_path):
    """Nothing comes after it: nothing is lost, and nothing can be put back."""
    common = ("--policies", "recent", "--budgets", 130)
    result = run("replay", trace, *common, "--restore", 1, "--out", tmp_path / "replay")
    assert result.exit_code == 0
    document = json.loads((tmp_path / "replay" / "replay.json").read_text())
    assert document["rows"][0]["evictions"] == 1
    assert document["restored"][0]["entries"] == []
    run("report", trace, *common, "--top-keys", 10, "--distance", 20, "--out", tmp_path / "page.html")
    assert "the first eviction came after the last token" in (tmp_path / "page.html").read_text()


def test_tokens_that_look_like_markup():
    table = _restored_table(
        {
            "policy": "recent", "budget": 40, "event": 1, "step": 9, "window": 5, "kl_evicted": 0.1, "kl_before": 0.0,
            "entries": [{"position": 3, "text": "[/INST]", "dropped_in": 2, "missed": 0.5, "kl_restored": 0.0}],
        }
    )  # fmt: skip
    shown = Console(width=200, file=io.StringIO())
    shown.print(table)
    assert "'[/INST]'" in shown.file.getvalue()
