"""From a JSONL file to prompts and continuations."""

import json

import pytest

from beaconkv.evaluation.fidelity.texts import Text, read_rows, tokenize


class Letters:
    """A tokenizer of letters; 1 opens whatever is encoded with special tokens."""

    chat_template = "yes"

    def __call__(self, text, add_special_tokens=True):
        return {"input_ids": [1] * add_special_tokens + [ord(c) for c in text]}

    def apply_chat_template(self, messages, tokenize, add_generation_prompt):
        return f"<{messages[0]['content']}>" + "!" * add_generation_prompt


def write(path, *rows):
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows))
    return path


def test_problems_and_plain_texts(tmp_path):
    path = write(
        tmp_path / "t.jsonl",
        {"problem": "ab", "response": "cdef", "id": "p/1"},
        "",
        {"text": "ghijkl"},
        {"text": "z" * 9},
    )
    rows = read_rows(path, 2)
    chat, plain = tokenize(rows, Letters(), 7, 3)
    assert chat == Text("p/1", tuple(map(ord, "<ab>!cd")), 5)
    assert plain == Text("line 3", (1, *map(ord, "ghijkl")), 3)
    bare = Letters()
    bare.chat_template = None
    assert tokenize(rows, bare, None, 3)[0] == Text("p/1", (1, *map(ord, "abcdef")), 3)
    assert len(read_rows(path)) == 3


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (["{"], "line 1: no JSON"),
        (["[1]"], 'line 1: needs strings "problem" and "response", or "text"'),
        ([{"text": "a"}, {"problem": "a"}], "line 2: needs"),
        ([{"text": 3}], "line 1: needs"),
        ([""], "holds no text"),
    ],
)
def test_bad_files_are_refused(tmp_path, rows, message):
    with pytest.raises(ValueError, match=message):
        read_rows(write(tmp_path / "t.jsonl", *rows))


def test_a_text_without_continuation_is_named(tmp_path):
    rows = read_rows(write(tmp_path / "t.jsonl", {"text": "abc", "id": 7}))
    with pytest.raises(ValueError, match="text '7': a prompt of 4 out of 4 tokens"):
        tokenize(rows, Letters(), None, 4)
    with pytest.raises(ValueError, match="samples must be at least 1"):
        read_rows(tmp_path / "t.jsonl", 0)
