"""The report in a real browser: desktop and phone width, light and dark mode."""

import io
import shutil

import numpy as np
import pytest
from PIL import Image

import made_up_findings as made_up
from divconq.analysis import write_report

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
SIZES = {"desktop": (1280, 900), "phone": (360, 740)}


@pytest.fixture(scope="module")
def browser():
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("Chromium is not installed")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """Reports of complete findings, long names, one cluster, and empty findings."""
    made = {
        "full": made_up.full(),
        "long names": made_up.with_names(made_up.full(), made_up.NASTY),
        "one cluster": made_up.one_cluster(),
        "nothing": made_up.nothing(),
    }
    folder = tmp_path_factory.mktemp("reports")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("divconq.analysis.report.assemble.draw_figures", made_up.drawn)
        return {
            name: write_report(findings, made_up.pictures_of(findings), folder / name.replace(" ", "-"))
            for name, findings in made.items()
        }


@pytest.mark.parametrize(
    ("name", "size", "scheme"),
    [
        ("full", "desktop", "light"),
        ("full", "desktop", "dark"),
        ("full", "phone", "light"),
        ("full", "phone", "dark"),
        ("long names", "phone", "dark"),
        ("long names", "desktop", "light"),
        ("one cluster", "phone", "light"),
        ("nothing", "phone", "dark"),
    ],
)
def test_the_page_loads_without_requests_and_fits_the_screen(browser, reports, name, size, scheme, tmp_path):
    width, height = SIZES[size]
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
    tab = context.new_page()
    complaints, asked = [], []
    tab.on("console", lambda message: complaints.append(message.text))
    tab.on("pageerror", lambda error: complaints.append(str(error)))
    tab.on("requestfailed", lambda request: complaints.append(request.url[:80]))
    tab.on("request", lambda request: asked.append(request.url))
    tab.goto(reports[name].as_uri())
    tab.evaluate("for (const part of document.querySelectorAll('details')) part.open = true")
    tab.evaluate("for (const image of document.images) image.loading = 'eager'")
    tab.wait_for_function("[...document.images].every(image => image.complete)")

    assert complaints == []
    assert {url for url in asked if not url.startswith("data:")} == {reports[name].as_uri()}
    assert tab.evaluate("[...document.images].filter(image => image.naturalWidth === 0).length") == 0
    assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth"), "the page scrolls sideways"
    file = tmp_path / f"{size}-{scheme}.png"
    tab.screenshot(path=file, full_page=True)
    context.close()

    pixels = np.asarray(Image.open(io.BytesIO(file.read_bytes())).convert("L"), dtype=float)
    assert pixels.shape[1] == width
    assert pixels.std() > 5, "the page is blank"
    assert (np.median(pixels) > 128) == (scheme == "light"), "the page has the wrong colour scheme"


def test_figure_text_follows_light_and_dark_mode(browser, reports):
    colours = {}
    for scheme in ("light", "dark"):
        context = browser.new_context(color_scheme=scheme)
        tab = context.new_page()
        tab.goto(reports["full"].as_uri())
        colours[scheme] = tab.evaluate("getComputedStyle(document.querySelector('#recall svg text')).fill")
        body = tab.evaluate("getComputedStyle(document.body).fontFamily")
        assert tab.evaluate("getComputedStyle(document.querySelector('#recall svg text')).fontFamily") == body
        context.close()
    assert colours["light"] != colours["dark"]
