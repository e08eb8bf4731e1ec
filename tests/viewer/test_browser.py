"""The page in a real browser: Debian's Chromium, driven by Playwright, drawing with SwiftShader."""

from __future__ import annotations

import io
import shutil
from collections.abc import Iterator

import numpy as np
import pytest
from made_views import HU, made_labels, made_scan

from continual_segment.evaluation.evaluate import score_case
from continual_segment.files import write_json, write_labels, write_scan

sync_api = pytest.importorskip(
    "playwright.sync_api", reason="Playwright is not installed: pip install -e '.[dev]'"
)
Image = pytest.importorskip("PIL.Image")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is missing: apt-get install chromium")

OPTIONS = ["--no-sandbox", "--enable-unsafe-swiftshader", "--use-angle=swiftshader"]
READY = "body[data-state=ready]"
TIMEOUT_MS = 90_000
EVIL = "<img src=x onerror=window.hacked=1>"


@pytest.fixture(scope="module")
def browser() -> Iterator[sync_api.Browser]:
    with sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=OPTIONS)
        yield chromium
        chromium.close()


@pytest.fixture
def open_page(browser, serve):
    """Open a viewer's page and wait for it; errors on the page, and requests to elsewhere, fail the test."""
    problems, pages = [], []

    def start(*paths, model=None, state=READY, phone=False):
        server = serve(list(paths), model)
        size = {"width": 390, "height": 844} if phone else {"width": 1000, "height": 700}
        page = browser.new_page(viewport=size)
        pages.append(page)
        page.set_default_timeout(TIMEOUT_MS)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda message: message.type == "error" and problems.append(message.text))
        page.on(
            "request",
            lambda sent: sent.url.startswith((server.address, "data:", "blob:")) or problems.append(sent.url),
        )
        page.goto(server.address)
        page.wait_for_selector(state)
        return page

    yield start
    for page in pages:
        page.close()
    assert [each for each in problems if "422" not in each] == []  # the answer for a case that failed


def pixels(page, selector: str = "#stage") -> np.ndarray:
    page.wait_for_timeout(300)  # a frame or two
    return np.asarray(Image.open(io.BytesIO(page.locator(selector).screenshot())).convert("RGB")).astype(int)


def coloured(picture: np.ndarray) -> int:
    """Pixels that are not grey."""
    return int((picture.max(axis=-1) - picture.min(axis=-1) > 60).sum())


def at_crosshair(page, index: int = 0) -> dict[str, int]:
    found = page.locator("#readout .at").nth(index)
    return {name: int(found.get_attribute(f"data-{name}")) for name in ("value", "map")}


def test_the_canvas_shows_scan_and_organs_and_toggling_one_changes_pixels(case_folder, open_page):
    page = open_page(case_folder / "scans" / "case_b.nii.gz", case_folder / "truth")
    both, solid = pixels(page), pixels(page, "#render")
    assert (both.max(axis=-1) > 40).mean() > 0.1
    assert coloured(solid) > 300
    page.locator(".organ", has_text="liver").locator(".eye").click()
    without_liver = pixels(page)
    assert coloured(without_liver) < 0.6 * coloured(both)
    page.click("#none")
    assert coloured(pixels(page, "#render")) == 0
    page.click("#all")
    assert np.abs(pixels(page) - both).mean() < 2


def test_the_readout_is_the_value_of_the_label_map(case_folder, open_page):
    page = open_page(case_folder / "scans" / "case_b.nii.gz", case_folder / "truth")
    truth, scan = made_labels().voxels, made_scan().voxels
    for organ, value in (("liver", 5), ("spleen", 1)):
        page.locator(".organ-name", has_text=organ).click()
        assert at_crosshair(page)["value"] == value
        assert f"HU{HU[value]}" in page.inner_text("#readout").replace("\n", "")
    stage = page.locator("#planes").bounding_box()
    for across, down in ((0.1, 0.1), (0.2, 0.25), (0.3, 0.22), (0.7, 0.2)):
        page.mouse.click(stage["x"] + across * stage["width"], stage["y"] + down * stage["height"])
        x, y, z = map(int, page.locator("#readout .fact").last.inner_text().split("voxel")[1].split(","))
        assert at_crosshair(page)["value"] == truth[z, y, x]
        assert f"HU{scan[z, y, x]}" in page.inner_text("#readout").replace("\n", "")


def test_the_readout_names_the_pack_that_won_among_many(many_packs, open_page):
    page = open_page(many_packs / "scans" / "case_a.nii.gz", many_packs / "results")
    for organ, pack in (("liver", "pack 300"), ("spleen", "pack 44")):
        page.locator(".organ-name", has_text=organ).click()
        page.locator("#readout .fact", has_text=pack).wait_for()


def test_the_right_side_of_the_patient_is_on_the_left(case_folder, open_page):
    """x grows to the patient's right, and the liver is at larger x than the spleen."""
    page = open_page(case_folder / "scans" / "case_b.nii.gz", case_folder / "truth")
    page.keyboard.press("2")
    for organ in ("liver", "spleen"):
        page.click("#none")
        page.locator(".organ", has_text=organ).locator(".eye").click()
        picture = pixels(page)
        crosshair = (abs(picture - [250, 217, 89]).sum(axis=-1) < 120) | (picture.min(axis=-1) > 200)
        shown = (picture.max(axis=-1) - picture.min(axis=-1) > 35) & ~crosshair
        middle = np.nonzero(shown)[1].mean() / picture.shape[1]
        assert middle < 0.5 if organ == "liver" else middle > 0.5


def test_a_comparison_shows_differences_and_the_dice_of_evaluate(case_folder, open_page):
    page = open_page(case_folder / "scans" / "case_a.nii.gz", case_folder / "truth", case_folder / "results")
    assert page.locator("#map").is_visible()
    page.click("[data-panel=compare]")
    assert not page.locator("#map").is_visible()  # the comparison has choices of its own
    page.wait_for_selector(".score.mean")
    dice = {row.organ: row.dice for row in score_case("", made_labels(moved=2), made_labels())}
    for organ, expected in dice.items():
        row = page.locator(".score", has_text=organ).locator(".dice")
        assert float(row.inner_text()) == pytest.approx(expected, abs=6e-4)
    before = pixels(page)
    page.click("[data-mode=differences]")
    assert np.abs(pixels(page) - before).mean() > 1
    assert [at_crosshair(page, index)["map"] for index in (0, 1)] == [0, 1]


def test_the_next_case_loads_and_one_that_fails_says_why(case_folder, open_page):
    (case_folder / "truth" / "case_a.nii.gz").write_bytes(b"no image")
    page = open_page(case_folder / "scans", case_folder / "truth", state="body[data-state=failed]")
    assert "case_a.nii.gz" in page.inner_text("#message")
    assert page.inner_text("#case-name") == "case_a"
    page.keyboard.press("n")
    page.wait_for_selector(READY)
    assert page.inner_text("#case-name") == "case_b"
    assert coloured(pixels(page)) > 300


def test_cases_that_failed_are_listed_first(case_folder, open_page):
    page = open_page(case_folder / "scans", case_folder / "results")
    page.click("[data-panel=cases]")
    assert [text.split("\n")[1] for text in page.locator(".case").all_inner_texts()] == ["case_b", "case_a"]
    assert "1 failed, 1 with warnings" in page.inner_text("#cases")


def test_packs_and_probabilities_are_shown_where_they_were_written(case_folder, open_page):
    results, labels = case_folder / "results", made_labels(moved=2)
    packs = type(labels)((labels.voxels > 0).astype(np.uint8), labels.grid, {1: "abdomen"})
    write_labels(results / "packs" / "case_a.nii.gz", packs)
    scores = np.where(labels.voxels > 0, 0.8, 0).astype(np.float32)
    write_scan(results / "scores" / "case_a.nii.gz", type(made_scan())(scores, labels.grid))
    write_json(
        results / "quality" / "case_a.json", {"rule": "consensus", "packs": {"1": "abdomen"}, "organs": []}
    )
    page = open_page(case_folder / "scans" / "case_a.nii.gz", results)
    page.locator("#readout .fact", has_text="probability").wait_for()  # requested after the case is drawn
    text = " ".join(page.inner_text("#readout").split())
    assert "pack abdomen by rule consensus probability 0.80" in text


def test_the_organ_under_the_mouse_is_named_beside_it(case_folder, open_page):
    page = open_page(case_folder / "scans" / "case_b.nii.gz", case_folder / "truth")
    page.keyboard.press("2")
    page.locator(".organ-name", has_text="liver").click()
    stage = page.locator("#planes").bounding_box()
    middle = stage["y"] + stage["height"] / 2
    named = set()
    for share in np.linspace(0.1, 0.9, 17):
        page.mouse.move(stage["x"] + share * stage["width"], middle)
        if page.locator("#hover").is_visible():
            named.add(page.locator("#hover strong").inner_text())
    assert named == {"liver", "spleen", "background"}
    page.mouse.move(stage["x"] + stage["width"] + 50, middle)
    assert not page.locator("#hover").is_visible()


def test_flags_are_shown_explained_and_listed_alone(case_folder, open_page):
    results = case_folder / "results"
    row = {"organ": "liver", "volume_ml": 1.0, "mean_score": 0.5, "mean_entropy_bits": 0.1}
    row |= {"contested_share": 0.0, "packs": {}, "touches_edge": []}
    write_json(results / "quality" / "case_a.json", {"rule": "consensus", "packs": {}, "organs": [row]})
    page = open_page(case_folder / "scans" / "case_a.nii.gz", results)
    assert page.locator(".organ .flag").all_inner_texts() == ["unsure"]
    assert "0.50" in page.locator(".organ .flag").get_attribute("title")
    assert "0.7" in page.inner_text(".flag-help")
    page.click(".organ .flag")  # on a phone nothing points at it
    assert "0.50" in page.inner_text(".organ .flag-sentences")
    page.click("#flagged")
    assert page.locator(".organ:visible .organ-name").all_inner_texts() == ["liver"]


def test_organs_that_one_label_map_does_not_name_are_not_compared(case_folder, open_page):
    labels = made_labels()
    labels.voxels[labels.voxels == 1] = 0
    write_labels(
        case_folder / "results" / "case_a.nii.gz", type(labels)(labels.voxels, labels.grid, {5: "liver"})
    )
    page = open_page(case_folder / "scans" / "case_a.nii.gz", case_folder / "truth", case_folder / "results")
    page.click("[data-panel=compare]")
    page.wait_for_selector(".score.mean")
    assert page.inner_text(".score.mean").split() == ["mean", "of", "1", "1.000"]
    assert "spleen" in page.inner_text("#compare .missing")


def test_without_a_graphics_card_the_grid_is_coarser_until_a_finer_one_is_asked_for(
    case_folder, open_page, monkeypatch
):
    monkeypatch.setattr("continual_segment.viewer.site.MOST_WITHOUT_GRAPHICS", 8000)
    page = open_page(case_folder / "scans" / "case_b.nii.gz", case_folder / "truth")
    assert "without a graphics card" in page.inner_text("#notes")
    for organ, label in (
        ("liver", 5),
        ("spleen", 1),
    ):  # voxels are those of the scan, not of the coarser grid
        page.locator(".organ-name", has_text=organ).click()
        x, y, z = map(int, page.locator("#readout .fact").last.inner_text().split("voxel")[1].split(","))
        assert made_labels().voxels[z, y, x] == label
    page.click("#finer")
    page.wait_for_selector(READY)
    page.wait_for_selector("#notes:empty", state="attached")
    assert coloured(pixels(page)) > 300


def test_names_from_files_are_shown_as_text(tmp_path, open_page):
    folder = tmp_path / "results"
    write_scan(tmp_path / "scans" / "a'b.nii.gz", made_scan())
    write_labels(folder / "a'b.nii.gz", made_labels(names={5: EVIL, 1: "x" * 5000}))
    write_json(folder / "manifest" / "a'b.json", {"input": {"warnings": [EVIL]}})
    page = open_page(tmp_path / "scans", folder)
    assert EVIL in page.inner_text("#organ-list")
    assert EVIL in page.inner_text("#notes")
    assert page.locator("#organ-list img, #notes img").count() == 0
    assert page.evaluate("() => window.hacked") is None
    assert page.evaluate("() => document.documentElement.scrollWidth <= window.innerWidth")


def test_search_solo_windows_outline_and_layouts(case_folder, open_page):
    page = open_page(case_folder / "scans" / "case_b.nii.gz", case_folder / "truth")
    page.fill("#search", "SPL")
    assert page.locator(".organ:visible").count() == 1
    page.locator(".organ", has_text="spleen").locator(".solo").click()
    alone = coloured(pixels(page))
    page.locator(".organ", has_text="spleen").locator(".solo").click()
    assert coloured(pixels(page)) > 1.5 * alone
    page.locator("#planes").focus()
    for key in ("o", "w", "2", "3", "4", "5", "1"):
        before = pixels(page)
        page.keyboard.press(key)
        assert np.any(pixels(page).shape != before.shape) or np.abs(pixels(page) - before).mean() > 0.1, key


def test_a_screenshot_is_a_picture_of_all_views(case_folder, open_page, tmp_path):
    page = open_page(case_folder / "scans" / "case_b.nii.gz", case_folder / "truth")
    with page.expect_download() as download:
        page.click("#screenshot")
    download.value.save_as(tmp_path / "shot.png")
    picture = np.asarray(Image.open(tmp_path / "shot.png").convert("RGB")).astype(int)
    height, width, _ = picture.shape
    assert download.value.suggested_filename == "case_b.png"
    for quarter in (picture[: height // 2, : width // 2], picture[height // 2 :, width // 2 :]):
        assert coloured(quarter) > 100


def test_the_model_page_lists_packs_and_verifies_them(shared_model_folder, open_page):
    page = open_page(model=shared_model_folder)
    assert page.locator(".pack").count() == 2
    assert page.inner_text("#verification").startswith("Verified")
    every = page.locator("#body .organ-outline").count()
    page.locator("#packs-choice button", has_text="chest").click()
    assert 0 < page.locator("#body .organ-outline").count() < every
    assert page.locator(".pack .glance", has_text="licence").count() == 2


def test_on_a_phone_nothing_is_wider_than_the_screen(case_folder, open_page):
    page = open_page(case_folder / "scans", case_folder / "truth", phone=True)
    assert page.evaluate("() => document.documentElement.scrollWidth") <= 390
    picture = pixels(page)
    assert coloured(picture) > 300
    crosshair = (picture[..., 0] > 150) & (picture[..., 0] - picture[..., 2] > 40) & (picture[..., 1] > 120)
    assert crosshair.sum(axis=0).max() > 100  # a vertical line
    assert crosshair.sum(axis=1).max() > 100  # a horizontal one


def test_the_wheel_turns_the_slices_of_the_plane_under_the_mouse_and_zooms_with_ctrl(case_folder, open_page):
    page = open_page(case_folder / "scans" / "case_b.nii.gz", case_folder / "truth")
    stage = page.locator("#planes").bounding_box()

    def wheel(across: float, down: float, pixels: int) -> list[int]:
        page.mouse.move(stage["x"] + across * stage["width"], stage["y"] + down * stage["height"])
        page.mouse.wheel(0, pixels)
        page.wait_for_timeout(200)
        return voxel(page)

    x, y, z = voxel(page)
    assert wheel(0.25, 0.25, -120) == [x, y, z + 1]  # axial: to the head
    assert wheel(0.25, 0.25, 120) == [x, y, z]
    (across, along, up), shown = wheel(0.75, 0.25, -120), pixels(page)  # coronal
    assert (across, abs(along - y), up) == (x, 1, z)
    (across, _, up) = wheel(0.25, 0.75, -120)  # sagittal
    assert (abs(across - x), up) == (1, z)
    wheel(0.25, 0.75, 120)
    assert wheel(0.75, 0.25, 120) == [x, y, z]
    for _ in range(3):  # of a touchpad: many small turns are one slice
        assert wheel(0.25, 0.25, -15) == [x, y, z]
    assert wheel(0.25, 0.25, -15) == [x, y, z + 1]
    page.keyboard.down("Control")
    assert wheel(0.25, 0.25, -120) == [x, y, z + 1]
    page.keyboard.up("Control")
    assert np.abs(pixels(page) - shown).mean() > 2


def voxel(page) -> list[int]:
    """Of the crosshair, in the file."""
    return [
        int(part) for part in page.locator("#readout .fact").last.inner_text().split("voxel")[1].split(",")
    ]
