"""Names of hub models, exactly the revision asked for, and what is said when it cannot be had."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import huggingface_hub
import pytest
import torch
from huggingface_hub import constants
from tests.backbone import stand_in, tiny
from tests.backbone.stand_in import Hub

from anytimecl import AnytimeClassifier
from anytimecl.backbone import hub_name, load, load_stored, repository
from anytimecl.backbone.export import export_trunk
from anytimecl.backbone.hub_name import HubName, parse
from anytimecl.backbone.repository import fetch
from anytimecl.errors import ModelError, StoreError

CLIP = json.dumps({"model_type": "clip"}).encode()
TITLE = "Adding `safetensors` variant of this model"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub on loopback, and an empty cache."""
    with stand_in.serving() as serving:
        stand_in.point_to(serving, tmp_path / "hub", monkeypatch)
        monkeypatch.setenv("ANYTIMECL_CACHE", str(tmp_path / "own"))
        yield serving
        huggingface_hub.close_session()


def go_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)


def model(weights: str) -> stand_in.Files:
    return {"config.json": CLIP, "model.safetensors": weights.encode()}


def weights_in(folder: Path) -> str:
    return (folder / "model.safetensors").read_text()


# ---------------------------------------------------------------------------------------- names


@pytest.mark.parametrize(
    "written",
    [
        "openai/clip",
        " openai/clip ",
        "hf-hub:openai/clip",
        "hf_hub:openai/clip",
        "hf://openai/clip",
        "hf://models/openai/clip",
        "huggingface.co/openai/clip",
        "https://huggingface.co/openai/clip",
        "https://huggingface.co/openai/clip/",
        "http://hf.co/openai/clip?library=transformers",
        "https://huggingface.co/openai/clip/discussions/7",
    ],
)
def test_a_name_may_be_written_as_people_write_it(written: str) -> None:
    assert parse(written) == HubName("openai/clip")


@pytest.mark.parametrize(
    "written",
    [
        "openai/clip@refs/pr/7",
        "hf-hub:openai/clip@refs/pr/7",
        "https://huggingface.co/openai/clip/tree/refs%2Fpr%2F7",
        "https://huggingface.co/openai/clip/blob/refs%2Fpr%2F7/config.json",
        "https://huggingface.co/openai/clip/resolve/refs%2Fpr%2F7/model.safetensors?download=true",
    ],
)
def test_a_name_may_carry_a_revision(written: str) -> None:
    assert parse(written) == HubName("openai/clip", "refs/pr/7")
    assert parse(str(parse(written))) == parse(written)


def test_addresses_of_a_mirror_are_read_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "https://mirror.example")
    assert parse("https://mirror.example/a/b/tree/v2") == HubName("a/b", "v2")


@pytest.mark.parametrize("written", ["embedded", "a/b/c", "", "@v2", "a/b@"])
def test_what_is_no_hub_name_is_none(written: str) -> None:
    assert parse(written) is None


@pytest.mark.parametrize(
    "address", ["https://example.org/a/b", "https://huggingface.co/datasets/a/b", "https://hf.co/a"]
)
def test_other_addresses_are_refused(address: str) -> None:
    with pytest.raises(ModelError, match="not the address of a model"):
        parse(address)


# ------------------------------------------------------------------------------------ revisions


def test_the_revision_asked_for_is_the_one_that_comes(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = hub.repository("someone/model")
    old, new = made.commit(model("old"), "old"), made.commit(model("new"), "main")
    assert weights_in(fetch(HubName("someone/model", "old"))) == "old"
    folder = fetch(HubName("someone/model"))
    assert weights_in(folder) == "new"
    assert repository.commit_of(folder) == new
    assert weights_in(fetch(HubName("someone/model", old))) == "old"
    go_offline(monkeypatch)
    assert weights_in(fetch(HubName("someone/model"))) == "new"
    assert weights_in(fetch(HubName("someone/model", old))) == "old"


def test_an_older_revision_in_the_cache_never_stands_in_for_main(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = hub.repository("someone/model")
    made.commit(model("old"), "old")
    pickled = {"config.json": CLIP, "pytorch_model.bin": b"new"}
    made.commit(pickled, "main")
    fetch(HubName("someone/model", "old"))
    with pytest.raises(ModelError, match=r"only pickled weights \(pytorch_model.bin\)"):
        fetch(HubName("someone/model"))
    go_offline(monkeypatch)
    with pytest.raises(ModelError, match=r"Only a part of someone/model.*model\.safetensors"):
        fetch(HubName("someone/model"))


def test_a_conversion_comes_with_its_own_configuration(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = hub.repository("someone/pickled")
    main = {"config.json": CLIP, "pytorch_model.bin": b"pickled"}
    made.commit({**main, "README.md": b"later"}, "main")
    made.pull_request(1, "someone else", TITLE, {**main, "model.safetensors": b"foreign"})
    own = json.dumps({"model_type": "clip", "converted": True}).encode()
    wanted = made.pull_request(
        7, "SFconvertbot", TITLE, {**main, "config.json": own, "model.safetensors": b"converted"}
    )
    # As transformers leaves it: the weights of the conversion, and nothing else of it.
    huggingface_hub.hf_hub_download("someone/pickled", "model.safetensors", revision="refs/pr/7")
    folder = fetch(HubName("someone/pickled"))
    assert repository.commit_of(folder) == wanted
    assert weights_in(folder) == "converted"
    assert (folder / "config.json").read_bytes() == own
    go_offline(monkeypatch)
    assert fetch(HubName("someone/pickled")) == folder


def test_a_conversion_of_other_weights_is_not_taken(hub: Hub) -> None:
    made = hub.repository("someone/pickled")
    before = {"config.json": CLIP, "pytorch_model.bin": b"before"}
    old = made.commit(before, "old")
    made.commit({**before, "pytorch_model.bin": b"after"}, "main")
    made.pull_request(7, "SFconvertbot", TITLE, {**before, "model.safetensors": b"of before"})
    with pytest.raises(ModelError, match="only pickled weights"):
        fetch(HubName("someone/pickled"))
    assert weights_in(fetch(HubName("someone/pickled", old))) == "of before"
    assert weights_in(fetch(HubName("someone/pickled", "old"))) == "of before"


def test_a_conversion_that_only_transformers_fetched_is_named_offline(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = hub.repository("someone/pickled")
    main = {"config.json": CLIP, "pytorch_model.bin": b"pickled"}
    made.commit(main, "main")
    made.pull_request(7, "SFconvertbot", TITLE, {**main, "model.safetensors": b"converted"})
    huggingface_hub.hf_hub_download("someone/pickled", "config.json")
    huggingface_hub.snapshot_download("someone/pickled", revision="refs/pr/7")
    go_offline(monkeypatch)
    with pytest.raises(ModelError, match="name it: someone/pickled@refs/pr/7"):
        fetch(HubName("someone/pickled"))
    assert weights_in(fetch(HubName("someone/pickled", "refs/pr/7"))) == "converted"


def test_a_memory_takes_its_model_at_its_own_commit(hub: Hub, tmp_path: Path) -> None:
    made = hub.repository("someone/tiny")
    old = made.commit(stand_in.files_of(tiny.clip(tmp_path / "a")), "main")
    first = load("someone/tiny", tail_blocks=2)
    assert (first.spec.name, first.spec.revision) == ("someone/tiny", old)
    stored = {
        "spec": json.dumps(first.spec.to_dict()),
        "fingerprint": first.spec.fingerprint,
    }
    new = made.commit(stand_in.files_of(tiny.clip(tmp_path / "b", seed=1)), "main")
    moved = load("someone/tiny", tail_blocks=2)
    assert moved.spec.revision == new
    assert moved.spec.fingerprint != first.spec.fingerprint
    for named in (None, "someone/tiny", "hf-hub:someone/tiny"):  # the name it was made with
        again = load_stored(stored, named)
        assert again.spec == first.spec
        assert all(torch.equal(again.tail[name], value) for name, value in first.tail.items())
    assert load_stored(stored, "someone/tiny@main").spec == replace(
        moved.spec, name="someone/tiny@main"
    )


def test_a_branch_that_moves_locks_no_memory_out(hub: Hub, tmp_path: Path) -> None:
    made = hub.repository("someone/tiny")
    old = made.commit(stand_in.files_of(tiny.clip(tmp_path / "a")), "main")
    trunk = tmp_path / "trunk.onnx"
    export_trunk(load("someone/tiny"), trunk, "int8")
    for name, model in (("hub", "someone/tiny"), ("trunk", trunk)):
        AnytimeClassifier.open(tmp_path / name, model=model).close()
    new = made.commit(stand_in.files_of(tiny.clip(tmp_path / "b", seed=1)), "main")
    for name, model in (("hub", "someone/tiny"), ("trunk", trunk)):
        for given in (None, model):
            with AnytimeClassifier.open(tmp_path / name, model=given) as classifier:
                assert classifier.backbone.spec.revision == old
    says = f'commit {old[:12]}, not {new[:12]}.*model="someone/tiny@{old}"'
    for other in (load("someone/tiny"), "someone/tiny@main"):
        with pytest.raises(StoreError, match=says):
            AnytimeClassifier.open(tmp_path / "hub", model=other)


def test_a_trunk_of_before_is_taken_at_the_commit_of_its_memory(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trunks were once written without it."""
    made = hub.repository("someone/tiny")
    made.commit(stand_in.files_of(tiny.clip(tmp_path / "a")), "main")
    trunk = tmp_path / "trunk.onnx"
    with monkeypatch.context() as then:
        then.setattr(hub_name, "pinned", lambda name, commit: name)
        export_trunk(load("someone/tiny"), trunk, "int8")
    found = load(trunk)
    stored = {"spec": json.dumps(found.spec.to_dict()), "fingerprint": found.spec.fingerprint}
    made.commit(stand_in.files_of(tiny.clip(tmp_path / "b", seed=1)), "main")
    assert load_stored(stored).spec == found.spec


def test_a_card_keeps_its_templates_at_any_revision(hub: Hub, tmp_path: Path) -> None:
    made = hub.repository("openai/clip-vit-base-patch32")
    made.commit(stand_in.files_of(tiny.clip(tmp_path / "a")), "main", "v2")
    by_name, pinned = load("clip-vit-b-32"), load("openai/clip-vit-base-patch32@v2")
    pasted = load("https://huggingface.co/openai/clip-vit-base-patch32/tree/v2")
    assert by_name.templates == pinned.templates == pasted.templates
    assert by_name.spec.fingerprint == pinned.spec.fingerprint
    assert (by_name.spec.name, pinned.spec.name, pasted.spec.name) == (
        "openai/clip-vit-base-patch32",
        "openai/clip-vit-base-patch32@v2",
        "openai/clip-vit-base-patch32@v2",
    )


# ------------------------------------------------------------------------------------- messages


def test_a_gated_model_says_how_to_get_in(hub: Hub) -> None:
    made = hub.repository("someone/gated")
    made.commit(model("secret"), "main")
    made.gated = True
    with pytest.raises(ModelError, match=r"is gated.*/someone/gated .*hf auth login"):
        fetch(HubName("someone/gated"))


def test_a_missing_model_says_so(hub: Hub) -> None:
    with pytest.raises(ModelError, match=r"no model nobody/nothing on the hub.*or it is private"):
        fetch(HubName("nobody/nothing"))


def test_a_wrong_revision_says_which_there_are(hub: Hub) -> None:
    made = hub.repository("someone/model")
    made.commit(model("new"), "main", "v1")
    with pytest.raises(ModelError, match=r"no branch, tag or commit 'v2'. It has main, v1\."):
        fetch(HubName("someone/model", "v2"))


def test_an_impossible_name_says_what_one_looks_like() -> None:
    with pytest.raises(ModelError, match="cannot be the name of a model"):
        fetch(HubName("a b/c?d"))


def test_offline_says_what_is_in_the_cache(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    made = hub.repository("someone/model")
    made.commit(model("new"), "main", "v1")
    fetch(HubName("someone/model", "v1"))
    go_offline(monkeypatch)
    with pytest.raises(
        ModelError, match=r"HF_HUB_OFFLINE is set.*The cache has of it: v1; name one"
    ):
        fetch(HubName("someone/model"))
    with pytest.raises(ModelError, match=r"nobody/nothing is not in the Hugging Face cache, and"):
        fetch(HubName("nobody/nothing"))


def test_a_hub_that_cannot_be_reached_says_so(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(
        ModelError, match=r"the hub \(http://127.0.0.1:9\) cannot be used.*model fetch someone/new`"
    ):
        fetch(HubName("someone/new"))


def test_half_a_cache_says_what_is_missing(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    made = hub.repository("someone/model")
    made.commit(model("new"), "main")
    folder = Path(huggingface_hub.snapshot_download("someone/model", allow_patterns="config.json"))
    go_offline(monkeypatch)
    says = r"Only a part of someone/model .*model.safetensors is missing in .*HF_HUB_OFFLINE"
    with pytest.raises(ModelError, match=says):
        fetch(HubName("someone/model"))
    with pytest.raises(ModelError, match=says.replace("model ", "model@.* ", 1)):
        fetch(HubName("someone/model", folder.name))
    # A cache that an older version of huggingface_hub left does not know what it lacks.
    shutil.rmtree(folder.parents[1] / "trees", ignore_errors=True)
    with pytest.raises(ModelError, match=says):
        fetch(HubName("someone/model"))


def test_a_cache_without_what_the_model_does_not_need_is_enough(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an older version left it, which asked for fewer files."""
    beside = {"open_clip_config.json": b"{}", "vocab.txt": b""}
    hub.repository("someone/model").commit({**model("whole"), **beside}, "main")
    huggingface_hub.snapshot_download("someone/model", allow_patterns=list(model("")))
    go_offline(monkeypatch)
    folder = fetch(HubName("someone/model"))
    assert weights_in(folder) == "whole"
    assert fetch(HubName("someone/model", folder.name)) == folder


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({"config.json": CLIP, "pytorch_model.bin": b""}, "only pickled weights"),
        ({"config.json": CLIP, "onnx/model.onnx": b""}, "only ONNX graphs"),
        ({"config.json": CLIP, "model.fp16.safetensors": b""}, "name of a variant"),
        ({"config.json": CLIP, "tf_model.h5": b""}, "TensorFlow or JAX"),
        ({"clip_s0.pt": b"", "README.md": b""}, r"only pickled weights \(clip_s0\.pt\)"),
        ({"model.safetensors": b"", "README.md": b""}, "it has no config.json"),
        ({"README.md": b""}, "it has no config.json"),
    ],
)
def test_a_repository_without_what_is_read_names_its_format(
    hub: Hub, files: stand_in.Files, says: str
) -> None:
    hub.repository("someone/odd").commit(files, "main")
    with pytest.raises(ModelError, match=says):
        fetch(HubName("someone/odd"))
    assert not any("model.safetensors" in asked for asked in hub.asked)
