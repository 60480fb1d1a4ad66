import pytest
from hypothesis import given
from hypothesis import strategies as st

from beaconkv.evaluation.grading.boxes import last_box


@pytest.mark.parametrize(
    ("text", "content"),
    [
        (r"\boxed{5}", "5"),
        (r"so \(\boxed{12}\)... wait, no. Final: \boxed{204}", "204"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{\left\{ x : x > 0 \right\}}.", r"\left\{ x : x > 0 \right\}"),
        (r"\boxed{a\\}", r"a\\"),  # a line break, not an escaped brace
        (r"\fbox{7} is boxed", "7"),
        (r"\boxed 5", "5"),
        (r"$\boxed 53$.", "53"),
        (r"\boxed -3, done", "-3"),
        (r"\boxed\frac{1}{2}$", r"\frac{1}{2}"),
        (r"\boxed\pi", r"\pi"),
        (r"\boxed x.", "x"),
        ("\\boxed\n{5}", "5"),
        ("\\boxed{\n 5 \n}", "5"),
        (r"\boxed{1} and later \boxed{2", "1"),  # cut off in the second
        (r"\boxed{1 \boxed{2}", "2"),  # only the inner one closes
        (r"\boxed{\boxed{5}}", "{5}"),
        (r"\boxed{3 + \fbox{2}}", "3 + {2}"),
        (r"} } \boxed{4} { {", "4"),
        (r"\boxed{8} goes in \boxed{}", "8"),
        (r"\boxed{8} goes in \boxed{ {} }", "8"),
        (r"\boxed{8}, in \boxed please", "8"),
        (r"\boxedx{5}", None),
        (r"\makebox{5}", None),
        (r"boxed{5}", None),
        (r"\boxed{5", None),
        (r"\boxed", None),
        ("", None),
        (r"\boxed{东 ½ é}", "东 ½ é"),
    ],
)
def test_last_box(text, content):
    assert last_box(text) == content


balanced = st.recursive(
    st.text(alphabet="ab1+,. ", min_size=1) | st.sampled_from([r"\{", r"\}", r"\\", r"\frac"]),
    lambda inner: st.lists(inner, max_size=3).map("".join) | inner.map("{{{}}}".format),
    max_leaves=8,
)


@given(st.text(), balanced, st.text(alphabet="xyz{}1 .$\n"))
def test_what_is_in_the_box_comes_out(before, content, after):
    """Whatever stands around it, as long as no box follows."""
    if before.endswith("\\"):
        before += " "
    if not content.strip("{} \n\t"):
        content += "7"
    assert last_box(f"{before}\\boxed{{{content}}}{after}") == content.strip()


@pytest.mark.parametrize(
    "text", ["{" * 100_000, "}" * 100_000, r"\boxed{" * 20_000, r"\boxed" * 20_000, "\\" * 100_000, r"\boxed " * 20_000]
)
def test_long_garbage(text):
    """Time is linear in the length: were it quadratic, these would run for hours, and the suite would not end."""
    assert last_box(text) is None
