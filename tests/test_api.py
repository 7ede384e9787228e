"""What the public methods take, give and refuse, and that their types say so."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from mypy import api
from tests.helpers import LABELS, model, picture, settings, taught

from anytimecl.classifier import AnytimeClassifier
from anytimecl.client import Client
from anytimecl.errors import ImageError, LabelError
from anytimecl.prediction import Prediction

ROOT = Path(__file__).resolve().parents[1]
TYPED = """
import numpy as np
from anytimecl import AnytimeClassifier

def asked(clf: AnytimeClassifier) -> None:
    reveal_type(clf.predict("a.jpg"))
    reveal_type(clf.predict(["a.jpg"], ["cat"]))
    reveal_type(clf.predict((each for each in ["a.jpg"]), errors="return"))
    reveal_type(clf.predict(np.zeros(3)))
    reveal_type(clf.predict_proba("a.jpg"))
    clf.predict("a.jpg").labl
    clf.predict("a.jpg", treshold=1.0)
"""
# What is written for the protocol works with all of these; the last line shows that it is checked.
SHARED = """
from anytimecl import AnytimeClassifier, Classifier, Client
from anytimecl.scale.router import ClusterClassifier
from anytimecl.scale.tree import TreeClassifier

kinds: list[type[Classifier]] = [AnytimeClassifier, TreeClassifier, ClusterClassifier, Client]
wrong: type[Classifier] = int
"""
REVEALED = [
    'Revealed type is "anytimecl.prediction.Prediction"',
    'Revealed type is "list[anytimecl.prediction.Prediction]"',
    'Revealed type is "list[anytimecl.prediction.Prediction | anytimecl.errors.ImageError]"',
    '"anytimecl.prediction.Prediction | list[anytimecl.prediction.Prediction]"',
    "ndarray",
    '"Prediction" has no attribute "labl"',
    "treshold",
]


def test_types_say_what_comes_back_and_a_typo_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("MYPYPATH", str(ROOT / "src"))
    file = tmp_path / "asked.py"
    file.write_text(TYPED, encoding="utf-8")
    shared = tmp_path / "shared.py"
    shared.write_text(SHARED, encoding="utf-8")
    told, _, status = api.run([str(file), str(shared)])
    assert status == 1
    assert [line.split(":")[1] for line in told.splitlines() if "shared.py" in line] == ["7"]
    told = told.replace("builtins.list", "list")
    places = [told.index(each) for each in REVEALED]
    assert places == sorted(places), told


def test_many_images_come_in_any_form() -> None:
    classifier = taught(range(8))
    pictures = [picture(50), picture(51)]
    expected = classifier.predict(pictures, LABELS)
    pixels = np.stack([np.asarray(each) for each in pictures])
    for given in (tuple(pictures), iter(pictures), pixels, torch.tensor(pixels)):
        assert classifier.predict(given, LABELS) == expected
    one = classifier.predict(torch.tensor(pixels[0]), LABELS)
    assert isinstance(one, Prediction)
    assert one.label == expected[0].label
    assert classifier.predict([], LABELS) == []


def test_an_array_of_paths(tmp_path: Path) -> None:
    classifier = taught(range(8))
    for number in (50, 51):
        picture(number).save(tmp_path / f"{number}.png")
    paths = np.array([str(tmp_path / "50.png"), str(tmp_path / "51.png")])
    expected = classifier.predict([picture(50), picture(51)], LABELS)
    assert classifier.predict(paths, LABELS) == expected
    (tmp_path / "51.png").write_bytes(b"cut sho")
    found = classifier.predict(paths, LABELS, errors="return")
    assert isinstance(found[1], ImageError)
    assert "51.png" in str(found[1])
    assert isinstance(found[0], Prediction)
    assert found[0].label == expected[0].label
    with pytest.raises(ImageError, match=r"51\.png"):
        classifier.predict(paths, LABELS)
    with pytest.raises(ValueError, match='"raise" or "return"'):
        classifier.predict(paths, LABELS, errors="ignore")  # type: ignore[call-overload]


def test_a_label_given_twice_has_two_columns() -> None:
    classifier = taught(range(8))
    values = classifier.predict_proba([picture(50)], ["dog", "cat", " dog"])
    assert values.shape == (1, 3)
    assert values[0, 0] == values[0, 2]
    plain = classifier.predict_proba(picture(50), (each for each in ("dog", "cat")))
    np.testing.assert_array_equal(values[0, :2], plain)
    for wrong in ("cat", 5, []):
        with pytest.raises(LabelError):
            classifier.predict_proba(picture(50), wrong)  # type: ignore[arg-type]


def test_an_unknown_option_is_named() -> None:
    with pytest.raises(TypeError, match=r"no option 'cach_bytes'.*Is 'cache_bytes' meant"):
        AnytimeClassifier.open(model=model(), settings=settings(), cach_bytes=3)


def test_it_says_what_it_is_and_why_it_cannot_be_copied(tmp_path: Path) -> None:
    with AnytimeClassifier.open(tmp_path / "m", model=model(), settings=settings()) as classifier:
        classifier.learn_one(picture(0), "cat")
        assert repr(classifier) == (
            f"<AnytimeClassifier of 'tiny clip 0' in {tmp_path / 'm'}: 1 examples of 1 labels>"
        )
        for copied in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError, match="neither copied nor pickled"):
                copied(classifier)
        with pytest.raises(TypeError, match=r"A Store holds .* neither copied nor pickled"):
            copy.deepcopy(classifier.memory)
    assert "closed" in repr(classifier)


def test_what_holds_nothing_open_is_copied_and_pickled() -> None:
    client = pickle.loads(pickle.dumps(Client("http://127.0.0.1:1", token="secret", memory="a b")))
    assert repr(client) == "<Client of http://127.0.0.1:1/v1/memories/a%20b>"
    chosen = settings(codec={"name": "tokens-fp16"}, sampler={"name": "fifo", "options": {}})
    assert copy.deepcopy(chosen) == chosen == pickle.loads(pickle.dumps(chosen))
    prediction = taught(range(3)).predict(picture(0))
    assert pickle.loads(pickle.dumps(prediction)) == copy.copy(prediction) == prediction
