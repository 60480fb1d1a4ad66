"""The page as text: what goes in comes out, nothing breaks out, and what does not fit is refused by name."""

import base64
import json
import re
from importlib import resources

import numpy as np
import pytest

from beaconkv.analysis.report import page
from beaconkv.analysis.report.arrays import DTYPES

from . import data


def held_data(text):
    """The JSON in the page, arrays decoded."""
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    return json.loads(found[1], object_hook=decoded)


def decoded(value):
    if value.keys() != {"dtype", "shape", "data"}:
        return value
    return np.frombuffer(base64.b64decode(value["data"]), DTYPES[value["dtype"]]).reshape(value["shape"])


def test_all_data_come_back_as_they_were():
    given = data.run(length=60)
    back = held_data(page.render_page(given))
    for name in ("tokens", "layers", "prompt_length", "local_distance", "top_keys", "num_layers"):
        assert back[name] == given[name]
    for name in ("frequency", "is_global", "distance", "targets", "weights"):
        np.testing.assert_array_equal(back[name], given[name], err_msg=name)
    assert [head["kv_head"] for head in back["heads"]] == [head["kv_head"] for head in given["heads"]]
    for got, want in zip(back["policies"], given["policies"], strict=True):
        for name in ("label", "budget", "colour", "summary"):
            assert got[name] == want[name]
        for name in ("dropped", "steps", "lost"):
            np.testing.assert_array_equal(got[name], want[name], err_msg=name)
    np.testing.assert_array_equal(back["policies"][0]["coverage"], given["policies"][0]["coverage"])
    assert back["policies"][-1]["coverage"] is None


def test_big_endian_and_wider_numbers_are_written_alike():
    given = data.run(length=60)
    same = given | {"weights": given["weights"].astype(">f8"), "targets": given["targets"].astype(">i8")}
    assert page.render_page(same) == page.render_page(given)


def test_nothing_is_fetched():
    text = page.render_page(data.run(length=60))
    for sign in ("http://", "https://", "src=", "@import", "url(", "import(", "fetch("):
        assert sign not in text, sign
    assert "default-src 'none'" in text


def test_text_cannot_break_out():
    evil = "</script><script>window.hacked = 1</script><!-- & \u2028 \ud800 \x00"
    given = data.run(length=60)
    given["tokens"][3] = evil
    given |= {"title": "<b>{{data}}</b>", "subtitle": "a & b \ud800", "facts": ["<i>bold</i>"]}
    given["policies"][0]["label"] = evil
    text = page.render_page(given)
    assert text.count("<script") == text.count("</script>") == 3
    assert "hacked = 1</script>" not in text
    assert "<title>&lt;b&gt;{{data}}&lt;/b&gt;</title>" in text
    assert "<li>&lt;i&gt;bold&lt;/i&gt;</li>" in text
    assert text.encode("utf-8")
    back = held_data(text)
    assert back["tokens"][3] == back["policies"][0]["label"] == evil


def test_every_static_file_is_used():
    files = {entry.name for entry in resources.files("beaconkv.analysis.report").joinpath("static").iterdir()}
    assert files == {*page.SCRIPTS, "page.html", "page.css", "theme.js"}


def without(name):
    return lambda run: run.pop(name)


def put(name, change):
    """Replace a field by what ``change`` makes of it; ``policies.0.steps`` is one inside."""

    def apply(run):
        *path, last = (int(part) if part.isdigit() else part for part in name.split("."))
        for part in path:
            run = run[part]
        run[last] = change(run[last])

    return apply


def at(index, value):
    def change(array):
        array = array.copy()
        array[index] = value
        return array

    return change


WRONG = {
    "lacks tokens": without("tokens"),
    "lacks facts": without("facts"),
    "tokens must be a list": put("tokens", "".join),
    "tokens must not be empty": put("tokens", lambda _: []),
    "prompt_length must be a whole number from 0 to 60, not 61": put("prompt_length", lambda _: 61),
    "top_keys must be a whole number of at least 1": put("top_keys", lambda _: 2.0),
    "layers must be different": put("layers", lambda _: [0, 2, 2]),
    "layers must be different numbers below num_layers=4": put("layers", lambda _: [0, 2, 4]),
    r"frequency must have shape \(layers=3, heads=8\), not \(8, 3\)": put("frequency", lambda a: a.T),
    "frequency must lie in 0..1": put("frequency", at((1, 1), 1.5)),
    r"heads\[0\].layer must be one of \[0, 2, 3\], not 1": put("heads.0.layer", lambda _: 1),
    r"heads\[1\].kv_head must be a whole number from 0 to 3": put("heads.1.kv_head", lambda _: 4),
    r"heads\[1\].share must lie in 0..1": put("heads.1.share", lambda _: float("nan")),
    "heads must name at least one": put("heads", lambda _: []),
    r"is_global must have shape \(heads=5, tokens=60\)": put("is_global", lambda a: a[:4]),
    "is_global must hold uint8, not float64": put("is_global", lambda a: a.astype(float)),
    "is_global holds numbers beyond": put("is_global", lambda a: a.astype(int) + 300),
    "distance must have shape": put("distance", lambda a: a[:, 1:]),
    "targets must not lie after their query": put("targets", at((0, 5, 0), 6)),
    "targets must be positions, or -1": put("targets", at((0, 5, 0), -2)),
    r"weights must have shape \(heads=5, tokens=60, targets=6\)": put("weights", lambda a: a[..., :5]),
    "weights of targets must not be negative": put("weights", at((0, 5, 0), np.nan)),
    "policies must be a list": put("policies", lambda _: "beaconkv"),
    r"policies\[0\].colour must be #rrggbb": put("policies.0.colour", lambda _: "red"),
    r"policies\[1\].budget must be a whole number": put("policies.1.budget", lambda _: 0),
    r"policies\[1\].dropped must have shape \(layers=3, kv_heads=4, tokens=60\)": put(
        "policies.1.dropped", lambda a: a[:, :2]
    ),
    r"policies\[1\].dropped must not precede": put("policies.1.dropped", at((0, 0, 7), 6)),
    r"policies\[1\].steps must be ascending": put("policies.1.steps", lambda a: a[::-1]),
    r"policies\[0\].lost must have shape \(heads=5, intervals=\d\)": put("policies.0.lost", lambda a: a[:, :-1]),
    r"policies\[0\].coverage must have shape": put("policies.0.coverage", lambda a: a[:4]),
    r"policies\[0\].summary\[1\] must be \[name, value\]": put("policies.0.summary.1", lambda _: ["lost", 3]),
}


@pytest.mark.parametrize("message", WRONG)
def test_what_does_not_fit_is_refused_by_name(message):
    given = data.run(length=60)
    WRONG[message](given)
    with pytest.raises(ValueError, match=message):
        page.render_page(given)
