"""The demo's results as one self-contained HTML file, and as a plot."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Sequence
from html import escape
from importlib import resources
from typing import TYPE_CHECKING

from PIL import Image

from anytimecl.demo.data import SOURCES, DemoExample, DemoTask
from anytimecl.demo.story import Correction, DemoLook, DemoScore, Story, corrected, reopened
from anytimecl.prediction import Prediction

if TYPE_CHECKING:
    from matplotlib.axes import Axes

THUMBNAIL = 64  # height in pixels; stored at twice the size, for high-density screens
PICTURES = 12  # of each task, the first of its test set
THEMES = {  # paper, ink, grid, blend, tuned, original; the first two as in report.css
    "light": ("#fbfaf8", "#1c1b1a", "#dcd8d2", "#1d5fd1", "#d9822b", "#8a857e"),
    "dark": ("#151617", "#ecebe8", "#3b3f43", "#7aa9ff", "#f0a860", "#96928c"),
}


def html(story: Story) -> str:
    """The report."""
    css = resources.files(__package__).joinpath("report.css").read_text(encoding="utf-8")
    parts = [
        _head(story),
        _looks(story.looks),
        _plot(story),
        _correction(story),
        _kept(story),
        *(_pictures(task, story.answers[task.name]) for task in (story.lights, story.digits)),
        _foot(story),
    ]
    return (
        '<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>anytimecl: the demo</title>\n<style>\n{css}</style>\n"
        "<main>\n" + "\n".join(parts) + "\n</main>\n</html>\n"
    )


def plot(story: Story, theme: str = "light") -> bytes:
    """Accuracy against number of examples learned, as PNG."""
    from matplotlib.figure import Figure

    paper, ink, grid, *colours = THEMES[theme]
    figure = Figure(figsize=(10, 3.6), dpi=160, layout="constrained", facecolor=paper)
    left, middle, right = figure.subplots(1, 3, sharey=True)
    shown: list[tuple[Axes, DemoTask, Callable[[DemoLook], DemoScore]]] = [
        (left, story.lights, lambda look: look.lights),
        (middle, story.digits, lambda look: look.digits),
        (right, story.untaught, lambda look: look.untaught),
    ]
    learned = [look.learned for look in story.looks]
    for axes, task, of in shown:
        scores = [of(look) for look in story.looks]
        lines = {
            "original model": ([s.original for s in scores], colours[2], "--"),
            "tuned model": ([s.tuned for s in scores], colours[1], "-"),
            "both blended: the answer": ([s.blend for s in scores], colours[0], "-"),
        }
        for name, (values, colour, style) in lines.items():
            width = 2.6 if style == "-" and colour == colours[0] else 1.6
            percent = [100 * value for value in values]
            axes.plot(learned, percent, style, color=colour, label=name, linewidth=width)
        axes.axvline(len(story.lights.train), color=ink, linewidth=0.8, linestyle=":")
        axes.set_title(_title(task, story), color=ink, fontsize=11)
        axes.set_xlabel("examples learned", color=ink)
        axes.set_ylim(0, 103)
        axes.set_facecolor("none")
        axes.grid(color=grid, linewidth=0.6)
        axes.tick_params(colors=ink)
        for spine in axes.spines.values():
            spine.set_visible(False)
    left.set_ylabel("right answers, %", color=ink)
    handles, names = left.get_legend_handles_labels()
    figure.legend(
        handles[::-1], names[::-1], loc="outside lower center", ncols=3, frameon=False,
        labelcolor=ink,
    )  # fmt: skip
    png = io.BytesIO()
    figure.savefig(png, format="png", metadata={"Software": None})
    return png.getvalue()


def _title(task: DemoTask, story: Story) -> str:
    stream = {story.lights.name: "taught first", story.digits.name: "taught second"}
    return f"{task.name} ({stream.get(task.name, 'never taught')})"


def _head(story: Story) -> str:
    first, last = story.looks[0], story.looks[-1]
    kept = all(look.untaught_same for look in story.looks)
    cards = [
        (_from_to(first.lights, last.lights), f"{story.lights.name}, taught first"),
        (_from_to(first.digits, last.digits), f"{story.digits.name}, taught second"),
        (
            _percent(last.untaught.blend),
            "kinds of picture, never taught: every probability is "
            + ("the same as on the first day, bit for bit" if kept else "NOT what it was"),
        ),
    ]
    drawn = "".join(
        f'<div class="card"><div class="big">{big}</div><div class="soft">{text}</div></div>'
        for big, text in cards
    )
    labels = len(story.lights.labels) + len(story.digits.labels)
    return (
        f"<h1>{last.learned} pictures, learned one by one</h1>\n"
        f'<p class="soft">Each was learned in one step, {story.learn_milliseconds:.0f} ms with '
        "encoding and disk. The shares of right answers below, from the first day to the last, are "
        f"on pictures that were not learned, over all {labels} labels at once.</p>\n"
        f'<div class="cards">{drawn}</div>'
    )


def _looks(looks: Sequence[DemoLook]) -> str:
    rows = "".join(
        f"<tr><td>{escape(look.when)}</td><td>{look.learned}</td>"
        + "".join(
            f'<td class="now">{_percent(s.blend)}</td><td>{_percent(s.tuned)}</td>'
            for s in (look.lights, look.digits)
        )
        + f'<td class="now">{_percent(look.untaught.blend)}</td>'
        f"<td>{'yes' if look.untaught_same else 'NO'}</td></tr>"
        for look in looks
        if look.whole
    )
    return (
        "<h2>What was measured</h2>\n"
        "<p>The answer is a blend of two models: the original, which never changes, and a tuned "
        "copy, which also hears whose images the new one looks like. Each label trusts whichever "
        "has been right about it. All labels of both tasks are "
        "asked at once, so what is learned about one task speaks in the other, too, for better or "
        "worse; labels that are asked by themselves and never taught keep every answer.</p>\n"
        '<div class="scroll"><table><thead><tr><th>when</th><th>learned</th><th>lights</th>'
        "<th>tuned alone</th><th>digits</th><th>tuned alone</th><th>never taught</th>"
        f"<th>unchanged</th></tr></thead><tbody>{rows}</tbody></table></div>"
    )


def _plot(story: Story) -> str:
    light, dark = (_data(plot(story, theme)) for theme in ("light", "dark"))
    return (
        "<h2>Accuracy while it learns</h2>\n<picture>"
        f'<source media="(prefers-color-scheme: dark)" srcset="{dark}">'
        f'<img src="{light}" alt="Accuracy against examples learned, for both tasks and for labels '
        'that were never taught"></picture>\n<p class="soft">The dotted line is where the traffic '
        "lights end and the digits begin.</p>"
    )


def _kept(story: Story) -> str:
    return f"<h2>Closed, and opened again</h2>\n<p>{escape(reopened(story.reopened))}</p>"


def _correction(story: Story) -> str:
    drawn = "".join(_bars(one) for one in story.corrections[:1])
    return (
        f"<h2>One correction</h2>\n<p>{escape(corrected(story.corrections))}"
        f"{' The first of them:' if drawn else ''}</p>\n{drawn}"
    )


def _bars(one: Correction) -> str:
    """Probabilities of the true and the wrong label, before and after."""
    right, wrong = one.example.label, one.before.label
    moments = (("before", one.before.probabilities), ("after", one.after.probabilities))
    bars = "".join(
        f'<div class="bar{" mark" if label == right else ""}"><span>{escape(label)}, {when}</span>'
        f'<i style="width:{values[label]:.1%}"></i><b>{values[label]:.1%}</b></div>'
        for label in (right, wrong)
        for when, values in moments
    )
    return (
        f'<div class="fix"><img src="{_thumbnail(one.example.image, 2)}" alt="{escape(right)}">'
        f'<div class="bars">{bars}</div></div>\n<p class="soft">A label that was never taught '
        "keeps the original model's probability.</p>"
    )


def _pictures(task: DemoTask, answers: Sequence[Prediction]) -> str:
    shown = list(zip(task.test, answers, strict=True))[:PICTURES]
    figures = "".join(_figure(example, answer) for example, answer in shown)
    return (
        f"<h2>{escape(task.name.capitalize())}</h2>\n"
        f'<p class="soft">The first {len(shown)} test pictures, after both streams.</p>\n'
        f'<div class="grid">{figures}</div>'
    )


def _figure(example: DemoExample, answer: Prediction) -> str:
    right = answer.label == example.label
    said = f"{escape(answer.label)} {answer.probability:.0%}"
    truth = "" if right else f'<br><span class="soft">is {escape(example.label)}</span>'
    return (
        f'<figure><img src="{_thumbnail(example.image)}" alt="{escape(example.label)}">'
        f'<figcaption><span class="{"right" if right else "wrong"}">'
        f"{'✓' if right else '✗'} {said}</span>{truth}</figcaption></figure>"
    )


def _foot(story: Story) -> str:
    plan = story.plan
    tests = f"{len(story.lights.test)} and {len(story.digits.test)}"
    sources = "<br>".join(escape(source) for source in SOURCES)
    return (
        f"<footer><p>Model: {escape(story.model)}. Test pictures: {tests}, and "
        f"{len(story.untaught.test)} for the labels never taught. Seed {plan.seed}. All of it took "
        f"{story.seconds:.0f} s. <code>anytimecl demo</code> makes this page; the numbers are in "
        f"<code>results.json</code> beside it.</p><p>{sources}</p></footer>"
    )


def _from_to(first: DemoScore, last: DemoScore) -> str:
    return f'<span class="from">{_percent(first.blend)} →</span> {_percent(last.blend)}'


def _percent(value: float) -> str:
    return f"{100 * value:.0f}&nbsp;%"


def _thumbnail(image: Image.Image, times: int = 1) -> str:
    small = image.copy()
    small.thumbnail((4 * THUMBNAIL * times, 2 * THUMBNAIL * times))
    png = io.BytesIO()
    small.save(png, format="PNG", optimize=True)
    return _data(png.getvalue())


def _data(png: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(png).decode('ascii')}"
