"""What an evaluation refuses, or warns of, before anything is computed."""

import json
import re
from dataclasses import replace

import pytest

from beaconkv.evaluation import load_tasks
from beaconkv.evaluation.answers.batch_size import free_bytes, row_bytes, rows_that_fit
from beaconkv.evaluation.answers.checks import check_answers, check_folder, check_prompts
from beaconkv.evaluation.answers.decoding import Sampling, write_answers
from beaconkv.evaluation.answers.run import Evaluation
from beaconkv.evaluation.answers.run_settings import run_settings
from beaconkv.evaluation.cells import make_cells
from beaconkv.evaluation.records.settings_file import write_settings
from tests.evaluation.answers.test_run import reasoner
from tests.tiny import tiny


def tasks(tmp_path, answers, grader="math"):
    path = tmp_path / "sums.jsonl"
    rows = [{"problem": f"Problem {i}.", "answer": answer, "id": f"p{i}"} for i, answer in enumerate(answers)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return load_tasks(f"{path}:{grader}", None)


@pytest.mark.parametrize(
    ("answer", "grader", "message"),
    [
        ("E", "choice", "answer 'E' is no choice; the choices are A, B, C, D"),
        ("1" * 1001, "math", "the known answer has 1001 characters; answers of 1 to 1000 characters are compared"),
        (r"\frac{1}{", "math", r"the braces of the known answer '\\frac{1}{' do not balance: no box can hold it"),
        ("2}{3", "math", "the braces of the known answer '2}{3' do not balance"),
        ("$$", "math", "the known answer has 0 characters"),
    ],
)
def test_answers_that_nothing_can_meet(tmp_path, answer, grader, message):
    with pytest.raises(ValueError, match=re.escape(f"task sums, problem 'p1': {message}")):
        check_answers(tasks(tmp_path, ["A", answer], grader))


def test_answers_that_only_the_same_characters_meet_are_told(tmp_path):
    good = ["12", "-3.5", "1,000", r"\frac{1}{2}", r"\boxed{7}", r"\text{east}", r"\{1, 2\}", "x^2 + 1", "B"]
    assert check_answers(tasks(tmp_path, good)) == []
    assert check_answers(tasks(tmp_path, good, "exact")) == []
    (said,) = check_answers(tasks(tmp_path, [*good, "東京", "x^2+"]))
    assert said.startswith("task sums: 2 known answers cannot be read as mathematics")
    assert "'東京' of problem 'p9'" in said


def test_reasoning_tasks_judge_themselves():
    assert check_answers(load_tasks("reasoning@0.1", 2)) == []


def test_math_verify_is_asked_for_before_the_model(tmp_path, monkeypatch):
    """As on a machine where it is not installed."""
    from beaconkv.evaluation.grading import equivalence

    monkeypatch.setattr(equivalence, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"needs math-verify: pip install 'beaconkv\[eval\]'"):
        check_answers(tasks(tmp_path, ["12"]))
    assert check_answers(tasks(tmp_path, ["12"], "exact")) == []


def test_the_settings_of_a_folder_are_compared_as_far_as_they_are_known(tmp_path):
    drawn, sampling = load_tasks("plan@0.2", 2), Sampling(40)
    settings = run_settings(drawn, sampling, 0, {"protect": 8, "prefix": None})
    check_folder(tmp_path / "new", settings)
    write_settings(tmp_path / "run.json", {"weights": "abc", "record_key": ["run"], **settings})
    check_folder(tmp_path, settings)
    for other, message in [
        (run_settings(drawn, sampling, 1, {"protect": 8}), "seed was 0, is 1"),
        (run_settings(drawn, replace(sampling, top_p=0.5), 0, {"protect": 8}), "sampling.top_p was 1.0, is 0.5"),
        (run_settings(drawn, sampling, 0), "schedule.protect was 8, is 'not set'"),
        (run_settings(load_tasks("plan@0.2", 3), sampling, 0, {"protect": 8}), "tasks.plan@0.2 was"),
    ]:
        with pytest.raises(ValueError, match=f"run.json is of another run: .*{message}"):
            check_folder(tmp_path, other)


def test_prompts_that_a_budget_leaves_no_room_for():
    cells = make_cells(["full", "streaming_llm"], [64], prefix="prompt")
    evaluation = Evaluation(reasoner(), load_tasks("plan@0.2", 2), cells, Sampling(8))
    longest = max(map(len, evaluation.prompts.values()))
    with pytest.raises(ValueError, match=r"streaming_llm at 64, task plan@0.2, problem 'plan@0.2/0/\d': prompt of"):
        check_prompts(evaluation)
    roomy = make_cells(["streaming_llm"], [2 * longest], prefix="prompt")
    assert check_prompts(Evaluation(reasoner(), load_tasks("plan@0.2", 2), roomy, Sampling(8))) == []


def test_texts_longer_than_the_model_was_made_for():
    evaluation = Evaluation(reasoner(), load_tasks("plan@0.2", 2), make_cells(["full"], []), Sampling(8))
    prompt = max(map(len, evaluation.prompts.values()))
    config = evaluation.model.config
    before, config.max_position_embeddings = config.max_position_embeddings, prompt + 7
    try:
        (said,) = check_prompts(evaluation)
        assert f"the longest prompt has {prompt} tokens and an answer may have 8" in said
        assert f"made for {prompt + 7} together" in said
        config.max_position_embeddings = prompt + 8
        assert check_prompts(evaluation) == []
    finally:
        config.max_position_embeddings = before


@pytest.mark.parametrize("policy", ["full", "beaconkv", "streaming_llm", "h2o", "kmeans_centroid"])
@pytest.mark.parametrize("scope", ["total", "output"])
def test_bytes_of_a_row_are_those_it_comes_to(policy, scope):
    """Reckoned from a prompt and a few tokens; compared with rows that were written to the end."""
    model, tokens = tiny("qwen3"), 250
    (cell,) = make_cells([policy], [128], scope=None if policy == "full" else scope)
    with cell.new_cache(model) as cache:
        write_answers(model, [[5] * 90] * 2, cache, Sampling(tokens), [0, 1], [], 0, lambda written: None)
        really = (cache.stats.kv_bytes + cache.stats.state_bytes) / 2
    assert 0.9 * really <= row_bytes(model, cell, 90, tokens) <= 2 * really


def test_rows_that_fit(monkeypatch):
    from beaconkv.evaluation.answers import batch_size

    model = tiny("qwen3")
    full, small = make_cells(["full", "streaming_llm"], [128])
    assert free_bytes(model.device) > 1 << 20
    assert rows_that_fit(model, small, 90, 700) == batch_size.CPU_ROWS
    monkeypatch.setattr(batch_size, "free_bytes", lambda device: 20 * row_bytes(model, full, 90, 700))
    assert rows_that_fit(model, full, 90, 700) == 10
    assert rows_that_fit(model, small, 90, 700) == batch_size.CPU_ROWS
    monkeypatch.setattr(batch_size, "free_bytes", lambda device: 0)
    assert rows_that_fit(model, full, 90, 700) == 1
