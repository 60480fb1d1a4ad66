"""Figures and tables against the result files they are made of."""

import json
import os
import re
import struct
import subprocess
import sys
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from beaconkv.evaluation.cells import make_cells
from beaconkv.evaluation.figures import FIGURES, draw
from beaconkv.evaluation.figures.canvas import looks
from beaconkv.evaluation.figures.labels import spread, thin_out
from beaconkv.evaluation.figures.lines import draw_lines
from beaconkv.evaluation.figures.methods import COLOURS, OTHER, find, is_same, style_of
from beaconkv.evaluation.figures.plots import Block, Line, Plot
from beaconkv.evaluation.figures.results import Measured
from beaconkv.evaluation.figures.tables import difference
from beaconkv.policies import parse_policy, policies
from tests.evaluation.figures.data import eval_result, fidelity_result, write

pytest.importorskip("matplotlib")

SPLITS = ["beaconkv:32-0", "beaconkv:31-1", "beaconkv:16-16", "beaconkv:4-28", "beaconkv:1-31"]
METHODS = {
    "fig6": ["full", "beaconkv", "recent:16", "recent", "initial_recent", "random_history"],
    "fig7": ["full", "kmeans_centroid", "kmeans_nearest", "naive_fps", "beaconkv"],
    "fig8": ["full", "beaconkv", "rpc", "snapkv:paper"],
    "table1": SPLITS,
    "table2": [f"beaconkv:{queries}-{heads}" for queries in ("max", "mean") for heads in ("max", "mean")],
    "table3": ["initial_recent", "beaconkv"],
    "table6": ["full", "beaconkv", "rpc"],
    "fidelity": ["full", "beaconkv", "rpc", "recent"],
}
BUDGETS = [128, 256]
TASKS = ("machine", "plan")
PICTURES = [name for name, recipe in FIGURES.items() if recipe.blocks is not None]


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Name of a figure -> path of a result with all it needs, and its document."""
    folder, found = tmp_path_factory.mktemp("results"), {}
    for name, methods in METHODS.items():
        make = fidelity_result if name == "fidelity" else lambda m, b: eval_result(m, b, TASKS, 8)
        document = make(methods, BUDGETS)
        found[name] = write(folder / name / ("fidelity.json" if name == "fidelity" else "result.json"), document)
    return found


def cells(markdown):
    """Rows of all tables, each a list of its cells."""
    rows = [line for line in markdown.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows if "---" not in row]


def percent(estimate, sign=""):
    mean, low, high = (100 * estimate[end] for end in ("mean", "low", "high"))
    return f"{mean:{sign}.1f} [{low:{sign}.1f}, {high:{sign}.1f}]"


@pytest.mark.parametrize("name", FIGURES)
def test_files_are_whole(name, results, tmp_path):
    drawn = draw(name, [results[name].parent], tmp_path / "out")
    endings = [".md", ".png", ".svg"] if name in PICTURES else [".md"]
    assert drawn.files == [tmp_path / "out" / (name + ending) for ending in endings]
    assert drawn.remarks == []
    text = drawn.files[0].read_text()
    assert text.startswith("# ")
    assert "reasoner" in text or name == "fidelity"
    if name not in PICTURES:
        return
    png = drawn.files[1].read_bytes()
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", png[16:24])
    assert width == round(7.2 * 220)
    assert height > 500
    words = [node.text for node in ElementTree.parse(drawn.files[2]).iter() if node.tag.endswith("}text")]
    methods = [method for method in METHODS[name] if method != "full"]
    full = ["full cache"] if name != "fidelity" else []
    for label in [*methods, *full, *map(str, BUDGETS)]:
        assert label in words, label


@pytest.mark.parametrize("measure", ["accuracy", "steps_right"])
@pytest.mark.parametrize("name", ["fig6", "fig8"])
def test_quality_equals_the_result(name, measure, results, tmp_path):
    text = draw(name, [results[name]], tmp_path, measure).files[0].read_text()
    table = cells(text)
    for row in json.loads(results[name].read_text())["rows"]:
        title = "all tasks" if row["task"] == "all" else row["task"]
        part = cells(text[text.index(f"### {title} (") :])
        values = next(cell for cell in part if cell[0] == row["policy"])
        column = 1 if row["budget"] is None else 2 + BUDGETS.index(row["budget"])
        assert values[column] == percent(row[measure])
        if "against" in row:
            differences = [cell for cell in part if cell[0] == row["policy"]][1]
            found = row["against"][measure]
            assert differences[1 + BUDGETS.index(row["budget"])] == f"{percent(found, '+')} {found['verdict']}"
    assert len(table) > 10


def test_tables_equal_the_result(results, tmp_path):
    rows = {}
    for name in ("table1", "table2", "table6", "fig7"):
        document = json.loads(results[name].read_text())
        rows[name] = {(r["policy"], r["budget"]): r for r in document["rows"] if r["task"] == "all"}
    tables = {name: cells(draw(name, [results[name]], tmp_path).files[0].read_text()) for name in rows}
    for spec, row in zip(SPLITS, tables["table1"][1:], strict=False):
        assert row[0].replace(" ", "") == spec.partition(":")[2].replace("-", ":")
        assert row[1:3] == [percent(rows["table1"][spec, budget]["accuracy"]) for budget in BUDGETS]
    assert [row[3] for row in tables["table1"][1:6]] == ["51.3", "55.6", "64.6", "66.5", "63.5"]
    for i, budget in enumerate(BUDGETS):
        head, most, mean = tables["table2"][3 * i : 3 * i + 3]
        assert head[0] == f"budget {budget}"
        for queries, row in (("max", most), ("mean", mean)):
            expected = [rows["table2"][f"beaconkv:{queries}-{heads}", budget]["accuracy"] for heads in ("max", "mean")]
            assert row == [f"{queries} over queries", *map(percent, expected)]
    for cell in tables["table6"][1:6]:
        row = rows["table6"][cell[0], None if cell[1] == "-" else int(cell[1])]
        assert cell[2].replace(",", "") == f"{row['tokens']:.0f}"
        assert cell[4:6] == [f"{100 * row['capped']:.1f}%", f"{100 * row['loops']:.1f}%"]
    for cell in tables["fig7"][1:10]:
        row = rows["fig7"][cell[0], None if cell[1] == "-" else int(cell[1])]
        sizes = [int(size.replace(",", "")) for size in cell[3:]]
        assert sizes == [row["kv_bytes"], row["state_bytes"], row["kv_bytes"] + row["state_bytes"]]


def test_paired_difference_does_not_depend_on_the_reference(results, tmp_path):
    """beaconkv - initial_recent, whichever of the two the run was compared with."""
    turned = write(tmp_path / "turned.json", eval_result(METHODS["table3"], BUDGETS, TASKS, 8, "initial_recent"))
    first, second = (cells(draw("table3", [p], tmp_path).files[0].read_text()) for p in (results["table3"], turned))
    assert [row[:3] for row in first] == [row[:3] for row in second]
    rows = [(one, other) for one, other in zip(first, second, strict=True) if one[0] in map(str, BUDGETS)]
    assert len(rows) == 6
    for one, other in rows:
        assert one[3].partition(" ")[0] == other[3].partition(" ")[0]
        assert one[4] == other[4]
        mean, low, high = (float(number) for number in re.findall(r"[+-][\d.]+", other[3]))
        assert low <= mean <= high
        gain = float(one[2].partition(" ")[0]) - float(one[1].partition(" ")[0])
        assert float(one[3].partition(" ")[0]) == pytest.approx(gain, abs=0.11)


def test_a_turned_difference_has_a_turned_interval():
    row = {"against": {"policy": "b", "accuracy": {"mean": 0.1, "low": -0.2, "high": 0.25, "verdict": "better"}}}
    found = difference(Measured("model", (), {("a", 8, "all"): row}), "b", "a", 8, "all", "accuracy")
    assert found == {"mean": -0.1, "low": -0.25, "high": 0.2, "verdict": "worse"}


def test_fidelity_equals_the_result(results, tmp_path):
    text = draw("fidelity", [results["fidelity"]], tmp_path).files[0].read_text()
    for row in json.loads(results["fidelity"].read_text())["rows"]:
        kl = row["kl"]
        assert f"{kl['mean']:.4f} [{kl['low']:.4f}, {kl['high']:.4f}]" in text


def test_parts_give_what_the_whole_gives(results, tmp_path):
    document = json.loads(results["fig8"].read_text())
    by_policy = [[r for r in document["rows"] if (r["policy"] == "rpc") == part] for part in (False, True)]
    by_budget = [[r for r in document["rows"] if (r["budget"] == 256) == part] for part in (False, True)]
    whole = draw("fig8", [results["fig8"]], tmp_path / "whole").files[0].read_text()
    for name, parts in (("policy", by_policy), ("budget", by_budget)):
        paths = [write(tmp_path / f"{name}{i}.json", document | {"rows": rows}) for i, rows in enumerate(parts)]
        text = draw("fig8", paths, tmp_path / name).files[0].read_text()
        assert sorted(map(tuple, cells(text))) == sorted(map(tuple, cells(whole)))


def test_a_row_from_two_files_is_refused(results, tmp_path):
    document = json.loads(results["fig8"].read_text())
    again = write(tmp_path / "again.json", document | {"rows": document["rows"][-1:]})
    with pytest.raises(ValueError, match=r"snapkv:paper at 256 \(task plan\) is in .*result.json and .*again.json"):
        draw("fig8", [results["fig8"], again], tmp_path)


@pytest.mark.parametrize(
    ("fact", "value"), [("weights", "0000"), ("tasks", {"machine": "1111"}), ("seed", 7), ("runs", 4), ("sampling", {})]
)
def test_different_runs_are_no_parts_but_may_be_panels(fact, value, results, tmp_path):
    document = json.loads(results["fig8"].read_text())
    other = write(tmp_path / "other.json", document | {"settings": document["settings"] | {fact: value}})
    with pytest.raises(ValueError, match=f"result.json and .*other.json are no parts of one run.*{fact}.*--panels"):
        draw("fig8", [results["fig8"], other], tmp_path)
    drawn = draw("fig8", [results["fig8"], other], tmp_path, panels=True)
    assert f"## reasoner, {fact} " in drawn.files[0].read_text()
    assert f"reasoner, {fact} " in drawn.files[2].read_text()


def test_panels_of_two_models_are_labelled_by_model(results, tmp_path):
    document = json.loads(results["fig8"].read_text())
    settings = document["settings"] | {"weights": "0000"}
    other = write(tmp_path / "other.json", document | {"settings": settings, "model": "org/other-7b"})
    text = draw("fig8", [results["fig8"], other], tmp_path, panels=True).files[0].read_text()
    assert re.findall("^## (.*)$", text, re.M)[:2] == ["reasoner", "other-7b"]


def test_a_policy_with_two_schedules_is_refused(results, tmp_path):
    document = json.loads(results["fig8"].read_text())
    other = eval_result(["rpc"], [512], TASKS, 8)
    other["schedules"] = [{"policy": "rpc", "budget": 512, "prefix": 0, "protect": 32}]
    assert other["settings"] == document["settings"]
    with pytest.raises(ValueError, match="rpc has one schedule in .* and another in .*prefix: 4 and 0"):
        draw("fig8", [results["fig8"], write(tmp_path / "other.json", other)], tmp_path)


@pytest.mark.parametrize("policy", [name for name, cls in policies().items() if cls.evicts])
def test_the_schedules_of_one_run_are_one_schedule(policy, tmp_path):
    """Also where a method protects half of what stays, which is another number at each budget."""
    budgets = [64, 128, 448]
    document = eval_result(["full", "beaconkv", policy] if policy != "beaconkv" else ["full", policy], budgets)
    cells = make_cells([policy], budgets)
    document["schedules"] = [{"policy": policy, **vars(cell.schedule)} for cell in cells]
    assert policy in draw("fig8", [write(tmp_path / "run.json", document)], tmp_path).files[0].read_text()
    document["schedules"][2]["protect"] += 1
    with pytest.raises(ValueError, match=f"{policy} has one schedule .* and another"):
        draw("fig8", [write(tmp_path / "run.json", document)], tmp_path)


def test_what_is_missing_is_named_and_the_rest_drawn(results, tmp_path):
    document = json.loads(results["fig6"].read_text())
    gone = {("recent:16", 128), ("recent:16", 256), ("full", None), ("recent", 256)}
    rows = [r for r in document["rows"] if (r["policy"], r["budget"]) not in gone]
    drawn = draw("fig6", [write(tmp_path / "part.json", document | {"rows": rows})], tmp_path)
    assert drawn.remarks[0] == "missing: recent:16, full, recent at 256"
    command = drawn.remarks[1]
    assert "beaconkv eval -m models/reasoner --budgets 128,256 --policies recent:16,full --out results/fig6" in command
    assert drawn.remarks[0] in drawn.files[0].read_text()
    rows = [r for r in document["rows"] if (r["policy"], r["budget"]) != ("beaconkv", 256)]
    drawn = draw("fig6", [write(tmp_path / "part.json", document | {"rows": rows})], tmp_path)
    assert drawn.remarks == ["missing: beaconkv at 256"]
    assert "initial_recent" in drawn.files[2].read_text()


@pytest.mark.parametrize("name", ["fig6", "fig7", "fig8", "table1", "table2", "table3", "table6"])
def test_nothing_there_is_refused_with_the_command(name, tmp_path):
    path = write(tmp_path / "full.json", eval_result(["full"], [], TASKS, 4))
    wanted = ",".join(FIGURES[name].wanted or ["beaconkv"])
    with pytest.raises(ValueError, match=f"beaconkv eval -m models/reasoner .*--policies full,{wanted}"):
        draw(name, [path], tmp_path)
    assert not list(tmp_path.glob("*.md"))


def test_remarks_for_the_reader(results, tmp_path):
    document = json.loads(results["fig8"].read_text())
    for row in document["rows"]:
        if (row["policy"], row["budget"]) == ("rpc", 256):
            row["never_evicted"] = row["samples"]
    for schedule in document["schedules"]:
        if schedule["policy"] == "snapkv:paper":
            schedule["scope"] = "output"
    drawn = draw("fig8", [write(tmp_path / "result.json", document)], tmp_path)
    assert drawn.remarks == [
        "nothing was evicted: rpc at 256",
        "the prompt does not count in the budget of snapkv:paper",
    ]


def test_refusals_by_name(results, tmp_path):
    with pytest.raises(ValueError, match="unknown figure 'fig9'; choose from fig6, fig7"):
        draw("fig9", [results["fig8"]], tmp_path)
    with pytest.raises(ValueError, match="unknown measure 'speed'; choose from accuracy, steps_right"):
        draw("fig8", [results["fig8"]], tmp_path, "speed")
    with pytest.raises(ValueError, match="fig8 needs at least one result of beaconkv eval"):
        draw("fig8", [], tmp_path)
    with pytest.raises(ValueError, match="is a result of beaconkv fidelity; fig8 needs one of beaconkv eval"):
        draw("fig8", [results["fidelity"]], tmp_path)
    with pytest.raises(FileNotFoundError, match="must hold one of result.json and fidelity.json; it holds 0"):
        draw("fig8", [tmp_path], tmp_path)
    for number, text in enumerate(["{", "[]", '{"rows": []}', '{"rows": [{"policy": "a"}]}', '{"rows": 3}']):
        path = tmp_path / f"{number}.json"
        path.write_text(text)
        with pytest.raises(ValueError, match=f"{number}.json is no result of beaconkv eval or"):
            draw("fig8", [path], tmp_path)
    document = json.loads(results["fig8"].read_text())
    for row in document["rows"]:
        del row["steps_right"]
    with pytest.raises(ValueError, match="has no steps_right"):
        draw("fig8", [write(tmp_path / "s.json", document)], tmp_path, "steps_right")


def test_percent_of_the_length_where_it_is_known(results, tmp_path):
    document = json.loads(results["fig8"].read_text())
    for row in document["rows"]:
        row["prompt_tokens"], row["tokens"] = 100.0, 1180.0 if row["policy"] == "full" else 5.0
    drawn = draw("fig8", [write(tmp_path / "result.json", document)], tmp_path)
    words = [node.text for node in ElementTree.parse(drawn.files[2]).iter() if node.text]
    assert "10%" in words  # 128 of 100 + 1180
    assert "20%" in words
    for row in document["rows"]:
        del row["prompt_tokens"]
    unknown = draw("fig8", [write(tmp_path / "result.json", document)], tmp_path).files[2].read_text()
    assert not re.search(r">\d+%<", unknown)


def test_the_same_result_gives_the_same_bytes_and_no_global_state(results, tmp_path):
    code = (
        "import sys, matplotlib\n"
        # reading the backend would choose one
        "settings = lambda: {k: matplotlib.rcParams[k] for k in matplotlib.rcParams if k != 'backend'}\n"
        "before = settings()\n"
        "from beaconkv.evaluation.figures import draw\n"
        "draw('fig8', sys.argv[1:2], sys.argv[2])\n"
        "assert 'matplotlib.pyplot' not in sys.modules\n"
        "assert settings() == before"
    )
    environment = {name: value for name, value in os.environ.items() if name not in ("DISPLAY", "WAYLAND_DISPLAY")}
    subprocess.run([sys.executable, "-c", code, results["fig8"], tmp_path / "a"], check=True, env=environment)
    draw("fig8", [results["fig8"]], tmp_path / "b")
    for name in ("fig8.md", "fig8.png", "fig8.svg"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_tables_need_no_matplotlib_and_pictures_say_how_to_get_it(results, tmp_path):
    code = (
        "import sys; sys.modules['matplotlib'] = None\n"
        "from beaconkv.evaluation.figures import draw\n"
        "draw('table1', sys.argv[1:2], sys.argv[3])\n"
        "try: draw('fig8', sys.argv[2:3], sys.argv[3])\n"
        "except ModuleNotFoundError as error: print(error)"
    )
    command = [sys.executable, "-c", code, results["table1"], results["fig8"], tmp_path]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert "pip install 'beaconkv[eval]'" in printed
    assert (tmp_path / "table1.md").exists()


def test_every_method_has_a_look_of_its_own():
    evicting = [name for name, cls in policies().items() if cls.evicts and cls.__module__.startswith("beaconkv.")]
    assert set(evicting) == set(COLOURS)
    assert len(set(COLOURS.values())) == len(COLOURS)
    assert len({colour for colour, _ in COLOURS.values()}) == len(COLOURS)
    for name in evicting:
        presets = [f"{name}:{preset}" for preset in policies()[name].presets]
        styles = [style_of(preset) for preset in presets]
        assert all((s.colour, s.marker) == COLOURS[name] for s in styles)
        assert all((style.dashes == style_of(name).dashes) == is_same(preset, name)
                   for preset, style in zip(presets, styles, strict=True))  # fmt: skip
    assert style_of("mine:k=3").colour == OTHER[0]


def test_specs_are_found_under_any_name():
    for recipe in FIGURES.values():
        for wanted in recipe.wanted or ():
            parse_policy(wanted)
    assert find(["recent", "beaconkv"], ["recent:32", "beaconkv:16-16", "recent:16"]) == {
        "recent:32": "recent", "beaconkv:16-16": "beaconkv",
    }  # fmt: skip
    assert find(["beaconkv", "beaconkv:16-16"], ["beaconkv:16-16"]) == {"beaconkv:16-16": "beaconkv:16-16"}
    assert not is_same("unknown", "beaconkv")


@pytest.mark.parametrize("seed", range(3))
def test_no_label_covers_another_or_leaves_the_page(seed):
    import numpy as np

    rng = np.random.default_rng(seed)
    names = [*COLOURS, "rpc:growing-1024", "beaconkv:n_recent=4:n_beacon=28"]
    centre, budgets = rng.uniform(20, 99), (128, 192, 208, 224, 512, 4096)

    def line(name):
        values = np.clip(centre + 4 * rng.standard_normal(len(budgets)), 0, 100)
        return Line(name, style_of(name), tuple((b, {"mean": v, "low": v, "high": v}) for b, v in
                                                zip(budgets, values.tolist(), strict=True)))  # fmt: skip

    plot = Plot("all tasks", tuple(map(line, names)), dict.fromkeys(budgets, 36.0), "exact answers, %", (0, 100))
    tiny = tuple(
        Line(one.name, one.style, tuple((b, {end: v * 1.37e-6 for end, v in e.items()}) for b, e in one.points))
        for one in plot.lines
    )
    small = Plot("3 texts", tiny, {}, "KL divergence, nats a token")
    blocks = [Block("many", (plot,) * 5), Block("two", (plot, small), labelled=2), Block("", (small,))]
    with looks():
        figure = draw_lines("A title", blocks, "A footnote. " * 30 + "\nbeaconkv eval").figure
        figure.savefig(os.devnull, format="png", dpi=100)
        page = figure.bbox
        for axes in figure.axes:
            sides = [axes._left_title, *axes.get_yticklabels()]
            for text in (text for text in sides if text.get_text()):
                box = text.get_window_extent()
                assert page.x0 <= box.x0 < box.x1 <= page.x1, text.get_text()
            labels = [text.get_window_extent() for text in axes.texts]
            ticks = [tick.get_window_extent() for tick in axes.get_xticklabels() if tick.get_text()]
            for boxes in (labels, ticks):
                boxes = sorted(boxes, key=lambda box: (box.y0, box.x0))
                for i, one in enumerate(boxes):
                    assert page.x0 <= one.x0 < one.x1 <= page.x1
                    assert page.y0 <= one.y0 < one.y1 <= page.y1
                    for other in boxes[i + 1 :]:
                        apart = one.x1 <= other.x0 or other.x1 <= one.x0 or one.y1 <= other.y0 or other.y1 <= one.y0
                        assert apart or min(one.y1, other.y1) - max(one.y0, other.y0) < 1.5
        for text in figure.texts:
            assert text.get_window_extent().x1 <= page.x1


@given(st.lists(st.floats(0, 1), max_size=20), st.floats(0, 0.3))
def test_spread(wanted, gap):
    placed = spread(wanted, gap)
    room = min(gap, 1 / max(1, len(wanted) - 1))
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    for before, after in zip(order, order[1:], strict=False):
        assert placed[after] - placed[before] >= room - 1e-9
    assert all(-1e-9 <= place <= 1 + 1e-9 for place in placed)
    sorted_wanted = [wanted[i] for i in order]
    if all(b - a >= room for a, b in zip(sorted_wanted, sorted_wanted[1:], strict=False)) and room == gap:
        assert placed == pytest.approx(wanted, abs=1e-9)


def test_spread_moves_as_little_as_possible():
    assert spread([0.5, 0.5], 0.2) == pytest.approx([0.4, 0.6])
    assert spread([0.1, 0.5, 0.52], 0.1) == pytest.approx([0.1, 0.46, 0.56])
    assert spread([0.99, 1.0], 0.1) == pytest.approx([0.9, 1.0])
    assert spread([], 0.1) == []
    with pytest.raises(ValueError, match="gap=-1"):
        spread([0.1], -1)


@given(st.lists(st.floats(0, 10), min_size=1, max_size=12).map(sorted), st.floats(0.01, 3))
def test_thin_out(positions, gap):
    shown = [p for p, show in zip(positions, thin_out(positions, gap), strict=True) if show]
    assert shown[-1] == positions[-1]
    assert all(b - a >= gap for a, b in zip(shown, shown[1:], strict=False))
    assert all(any(abs(p - s) < gap or p == s for s in shown) for p in positions)
