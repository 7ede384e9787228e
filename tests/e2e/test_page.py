"""The page in a browser, on a real server and the embedded model."""

from __future__ import annotations

import base64
import io
import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from tests.e2e.conftest import Serve

pytestmark = pytest.mark.e2e
SHOTS = os.environ.get("ANYTIMECL_SHOTS")  # a folder for screenshots
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


@contextmanager
def page_of(browser: Any, url: str, **options: Any) -> Iterator[Any]:
    """A page that may not complain: not of scripts, not of the security policy."""
    context = browser.new_context(**options)
    page = context.new_page()
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on(
        "console",
        lambda message: (
            complaints.append(message.text) if "Content Security Policy" in message.text else None
        ),
    )
    hosts: set[str] = set()
    page.on("request", lambda request: hosts.add(request.url.split("/")[2]))
    page.goto(url)
    yield page
    assert complaints == []
    assert hosts <= {url.split("/")[2], ""}  # nothing comes from elsewhere
    context.close()


def drop(page: Any, file: Path) -> None:
    """As a person drops a file onto the page."""
    data = base64.b64encode(file.read_bytes()).decode()
    page.evaluate(
        """([data, name]) => {
            const bytes = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
            const transfer = new DataTransfer();
            transfer.items.add(new File([bytes], name, { type: "image/jpeg" }));
            dispatchEvent(new DragEvent("drop", { dataTransfer: transfer, cancelable: true }));
        }""",
        [data, file.name],
    )


def add_labels(page: Any, text: str) -> None:
    page.fill("#add-text", text)
    page.press("#add-text", "Enter")


def row(label: str) -> str:
    return f"#bars button[data-label='{label}']"


def probability(page: Any, label: str) -> float:
    return float(page.get_attribute(row(label), "data-blended"))


def lessons(page: Any, count: int) -> None:
    """Wait until the chart shows so many."""
    page.wait_for_selector(f"#chart svg[data-lessons='{count}']", state="attached")


def teach(page: Any, label: str) -> float:
    """One click; the probability after it, which may be as high as it was."""
    with page.expect_response("**/v1/predict") as answered:  # the page asks again by itself
        page.click(row(label))
    scores = answered.value.json()["predictions"][0]["scores"]
    after = next(score["blended"] for score in scores if score["label"] == label)
    page.wait_for_function(
        "([query, value]) => Number(document.querySelector(query)?.dataset.blended) === value",
        arg=[row(label), after],
    )
    return float(after)


def test_drop_correct_watch_reload_restart(browser: Any, serve: Serve, photos: Path) -> None:
    server = serve("--memory", "memory")
    with page_of(browser, server.url) as page:
        page.wait_for_selector("#link.live")
        add_labels(page, FLOWERS)
        drop(page, photos / "flower.jpg")
        page.wait_for_selector(row("dahlia"))
        assert page.locator("#bars button").count() == 6
        assert page.inner_text("#verdict .label") != "dahlia"  # it does not know better yet

        chart = page.locator("#chart polyline.blended").get_attribute("points")
        seen = [probability(page, "dahlia")]
        for lesson in range(1, 6):
            seen.append(teach(page, "dahlia"))
            lessons(page, lesson)
        assert seen == sorted(seen)  # every correction raises it
        assert seen[-1] > 5 * seen[0]
        assert page.locator("#chart polyline.blended").get_attribute("points") != chart
        assert "5 examples · 1 labels" in page.inner_text("#facts")
        page.wait_for_selector("#gallery li:nth-child(5) img")

        page.reload()
        page.wait_for_selector("#link.live")
        lessons(page, 5)
        page.wait_for_selector("#gallery li:nth-child(5) img")
        assert page.locator("#chips li").count() == 6  # the browser kept the labels
        drop(page, photos / "flower.jpg")
        page.wait_for_selector(row("dahlia"))
        assert probability(page, "dahlia") == pytest.approx(seen[-1], rel=1e-4)

        assert "Everything that was answered is stored" in server.end(signal.SIGTERM)
        page.wait_for_selector("#link.off")
    again = serve("--memory", "memory")
    with page_of(browser, again.url) as page:
        page.wait_for_selector("#link.live")
        lessons(page, 5)
        assert page.inner_text("#counts .name") == "dahlia"
        assert page.locator("#gallery .blank").count() == 5  # pictures were only in RAM
        assert "no picture kept" in page.inner_text("#gallery")
        add_labels(page, FLOWERS)
        drop(page, photos / "flower.jpg")
        page.wait_for_selector(row("dahlia"))
        assert probability(page, "dahlia") == pytest.approx(seen[-1], rel=1e-4)


def test_everything_else_a_person_does(browser: Any, serve: Serve, photos: Path) -> None:
    server = serve("--memory", "memory")
    with page_of(browser, server.url, permissions=["camera"]) as page:
        page.wait_for_selector("#link.live")

        # By keyboard alone: labels, a file, a lesson by number, a label of one's own.
        add_labels(page, "castle, pagoda")
        page.wait_for_selector("#chips li:nth-child(2)")
        page.focus("#drop")
        with page.expect_file_chooser() as chooser:
            page.press("#drop", "Enter")
        chooser.value.set_files(str(photos / "china.jpg"))
        page.wait_for_selector(row("pagoda"))
        page.focus("#answer")
        page.keyboard.press("1")
        lessons(page, 1)
        page.fill("#teach-text", "  Summer   Palace ")
        page.press("#teach-text", "Enter")
        lessons(page, 2)
        page.wait_for_selector(row("Summer Palace"))

        # Labels come and go; one that is hidden is not chosen from, though it is learned.
        page.click("#chips li:has-text('castle') button")
        page.wait_for_selector(row("castle"), state="detached")

        # A second page hears of it without being asked.
        with page_of(browser, server.url) as other:
            lessons(other, 2)
            page.click(row("pagoda"))
            lessons(other, 3)

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
        page.wait_for_selector("#preview[alt='The image pasted.png']")

        # Camera.
        page.click("#camera")
        page.wait_for_selector("#camera-dialog[open]")
        page.wait_for_timeout(500)
        page.click("#snap")
        page.wait_for_selector("#preview[alt='The image']")
        assert page.evaluate("document.getElementById('video').srcObject") is None  # it is off

        # Consolidate, with progress: a bar comes and goes, and words count the steps beside it.
        page.evaluate(WATCH_JOB)
        page.click("#consolidate")
        page.wait_for_selector("#job:has-text('done')")
        counted = [re.fullmatch(r"step (\d+) of (\d+)", words) for words in page.evaluate("said")]
        steps = [(int(found[1]), int(found[2])) for found in counted if found]
        # Three epochs, and one batch holds all. The page may be told of a step twice.
        assert list(dict.fromkeys(steps)) == [(1, 3), (2, 3), (3, 3)]
        assert page.evaluate("hid")[:2] == [True, False]  # it came, and it went
        assert page.locator("#progress").is_hidden()
        assert page.locator("#progress").evaluate("(bar) => [bar.value, bar.max]") == [3, 3]

        # Forget one, then a label, each after a question.
        page.locator("#gallery button").first.click()
        page.click("#confirm-no")
        assert page.locator("#gallery li").count() == 3
        page.locator("#gallery button").first.click()
        page.click("#confirm-yes")
        page.wait_for_selector("#facts:has-text('2 examples')")
        page.locator("#counts li:has-text('Summer Palace') button").click()
        page.click("#confirm-yes")
        page.wait_for_selector("#facts:has-text('1 examples')")

        # What is no image is refused in words.
        text = page.evaluate_handle("() => new File(['x'], 'x.jpg', { type: 'image/jpeg' })")
        page.evaluate(
            """(file) => {
                const transfer = new DataTransfer();
                transfer.items.add(file);
                dispatchEvent(new DragEvent("drop", { dataTransfer: transfer, cancelable: true }));
            }""",
            text,
        )
        page.wait_for_selector("#notice.bad:has-text('cannot read image')")


def test_a_token_is_asked_for(browser: Any, serve: Serve) -> None:
    token = "a token for this test alone"
    server = serve("--memory", "memory", env={"ANYTIMECL_WRITE_TOKEN": token})
    with page_of(browser, server.url) as page:
        page.wait_for_selector("#token-dialog[open]")
        page.fill("#token-text", token)
        page.press("#token-text", "Enter")
        page.wait_for_selector("#link.live")
        assert "0 examples" in page.inner_text("#facts")


def test_fits_a_phone_and_the_dark(browser: Any, serve: Serve, photos: Path) -> None:
    server = serve("--memory", "memory")
    with page_of(browser, server.url, viewport={"width": 1280, "height": 900}) as page:
        page.wait_for_selector("#link.live")
        add_labels(page, FLOWERS)
        drop(page, photos / "flower.jpg")
        page.wait_for_selector(row("dahlia"))
        for _ in range(9):
            teach(page, "dahlia")
        add_labels(page, "pagoda, castle, temple")
        drop(page, photos / "china.jpg")
        page.wait_for_selector("#verdict .label:has-text('pagoda')")
        for _ in range(2):
            page.click(row("pagoda"))
            page.wait_for_timeout(600)
        drop(page, photos / "flower.jpg")
        page.wait_for_selector("#preview[alt='The image flower.jpg']")
        page.wait_for_timeout(1000)

        light = page.evaluate("getComputedStyle(document.body).backgroundColor")
        shoot(page, "light")
        page.emulate_media(color_scheme="dark")
        dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert brightness(light) > 200 > 60 > brightness(dark)
        shoot(page, "dark")
        page.emulate_media(color_scheme="light")
        for width in (390, 320):
            page.set_viewport_size({"width": width, "height": 844})
            wide = page.evaluate("document.documentElement.scrollWidth")
            assert wide <= width  # nothing is cut off
        page.set_viewport_size({"width": 390, "height": 844})
        small = page.locator("button:visible, input:visible:not(.hidden)").evaluate_all(
            "all => all.map((one) => one.getBoundingClientRect().height)"
        )
        assert min(small) >= 32  # a finger hits it
        page.evaluate("document.getElementById('answer').scrollIntoView()")
        shoot(page, "phone", full=False)


def brightness(colour: str) -> float:
    parts = [int(part) for part in colour.strip("rgb()").split(",")[:3]]
    return sum(parts) / 3


def shoot(page: Any, name: str, full: bool = True) -> None:
    """Keep a picture of the page for the documentation, where one is wanted."""
    if SHOTS is None:
        return
    page.wait_for_timeout(500)
    taken = Image.open(io.BytesIO(page.screenshot(full_page=full))).convert("RGB")
    small = taken.quantize(256, dither=Image.Dither.NONE)
    small.save(Path(SHOTS) / f"page-{name}.png", optimize=True)
