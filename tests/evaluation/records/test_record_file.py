import json
import os
import random
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from beaconkv.evaluation import RecordFile, read_records
from tests.evaluation.data import ROOT

SETTINGS = {"model": "tiny", "sampling": {"temperature": 0.6, "top_p": 0.95}, "budgets": (64, 128)}


def record(i, **more):
    return {"policy": "full", "budget": None if i % 2 else 64, "problem": f"p{i // 4}", "run": i % 4, "n": i, **more}


def opened(path, settings=SETTINGS, **more):
    return RecordFile(path, settings, **more)


def sampled(i):
    """One sample; its text holds what JSON and UTF-8 make hard."""
    return record(i, text=f'é东\u2028"\\\n{i}', timing={"seconds": time.perf_counter()})


values = st.none() | st.text(max_size=4) | st.integers(-5, 5) | st.floats(-2, 2)
contents = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


@given(
    st.lists(st.tuples(values, values, contents), unique_by=lambda t: t[:2], max_size=8),
    st.randoms(),
    st.integers(0, 8),
)
@settings(max_examples=30)
def test_the_finalized_file_depends_on_the_records_alone(tmp_path_factory, rows, random, stop):
    records = [{"a": a, "b": b, "content": c, "timing": random.random()} for a, b, c in rows]
    straight, resumed = (tmp_path_factory.mktemp("run") / "samples.jsonl" for _ in range(2))
    with opened(straight, key=("a", "b")) as file:
        for row in records:
            file.append(row)
        file.finalize()
    random.shuffle(records)
    with opened(resumed, key=("a", "b"), sync_every=3) as file:
        for row in records[:stop]:
            file.append(row | {"timing": 0})
        if random.random() < 0.5:
            file.finalize()
    with opened(resumed, key=("a", "b")) as file:
        assert file.done() == {(row["a"], row["b"]) for row in records[:stop]}
        for row in records[stop:]:
            file.append(row)
        file.finalize()
    assert straight.read_bytes() == resumed.read_bytes()
    by_key = {(row["a"], row["b"]): row for row in records}
    for row in read_records(resumed):
        assert row | {"timing": by_key[row["a"], row["b"]]["timing"]} == by_key[row["a"], row["b"]]
    if rows:
        timings = {
            (row["a"], row["b"]): row["timing"] for row in read_records(resumed.with_name("samples.timing.jsonl"))
        }
        assert timings == {key: 0 if by_key[key] in records[:stop] else by_key[key]["timing"] for key in by_key}


@pytest.fixture(scope="module")
def whole_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("whole") / "samples.jsonl"
    with opened(path) as file:
        for i in range(2):
            file.append(sampled(i))
    return path.read_bytes(), path.with_name("run.json").read_bytes()


def test_a_line_torn_at_any_byte_is_dropped_and_no_other(tmp_path, whole_file):
    content, run = whole_file
    (tmp_path / "run.json").write_bytes(run)
    path = tmp_path / "samples.jsonl"
    for offset in range(len(content) + 1):
        path.write_bytes(content[:offset])
        complete = content[:offset].count(b"\n")
        assert [row["n"] for row in read_records(path)] == list(range(complete))
        with opened(path) as file:
            assert len(file.done()) == complete
            assert path.read_bytes() == content[: content.rfind(b"\n", 0, offset) + 1]
            file.append(record(complete))
        assert [row["n"] for row in read_records(path)] == list(range(complete + 1))


WRITER = """
import sys, time
from pathlib import Path
sys.path.insert(0, {root!r})
from tests.evaluation.records.test_record_file import opened, sampled
with opened(sys.argv[1], sync_every=2) as file:
    print("ready", flush=True)
    for i in range(40):
        item = sampled(i)
        if tuple(item[name] for name in file.key) not in file.done():
            file.append(item | {{"filler": "x" * 20_000}})
            time.sleep(0.002)
    file.finalize()
"""


def test_killed_and_resumed_is_the_same_file(tmp_path):
    """kill -9 at random moments, writing and sorting included, until a run comes through."""
    command = [sys.executable, "-c", WRITER.format(root=str(ROOT))]
    straight, killed = tmp_path / "a" / "samples.jsonl", tmp_path / "b" / "samples.jsonl"
    subprocess.run([*command, str(straight)], check=True, stdout=subprocess.DEVNULL)
    rng, kills = random.Random(0), 0
    while True:
        with subprocess.Popen([*command, str(killed)], stdout=subprocess.PIPE) as process:
            assert process.stdout.readline() == b"ready\n"
            if kills < 3:
                time.sleep(rng.random() * 0.06)
                process.kill()
            process.wait()
        if process.returncode == 0:
            break
        assert process.returncode == -signal.SIGKILL
        kills += 1
    assert kills > 0
    assert killed.read_bytes() == straight.read_bytes()
    assert len(list(read_records(killed))) == len(list(read_records(killed.with_name("samples.timing.jsonl")))) == 40


@pytest.mark.parametrize("replaced", [0, 1])
def test_a_kill_while_sorting_leaves_old_or_new(tmp_path, monkeypatch, replaced):
    """Before the first and before the second of the two files is replaced."""
    path = tmp_path / "samples.jsonl"
    with opened(path) as file:
        for i in (2, 0, 1):
            file.append(sampled(i))
        before, calls, replace = path.read_bytes(), [], os.replace

        def killed(source, target):
            if len(calls) == replaced:
                raise KeyboardInterrupt
            calls.append(target)
            replace(source, target)

        monkeypatch.setattr(os, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            file.finalize()
    monkeypatch.undo()
    assert path.read_bytes() == before
    with opened(path) as file:
        assert len(file.done()) == 3
        file.finalize()
    assert [row["problem"] for row in read_records(path)] == ["p0", "p0", "p0"]
    assert all("timing" not in row for row in read_records(path))
    assert len(list(read_records(tmp_path / "samples.timing.jsonl"))) == 3


def test_other_settings_are_refused_by_name(tmp_path):
    path = tmp_path / "samples.jsonl"
    opened(path).close()
    opened(path, {**SETTINGS, "budgets": [64, 128]}).close()  # a tuple and a list are one thing in JSON
    for other, message in [
        ({**SETTINGS, "model": "big"}, "model was 'tiny', is 'big'"),
        ({**SETTINGS, "sampling": {"temperature": 1, "top_p": 0.95}}, "sampling.temperature was 0.6, is 1"),
        ({**SETTINGS, "seed": 0}, "seed was 'not set', is 0"),
        ({"model": "tiny", "budgets": [64, 128]}, "sampling.temperature was 0.6, is 'not set'"),
    ]:
        with pytest.raises(ValueError, match=f"run.json is of another run: .*{message}"):
            opened(path, other)
    with pytest.raises(ValueError, match=r"record_key was \['policy', .*\], is \['a'\]"):
        opened(path, key=("a",))
    opened(path).close()  # a refusal leaves no lock behind


def test_records_without_their_settings_are_refused(tmp_path):
    path = tmp_path / "samples.jsonl"
    with opened(path) as file:
        file.append(record(0))
    (tmp_path / "run.json").unlink()
    with pytest.raises(ValueError, match="run.json is missing"):
        opened(path)


def test_one_writer_at_a_time(tmp_path):
    path = tmp_path / "new" / "samples.jsonl"
    code = (
        "import sys\nfrom beaconkv.evaluation import RecordFile\n"
        "try: RecordFile(sys.argv[1], {})\nexcept BlockingIOError as error: print(error)"
    )
    with RecordFile(path, {}):
        told = subprocess.run([sys.executable, "-c", code, str(path)], check=True, capture_output=True, text=True)
        assert told.stdout == f"{path} is being written by process {os.getpid()}\n"
        with pytest.raises(BlockingIOError, match="is being written by process"):
            RecordFile(path, {})
    told = subprocess.run([sys.executable, "-c", code, str(path)], check=True, capture_output=True, text=True)
    assert told.stdout == ""


def test_what_is_no_record_is_refused_and_leaves_no_trace(tmp_path):
    path = tmp_path / "samples.jsonl"
    with opened(path) as file:
        file.append(record(0))
        before = path.read_bytes()
        for bad, message in [
            (record(0), "has a record of policy='full', budget=64, problem='p0', run=0 already"),
            ({"policy": "full"}, "no field 'budget'; the key is policy, budget, problem, run"),
            (record(1, policy=["full"]), r"key field 'policy' must be a text, a number or None, got \['full'\]"),
            (record(1, score=float("nan")), "not JSON compliant"),
        ]:
            with pytest.raises(ValueError, match=message):
                file.append(bad)
        with pytest.raises(TypeError, match="not JSON serializable"):
            file.append(record(1, score={1, 2}))
        assert path.read_bytes() == before
        file.append(record(1))
    for use in (lambda: file.append(record(2)), file.finalize):
        with pytest.raises(ValueError, match="is closed"):
            use()
    with pytest.raises(ValueError, match="sync_every must be at least 1, got 0"):
        opened(path, sync_every=0)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"{", "not JSON"),
        (b"\0\0\0", "not JSON"),
        (b"\xff", "not JSON"),
        (b"[1]", "a record must be a JSON object"),
        (b'{"policy": 1}', "no field 'budget'"),
        (json.dumps(record(0)).encode(), "a second record of policy='full', budget=64, problem='p0', run=0"),
    ],
)
def test_a_damaged_file_is_refused_not_repaired(tmp_path, line, message):
    path = tmp_path / "samples.jsonl"
    with opened(path) as file:
        file.append(record(0))
    damaged = path.read_bytes() + line + b"\n" + json.dumps(record(1)).encode() + b"\n"
    path.write_bytes(damaged)
    with pytest.raises(ValueError, match=rf"samples\.jsonl:2: {message}"):
        opened(path)
    assert path.read_bytes() == damaged


@pytest.mark.skipif(not hasattr(os, "fork"), reason="limits on file sizes are set with the resource module")
def test_a_full_disk_leaves_whole_lines(tmp_path):
    """The system writes half a line and then refuses; what is written later must stand on a line of its own."""
    path = tmp_path / "samples.jsonl"
    code = (
        "import resource, signal, sys\nfrom tests.evaluation.records.test_record_file import opened, record\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "with opened(sys.argv[1]) as file:\n"
        "    file.append(record(0))\n"
        "    resource.setrlimit(resource.RLIMIT_FSIZE, (500, resource.RLIM_INFINITY))\n"
        "    try: file.append(record(1, text='x' * 1000))\n"
        "    except OSError as error: print(type(error).__name__)\n"
        "    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)\n"
        "    file.append(record(1))\n"
    )
    told = subprocess.run([sys.executable, "-c", code, str(path)], check=True, capture_output=True, text=True, cwd=ROOT)
    assert told.stdout == "OSError\n"
    assert list(read_records(path)) == [record(0), record(1)]


def test_threads_share_a_file(tmp_path):
    with opened(tmp_path / "samples.jsonl", sync_every=10) as file:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda i: file.append(record(i, text="x" * 5000)), range(60)))
        file.finalize()
    assert sorted(row["n"] for row in read_records(tmp_path / "samples.jsonl")) == list(range(60))
