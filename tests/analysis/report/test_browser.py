"""The page in a browser: what is shown is what the data say."""

import functools
import shutil

import numpy as np
import pytest

from beaconkv.analysis.report import render_page

from . import data

webdriver = pytest.importorskip("selenium.webdriver", reason="the browser tests need the package 'selenium'")
from selenium.webdriver.chrome.service import Service  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402
from selenium.webdriver.support.ui import Select  # noqa: E402

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
FLAGS = (
    "--headless=new --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --disable-dev-shm-usage"
)
EVIL = "</script><script>window.hacked = 1</script>"
IMAGE = "<img src=x onerror='window.hacked = 2'>"


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    for name, found in (("chromium", BROWSER), ("chromedriver", DRIVER)):
        if found is None:
            pytest.skip(f"{name} is not installed")
    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for flag in FLAGS.split():
        options.add_argument(flag)
    options.add_argument(f"--user-data-dir={tmp_path_factory.mktemp('profile')}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def opened(driver, tmp_path_factory):
    """Load a page at a size; refuses one that complains."""

    def load(run, width=1280, height=900):
        path = tmp_path_factory.mktemp("page") / "report.html"
        path.write_text(render_page(run), encoding="utf-8")
        screen = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
        driver.get(path.as_uri())
        frames(driver)
        quiet(driver)
        return driver

    return load


@functools.cache
def small():
    run = data.run()
    run["tokens"][:4] = [EVIL, IMAGE, "", "a\u202eb\x00\n"]
    return run


@pytest.fixture
def page(opened):
    return opened(small())


def frames(driver):
    """Wait until what was asked for is painted."""
    driver.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(() => arguments[0]()))")


def quiet(driver):
    assert driver.get_log("browser") == []


def state(driver):
    return driver.execute_script("return {...window.beaconkv}")


def token(driver, t):
    return driver.find_element(By.CSS_SELECTOR, f'#text span[data-t="{t}"]')


def click(driver, t):
    driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", token(driver, t))
    token(driver, t).click()


def choose(driver, control, value):
    Select(driver.find_element(By.ID, control)).select_by_value(str(value))


def expected(run, head, policy, t):
    """[(position, gone)] of what query t looks at, strongest first, from the data alone."""
    looked = run["targets"][head, t]
    looked = looked[looked >= 0]
    if policy < 0:
        return [(int(j), False) for j in looked]
    chosen = run["heads"][head]
    dropped = run["policies"][policy]["dropped"][run["layers"].index(chosen["layer"]), chosen["kv_head"]]
    return [(int(j), bool(t > dropped[j])) for j in looked]


LISTED = "return [...document.querySelectorAll('#targets li')].map((li) => [Number(li.dataset.t), li.dataset.gone])"
MARKED = "return [...document.querySelectorAll('#text .target')].map((s) => [Number(s.dataset.t), s.matches('.gone')])"
GLOBAL = "return [...document.querySelectorAll('#text .global')].map((s) => Number(s.dataset.t))"


def shows(driver, run, head, policy, t):
    want = expected(run, head, policy, t)
    listed = [(j, gone == "true") for j, gone in driver.execute_script(LISTED)]
    assert listed == want
    assert [tuple(pair) for pair in driver.execute_script(MARKED)] == sorted(want)
    assert driver.execute_script(GLOBAL) == np.flatnonzero(run["is_global"][head]).tolist()


def busy(run, head, policy):
    """The query of the answer with most targets gone, but not all."""
    missed = [sum(gone for _, gone in expected(run, head, policy, t)) for t in range(len(run["tokens"]))]
    most = max(m for m in missed if m < run["targets"].shape[2])
    assert most > 0
    return missed.index(most)


def test_first_view(page):
    run = small()
    seen = state(page)
    best = int(np.argmax([head["share"] for head in run["heads"]]))
    assert (seen["head"]["layer"], seen["head"]["head"]) == (run["heads"][best]["layer"], run["heads"][best]["head"])
    assert (seen["policy"], seen["other"], seen["pinned"]) == ("beaconkv", "snapkv", False)
    shows(page, run, best, 0, seen["token"])
    assert page.execute_script("return performance.getEntriesByType('resource').length") == 0


def test_text_is_only_text(page):
    assert page.execute_script("return window.hacked") is None
    assert not page.find_elements(By.CSS_SELECTOR, "#text img, #text script")
    texts = page.execute_script("return [0, 1, 2, 3].map((t) => document.querySelector(`[data-t='${t}']`).textContent)")
    assert texts == [EVIL, IMAGE, "\u2205", "a\u27e8202e\u27e9b\u2400\u21b5\n"]


def test_pointing_and_clicking(page):
    run = small()
    choose(page, "head", 1)
    t = busy(run, 1, 0)
    page.execute_script("arguments[0].scrollIntoView({block: 'center'})", token(page, t))
    webdriver.ActionChains(page).move_to_element(token(page, t)).perform()
    shows(page, run, 1, 0, t)
    assert not state(page)["pinned"]
    click(page, t)
    assert state(page)["pinned"]
    webdriver.ActionChains(page).move_to_element(token(page, t - 1)).perform()
    shows(page, run, 1, 0, t)  # held
    click(page, t)
    assert not state(page)["pinned"]
    quiet(page)


def test_head_and_policy(page):
    """Another head may read another layer and another KV head, whose entries were evicted at other times."""
    run = small()
    click(page, busy(run, 0, 1))
    for head in range(len(run["heads"])):
        choose(page, "head", head)
        for policy in (-1, 0, 1):
            choose(page, "policy", policy)
            shows(page, run, head, policy, state(page)["token"])
    quiet(page)


def test_the_query_after_which_an_entry_is_evicted_still_sees_it(page):
    run = small()
    choose(page, "head", 0)
    head = run["heads"][0]
    dropped = run["policies"][0]["dropped"][run["layers"].index(head["layer"]), head["kv_head"]]
    looked = run["targets"][0]
    there = np.argwhere((looked >= 0) & (dropped[looked] == np.arange(len(looked))[:, None]))
    t, k = there[0].tolist()
    click(page, t)
    row = page.find_element(By.CSS_SELECTOR, f'#targets li[data-t="{looked[t, k]}"]')
    assert row.get_attribute("data-gone") == "false"
    shows(page, run, 0, 0, t)


def test_a_click_on_the_heat_map(page):
    run = small()
    head = run["heads"][2]
    x, y = page.execute_script(
        "const box = document.querySelector('#frequency canvas').getBoundingClientRect();"
        "const wide = Math.min(40, (box.width - 48) / arguments[2]), high = Math.min(22, wide);"
        "return [box.left + 44 + (arguments[0] + 0.5) * wide, box.top + 4 + (arguments[1] + 0.5) * high]",
        head["head"],
        run["layers"].index(head["layer"]),
        run["num_heads"],
    )
    page.execute_script(
        "document.querySelector('#frequency canvas').dispatchEvent("
        "new MouseEvent('click', {clientX: arguments[0], clientY: arguments[1], bubbles: true}))",
        x,
        y,
    )
    assert state(page)["head"]["head"] == head["head"]
    assert state(page)["head"]["layer"] == head["layer"]
    assert page.find_element(By.ID, "head").get_attribute("value") == "2"


def test_keyboard(page):
    run = small()
    choose(page, "head", 3)
    click(page, 90)
    text = page.find_element(By.ID, "text")
    text.send_keys(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT, Keys.ARROW_LEFT)
    assert state(page)["token"] == 91
    shows(page, run, 3, 0, 91)
    later = np.flatnonzero(run["is_global"][3])
    text.send_keys("g")
    assert state(page)["token"] == later[later > 91][0]
    text.send_keys(Keys.END, Keys.ARROW_RIGHT)
    assert state(page)["token"] == len(run["tokens"]) - 1
    text.send_keys(Keys.ARROW_UP)
    above, below = token(page, state(page)["token"]), token(page, len(run["tokens"]) - 1)
    assert 0 < below.rect["y"] - above.rect["y"] < 60
    assert f"Token {state(page)['token']}" in page.find_element(By.ID, "spoken").get_attribute("textContent")
    text.send_keys(Keys.HOME, Keys.ARROW_LEFT)
    assert state(page)["token"] == 0
    plot = page.find_element(By.CSS_SELECTOR, "#distance .plot")
    plot.send_keys(Keys.ARROW_RIGHT)
    frames(page)
    assert (state(page)["token"], plot.get_attribute("aria-valuenow")) == (1, "1")
    quiet(page)


@pytest.mark.parametrize("after", [0, 1, 5], ids=["just before an eviction", "just after", "later"])
def test_plots_tell_the_numbers(page, after):
    run = small()
    choose(page, "head", 0)
    t = int(run["policies"][1]["steps"][2]) + after
    click(page, t)
    frames(page)
    say = {name: page.find_element(By.CSS_SELECTOR, f"#{name} output").text for name in ("life-1", "lost", "coverage")}
    head = run["heads"][0]
    second = run["policies"][1]
    dropped = second["dropped"][run["layers"].index(head["layer"]), head["kv_head"]]
    held = int(np.sum((np.arange(len(dropped)) <= t) & (t <= dropped)))
    missed = sum(gone for _, gone in expected(run, 0, 1, t))
    looked = len(expected(run, 0, 1, t))
    assert f"{held} of {t + 1} entries held; {missed} of the {looked} entries" in say["life-1"]
    every = [gone for query in range(len(run["tokens"])) for _, gone in expected(run, 0, 1, query)]
    caption = page.find_element(By.CSS_SELECTOR, "#life-1 figcaption").text
    assert f"{sum(every):,} of {len(every):,} looks came after the eviction" in caption
    lost = 100 * second["lost"][0, np.searchsorted(second["steps"], t)]
    assert f"snapkv, budget 64 {lost:.{1 if lost < 9.95 else 0}f} %" in say["lost"]
    covered = run["policies"][0]["coverage"][0, t]
    assert f"beaconkv, budget 64 {covered:.2f}" in say["coverage"]
    assert "snapkv, budget 64 none" in say["coverage"]


def test_themes(page):
    ground = "return [beaconkv.theme, getComputedStyle(document.body).backgroundColor]"
    theme, colour = page.execute_script(ground)
    page.find_element(By.ID, "theme").click()
    frames(page)
    assert {theme, page.execute_script(ground)[0]} == {"light", "dark"}
    assert page.execute_script(ground)[1] != colour
    quiet(page)


@pytest.mark.parametrize("policies", [0, 1, 2, 3])
def test_any_number_of_policies_on_a_phone(opened, policies):
    run = data.run(length=120, policies=policies)
    for one in run["policies"]:
        one["coverage"] = None
    driver = opened(run, 360, 740)
    assert driver.execute_script("return document.documentElement.scrollWidth") <= 360
    assert driver.find_element(By.ID, "life-title").is_displayed() == (policies > 0)
    assert driver.find_element(By.ID, "life-1").is_displayed() == (policies > 1)
    assert not driver.find_element(By.ID, "coverage").is_displayed()
    assert len(driver.find_elements(By.CSS_SELECTOR, "#summary thead th")) == policies
    click(driver, 100)
    shows(
        driver,
        run,
        [head["share"] for head in run["heads"]].index(max(h["share"] for h in run["heads"])),
        min(policies - 1, 0),
        100,
    )
    quiet(driver)


def test_in_long_texts_another_head_builds_nothing_anew(opened):
    """The tokens on the page stay the same elements: to make thousands of them again would be felt at each choice."""
    driver = opened(data.run(length=5000, heads=24, targets=8))
    kept, made, text = driver.execute_async_script(
        "const done = arguments[0], select = document.getElementById('head');"
        "const before = new Set(document.querySelectorAll('*')); let made = 0;"
        "new MutationObserver(all => all.forEach(one => made += one.addedNodes.length))"
        "  .observe(document.body, {childList: true, subtree: true});"
        "select.value = select.value === '3' ? '4' : '3';"
        "select.dispatchEvent(new Event('change'));"
        "requestAnimationFrame(() => setTimeout(() => done([[...document.querySelectorAll('*')]"
        "  .filter(one => before.has(one)).length, made, before.size])))"
    )
    assert state(driver)["head"]["head"] is not None
    assert text > 5000
    assert kept > 5000
    assert made < 1000
    quiet(driver)
