"""``beaconkv fidelity`` on a tiny saved model, as a person would call it."""

import json

import pytest

from tests.test_cli import folder, run  # noqa: F401

WORDS = [" ".join(f"t{1 + (i * i + 7 * row) % 60}" for i in range(150)) for row in range(3)]


@pytest.fixture
def texts(tmp_path):
    path = tmp_path / "texts.jsonl"
    rows = [{"id": "a", "problem": WORDS[0][:60], "response": WORDS[1]}, {"text": WORDS[1]}, {"text": WORDS[2]}]
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def arguments(model, texts, out, *more):
    settings = ("--policies", "beaconkv,recent:16", "--budgets", "40,64", "--protect", 8, "--prompt-tokens", 20)
    return ("fidelity", "-m", model, "--texts", texts, "--out", out, *settings, *more)


def test_a_table_a_markdown_file_and_json(folder, texts, tmp_path):  # noqa: F811
    out = tmp_path / "sub" / "out"
    result = run(*arguments(folder, texts, out, "--against", "recent:16", "--tokens", 130, "--prefix", 2))
    assert result.exit_code == 0
    table = " ".join(result.stdout.split())
    assert "3 texts" in table
    document = json.loads((out / "fidelity.json").read_text())
    assert [(r["policy"], r["budget"], r["texts"]) for r in document["rows"]] == [
        ("beaconkv", 40, 3), ("beaconkv", 64, 3), ("recent:16", 40, 3), ("recent:16", 64, 3),
    ]  # fmt: skip
    assert {"versions", "machine", "seed", "command", "time", "model", "dtype", "texts"} <= set(document)
    assert {r["text"]: r["tokens"] for r in document["records"]} == {"a": 113, "line 2": 110, "line 3": 110}
    assert {(r["schedule"]["prefix"], r["schedule"]["protect"]) for r in document["records"]} == {(2, 8)}
    for row in document["rows"]:
        assert row["kl"]["low"] <= row["kl"]["mean"] <= row["kl"]["high"]
        assert row["evictions"] > 5
    first = document["rows"][0]
    assert first["difference"]["kl"]["mean"] == pytest.approx(first["kl"]["mean"] - document["rows"][2]["kl"]["mean"])
    lines = (out / "fidelity.md").read_text().splitlines()
    assert [line.count("|") for line in lines[2:8]] == [14] * 6
    assert f"{first['kl']['mean']:.3f} [" in lines[4]
    assert f"{first['kl']['mean']:.3f} [" in table


def test_a_second_run_measures_nothing_again(folder, texts, tmp_path):  # noqa: F811
    first = json.loads(run(*arguments(folder, texts, tmp_path / "out", "--samples", 2, "--json")).stdout)
    again = json.loads(run(*arguments(folder, texts, tmp_path / "out", "--samples", 3, "--json")).stdout)
    old = [r for r in again["records"] if r["text"] in ("a", "line 2")]
    assert old == first["records"]  # their times too
    assert len(again["records"]) == 12
    assert len((tmp_path / "out" / "records.jsonl").read_text().splitlines()) == 12


def test_it_says_when_nothing_was_evicted(folder, texts, tmp_path):  # noqa: F811
    common = ("fidelity", "-m", folder, "--texts", texts, "--out", tmp_path, "--prompt-tokens", 20, "--tokens", 60)
    result = run(*common, "--policies", "full,beaconkv", "--budgets", "64")
    said = " ".join(result.stderr.split())
    assert said.count("nothing was evicted") == 1
    assert "the texts fit the budget of 64 (beaconkv)" in said
    assert "100.0%" in result.stdout


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--policies", "best"), "unknown policy 'best'; choose from"),
        (("--budgets", "30"), "budget=30, budget_min=26 leave no room"),
        (("--budgets", "many"), "budgets are whole numbers, with commas between them; got 'many'"),
        (("--against", "recent"), "against must be one of the policies beaconkv; got 'recent'"),
        (("--dtype", "int4"), "unknown dtype 'int4'"),
        (("--rows", "0"), "rows must be at least 1"),
        (("--tokens", "0"), "tokens must be at least 1"),
        (("--texts", "nowhere.jsonl"), "nowhere.jsonl"),
        (("--prefix", "some"), "prefix must be an integer >= 0"),
    ],
)
def test_errors_come_before_the_model_is_loaded(texts, tmp_path, more, message):
    common = ("fidelity", "-m", "no-such-model", "--texts", texts, "--policies", "beaconkv", "--out", tmp_path / "out")
    with pytest.raises((ValueError, OSError)) as raised:
        run(*common, *more)
    assert message in str(raised.value)
    assert not (tmp_path / "out").exists()
