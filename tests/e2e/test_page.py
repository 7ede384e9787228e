"""The page in a browser, as a whole: on the embedded model, across a restart, in twenty tabs."""

from __future__ import annotations

import io
import re
import signal
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from tests.e2e.browsing import (
    Api,
    add_labels,
    answered,
    drop,
    lessons,
    page_of,
    pictures,
    probability,
    row,
    said,
    teach,
)
from tests.e2e.conftest import Serve, Server

pytestmark = pytest.mark.e2e
FLOWERS = "rose, dahlia, sunflower, tulip, orange flower, marigold"

# A few steps are over before anybody could look: the page itself keeps what it showed.
WATCH_JOB = """() => {
    window.said = [];
    window.hid = [];
    new MutationObserver((changes) => {
        for (const change of changes)
            for (const node of change.addedNodes) said.push(node.textContent);
    }).observe(document.getElementById("job"), { childList: true });
    new MutationObserver((changes) => {
        for (const change of changes) hid.push(change.oldValue !== null);
    }).observe(document.getElementById("progress"),
               { attributeFilter: ["hidden"], attributeOldValue: true });
}"""


def crops(file: Path, count: int) -> list[tuple[str, bytes]]:
    """Parts of a photograph: of the same thing, and not the same."""
    with Image.open(file) as whole:
        made = []
        for number in range(count):
            out, left = io.BytesIO(), 20 * number
            whole.crop((left, 10 * number, left + 480, 10 * number + 360)).save(out, "PNG")
            made.append((f"{file.stem} {number}.png", out.getvalue()))
        return made


def test_correct_watch_reload_restart(browser: Any, serve: Serve, photos: Path) -> None:
    server = serve("--memory", "memory")
    flower = photos / "flower.jpg"
    with page_of(browser, server.url) as page:
        page.wait_for_selector("#link.live")
        add_labels(page, FLOWERS)
        drop(page, flower)
        answered(page)
        assert page.locator("#bars button").count() == 6
        assert page.inner_text("#verdict .label") != "dahlia"  # it does not know better yet
        before = probability(page, "dahlia")

        for lesson, part in enumerate(crops(flower, 4), 1):
            drop(page, part)
            answered(page)
            teach(page, "dahlia")
            lessons(page, lesson)
        drop(page, flower)
        answered(page)
        assert page.inner_text("#verdict .label") == "dahlia"
        known = probability(page, "dahlia")
        assert known > 5 * before
        assert "4 examples · 1 label" in page.inner_text("#facts")

        page.reload()
        page.wait_for_selector("#link.live")
        lessons(page, 4)
        assert page.locator("#chips li").count() == 6
        assert "Everything that was answered is stored" in server.end(signal.SIGTERM)
        page.wait_for_selector("#link.off")
    again = serve("--memory", "memory")
    with page_of(browser, again.url) as page:  # another browser, another day
        page.wait_for_selector("#link.live")
        lessons(page, 4)
        assert page.locator("#chips li").count() == 6  # the memory has its labels
        drop(page, flower)
        answered(page)
        assert probability(page, "dahlia") == pytest.approx(known, rel=1e-4)
        page.click("#examples-link")
        page.wait_for_selector("#gallery li:nth-child(4) img")  # and its pictures


def test_everything_else_a_person_does(browser: Any, tiny_server: Server, tmp_path: Path) -> None:
    with page_of(browser, tiny_server.url, permissions=["camera"]) as page:
        page.wait_for_selector("#link.live")
        began = len(Api(page).get("stats")["outcomes"])

        # By keyboard alone: labels, a file, a lesson by number, a label of one's own.
        add_labels(page, "castle, pagoda")
        page.wait_for_selector("#chips li:nth-child(2)")
        [(name, data)] = pictures(1, 1)
        (tmp_path / name).write_bytes(data)
        page.focus("#choose")
        with page.expect_file_chooser() as chooser:
            page.press("#choose", "Enter")
        chooser.value.set_files(str(tmp_path / name))
        answered(page)
        page.focus("#answer")
        page.keyboard.press("1")
        lessons(page, began + 1)
        page.fill("#teach-text", "  Summer   Palace ")
        page.press("#teach-text", "Enter")
        page.wait_for_selector(row("Summer Palace"))

        # Labels come and go; one that is taken out is not chosen from, though it is learned.
        page.click("#chips li:has-text('Summer Palace') button")
        page.wait_for_selector(row("Summer Palace"), state="detached")

        # A second page hears of it without being asked.
        with page_of(browser, tiny_server.url) as other:
            other.wait_for_selector("#link.live")
            drop(page, *pictures(1, 2))
            answered(page)
            page.click(row("pagoda"))
            other.wait_for_selector("#facts:has-text('2 examples')")

        # Paste.
        page.evaluate(
            """async () => {
                const canvas = new OffscreenCanvas(64, 64);
                canvas.getContext("2d").fillRect(0, 0, 64, 64);
                const blob = await canvas.convertToBlob({ type: "image/png" });
                const data = new DataTransfer();
                data.items.add(new File([blob], "pasted.png", { type: "image/png" }));
                dispatchEvent(new ClipboardEvent("paste", { clipboardData: data }));
            }"""
        )
        page.wait_for_selector("#preview[alt='The picture pasted.png']")

        # Camera.
        page.click("#camera")
        page.wait_for_selector("#camera-dialog[open]")
        page.wait_for_function("() => document.getElementById('video').videoWidth > 0")
        page.click("#snap")
        page.wait_for_selector("#preview[alt='The picture camera 1.jpg']")
        assert page.evaluate("document.getElementById('video').srcObject") is None  # it is off

        # Consolidate, with progress: a bar comes and goes, and words count the steps beside it.
        page.evaluate(WATCH_JOB)
        page.click("#consolidate")
        page.wait_for_selector("#job:has-text('done')")
        counted = [re.fullmatch(r"step (\d+) of (\d+)", words) for words in page.evaluate("said")]
        steps = [(int(found[1]), int(found[2])) for found in counted if found]
        # Three epochs, and one batch holds all. The page may be told of a step twice.
        assert set(steps) <= {(1, 3), (2, 3), (3, 3)}
        assert steps
        assert page.evaluate("hid")[:2] == [True, False]  # it came, and it went
        assert page.locator("#progress").is_hidden()

        # Forget a label, after a question.
        page.click("#examples-link")
        page.click("#shelf li:has-text('Summer Palace') button.change")
        page.click("#label-forget")
        page.click("#confirm-yes")
        said(page, "Forgot 1 example of “Summer Palace”")
        page.wait_for_selector("#facts:has-text('1 example ')")


def test_a_token_is_asked_for(browser: Any, serve: Serve, tmp_path: Path) -> None:
    from tests.backbone import tiny

    token = "a token for this test alone"
    model = tiny.clip(tmp_path / "model")
    server = serve("--memory", "memory", "--model", model, env={"ANYTIMECL_WRITE_TOKEN": token})
    with page_of(browser, server.url) as page:
        page.wait_for_selector("#token-dialog[open]")
        page.fill("#token-text", token)
        page.press("#token-text", "Enter")
        page.wait_for_selector("#link.live")
        assert "0 examples" in page.inner_text("#facts")


def test_twenty_tabs_load_and_hear_of_a_lesson(browser: Any, tiny_server: Server) -> None:
    """A browser has six connections to a host, for all of its tabs together."""
    context = browser.new_context()
    context.set_default_timeout(120_000)
    pages = [context.new_page() for _ in range(20)]
    for page in pages:
        page.goto(tiny_server.url)
    for page in pages:
        page.wait_for_selector("#link.live")
    began = len(Api(pages[0]).get("stats")["outcomes"])
    add_labels(pages[0], "building, flower")
    drop(pages[0], *pictures(1, 7))
    answered(pages[0])
    teach(pages[0], "building")
    for page in pages:
        page.bring_to_front()
        lessons(page, began + 1)
    context.close()
