"""Parts from outside: the page "Write your own" as it stands, and what is promised of them.

The parts are the page's own, loaded from a file that is not in the package.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from tests.helpers import LABELS, differing, knowledge, lessons, measured, picture, settings
from typer.testing import CliRunner

from anytimecl import backbone as backbones
from anytimecl import registry as registries
from anytimecl.blend import BLENDS, Blend, Opinions
from anytimecl.classifier import AnytimeClassifier
from anytimecl.cli import app
from anytimecl.codec import CODECS, unpack
from anytimecl.errors import PartError, StoreError
from anytimecl.experts import EXPERTS, GaussianExpert
from anytimecl.memory import STORES
from anytimecl.registry import IMPORT, Named, Registry, import_outside
from anytimecl.sampling import SAMPLERS, ClassBalanced
from anytimecl.scale.leaves import Here
from anytimecl.scale.tree import TreeClassifier
from anytimecl.settings import Settings
from anytimecl.testing import check_backbone, check_expert, check_pool, check_sampler, check_store

PAGE = Path(__file__).resolve().parents[1] / "docs/extending.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
EVERY: dict[str, Registry[Any]] = {
    "colours": backbones.BACKBONES,
    "mean-patch": CODECS,
    "recent": SAMPLERS,
    "nearest-mean": EXPERTS,
    "surest": BLENDS,
    "mirrored": STORES,
}


@pytest.fixture
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A file that registers every part of the page; afterwards nobody knows them."""
    file = tmp_path / "my_parts.py"
    file.write_text("\n".join(BLOCKS[:-1]), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(IMPORT, str(file))
    yield file
    for name, registry in EVERY.items():
        registry._known.maps[0].pop(name, None)
    sys.modules.pop(file.stem, None)


def opened(folder: Path, chosen: Settings | None = None) -> AnytimeClassifier:
    return AnytimeClassifier.open(folder, model=measured(), settings=chosen)


def assert_exact(folder: Path, chosen: Settings) -> None:
    """Killed, reopened, forgotten and relabelled: every way leads to the same state."""
    classifier = opened(folder, chosen)
    learned = [classifier.learn_one(*each) for each in lessons(12)]
    before = knowledge(classifier)
    classifier.memory.close()  # as if it had been killed: there is no checkpoint
    with opened(folder) as replayed:
        assert not differing(knowledge(replayed), before)
        assert replayed.predict(picture(3)).label == replayed.memory.label(learned[3].id)
    with opened(folder) as again:
        assert not differing(knowledge(again), before)
        again.relabel(learned[4].id, "great white shark")
        again.forget(example_id=learned[2].id)
        after = knowledge(again)
        statistics = {k: v for k, v in after["tensors"].items() if k.startswith("expert.")}
    with opened(folder) as at_last:
        assert not differing(knowledge(at_last), after)
        at_last._trainer.recount()  # from the stored examples alone
        now = knowledge(at_last)["tensors"]
        assert all(torch.equal(now[name], value) for name, value in statistics.items())
        assert at_last.memory.label(learned[4].id) == "great white shark"


def test_the_page_is_true(tmp_path: Path, outside: Path) -> None:
    """All blocks, one after the other, each of a length that one reads."""
    known: dict[str, Any] = {"__name__": "page"}
    for at, block in enumerate(BLOCKS):
        assert sum(bool(line.strip()) for line in block.splitlines()) <= 40
        exec(compile(block, f"{PAGE.name}, block {at + 1}", "exec"), known)
    assert sorted(file.name for file in (tmp_path / "copies").iterdir()) == ["1.record", "2.record"]
    told = json.loads((tmp_path / "memory/store.json").read_text())
    assert told == {"name": "mirrored", "options": {"to": "copies"}}


def test_a_sixth_expert_from_outside(tmp_path: Path, outside: Path) -> None:
    chosen = settings(experts=[{"name": "nearest-mean", "options": {"sharpness": 20.0}}])
    assert_exact(tmp_path / "memory", chosen)
    with opened(tmp_path / "memory") as classifier:
        tokens = classifier.encode([picture(7)])
        opinions = classifier.opinions(tokens, classifier.labels)
        assert list(opinions.everyone()) == ["tuned", "original", "gaussian", "nearest-mean"]
        assert opinions.scores["nearest-mean"].shape == (1, len(classifier.labels))
        assert opinions.weights["nearest-mean"] > 0


def test_a_leaf_that_splits_has_its_expert(tmp_path: Path, outside: Path) -> None:
    chosen = settings(experts=["nearest-mean"])
    options: dict[str, Any] = {"model": measured(), "capacity": 8}
    with TreeClassifier.open(tmp_path / "tree", settings=chosen, **options) as tree:
        for image, label in lessons(20):
            tree.learn_one(image, label)
        tree.settle()
        assert len(tree.routes.leaves()) > 1
        expected = tree.predict([picture(30), picture(3)], LABELS)
    with TreeClassifier.open(tmp_path / "tree", **options) as tree:
        again = tree.predict(iter([picture(30), picture(3)]), LABELS)
        assert [each.probabilities for each in again] == [each.probabilities for each in expected]
        assert isinstance(tree.leaves, Here)
        for number in tree.routes.leaves():
            leaf = tree.leaves._use(number)
            sums = leaf._trainer.model.tensors()["expert.nearest-mean.sums"]
            assert len(sums) == len(leaf.labels)
            leaf._trainer.recount()
            assert torch.equal(sums, leaf._trainer.model.tensors()["expert.nearest-mean.sums"])


def test_a_codec_from_outside(tmp_path: Path, outside: Path) -> None:
    chosen = settings(codec={"name": "mean-patch", "options": {"groups": 3}})
    assert_exact(tmp_path / "memory", chosen)
    with opened(tmp_path / "memory") as classifier:
        spec, record = classifier.backbone.spec, classifier.memory.read([1])
        [payload] = unpack(record, "mean-patch", spec.tokens, spec.tail.width)
        assert len(payload) == 2 * (1 + 3) * spec.tail.width
        with pytest.raises(StoreError, match="written by the codec mean-patch, and is read as"):
            unpack(record, "tokens-fp16", spec.tokens, spec.tail.width)


def test_a_sampler_from_outside(tmp_path: Path, outside: Path) -> None:
    assert_exact(
        tmp_path / "memory", settings(sampler={"name": "recent", "options": {"newest": 5}})
    )
    with opened(tmp_path / "memory") as classifier:
        drawn = {i for _ in range(50) for i in classifier._trainer.sampler.draw(5, Random(0))}
        newest = [example for example, _ in classifier.memory.ids()][-5:]
        assert drawn == set(newest)


def test_objects_are_taken_and_the_memory_asks_for_them(tmp_path: Path, outside: Path) -> None:
    import_outside(str(outside))
    made = SAMPLERS["recent"]
    for registry in EVERY.values():
        registry._known.maps[0].clear()  # nobody registered anything
    prototype = made(newest=3)
    prototype.name, prototype.options = "mine", {"newest": 3}  # type: ignore[attr-defined]
    with opened(tmp_path / "memory", settings(sampler=prototype)) as classifier:
        for each in lessons(4):
            classifier.learn_one(*each)
        before = knowledge(classifier)
        assert classifier._trainer.sampler is not prototype
    assert prototype._examples == []  # type: ignore[attr-defined]
    with pytest.raises(
        StoreError, match=r"needs code that is not here.*There is no sampler 'mine'"
    ):
        opened(tmp_path / "memory")
    with pytest.raises(StoreError, match="needs code"):
        opened(tmp_path / "memory", settings())
    with opened(tmp_path / "memory", settings(sampler=prototype)) as classifier:
        assert not differing(knowledge(classifier), before)


def test_unknown_names_and_options_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for wrong, told in (
        (
            {"codec": "attention-pac"},
            "no codec 'attention-pac'. There are: image,.*'attention-pca' m",
        ),
        ({"sampler": {"name": "fifo", "options": {"size": 1}}}, "'fifo' takes no options"),
        ({"codec": {"name": "attention-pca", "options": {"budgt": 1}}}, "'budget' meant"),
        ({"codec": {"name": "fifo", "option": {}}}, "is given as"),
        *(({"codec": wrong}, "A codec is given as a name, .*, not ") for wrong in (None, 5, b"x")),
        ({"sampler": {"name": "frequency_weighted", "options": {"xi": {1}}}}, "plain JSON"),
        ({"blend": "best"}, "There is no blend 'best'. There are: pool, ocw"),
        ({"experts": ["gaussian"]}, "no expert 'gaussian'"),
    ):
        with pytest.raises(PartError, match=told):
            Settings(**wrong)  # type: ignore[arg-type]
    with pytest.raises(PartError, match=r"cannot be made with \{'budget': 1\}: A budget of 1"):
        AnytimeClassifier.open(
            model=measured(), settings=Settings(codec=Named("attention-pca", {"budget": 1}))
        )
    with pytest.raises(TypeError, match=r"no option 'cap_': the store 'ram' takes .*'cap' meant"):
        AnytimeClassifier.open(model=measured(), cap_=3)
    with pytest.raises(PartError, match="no option 'blocks': the model 'embedded' takes tail_bl"):
        backbones.load({"name": "embedded", "options": {"blocks": 2}})
    with pytest.raises(PartError, match="nowhere cannot be imported"):
        import_outside("nowhere")
    monkeypatch.setenv(IMPORT, "nowhere")  # and then another model is no advice
    with pytest.raises(PartError, match=r"No module named 'nowhere'\"\)\.$"):
        backbones.load_stored({"spec": '{"name": "lost", "tail": {"blocks": 1}}'})


def test_a_name_is_given_once() -> None:
    known: Registry[object] = Registry("thing", {"one": object})
    with pytest.raises(PartError, match="There is a thing 'one' already"):
        known.register("one", dict)
    known.register("two", dict)
    known.register("two", dict)  # its module was loaded anew
    assert list(known) == ["one", "two"]
    with pytest.raises(PartError, match="each has a name of its own"):
        Settings(experts=(_Mute("tuned"),))


@pytest.mark.parametrize("name", BLENDS)
def test_every_blend_keeps_what_is_promised(name: str) -> None:
    check_pool(BLENDS.make(name))


def test_our_own_expert_backbone_and_stores_keep_what_is_promised(tmp_path: Path) -> None:
    check_expert(lambda: GaussianExpert(8), dim=8)
    check_backbone(measured())
    check_store(STORES["sqlite"], tmp_path / "memory")
    check_store(STORES["ram"])


def test_a_check_says_which_promise_is_not_kept() -> None:
    class Forgetful(ClassBalanced):
        def draw(self, count: int, random: Random) -> list[int]:
            return [*super().draw(count, random), 9999][:count]

    class Loud(Blend):
        def __call__(self, opinions: Opinions) -> torch.Tensor:
            return 2 * opinions.tuned

    class Trace(GaussianExpert):
        def remove(self, example: int, row: int, image: torch.Tensor) -> None:
            pass

    with pytest.raises(AssertionError, match="nothing is drawn"):
        check_sampler(Forgetful)
    with pytest.raises(AssertionError, match="probabilities"):
        check_pool(Loud())
    with pytest.raises(AssertionError, match="leaves no trace"):
        check_expert(lambda: Trace(8), dim=8)


class _Mute:
    def __init__(self, name: str) -> None:
        self.name = name


def test_the_command_line_imports_a_file_and_takes_options(
    tmp_path: Path, outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(IMPORT, "")  # so that the command line names it
    for label, number in (("cat", 1), ("dog", 2), ("cat", 3)):
        (tmp_path / "photos" / label).mkdir(parents=True, exist_ok=True)
        picture(number).save(tmp_path / "photos" / label / f"{number}.png")
    codec = '{"name": "mean-patch", "options": {"groups": 2}}'
    words = ["--import", str(outside), "learn", "photos", "--memory", "m", "--model", "colours"]
    words += ["--codec", codec, "--expert", "nearest-mean", "--blend", "surest", "--yes"]
    words += ["--store", '{"name": "mirrored", "options": {"to": "copies"}}']
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    with AnytimeClassifier.open("m") as classifier:
        assert classifier.settings.codec == Named("mean-patch", {"groups": 2})
        assert classifier.settings.experts == ("nearest-mean",)
        assert classifier.settings.blend == "surest"
        assert len(classifier) == 3
    asked = CliRunner().invoke(app, ["predict", "photos/dog/2.png", "--memory", "m"])
    assert asked.exit_code == 0, asked.output
    assert "dog" in asked.output
    refused = CliRunner().invoke(app, ["learn", "photos", "--memory", "n", "--codec", "nothing"])
    assert refused.exit_code == 2
    assert "There is no codec 'nothing'" in refused.output
    for store, told in (
        ("mirrored", "needs the option 'to'"),
        ('{"name": "sqlite", "options": {"capp": 3}}', "no option 'capp'"),
    ):
        refused = CliRunner().invoke(app, ["learn", "photos", "--memory", "n", "--store", store])
        assert (refused.exit_code, "Traceback" in refused.output) == (2, False)
        assert told in refused.output


def test_a_component_of_a_package_that_cannot_be_imported_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broken = EntryPoint("broken", "no_such_package:Codec", "anytimecl.thing")
    monkeypatch.setattr(registries, "entry_points", lambda group: [broken])
    known: Registry[object] = Registry("thing", {})
    with pytest.raises(PartError, match="'broken' cannot be imported from no_such_package:Codec"):
        known.make("broken")
