"""Data sets from folders, zips and the hub's layout."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.bench.conftest import TEST, TRAIN, fill, zipped

from anytimecl.bench import data as sets
from anytimecl.bench.data import HubSet, catalogue, from_archive, from_hub, open_set
from anytimecl.errors import ImageError


def test_a_folder_and_its_zip_are_the_same_data_set(tmp_path: Path) -> None:
    folder = from_archive("pets", fill(tmp_path, "pets"))
    archive = from_archive("pets", zipped(tmp_path / "pets"))
    assert folder.train is not None
    assert archive.train is not None
    assert folder.names == archive.names == ["cat", "dog", "great white shark"]
    assert folder.train.labels == archive.train.labels
    assert len(folder.train) == 3 * TRAIN
    assert len(folder.test) == 3 * TEST
    for i in range(len(folder.test)):
        assert folder.test.load(i).tobytes() == archive.test.load(i).tobytes()
        assert folder.test.file(i) == archive.test.file(i)


def test_a_key_is_of_the_images(tmp_path: Path) -> None:
    place = fill(tmp_path, "pets")
    before = from_archive("pets", place)
    assert from_archive("pets", place).test.key == before.test.key
    Image.new("RGB", (9, 9)).save(place / "test" / "cat" / "extra.png")
    after = from_archive("pets", place)
    assert after.test.key != before.test.key
    assert after.train is not None
    assert before.train is not None
    assert after.train.key == before.train.key


def test_sets_are_found_by_name(data: Path) -> None:
    assert open_set("pets", data).train is not None
    assert open_set("places", data).names == ["cat", "tabby"]
    assert open_set("novel", data).train is None


def test_a_set_that_is_nowhere_is_named(data: Path) -> None:
    with pytest.raises(ImageError, match=r"no data set 'petz' in .*neither petz\.zip nor a folder"):
        open_set("petz", data)


def test_a_set_without_test_images_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x" / "train" / "cat").mkdir(parents=True)
    Image.new("RGB", (9, 9)).save(tmp_path / "x" / "train" / "cat" / "1.png")
    with pytest.raises(ImageError, match="no test images"):
        from_archive("x", tmp_path / "x")


# ---------------------------------------------------------------------------------------- the hub


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data set as the hub keeps it: Parquet files with images and class labels."""
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hf")
    features = datasets.Features(
        {"img": datasets.Image(), "fine_label": datasets.ClassLabel(names=["sea_horse", "ox, bos"])}
    )
    random = np.random.default_rng(0)
    for split, count in (("train", 6), ("test", 4)):
        pixels = random.integers(0, 256, (count, 8, 8, 3), dtype=np.uint8)
        rows = {
            "img": [Image.fromarray(each) for each in pixels],
            "fine_label": [i % 2 for i in range(count)],
        }
        file = tmp_path / "repository" / "data" / f"{split}-00000-of-00001.parquet"
        file.parent.mkdir(parents=True, exist_ok=True)
        datasets.Dataset.from_dict(rows, features=features).to_parquet(file)
    return tmp_path / "repository"


def test_a_hub_set_has_its_own_columns_names_and_prompts(repository: Path) -> None:
    given = HubSet(
        str(repository), image="img", label="fine_label", templates=("a photo of a {}.",)
    )
    found = from_hub("small", given)
    assert found.train is not None
    assert list(found.train.labels) == ["sea horse", "ox"] * 3
    assert found.templates == ("a photo of a {}.",)
    assert found.test.load(3).size == (8, 8)
    assert Image.open(__import__("io").BytesIO(found.test.file(0))).size == (8, 8)
    assert found.test.key.startswith("small-test-")
    assert found.test.key == from_hub("small", given).test.key


def test_names_of_a_list_replace_those_of_the_set(repository: Path) -> None:
    given = HubSet(str(repository), image="img", label="fine_label", names=("a", "b"), train=None)
    found = from_hub("small", given)
    assert found.train is None
    assert found.names == ["a", "b"]


def test_a_split_that_is_not_there_is_named(repository: Path) -> None:
    given = HubSet(str(repository), image="img", label="fine_label", test="validation")
    with pytest.raises(ImageError, match="The split 'validation' of 'small'"):
        from_hub("small", given)


def test_the_list_of_hub_sets_is_the_papers() -> None:
    paper = "cifar100 sun397 aircraft eurosat pets cars food101 flowers102 imagenet ucf101 dtd"
    mtil = "aircraft caltech101 cifar100 dtd eurosat flowers102 food101 mnist pets cars sun397"
    assert set(catalogue()) == {*paper.split(), *mtil.split()}
    for given in catalogue().values():
        assert all(template.count("{}") == 1 for template in given.templates)
    assert sets.class_names(["a_b"]) == ("a b",)
