"""The page, story by story, in a browser: on a real server and a tiny model, shared by all."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.browsing import (
    Api,
    add_labels,
    answered,
    drop,
    page_of,
    pictures,
    probability,
    row,
    rows,
    said,
    teach,
    undo,
)

pytestmark = pytest.mark.e2e
BROKEN = ("broken.jpg", b"this is no picture")


@pytest.fixture
def page(browser: Any, tiny_server: Any) -> Iterator[Any]:
    """A page on a memory without examples."""
    with page_of(browser, tiny_server.url, permissions=["camera"]) as opened:
        Api(opened).clear()
        opened.reload()
        opened.wait_for_selector("#link.live")
        yield opened


def hold(page: Any, path: str) -> list[Any]:
    """Requests of this kind wait until they are let go."""
    held: list[Any] = []
    page.route(path, lambda route: held.append(route))
    return held


def let_go(page: Any, path: str, held: list[Any]) -> None:
    for request in held:
        request.continue_()
    page.unroute(path)


def refusing(status: int, detail: str) -> Callable[[Any], None]:
    """What answers a request with a problem."""
    told = {"type": "about:blank", "title": "", "status": status, "detail": detail}

    def refuse(route: Any) -> None:
        route.fulfill(status=status, json=told)

    return refuse


def test_a_new_picture_clears_the_answer_and_what_failed_cannot_be_taught(page: Any) -> None:
    first, second = pictures(2)
    add_labels(page, "cat, dog")
    drop(page, first)
    answered(page)
    assert sorted(rows(page)) == ["cat", "dog"]

    held = hold(page, "**/v1/predict")
    drop(page, second)
    page.wait_for_selector("#answer[data-state=looking][aria-busy=true]")
    assert rows(page) == []  # the old answer is gone at once
    assert "Looking at picture 1.png" in page.inner_text("#verdict")
    page.keyboard.press("1")
    assert page.locator("#teach").is_hidden()
    let_go(page, "**/v1/predict", held)
    answered(page)
    assert Api(page).counts() == {}  # the key had nothing to teach

    drop(page, BROKEN)
    page.wait_for_selector("#answer[data-state=failed]")
    assert "cannot be read as a picture" in page.inner_text("#verdict")
    page.keyboard.press("1")
    assert rows(page) == []
    assert page.locator("#teach").is_hidden()
    assert Api(page).counts() == {}


def test_keys_teach_what_they_show_once_or_not_at_all(page: Any) -> None:
    add_labels(page, "cat, dog, shark")
    drop(page, *pictures(1, 10))
    answered(page)
    page.focus("#answer")
    shown = rows(page)
    held = hold(page, "**/v1/learn")
    page.keyboard.down("2")
    for _ in range(4):
        page.keyboard.down("2")  # it repeats as long as it is held
    page.keyboard.up("2")
    page.keyboard.press("3")  # a lesson is under way
    let_go(page, "**/v1/learn", held)
    said(page, f"Learned as “{shown[1]}”")
    assert Api(page).counts() == {shown[1]: 1}

    page.uncheck("#keys")
    page.reload()
    page.wait_for_selector("#link.live")
    drop(page, *pictures(1, 11))
    answered(page)
    assert not page.is_checked("#keys")  # the browser remembers how its user types
    page.keyboard.press("1")
    page.wait_for_timeout(300)
    assert Api(page).counts() == {shown[1]: 1}
    page.check("#keys")


def test_rows_keep_their_place_until_the_next_picture(page: Any) -> None:
    add_labels(page, "cat, dog, shark, whale")
    drop(page, *pictures(1, 20))
    answered(page)
    before = rows(page)
    last = before[-1]
    value = probability(page, last)
    assert teach(page, last) > value
    assert probability(page, last) > probability(page, before[1])  # by value it would have risen
    assert rows(page) == before
    page.fill("#teach-text", "seal")
    page.press("#teach-text", "Enter")
    said(page, "Now “seal”")
    page.wait_for_selector(row("seal"))
    assert rows(page) == [*before, "seal"]  # a new label comes below
    assert page.locator(f"{row('seal')}.taught").count() == 1


def test_every_act_can_be_undone(page: Any) -> None:
    api = Api(page)
    add_labels(page, "cat, dog")
    drop(page, *pictures(1, 30))
    answered(page)
    teach(page, "cat")
    said(page, "Learned as “cat”")
    teach(page, "dog")  # the same picture: a correction, not a second example
    said(page, "Now “dog”, no longer “cat”")
    assert api.counts() == {"dog": 1}
    undo(page)
    assert api.counts() == {"cat": 1}

    drop(page, *pictures(1, 31))
    answered(page)
    teach(page, "cat")
    page.focus("#answer")
    page.keyboard.press("Control+z")
    said(page, "Undone")
    assert api.counts() == {"cat": 1}

    page.click("#examples-link")
    page.click("#shelf li:has-text('cat') button.change")  # once it stands there, as a person waits
    page.fill("#label-text", "tabby cat")
    page.press("#label-text", "Enter")
    said(page, "“cat” is “tabby cat” now")
    assert api.counts() == {"tabby cat": 1}
    undo(page)
    assert api.counts() == {"cat": 1}

    # What somebody else did since is never undone in its place.
    drop(page, *pictures(1, 32))
    answered(page)
    teach(page, "dog")
    api.learn(pictures(1, 33), "dog")
    page.click("#undo")
    said(page, "Something else happened since")
    assert api.counts() == {"cat": 1, "dog": 2}


def test_fifty_pictures_a_folder_and_a_burst(page: Any, tmp_path: Path) -> None:
    api = Api(page)
    api.learn(pictures(3, 100), "cat")
    api.learn(pictures(3, 103), "dog")
    page.reload()
    page.wait_for_selector("#chips li:nth-child(2)")
    drop(page, *pictures(50, 200), BROKEN)
    page.wait_for_selector("#queue-facts:has-text('51 pictures · 0 taught · 1 unreadable')")
    assert page.locator("#queue li").count() == 51
    assert page.locator("#queue li[data-state=failed] input:visible").count() == 0
    boxes = page.locator("#queue input:visible")
    for at in range(boxes.count()):
        boxes.nth(at).set_checked(at < 12)
    assert page.inner_text("#teach-all") == "Teach the 12 ticked"
    page.click("#teach-all")
    said(page, "Learned 12 pictures as ticked")
    assert sum(api.counts().values()) == 6 + 12
    page.wait_for_selector("#queue-facts:has-text('12 taught')")
    undo(page)
    assert sum(api.counts().values()) == 6
    page.click("#queue-clear")

    for name, data in pictures(3, 300):
        (tmp_path / "trip" / "day").mkdir(parents=True, exist_ok=True)
        (tmp_path / "trip" / "day" / name).write_bytes(data)
    (tmp_path / "trip" / "notes.txt").write_text("not a picture")
    page.set_input_files("#folder", str(tmp_path / "trip"))
    page.wait_for_selector("#queue-facts:has-text('3 pictures')")
    said(page, "1 file passed over: not pictures")
    page.click("#queue-clear")

    page.click("#camera")
    page.wait_for_selector("#camera-dialog[open]")
    page.wait_for_function("() => document.getElementById('video').videoWidth > 0")
    page.click("#burst")
    page.wait_for_selector("#queue-facts:has-text('8 pictures')")
    assert page.evaluate("document.getElementById('video').srcObject") is None  # it is off


def test_the_queue_shows_first_what_would_teach_most(page: Any) -> None:
    api = Api(page)
    api.learn(pictures(3, 100), "cat")
    [*_, last] = api.learn(pictures(3, 103), "dog")
    page.reload()
    page.wait_for_selector("#chips li:nth-child(2)")
    drop(page, *pictures(8, 200))
    page.wait_for_selector("#queue-facts:has-text('8 pictures · 0 taught')")

    def ordered(count: int) -> Any:
        def told(response: Any) -> bool:
            return "/v1/order" in response.url and len(response.json()["images"]) == count

        return page.expect_response(told)

    with ordered(8):
        page.select_option("#queue-order", "telling")
    page.click("#queue li:first-child button.open")
    answered(page)
    with ordered(7):  # worked out anew after the lesson
        page.click(row(rows(page)[0]))
    page.wait_for_selector("#queue li.open:last-child[data-state=taught]")
    page.focus("#answer")
    page.keyboard.press("n")
    page.wait_for_selector("#queue li.open:first-child")
    with ordered(8):
        undo(page)
    with ordered(8):  # all vectors are gone with what is forgotten: they are looked at again
        page.request.delete(f"{page.url.rstrip('/')}/v1/examples/{last}")


def test_the_gallery(page: Any) -> None:
    api = Api(page)
    cats = api.learn(pictures(30, 400), "cat")
    dogs = api.learn(pictures(30, 430), "dog")
    page.click("#examples-link")
    tiles = page.locator("#gallery li")
    page.wait_for_selector("#gallery-facts:has-text('48 of 60 examples')")
    page.click("#more")  # paging over all of them
    page.wait_for_selector("#gallery-facts:has-text('60 of 60 examples')")
    assert tiles.count() == 60
    assert page.locator("#more").is_hidden()
    page.wait_for_selector(f"#gallery li[data-id='{dogs[0]}'] img")

    page.click("#shelf button.label:has-text('cat')")  # by label
    page.wait_for_selector("#gallery-facts:has-text('30 of 30 examples of “cat”')")
    page.fill("#search-text", "picture 407.png")  # by name
    page.press("#search-text", "Enter")
    page.wait_for_selector("#gallery-facts:has-text('1 of 1 example of “cat”')")
    page.fill("#search-text", "")
    page.click("#all")
    page.wait_for_selector("#gallery-facts:has-text('48 of 60')")
    page.check("#suspicious")
    page.wait_for_selector("#gallery-facts:has-text('most doubtful first')")
    doubtful = [one["id"] for one in api.get("examples?suspicious=true&limit=48")["examples"]]
    ids = "(all) => all.map((one) => Number(one.dataset.id))"
    assert page.locator("#gallery li").evaluate_all(ids) == doubtful
    page.uncheck("#suspicious")
    page.wait_for_selector("#gallery-facts:has-text('newest first')")

    newest = f"#gallery li[data-id='{dogs[-1]}']"
    page.click(f"{newest} .name")  # by click
    page.wait_for_selector("#detail[open]")
    assert page.locator("#detail-says li").count() >= 2
    page.fill("#detail-text", "cat")
    page.press("#detail-text", "Enter")
    said(page, "Relabelled as “cat”")
    assert page.inner_text(f"{newest} .name") == "cat"  # where it was
    assert api.counts() == {"cat": 31, "dog": 29}
    page.drag_and_drop(  # by drag
        f"#gallery li[data-id='{dogs[-2]}'] .frame", "#shelf button.label:has-text('cat')"
    )
    page.wait_for_selector(f"#gallery li[data-id='{dogs[-2]}'] .name:has-text('cat')")
    assert api.counts() == {"cat": 32, "dog": 28}
    for example in dogs[-4:-2]:  # several at once
        page.check(f"#gallery li[data-id='{example}'] input")
    page.fill("#chosen-text", "wolf")
    page.press("#chosen-text", "Enter")
    said(page, "2 relabelled as “wolf”")
    assert api.counts() == {"cat": 32, "dog": 26, "wolf": 2}
    undo(page)
    assert api.counts() == {"cat": 32, "dog": 28}

    page.click("#shelf li:has-text('dog') button.change")  # two labels that are one
    page.fill("#label-text", "cat")
    assert "Merge into" in page.inner_text("#label-send")
    page.press("#label-text", "Enter")
    said(page, "Merged 28 examples")
    assert api.counts() == {"cat": 60}
    undo(page)
    assert api.counts() == {"cat": 32, "dog": 28}
    assert set(cats) <= {item["id"] for item in api.get("examples?limit=200")["examples"]}


def test_more_like_the_open_picture(page: Any) -> None:
    api = Api(page)
    ids = api.learn(pictures(5, 500), "cat")
    page.reload()
    page.wait_for_selector("#chips li")
    drop(page, *pictures(1, 502))
    answered(page)
    page.click("#examples-link")
    page.click("#like")
    page.wait_for_selector("#gallery-facts:has-text('most alike first')")
    assert page.locator("#gallery li").first.get_attribute("data-id") == str(ids[2])
    page.click("#like-clear")
    page.wait_for_selector("#gallery-facts:has-text('newest first')")


def test_none_of_these_is_an_answer(page: Any) -> None:
    add_labels(page, "cat, dog")

    def refuse(route: Any) -> None:
        told = route.fetch().json()
        told["predictions"][0].update(
            label="none of these", probability=0.83, none_of_these=0.83, spoke="gaussian"
        )
        route.fulfill(json=told)

    page.route("**/v1/predict", refuse)
    drop(page, *pictures(1, 40))
    answered(page)
    assert page.inner_text("#verdict .label") == "None of these"
    assert "83 % sure that it is none" in page.inner_text("#verdict")
    page.unroute("**/v1/predict")
    page.fill("#teach-text", "walrus")
    page.press("#teach-text", "Enter")
    said(page, "Learned as “walrus”")
    page.wait_for_selector(row("walrus"))


def test_labels_belong_to_the_memory(browser: Any, tiny_server: Any, page: Any) -> None:
    add_labels(page, "cat, dog, emu")
    with page_of(browser, tiny_server.url) as other:  # another person, another browser
        other.wait_for_selector("#chips li:nth-child(3)")
        other.click("#chips li:has-text('dog') button")
        other.wait_for_function("() => document.querySelectorAll('#chips li').length === 2")
        focused = other.evaluate("document.activeElement.getAttribute('aria-label')")
        assert "Take emu" in focused  # to what came in its place
        page.wait_for_function("() => document.querySelectorAll('#chips li').length === 2")
    assert page.evaluate("Object.keys(localStorage)") == []


def test_export_from_the_page(page: Any) -> None:
    Api(page).learn(pictures(2, 50), "cat, striped")
    page.click("#examples-link")
    with page.expect_download() as csv_file:
        page.click("#export-csv")
    table = list(csv.DictReader(io.StringIO(Path(csv_file.value.path()).read_text("utf-8"))))
    assert [line["label"] for line in table] == ["cat, striped"] * 2
    with page.expect_download() as lines_file:
        page.click("#export-jsonl")
    lines = [json.loads(line) for line in Path(lines_file.value.path()).read_text().splitlines()]
    assert [line["label"] for line in lines] == ["cat, striped"] * 2
    assert lines[0]["source"] == "picture 50.png"


def test_the_first_screen(page: Any) -> None:
    assert "Teach it what your pictures show" in page.inner_text("#welcome")
    assert page.locator("#welcome .steps li").count() == 3
    assert page.locator("#samples img").count() == 6
    page.click("#samples button >> nth=0")
    answered(page)
    assert "beach" in rows(page)  # labels to choose from came along
    page.wait_for_selector("#welcome", state="hidden")
    teach(page, "beach")
    page.click("#clear")
    page.wait_for_timeout(200)
    assert page.locator("#welcome").is_hidden()  # it is known by now
    page.click("#welcome-open")
    page.wait_for_selector("#welcome")


def test_figures_are_explained_and_errors_are_words(page: Any) -> None:
    add_labels(page, "cat, dog")
    drop(page, *pictures(1, 60))
    answered(page)
    for about in ("#legend", "#learning .head >> nth=0", "#learning .head >> nth=1"):
        page.click(f"{about} >> summary")
        assert len(page.inner_text(f"{about} >> .why p")) > 80
        page.click(f"{about} >> summary")
    refusals = [
        (422, "cannot read image (bytes of length 3)", "cannot be read as a picture"),
        (422, "cannot read image (bytes of length 3): its size is 60000x60000", "too large"),
        (413, "A request has at most 33,554,432 bytes.", "Use a smaller picture"),
        (503, "The memory or the model cannot be used at the moment", "its disk may be full"),
        (403, "This token may only read.", "lets you look, not teach"),
    ]
    for status, detail, words in refusals:
        page.route("**/v1/learn", refusing(status, detail))
        page.click(row("cat"))
        page.wait_for_selector(f"#notice.bad:has-text({words!r})")
        page.unroute("**/v1/learn")
    page.route("**/v1/learn", lambda route: route.abort())
    page.click(row("cat"))
    page.wait_for_selector("#notice.bad:has-text('does not answer')")


def test_long_labels_two_hundred_labels_and_focus(page: Any) -> None:
    api = Api(page)
    long = "a very long label that somebody once pasted " * 4
    ids = api.learn(pictures(2, 70), long.strip())
    names = [f"species number {at}" for at in range(200)]
    api.choose(add=names)
    page.reload()
    page.wait_for_selector("#labels-count:has-text('201 labels')")
    drop(page, *pictures(1, 72))
    answered(page)
    assert len(rows(page)) == 9
    for width in (1280, 390, 320):
        page.set_viewport_size({"width": width, "height": 844})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.click("#examples-link")
        page.wait_for_selector("#gallery li")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        small = page.locator("button:visible, input:visible").evaluate_all(
            "(all) => all.filter((one) => one.type !== 'checkbox')"
            ".map((one) => one.getBoundingClientRect().height)"
        )
        assert min(small) >= 32  # a finger hits it
        page.click("#teach-link")
    assert page.locator("#chips").evaluate("(list) => list.clientHeight") < 300  # it scrolls
    page.set_viewport_size({"width": 1280, "height": 900})

    first = rows(page)[0]
    page.focus(row(first))
    page.keyboard.press("Enter")
    said(page, "Learned as")
    answered(page)
    assert page.evaluate("document.activeElement.dataset.label") == first  # where it was
    page.click("#examples-link")
    page.click(f"#gallery li[data-id='{ids[1]}'] .forget")
    page.click("#confirm-no")
    page.click(f"#gallery li[data-id='{ids[1]}'] .forget")
    page.click("#confirm-yes")
    said(page, "Forgot 1 example")
    assert page.evaluate("document.activeElement.className") == "forget"  # its neighbour


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(page: Any, scheme: str) -> None:
    """WCAG 2.1 A and AA, on every screen."""
    from axe_playwright_python.sync_playwright import Axe

    def check(where: str) -> None:
        tags = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]
        found = Axe().run(page, options={"runOnly": {"type": "tag", "values": tags}})
        told = [
            f"{where}: {one['id']} {[node['target'] for node in one['nodes']]}"
            for one in found.response["violations"]
        ]
        assert told == []

    page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
    check("first screen")
    api = Api(page)
    api.learn(pictures(3, 80), "cat")
    api.learn(pictures(2, 83), "dog")
    page.reload()
    page.wait_for_selector("#chips li:nth-child(2)")
    drop(page, *pictures(4, 90), BROKEN)
    page.wait_for_selector("#queue-facts:has-text('5 pictures')")
    answered(page)
    teach(page, rows(page)[0])
    page.click("#legend summary")
    check("teaching")
    page.click("#examples-link")
    page.wait_for_selector("#gallery li img")
    page.check("#gallery li >> nth=0 >> input")
    check("examples")
    page.set_viewport_size({"width": 390, "height": 844})
    check("on a phone")
    for opener, dialog in (("#gallery .name", "#detail"), ("#shelf .change", "#label-dialog")):
        page.locator(opener).first.click()
        page.wait_for_selector(f"{dialog}[open]")
        check(dialog)
        page.keyboard.press("Escape")
