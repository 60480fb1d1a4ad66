"""The full cache against small ones on a few word problems."""

from transformers import AutoTokenizer

from beaconkv.evaluation.answers import word_problems
from beaconkv.evaluation.answers.word_problems import compare_on_problems
from beaconkv.models import LoadedModel
from tests.test_cli import folder  # noqa: F401
from tests.tiny import tiny


def test_a_budget_that_is_never_reached_changes_nothing_and_a_small_one_is_counted(folder, monkeypatch):  # noqa: F811
    monkeypatch.setattr(word_problems, "WORD_PROBLEMS", ("t1 t2 t3 t4", "t5 t6 t7 t8 t9 t10 t11"))
    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
    loaded, steps = LoadedModel(tiny("qwen3"), tokenizer), []
    stages = []

    def stage(what):
        stages.append(what)
        return lambda: steps.append(what)

    result = compare_on_problems(loaded, ["beaconkv", "streaming_llm"], 500, 20, model="tiny", stage=stage)
    full, *others = result["rows"]
    assert (full["policy"], full["budget"], full["tokens"]) == ("full", None, 40)
    assert result["prompt_tokens"] == [4, 7]
    for row in others:
        assert (row["same_until"], row["agreement"], row["stats"]["evictions"]) == ([20, 20], 1.0, 0)
    assert len(stages) == 5
    assert all(steps.count(what) == 20 for what in stages)
    small = compare_on_problems(loaded, ["recent"], 44, 60, model="tiny")["rows"][1]
    assert small["stats"]["evictions"] > 0
    assert small["stats"]["entries"] <= 44
