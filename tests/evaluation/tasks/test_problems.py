import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from beaconkv.evaluation import Problem, load_problems
from tests.evaluation.data import rows


def write(path, lines):
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines), "utf-8")
    return path


def many(tmp_path, n=20):
    return write(tmp_path / "set.jsonl", [{"id": f"p{i}", "problem": f"{i} + 1?", "answer": i + 1} for i in range(n)])


@pytest.mark.parametrize("name", ["problem", "question", "prompt"])
def test_a_file_is_read(tmp_path, name):
    lines = [{"id": 7, name: "1 + 1?", "answer": 2, "level": 1}, "", {"id": "b", name: "½ é 东?", "answer": r"\frac12"}]
    assert load_problems(write(tmp_path / "a.jsonl", lines)) == [
        Problem("7", "1 + 1?", "2", {"level": 1}),
        Problem("b", "½ é 东?", r"\frac12", {}),
    ]


def test_fields_may_have_other_names(tmp_path):
    path = write(tmp_path / "a.jsonl", [{"uid": "x", "q": "1 + 1?", "problem": "unused", "final": "2"}])
    names = dict(prompt_field="q", answer_field="final", id_field="uid")
    assert load_problems(path, **names) == [Problem("x", "1 + 1?", "2", {"problem": "unused"})]


@given(st.lists(st.text(min_size=1).filter(str.strip), min_size=1, max_size=8, unique=True), st.randoms())
def test_made_ids_are_unique_and_follow_the_problem(tmp_path, texts, random):
    lines = [{"problem": text, "answer": "1"} for text in texts]
    before = {p.prompt: p.id for p in load_problems(write(tmp_path / "a.jsonl", lines))}
    random.shuffle(lines)
    after = {p.prompt: p.id for p in load_problems(write(tmp_path / "b.jsonl", lines))}
    assert before == after
    assert len(set(before.values())) == len(texts)


def test_limit_takes_the_first_or_a_sample(tmp_path):
    path = many(tmp_path)
    everything = load_problems(path)
    assert len(everything) == 20
    assert load_problems(path, limit=5) == everything[:5]
    sample = load_problems(path, limit=5, seed=1)
    assert sample == load_problems(path, limit=5, seed=1) == [p for p in everything if p in sample]
    assert len(sample) == 5
    assert sample != everything[:5]
    assert sample != load_problems(path, limit=5, seed=2)
    assert load_problems(path, limit=100, seed=1) == everything
    with pytest.raises(ValueError, match="limit must be at least 1, got 0"):
        load_problems(path, limit=0)


GOOD = {"id": "a", "problem": "1 + 1?", "answer": "2"}


@pytest.mark.parametrize(
    ("lines", "number", "message"),
    [
        ([], 1, "no problems"),
        (["", " "], 1, "no problems"),
        ([GOOD, "{"], 2, "not JSON"),
        ([GOOD, '{"problem": "x"} {"problem": "y"}'], 2, "not JSON"),
        ([GOOD, "[1]"], 2, "must be a JSON object, got list"),
        ([GOOD, "[" * 100_000], 2, "not JSON"),
        ([GOOD, {"text": "x", "answer": "2"}], 2, "none of the fields problem, question, prompt; it has text, answer"),
        ([GOOD, {"problem": "x", "solution": "2"}], 2, "no field 'answer'; it has problem, solution"),
        ([GOOD, {"problem": "x", "answer": " "}], 2, "'answer' is blank"),
        ([GOOD, {"problem": "", "answer": "2"}], 2, "'problem' is blank"),
        ([GOOD, {"problem": "x", "answer": None}], 2, "'answer' must be a text or a number, got None"),
        ([GOOD, {"problem": "x", "answer": True}], 2, "'answer' must be a text or a number, got True"),
        ([GOOD, "", {"id": "a", "problem": "x", "answer": "2"}], 3, "id 'a' is already in line 1"),
        ([GOOD, {"problem": "1 + 1?", "answer": "2"}], 2, r"problem '1 \+ 1\?' is already in line 1"),
    ],
)
def test_refusals_name_file_and_line(tmp_path, lines, number, message):
    path = write(tmp_path / "bad.jsonl", lines)
    with pytest.raises(ValueError, match=rf"bad\.jsonl:{number}: .*{message}"):
        load_problems(path)


def test_other_encodings_are_refused_and_a_byte_order_mark_is_not(tmp_path):
    (tmp_path / "latin.jsonl").write_bytes(json.dumps(GOOD, ensure_ascii=False).encode() + b'\n{"problem": "\xe9"}\n')
    with pytest.raises(ValueError, match=r"latin\.jsonl:2: not UTF-8"):
        load_problems(tmp_path / "latin.jsonl")
    (tmp_path / "mark.jsonl").write_bytes(b"\xef\xbb\xbf" + json.dumps(GOOD).encode())
    assert load_problems(tmp_path / "mark.jsonl") == [Problem("a", "1 + 1?", "2")]


@pytest.mark.parametrize("name", ["math500.jsonl", "aime24.jsonl", "aime25.jsonl", "gsm8k_test_100.jsonl"])
def test_real_sets(tmp_path, name):
    lines = rows(name)
    problems = load_problems(write(tmp_path / name, lines))
    assert [(p.prompt, p.answer) for p in problems] == [(row["problem"], row["answer"]) for row in lines]
