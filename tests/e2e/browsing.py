"""What a person does with the page, for the tests of it."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

from PIL import Image


@contextmanager
def page_of(browser: Any, url: str, **options: Any) -> Iterator[Any]:
    """A page that may not complain: not of scripts, not of the security policy."""
    context = browser.new_context(**options)
    context.set_default_timeout(120_000)  # a busy machine is slow, not broken
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


def pictures(count: int, start: int = 0) -> list[tuple[str, bytes]]:
    """Small files that all differ."""
    made = []
    for number in range(start, start + count):
        noise, out = Random(number), io.BytesIO()
        colours = bytes(noise.randrange(256) for _ in range(6 * 6 * 3))
        Image.frombytes("RGB", (6, 6), colours).resize((48, 48)).save(out, "PNG")
        made.append((f"picture {number}.png", out.getvalue()))
    return made


def drop(page: Any, *files: Path | tuple[str, bytes]) -> None:
    """As a person drops files onto the page."""
    named = [(file.name, file.read_bytes()) if isinstance(file, Path) else file for file in files]
    page.evaluate(
        """(files) => {
            const transfer = new DataTransfer();
            for (const [name, data] of files) {
                const bytes = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
                transfer.items.add(new File([bytes], name, { type: "image/png" }));
            }
            dispatchEvent(new DragEvent("drop", { dataTransfer: transfer, cancelable: true }));
        }""",
        [[name, base64.b64encode(data).decode()] for name, data in named],
    )


def add_labels(page: Any, text: str) -> None:
    """Labels to choose from, separated by commas."""
    with page.expect_response("**/v1/choices"):
        page.fill("#add-text", text)
        page.press("#add-text", "Enter")


def row(label: str) -> str:
    return f"#bars button[data-label='{label}']"


def rows(page: Any) -> list[str]:
    """The labels of an answer as they stand."""
    found: list[str] = page.locator("#bars button").evaluate_all(
        "(all) => all.map((one) => one.dataset.label)"
    )
    return found


def probability(page: Any, label: str) -> float:
    return float(page.get_attribute(row(label), "data-blended"))


def answered(page: Any) -> None:
    page.wait_for_selector("#answer[data-state=answered][aria-busy=false]")


def lessons(page: Any, count: int) -> None:
    """Wait until the chart shows so many."""
    page.wait_for_selector(f"#chart svg[data-lessons='{count}']", state="attached")


def teach(page: Any, label: str) -> float:
    """One click; the probability after it, which may be as high as it was."""
    with page.expect_response("**/v1/predict") as told:  # the page asks again by itself
        page.click(row(label))
    scores = told.value.json()["predictions"][0]["scores"]
    after = next(score["blended"] for score in scores if score["label"] == label)
    page.wait_for_function(
        "([query, value]) => Number(document.querySelector(query)?.dataset.blended) === value",
        arg=[row(label), after],
    )
    return float(after)


def said(page: Any, words: str) -> None:
    """Wait for a message; where it does not come, say which one stood there instead."""
    try:
        page.wait_for_selector(f"#notice:has-text({words!r})")
    except Exception as error:
        error.add_note(f"The page said: {page.inner_text('#notice-text')!r}")
        raise


def undo(page: Any) -> None:
    page.click("#undo")
    said(page, "Undone")


class Api:
    """The service as it is, whatever the page says of it."""

    def __init__(self, page: Any) -> None:
        self._page = page

    def get(self, path: str) -> Any:
        return self._page.request.get(f"{self._base}/v1/{path}").json()

    def counts(self) -> dict[str, int]:
        """Examples of each label."""
        told = self.get("labels")["labels"]
        return {item["label"]: item["examples"] for item in told if item["examples"]}

    def learn(self, files: Sequence[tuple[str, bytes]], label: str) -> list[int]:
        """Teach without the page; returns the examples."""
        ids = []
        for name, data in files:
            image = {"name": name, "mimeType": "image/png", "buffer": data}
            form = {"image": image, "label": label, "source": name}
            response = self._page.request.post(f"{self._base}/v1/learn", multipart=form)
            assert response.ok, response.text()
            ids.append(response.json()["id"])
        return ids

    def choose(self, *, add: Sequence[str] = (), remove: Sequence[str] = ()) -> None:
        asked = {"add": list(add), "remove": list(remove)}
        assert self._page.request.post(f"{self._base}/v1/choices", data=asked).ok

    def clear(self) -> None:
        """As if the memory were new, but for its counters."""
        for label in self.counts():
            assert self._page.request.delete(f"{self._base}/v1/labels/{label}").ok
        self.choose(remove=self.get("choices")["own"])

    @property
    def _base(self) -> str:
        return "/".join(self._page.url.split("/")[:3])
