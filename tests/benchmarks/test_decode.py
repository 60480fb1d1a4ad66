"""What the decode benchmark runs and reports. No figure is looked at."""

import pytest

from beaconkv.policies import parse_policy

PAPER = {
    "table4-full": {("full", 2048, 14), ("beaconkv", 2048, 14)},
    "table4-2k": {("rpc", 2048, 192), ("beaconkv", 2048, 192)},
    "table4-1k": {("rpc", 1024, 320), ("beaconkv", 1024, 320)},
    "table5": {("snapkv", 1024, 320), ("rpc", 1024, 320), ("beaconkv", 1024, 320)},
}
"""(method, budget, batch) of each block of the paper's system tables: one A100 of 80 GB, Qwen3-4B, 32K tokens."""

TINY = ["--model", "random:tiny", "--batch", "2", "--prompt", "20", "--budget", "64", "--phase-steps", "4"]


@pytest.fixture
def decode(scripts):
    return scripts("decode")


def test_the_presets_are_the_blocks_of_the_papers_tables(decode):
    assert set(decode.PRESETS) == set(PAPER)
    for name, cells in PAPER.items():
        options = decode.parse(["--preset", name])
        assert {(policy, options.budget, options.batch) for policy in options.policies.split(",")} == cells
        assert (options.model, options.dtype, options.device) == ("random:qwen3-4b", "bfloat16", "cuda")
        assert options.text == 32768
        assert not options.fill
        fills = [int(fill) for fill in options.fills.split(",")]
        if "full" in options.policies:  # the curve of what grows reaches the end of the text
            assert fills[-1] + options.tokens <= options.text <= fills[-1] / 0.99
        else:
            assert fills[-1] >= 1.5 * options.budget
        for policy in options.policies.split(","):
            parse_policy(policy)


def test_a_curve_along_the_text(decode):
    """Every method is measured where it was asked for, and the bounded one over whole cycles of evictions."""
    more = ["--text", "300", "--fills", "0,100,280", "--tokens", "5", "--policies", "dynamic,full,beaconkv"]
    options = decode.parse([*TINY, *more])
    rows = {row["policy"]: row for row in decode.measure(options)}
    for name in ("dynamic", "full"):
        assert [length for length, _ in rows[name]["curve"]] == [22, 122, 302]
    assert [length for length, _ in rows["beaconkv"]["curve"]] == [22, 120 + 3.5, 300 + 3.5]
    assert rows["beaconkv"]["stats"]["tokens_seen"] == 300 + 8
    for row in rows.values():
        ms = [ms for _, ms in row["curve"]]
        assert 0.3 * min(ms) - 0.01 <= row["text_seconds"] <= 0.3 * max(ms) + 0.01
        assert row["text_tokens_per_second"] == pytest.approx(2 * 300 / row["text_seconds"], rel=0.05)


def test_the_whole_text(decode):
    options = decode.parse([*TINY, "--text", "60", "--whole", "--policies", "beaconkv"])
    (row,) = decode.measure(options)
    assert row["stats"]["tokens_seen"] == 20 + 60
    assert "curve" not in row
    assert row["text_tokens_per_second"] == pytest.approx(row["tokens_per_second"], rel=0.05)


@pytest.mark.parametrize("policy", ["full", "dynamic", "naive_fps"])
def test_a_growing_cache_measured_too_early_gives_no_rate(decode, policy):
    options = decode.parse([*TINY, "--text", "3000", "--fills", "0,50,100", "--tokens", "3", "--policies", policy])
    with pytest.raises(SystemExit, match=f"nothing is reported of {policy}: the cache still grows at 12"):
        decode.measure(options)


@pytest.mark.parametrize("wrong", [["--whole"], ["--text", "9", "--fill", "3"], ["--text", "9", "--compiled"]])
def test_options_that_contradict_each_other(decode, wrong, capsys):
    with pytest.raises(SystemExit):
        decode.parse(wrong)
    assert "--text" in capsys.readouterr().err
