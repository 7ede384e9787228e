"""Pictures of the page for the documentation: python -m tests.e2e.shots docs/img"""

from __future__ import annotations

import io
import sys
import tempfile
from pathlib import Path
from typing import Any

from PIL import Image
from tests.e2e.browsing import Api, add_labels, answered, drop, page_of, row, teach
from tests.e2e.conftest import launched, serving
from tests.e2e.test_page import FLOWERS, crops

SAMPLES = ["beach", "mountain", "forest", "house", "sailing boat", "night sky"]


def samples(browser: Any) -> dict[str, bytes]:
    """The page's own drawings, as pictures."""
    folder = Path(__file__).parents[2] / "src/anytimecl/serve/page/samples"
    page = browser.new_page(viewport={"width": 480, "height": 480})
    made = {}
    for name in SAMPLES:
        drawing = (folder / f"{name.replace(' ', '-')}.svg").read_text("utf-8")
        page.set_content(f"<style>body{{margin:0}}svg{{width:480px}}</style>{drawing}")
        made[name] = page.screenshot()
    page.close()
    return made


def shoot(page: Any, folder: Path, name: str, *, full: bool = True) -> None:
    """Keep a picture of the page, in few colours."""
    page.mouse.move(0, 0)
    page.wait_for_timeout(700)
    taken = Image.open(io.BytesIO(page.screenshot(full_page=full))).convert("RGB")
    small = taken.quantize(256, dither=Image.Dither.NONE)
    small.save(folder / f"page-{name}.png", optimize=True)


def varied(drawing: bytes, count: int) -> list[bytes]:
    """Parts of a drawing, as somebody would photograph it again."""
    whole = Image.open(io.BytesIO(drawing)).convert("RGB")
    made = []
    for number in range(1, count + 1):
        out, edge = io.BytesIO(), 14 * number
        whole.crop((edge, edge // 2, 480 - edge // 2, 480 - edge)).save(out, "PNG")
        made.append(out.getvalue())
    return made


def main(folder: Path) -> None:
    import sklearn.datasets

    photos = Path(sklearn.datasets.__file__).parent / "images"
    flower = photos / "flower.jpg"
    with (
        tempfile.TemporaryDirectory() as place,
        serving(Path(place)) as serve,
        launched() as browser,
    ):
        server, drawings = serve("--memory", "memory"), samples(browser)
        with page_of(browser, server.url, viewport={"width": 1280, "height": 960}) as page:
            page.wait_for_selector("#link.live")
            shoot(page, folder, "first")

            add_labels(page, FLOWERS)
            for number, part in enumerate(crops(flower, 9)):
                drop(page, part)
                answered(page)
                teach(page, "dahlia" if number % 4 else "orange flower")
            add_labels(page, ", ".join(SAMPLES))
            for name, drawing in drawings.items():
                parts = varied(drawing, 3)
                Api(page).learn([(f"{name} {at}.png", one) for at, one in enumerate(parts)], name)
            Api(page).learn([("P1040212.png", varied(drawings["beach"], 5)[4])], "house")  # wrong
            drop(page, flower)
            answered(page)
            teach(page, "dahlia")
            page.wait_for_timeout(1500)
            shoot(page, folder, "light", full=False)
            page.emulate_media(color_scheme="dark")
            shoot(page, folder, "dark", full=False)
            page.emulate_media(color_scheme="light")

            queue = [(f"{name}.png", varied(one, 4)[3]) for name, one in drawings.items()]
            queue += [(f"{name} again.png", varied(one, 6)[5]) for name, one in drawings.items()]
            drop(page, *queue, photos / "china.jpg", ("broken.jpg", b"no picture"))
            page.wait_for_selector("#queue-facts:has-text('1 unreadable')")
            answered(page)
            page.evaluate("document.getElementById('queue-card').scrollIntoView()")
            shoot(page, folder, "queue", full=False)

            page.click("#notice-close")
            page.click("#examples-link")
            page.wait_for_selector("#gallery img")
            page.wait_for_timeout(1500)
            shoot(page, folder, "examples")
            page.check("#suspicious")
            page.wait_for_selector("#gallery-facts:has-text('doubtful')")
            page.click("#gallery .name >> nth=0")
            page.wait_for_selector("#detail[open]")
            shoot(page, folder, "doubtful", full=False)
            page.keyboard.press("Escape")

            page.set_viewport_size({"width": 390, "height": 844})
            page.click("#teach-link")
            page.click("#queue-clear")
            drop(page, flower)
            answered(page)
            page.wait_for_selector(row("dahlia"))
            page.evaluate("document.getElementById('look').scrollIntoView()")
            shoot(page, folder, "phone", full=False)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
