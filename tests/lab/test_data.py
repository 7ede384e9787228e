"""Data sets from folders, zips and the hub's layout."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.lab.conftest import TEST, TRAIN, fill, zipped

from anytimecl.errors import ImageError
from anytimecl_lab import data as sets
from anytimecl_lab.data import Cut, HubSet, catalogue, from_archive, from_hub, open_set


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


def test_a_share_of_all_images_is_learned_and_the_rest_asked_about(repository: Path) -> None:
    given = HubSet(str(repository), image="img", label="fine_label", train="train+test", share=0.7)
    found = from_hub("small", given)
    assert found.train is not None
    assert (len(found.train), len(found.test)) == (7, 3)
    pixels = [
        split.load(i).tobytes() for split in (found.train, found.test) for i in range(len(split))
    ]
    assert len(set(pixels)) == 10
    again = from_hub("small", given)
    assert again.train is not None
    assert list(again.train.labels) == list(found.train.labels)
    assert found.train.key != found.test.key


def test_classes_can_be_left_out(repository: Path) -> None:
    given = HubSet(str(repository), image="img", label="fine_label", without=("ox, bos",))
    found = from_hub("small", given)
    assert found.names == ["sea horse"]
    assert len(found.test) == 2
    plain = from_hub("small", HubSet(str(repository), image="img", label="fine_label"))
    assert found.test.load(1).tobytes() == plain.test.load(2).tobytes()
    assert found.test.key != plain.test.key


def test_of_a_video_the_middle_frame_is_taken() -> None:
    videos = ["a", "a", "a", "b", "b", "c"]
    assert sets.middle_frames(videos, range(6)) == [1, 4, 5]
    assert catalogue()["ucf101"].video
    assert any("ackground" in name for name in catalogue()["caltech101"].without)


def test_a_set_from_a_folder_has_the_published_names_and_prompts(tmp_path: Path) -> None:
    place = fill(tmp_path, "pets").rename(tmp_path / "eurosat")
    plain = open_set("eurosat", tmp_path)
    assert plain.templates is None
    with pytest.raises(ImageError, match="3 classes, and 10 names"):
        open_set("eurosat", tmp_path, published=True)
    listed = HubSet("", names=("one", "two", "three"), templates=("a {} seen from above.",))
    found = sets.as_published(from_archive("eurosat", place), listed)
    assert found.templates == ("a {} seen from above.",)
    assert dict(zip(plain.test.labels, found.test.labels, strict=True)) == {
        "cat": "one",
        "dog": "two",
        "great white shark": "three",
    }
    assert found.test.key == plain.test.key  # the images are the same


def test_a_set_from_a_folder_has_the_classes_and_names_that_the_hub_would_give(
    tmp_path: Path,
) -> None:
    place = fill(tmp_path, "pets")
    for split in ("train", "test"):
        (place / split / "dog").rename(place / split / "BACKGROUND_Google")
        (place / split / "great white shark").rename(place / split / "great_white_shark")
    found = sets.as_published(
        from_archive("pets", place), HubSet("", without=("BACKGROUND_Google",))
    )
    assert found.names == ["cat", "great white shark"]
    assert found.train is not None
    assert len(found.kept(found.train)) == 2 * TRAIN
    assert sets.by_code(found).names == ["item 000", "item 001"]


def test_a_task_is_cut_from_an_archive_of_one_split(tmp_path: Path) -> None:
    folder = tmp_path / "many"
    for number, name in enumerate(["tench, Tinca tinca", "goldfish", "hammerhead"]):
        for image in range(5):
            file = folder / "align" / f"{number:04} {name}" / f"{image}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (4, 4), (number, image, 0)).save(file)
    zipped(folder)
    cut = Cut("many", "align", first=0, last=2, test=2)
    found = open_set("fish", tmp_path, {"fish": cut})
    assert found.train is not None
    assert found.names == ["goldfish", "tench"]
    assert (len(found.train), len(found.test)) == (6, 4)
    assert {found.train.load(i).getpixel((0, 0))[1] for i in range(6)} == {0, 1, 2}
    assert {found.test.load(i).getpixel((0, 0))[1] for i in range(4)} == {3, 4}
    with pytest.raises(ImageError, match="which is not there"):
        open_set("fish", tmp_path, {"fish": Cut("none", "align", 0, 2, 2)})


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
