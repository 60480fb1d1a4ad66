"""Files that grow by lines: what a journal has in common with the samples of an evaluation."""

import json
import os
import subprocess
import sys

import pytest

from beaconkv.evaluation.fidelity.journal import Journal
from beaconkv.evaluation.records.line_file import LineFile


def test_a_journal_goes_on_after_a_line_that_was_cut_off(tmp_path):
    path = tmp_path / "new" / "records.jsonl"
    with Journal(path) as journal:
        journal.append({"key": "a", "n": 1})
        journal.append({"key": "b", "n": 2})
    whole = path.read_bytes()
    for length in range(len(whole) + 1):
        path.write_bytes(whole[:length])
        kept = whole[:length].count(b"\n")
        with Journal(path) as journal:
            assert list(journal.done) == ["a", "b"][:kept]
            journal.append({"key": "c", "n": 3})
        assert [json.loads(line)["key"] for line in path.read_text().splitlines()] == [*["a", "b"][:kept], "c"]


@pytest.mark.parametrize(("line", "message"), [("{", "not JSON"), ("[]", "must be a JSON object"), ("{}", "no field")])
def test_a_damaged_journal_is_refused_not_repaired(line, message, tmp_path):
    path = tmp_path / "records.jsonl"
    path.write_text('{"key": "a"}\n' + line + '\n{"key": "b"}\n')
    before = path.read_bytes()
    with pytest.raises(ValueError, match=rf"records\.jsonl:2: .*{message}"):
        Journal(path)
    assert path.read_bytes() == before
    path.write_text('{"key": "a"}\n')
    Journal(path).__exit__()  # the refusal left no lock behind


def test_one_journal_at_a_time(tmp_path):
    path = tmp_path / "records.jsonl"
    code = (
        "import sys; from pathlib import Path; from beaconkv.evaluation.fidelity.journal import Journal\n"
        "try: Journal(Path(sys.argv[1]))\nexcept BlockingIOError as error: print(error)"
    )
    with Journal(path):
        told = subprocess.run([sys.executable, "-c", code, str(path)], check=True, capture_output=True, text=True)
    assert told.stdout == f"{path} is being written by process {os.getpid()}\n"


def test_a_journal_without_a_file_keeps_records_in_memory():
    with Journal(None) as journal:
        journal.append({"key": "a"})
    assert journal.done == {"a": {"key": "a"}}


def test_lines_reach_the_disk(tmp_path, monkeypatch):
    """As often as was asked for, and before the file is closed."""
    synced, real = [], os.fsync
    monkeypatch.setattr(os, "fsync", lambda descriptor: (synced.append(os.fstat(descriptor).st_size), real(descriptor)))
    for every, sizes in ((1, [3, 6, 9, 9]), (2, [6, 9])):
        path = tmp_path / f"{every}.jsonl"
        file = LineFile(path, lambda record: None, every)
        file.start()
        synced.clear()  # of the folder
        for _ in range(3):
            file.append(b"{}\n")
        file.close()
        assert synced == sizes
    with pytest.raises(ValueError, match="is closed"):
        file.append(b"{}\n")
