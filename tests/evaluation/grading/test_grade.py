import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from beaconkv.evaluation import GRADERS, get_grader, grade, grade_choice, grade_exact
from beaconkv.evaluation.grading import equivalence
from tests.evaluation.data import rows

RIGHT = [  # (answer in the box, known answer)
    (r"\dfrac{14}{3}", r"\frac{14}{3}"),
    (r"\tfrac{14}{3}", r"\frac{14}{3}"),
    ("14/3", r"\frac{14}{3}"),
    (r"\frac43", "4/3"),
    (r"\frac{-1}{2}", r"-\frac{1}{2}"),
    ("-.5", r"-\frac{1}{2}"),
    ("1.8", r"1\frac{4}{5}"),
    ("137.5", r"137 \frac{1}{2}"),
    ("0.3333333", r"\frac{1}{3}"),
    ("5", "x=5"),
    ("x=5", "5"),
    (r"x = \frac{10}{2}", "5"),
    ("58500", "58,500"),
    ("58{,}500", "58500"),
    (r"10,\!080", "10080"),
    (r"11,\! 111,\! 111,\! 100", "11111111100"),
    ("32348", r"\$32,\!348"),
    (r"\$18.90", "18.9"),
    ("$18$", "18"),
    (r"\(18\)", "18"),
    (r"\[18\]", "18"),
    ("90", r"90^\circ"),
    ("90°", r"90^\circ"),
    ("90^°", r"90^\circ"),
    (r"90^{\circ}", r"90^\circ"),
    (r"90 \text{ degrees}", r"90^\circ"),
    (r"42 \text{ inches}", "42"),
    (r"42\,\mathrm{cm}", "42"),
    ("864", r"864 \mbox{ inches}^2"),
    (r"50\%", "50"),
    ("50%", r"50\%"),
    (r"\frac{1}{2}", r"50\%"),
    ("5.", "5"),
    ("5.0", "5"),
    ("033", "33"),
    ("10^4", "10000"),
    (r"1.5\times10^3", "1500"),
    ("-2, 1", "1,-2"),
    (r"1 \text{ and } -2", "1,-2"),
    (r"\{1, -2\}", "1,-2"),
    (r"1+\sqrt{19}, 1-\sqrt{19}", r"1 \pm \sqrt{19}"),
    (r"\left(3, \dfrac{\pi}{2}\right)", r"\left( 3, \frac{\pi}{2} \right)"),
    ("(3, 0.5)", r"(3, \frac12)"),
    (r"(-\infty, 0]", r"(-\infty,0]"),
    (r"x \le 0", r"(-\infty,0]"),
    (r"[-2,7]", r"x \in [-2,7]"),
    (r"-2 \le x \le 7", "[-2,7]"),
    (r"(0,9)\cup(9,36)", r"(0,9) \cup (9,36)"),
    (
        r"\begin{pmatrix} -\frac13 \\ \frac23 \end{pmatrix}",
        r"\begin{pmatrix} -1/3 \\ 2/3 \end{pmatrix}",
    ),
    ("\\begin{bmatrix}\n1 & 0 \\\\[2pt]\n0 & 1\n\\end{bmatrix}", r"\begin{pmatrix} 1 & 0 \\ 0 & 1 \end{pmatrix}"),
    ("y = 3 + 2x", "y = 2x + 3"),
    ("10x - 14y + 8 = 0", "5x - 7y + 4 = 0"),
    ("(x+1)^2", "x^2+2x+1"),
    (r"\frac{\cos x}{\sin x}", r"\cot x"),
    (r"\frac{\sqrt2}{2}", r"\sqrt{\frac12}"),
    ("-5i+6", "6 - 5i"),
    ("Evelyn", r"\text{Evelyn}"),
    (r"\textbf{east}", r"\text{east}"),
    ("East", r"\text{east}"),
    ("C", r"\text{(C)}"),
    ("52_{8}", "52_8"),
    ("52", "52_8"),
    (r"\text{五}", r"\text{五}"),
    ("5", r"\boxed{5}"),
    (r"\boxed{5}", "5"),
]
WRONG = [
    ("12204", "204"),
    ("1,2", "12"),
    ("q-p", "p - q"),
    ("3.14", r"\pi"),
    ("0.333", r"\frac{1}{3}"),
    ("(-2,1)", "(1,-2)"),
    ("(3,4)", "(3,4]"),
    (r"1+\sqrt{19}", r"1 \pm \sqrt{19}"),
    (r"\begin{pmatrix} 2 \\ 1 \end{pmatrix}", r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}"),
    ("52_9", "52_8"),
    ("42", "52_8"),
    ("3,5", "3, 5, 7"),
    ("7!", "7"),
    (r"4\pi", "4"),
    ("2x", "2"),
    ("x", "10"),
    (r"\text{odd}", r"\text{even}"),
    (r"\text{No}", r"\text{Yes}"),
    ("B", r"\text{(C)}"),
    ("-5", "5"),
    ("50", r"5"),
    (r"\frac{3}{14}", r"\frac{14}{3}"),
    ("?", "5"),
    (r"\emptyset", "0"),
]


@pytest.mark.parametrize(("box", "answer"), RIGHT)
def test_equal_answers(box, answer):
    result = grade(f"<think>\nhm\n</think>\n\nSo \\(\\boxed{{{box}}}\\).", answer)
    assert (result.correct, result.reason) == (True, "right")


@pytest.mark.parametrize(("box", "answer"), WRONG)
def test_different_answers(box, answer):
    result = grade(f"So \\boxed{{{box}}}.", answer)
    assert (result.correct, result.extracted, result.reason) == (False, box, "wrong")


@pytest.mark.parametrize(
    ("response", "truncated", "correct", "reason"),
    [
        # two boxes in one line, no delimiters: they must not become 12204
        (r"\boxed{12}... wait, no. Final: \boxed{204}", False, True, "right"),
        (r"\boxed{204}... wait, no. Final: \boxed{12}", False, False, "wrong"),
        (r"\boxed{12}\boxed{204}", False, True, "right"),
        # no box: its last number is no answer
        ("</think> The answer is 204.", False, False, "no box"),
        ("so 12 + 192 = 204", True, False, "cut off within the thought"),
        ("", False, False, "no box"),
        ("", True, False, "cut off within the thought"),
        # boxes within a thought that never ended
        (r"maybe \boxed{204}? Let me check", True, False, "cut off within the thought"),
        (r"<think> maybe \boxed{204}? Let me check", True, False, "cut off within the thought"),
        # cut off, but after the answer
        (r"hm</think> It is \boxed{204}. Moreover,", True, True, "right"),
        (r"hm \boxed{204}</think> It is \boxed{20", True, False, "no box"),
        # the thought's box is not the answer's
        (r"\boxed{204}</think> So \boxed{12}", False, False, "wrong"),
        (r"\boxed{12}</think> So \boxed{204}", False, True, "right"),
        (r"\boxed{204}</think> So 204", False, False, "no box"),
        (r"<think>a</think>\boxed{12}</think>\boxed{204}", False, True, "right"),
        # a model that does not think aloud
        (r"Adding up: \boxed{204}", False, True, "right"),
    ],
)
def test_which_part_of_an_output_counts(response, truncated, correct, reason):
    result = grade(response, "204", truncated)
    assert (result.correct, result.reason) == (correct, reason)


def test_labelled_traces():
    """All 49 labels are met. Three traces have none, as they have no box: they are wrong."""
    traces = rows("r1_math500_traces.jsonl")
    results = [grade(row["response"], row["answer"], row["n_tokens"] >= 32768) for row in traces]
    labelled = [(g.correct, row["correct_regraded"]) for g, row in zip(results, traces, strict=True)]
    assert [pair for pair in labelled if pair[1] is not None and pair[0] != pair[1]] == []
    assert sum(label is not None for _, label in labelled) == 49
    without = [(g.correct, g.reason) for g, (_, label) in zip(results, labelled, strict=True) if label is None]
    assert sorted(without) == [(False, "cut off within the thought"), (False, "no box"), (False, "no box")]


@pytest.mark.parametrize("name", ["math500.jsonl", "aime24.jsonl", "aime25.jsonl", "gsm8k_test_100.jsonl"])
def test_every_known_answer_equals_itself_and_not_the_next(name):
    answers = sorted({row["answer"] for row in rows(name)})
    for answer, other in zip(answers, answers[1:] + answers[:1], strict=True):
        assert grade(f"\\boxed{{{answer}}}", answer).correct, answer
        only_a_unit = other.removeprefix(answer) in (r"^\circ", r"\mbox{ cm}^2")
        assert grade(f"\\boxed{{{answer}}}", other).correct == only_a_unit, (answer, other)


garbage = (
    st.text()
    | st.text(alphabet="\\{}$[]()^_&%,.|xX1<>=\n ")
    | st.lists(
        st.sampled_from(
            [r"\frac", r"\sqrt", "{", "}", "1", "x", "^", "_", r"\left", r"\begin{pmatrix}", "&", r"\\", "=", ",", "$"]
        )
    ).map("".join)
)


@given(garbage, garbage, st.booleans(), st.sampled_from(["math", "exact", "choice"]))
@example("\ud800", "", False, "math")
@example("", "\x00", False, "math")
@settings(max_examples=150)
def test_garbage_is_wrong_and_never_raises(content, after, truncated, name):
    result = GRADERS[name](f"\\boxed{{{content}}}{after}", "D", truncated)
    assert not result.correct or "d" in (content + after).lower()


@pytest.mark.parametrize("text", ["{" * 100_000, "}" * 100_000, r"\boxed{" + "{" * 50_000 + "1" + "}" * 50_001])
def test_a_hundred_kilobytes_of_braces(text):
    assert not grade(text, "1").correct


def test_a_long_sum_is_no_answer():
    """Its comparison would take minutes."""
    assert grade(f"\\boxed{{{'+'.join(['1'] * 300)}}}", "300").correct
    assert not grade(f"\\boxed{{{'+'.join(['1'] * 600)}}}", "600").correct


def test_threads_get_right_grades():
    """math-verify's own time limits are signals, which only the main thread may use."""
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda n: grade(f"\\boxed{{{n} + 1}}", str(n + n % 2)).correct, range(1, 41)))
    assert results == [n % 2 == 1 for n in range(1, 41)]


def test_endless_comparisons_end(monkeypatch):
    """In a thread, and the next answer is graded as if nothing had been."""
    monkeypatch.setattr(equivalence, "SECONDS", 1.0)
    monkeypatch.setattr(equivalence, "_WORKERS", {})
    results = []
    thread = threading.Thread(target=lambda: results.append(grade(r"\boxed{9^{9^{9^{9}}}}", "7")))
    thread.start()
    thread.join()
    assert [(g.correct, g.reason) for g in results] == [(False, "the comparison took too long")]
    assert grade(r"\boxed{3+4}", "7").correct
    equivalence._worker()._stop()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_child_has_a_process_of_its_own():
    """Two processes on one pair of pipes would read each other's replies."""
    assert grade(r"\boxed{3+4}", "7").correct
    code = (
        "import os\nfrom beaconkv.evaluation import grade\n"
        "assert grade(r'\\boxed{3+4}', '7').correct\nchild = os.fork()\n"
        "ok = all(grade(r'\\boxed{%d+1}' % n, str(n + 1 - (child == 0))).correct == (child != 0) for n in range(20))\n"
        "if child == 0: os._exit(0 if ok else 3)\n"
        "assert os.waitpid(child, 0)[1] == 0 and ok"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_without_math_verify_the_message_says_what_to_install():
    code = (
        "import sys; sys.modules['math_verify'] = None\n"
        "from beaconkv.evaluation import grade, grade_choice\n"
        "assert grade_choice(r'\\boxed{A}', 'A').correct\n"
        "try: grade(r'\\boxed{1}', '1')\n"
        "except ImportError as error: assert \"pip install 'beaconkv[eval]'\" in str(error), error\n"
        "else: sys.exit('no ImportError')"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_importing_is_cheap():
    code = (
        "import sys, beaconkv.evaluation\n"
        "heavy = {'math_verify', 'sympy', 'matplotlib', 'torch', 'transformers', 'scipy'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("box", "letter"),
    [
        ("B", "B"),
        ("(B)", "B"),
        ("b", "B"),
        ("B.", "B"),
        ("B: 12", "B"),
        (r"\text{B}", "B"),
        (r"\text{(B) } 12", "B"),
        (r"\mathbf{B}", "B"),
        ("$B$", "B"),
        ("Because", None),
        ("E", None),
        ("12", None),
        (r"\beta", None),
    ],
)
def test_choices(box, letter):
    result = grade_choice(f"\\boxed{{{box}}}", r"\text{(B)}")
    assert result.correct == (letter == "B")
    assert result.reason == ("right" if letter else "no choice in the box")
    assert not grade_choice(f"\\boxed{{{box}}}", "C").correct


def test_exact():
    assert grade_exact("hm\nyes</think>\n no \n\n", "no").correct
    assert grade_exact("a: 1\nb: 2\ndone", "2", pattern=r"[ab]: (\d)").correct
    assert grade_exact("1 then 22", "22", pattern=r"\d+").correct
    assert grade_exact("hm</think> no", "yes").extracted == "no"
    assert grade_exact("\n \n", "no").reason == "no answer"
    assert grade_exact("x", "2", pattern=r"\d").reason == "no answer"
    assert grade_exact("hm</think>12", "12", truncated=True).reason == "cut off"


def test_refusals_name_the_choices():
    with pytest.raises(ValueError, match="unknown grader 'maths'; choose from choice, exact, math"):
        get_grader("maths")
    assert get_grader("math") is grade
    with pytest.raises(ValueError, match="answer 'E' is no choice; the choices are A, B, C, D"):
        grade_choice(r"\boxed{A}", "E")
    for grader in GRADERS.values():
        with pytest.raises(ValueError, match="blank"):
            grader(r"\boxed{A}", " ")
