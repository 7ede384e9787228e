"""Classifiers that are exported, imported, or turned over to another model."""

from __future__ import annotations

import shutil
import time
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from tests.helpers import (
    differing,
    knowledge,
    lesson,
    lessons,
    measured,
    model,
    picture,
    settings,
    taught,
)

from anytimecl import transfer
from anytimecl.acceleration import OnlineLearner
from anytimecl.classifier import AnytimeClassifier
from anytimecl.codec import make_codec, pack
from anytimecl.errors import ModelError, StoreError
from anytimecl.examples import Examples
from anytimecl.memory import open_memory
from anytimecl.memory.importing import read_export
from anytimecl.predicting import digest_of
from anytimecl.sampling import Uniform
from anytimecl.tail import embed
from anytimecl.transfer import copy_memory, export_classifier, import_classifier, reencode


def opened(folder: Path, **options: Any) -> AnytimeClassifier:
    return AnytimeClassifier.open(folder, **{"model": model(), **options})


def lived(folder: Path, **changes: Any) -> Path:
    """A memory with a checkpoint, and lessons after it."""
    with opened(folder, settings=settings(**changes)) as classifier:
        classifier.learn_many(lessons(8))
        classifier.consolidate(1)
        classifier.forget(example_id=3)
        classifier.learn_one(picture(40), "dog", candidates=["dog", "cat"], key="a key")
    return folder


@pytest.mark.parametrize("step", ["checkpoints.save", "shutil.copyfile"])
def test_a_copy_that_fails_half_way_is_no_memory(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without its checkpoint and prior it looked whole, and answered otherwise."""
    with AnytimeClassifier.open(tmp_path / "a", model=measured(), settings=settings()) as before:
        before.learn_many(lessons(4))

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(f"anytimecl.transfer.{step}", full)
        with pytest.raises(StoreError, match=r"copy cannot be written: .*No space left"):
            copy_memory(tmp_path / "a", tmp_path / "copy")
    assert list((tmp_path / "copy").iterdir()) == []
    copy_memory(tmp_path / "a", tmp_path / "copy")
    names = {file.name for file in (tmp_path / "copy").iterdir()}
    assert names == {"memory.sqlite3", "checkpoint", "prior.safetensors"}
    with AnytimeClassifier.open(tmp_path / "copy", model=measured()) as again:
        assert len(again) == 4


@pytest.mark.parametrize("label", ["", " \u200b", "none of these", "a" * 1_000_000, "a\x00b"])
def test_a_label_that_nobody_could_teach_is_not_imported(label: str, tmp_path: Path) -> None:
    export_classifier(lived(tmp_path / "a"), tmp_path / "out")
    export = read_export(tmp_path / "out")
    [shard] = export.shards
    table = pq.read_table(tmp_path / "out" / shard)
    labels = [*table.column("label").to_pylist()[:-1], label]
    pq.write_table(table.set_column(1, "label", pa.array(labels)), tmp_path / "out" / shard)
    last = table.column("id").to_pylist()[-1]
    with opened(tmp_path / "c", settings=settings()):
        pass
    for to in ("b", "c"):
        with pytest.raises(StoreError, match=rf"parquet: example {last}: ") as told:
            import_classifier(export, tmp_path / to)
        assert len(str(told.value)) < 500
    assert not (tmp_path / "b").exists()


def test_an_entry_that_cannot_be_replayed_is_named(tmp_path: Path) -> None:
    export_classifier(lived(tmp_path / "a"), tmp_path / "out")
    shutil.rmtree(tmp_path / "out" / "checkpoint")
    export = read_export(tmp_path / "out")

    def bring(kind: str) -> None:
        forged = replace(export, events=[(export.last, kind, {})])
        import_classifier(forged, tmp_path / kind)

    with pytest.raises(StoreError, match=r"Event \d+ \('forget'\) .* no valid 'examples'"):
        bring("forget")
    bring("consolidate")  # a memory of something else than a classifier may have such
    with pytest.raises(StoreError, match=r"Event \d+ \('consolidate'\) .* no valid 'epochs'"):
        opened(tmp_path / "consolidate")


def test_numbers_that_are_not_finite_are_not_imported(tmp_path: Path) -> None:
    export_classifier(lived(tmp_path / "a"), tmp_path / "out")
    export = read_export(tmp_path / "out")
    [shard] = export.shards
    table = pq.read_table(tmp_path / "out" / shard)
    spec = model().spec
    values = np.full((spec.tokens, spec.tail.width), np.inf, "<f4")
    forged = pack("tokens-fp32", *values.shape, bytes(2) + values.tobytes())
    for column, made in (("record", forged), ("checksum", zlib.crc32(forged))):
        at = table.schema.get_field_index(column)
        cells = [*table.column(column).to_pylist()[:-1], made]
        table = table.set_column(
            at, table.schema.field(at), pa.array(cells, table.schema.types[at])
        )
    pq.write_table(table, tmp_path / "out" / shard)
    with pytest.raises(StoreError, match=r"parquet: example \d+: .* not finite"):
        import_classifier(export, tmp_path / "b")


def test_a_number_impossibly_far_away_is_not_imported(tmp_path: Path) -> None:
    export_classifier(lived(tmp_path / "a"), tmp_path / "out")
    export = replace(read_export(tmp_path / "out"), last=1 << 62)
    with pytest.raises(StoreError, match=r"export tells of event 46.* impossibly far"):
        import_classifier(export, tmp_path / "b")
    with pytest.raises(StoreError, match=r"memory tells of event 46.* impossibly far"):
        Examples(Uniform()).add(1 << 62, "cat")


def test_an_imported_classifier_is_the_exported_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(lived(tmp_path / "a")) as classifier:
        classifier.learn_many(lessons(4, start=8))  # in no checkpoint yet
        assert export_classifier(tmp_path / "a", tmp_path / "out") == 12
        before = knowledge(classifier)
    import_classifier(read_export(tmp_path / "out"), tmp_path / "b")
    with opened(tmp_path / "b") as again:
        after = knowledge(again)
        assert after.pop("event") == before.pop("event") + 1  # the journal tells of the import
        assert differing(before, after) == []
    monkeypatch.setattr(OnlineLearner, "look_ahead", lambda *_: pytest.fail("it learned again"))
    import_classifier(read_export(tmp_path / "out"), tmp_path / "c")
    shutil.copytree(tmp_path / "b" / "checkpoint", tmp_path / "d")
    opened(tmp_path / "b").close()


def test_what_is_added_to_a_memory_is_learned_when_it_is_opened(tmp_path: Path) -> None:
    export_classifier(lived(tmp_path / "a"), tmp_path / "out")
    with opened(tmp_path / "b", settings=settings()) as classifier:
        classifier.learn_many(lessons(5, start=20))
    found = read_export(tmp_path / "out")
    assert import_classifier(found, tmp_path / "b") == (8, 0)
    assert import_classifier(found, tmp_path / "b") == (0, 8)
    straight = taught(range(20, 25))
    with open_memory(tmp_path / "a", read_only=True) as source:
        for _, row in source.rows(source.all_ids()):
            tokens = make_codec("tokens-fp32", model().spec, model().tail).decode([row.record])
            straight.learn_tokens(tokens[0], row.label, candidates=row.candidates)
    done: list[tuple[int, int]] = []
    with opened(tmp_path / "b", progress=lambda *at: done.append(at)) as classifier:
        assert done == [(number, 8) for number in range(1, 9)]
        assert differing(knowledge(straight), knowledge(classifier)) == []


def test_an_imported_memory_keeps_its_prior(tmp_path: Path) -> None:
    opened(tmp_path / "a", model=measured(), settings=settings()).close()
    export_classifier(tmp_path / "a", tmp_path / "out")
    import_classifier(read_export(tmp_path / "out"), tmp_path / "b")
    own, copied = (tmp_path / folder / "prior.safetensors" for folder in "ab")
    assert copied.read_bytes() == own.read_bytes()


def test_a_long_journal_is_kept_as_it_is_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path, settings=settings()) as classifier:
        classifier.learn_many(lessons(12))
        whole = knowledge(classifier)
    shutil.rmtree(tmp_path / "checkpoint")
    monkeypatch.setattr("anytimecl.checkpointer.CHECKPOINT_EVERY", 4)

    def stop(done: int, total: int) -> None:
        if done == 10:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        opened(tmp_path, progress=stop)
    done: list[int] = []
    with opened(tmp_path, progress=lambda at, _: done.append(at)) as classifier:
        assert done == [1, 2, 3, 4]  # eight were in a checkpoint
        assert differing(whole, knowledge(classifier)) == []


def test_another_kind_of_memory_is_refused_with_the_way_out(tmp_path: Path) -> None:
    export_classifier(lived(tmp_path / "a"), tmp_path / "out")
    export_classifier(lived(tmp_path / "images", codec="image"), tmp_path / "pictures")
    with opened(tmp_path / "b", model=model(seed=1), settings=settings()) as classifier:
        classifier.learn_one(*lesson(0))
    with pytest.raises(StoreError, match=r"tiny clip 0.*cannot be turned into"):
        import_classifier(read_export(tmp_path / "out"), tmp_path / "b")
    with pytest.raises(StoreError, match="memory reencode"):
        import_classifier(read_export(tmp_path / "pictures"), tmp_path / "b")
    with pytest.raises(StoreError, match=f"reencode {tmp_path / 'images'} --to NEW"):
        opened(tmp_path / "images", model=model(seed=1))
    with open_memory(tmp_path / "b", read_only=True) as memory:
        assert len(memory) == 1


@pytest.mark.parametrize("codec", ["tokens-fp32", "attention-pca", "image"])
def test_embeddings_are_those_of_the_original_model(codec: str, tmp_path: Path) -> None:
    lived(tmp_path / "a", codec=codec)
    made = transfer.attached(model(), codec)
    look = transfer.image_embeddings(model(), made)
    export_classifier(tmp_path / "a", tmp_path / "out", features=look)
    [file] = (tmp_path / "out" / "features").iterdir()
    found = load_file(file)
    assert found["id"].tolist() == [1, 2, 4, 5, 6, 7, 8, 11]
    with torch.no_grad():
        tokens = model().encode([picture(0)])
        expected = F.normalize(embed(model().tail, model().spec.tail, tokens), dim=-1)
    off = (found["embedding"][0].float() - expected[0]).abs().max()
    assert off < (0.2 if codec == "attention-pca" else 2e-3)


def test_tokens_are_exported_where_there_are_any(tmp_path: Path) -> None:
    lived(tmp_path / "a")
    look = transfer.image_tokens(model(), transfer.attached(model(), "tokens-fp32"))
    export_classifier(tmp_path / "a", tmp_path / "out", features=look)
    [file] = (tmp_path / "out" / "features").iterdir()
    torch.testing.assert_close(
        load_file(file)["tokens"][0], model().encode([picture(0)])[0].half(), rtol=0, atol=1e-3
    )
    lived(tmp_path / "b", codec="attention-pca")
    look = transfer.image_tokens(model(), transfer.attached(model(), "attention-pca"))
    with pytest.raises(ModelError, match="export embeddings"):
        export_classifier(tmp_path / "b", tmp_path / "none", features=look)
    assert not (tmp_path / "none").exists()


# Another model


def test_stored_images_are_turned_over_to_another_model(tmp_path: Path) -> None:
    other = model(seed=1)
    lived(tmp_path / "a", codec="image")
    with open_memory(tmp_path / "a", read_only=True) as source:
        made = reencode(source, tmp_path / "b", other, codec="tokens-fp32")
        rows = source.rows(source.all_ids())
    assert made == (8, ())
    straight = AnytimeClassifier.open(model=other, settings=settings())
    for number in (0, 1, 3, 4, 5, 6, 7):
        straight.learn_one(*lesson(number))
    straight.learn_one(picture(40), "dog", candidates=["dog", "cat"])
    with opened(tmp_path / "b", model=other) as classifier:
        assert differing(knowledge(straight), knowledge(classifier)) == []
        found = classifier.memory.rows(classifier.memory.all_ids())
        for (_, old), (_, new) in zip(rows, found, strict=True):
            assert (old.label, old.candidates, old.key) == (new.label, new.candidates, new.key)
    assert {path.name for path in tmp_path.iterdir()} == {"a", "b"}


@pytest.mark.parametrize("codec", ["image", "tokens-fp16"])
def test_reencoding_keeps_what_is_known_besides(codec: str, tmp_path: Path) -> None:
    with opened(tmp_path / "a", settings=settings(codec=codec), thumbnails=True) as classifier:
        for number in range(3):
            classifier.learn_one(*lesson(number), source=f"{number}.png")
        [(_, row)] = classifier.memory.rows([1])
        classifier.memory.append_row(row)  # a copy, as older memories have them
        classifier.learn_one(*lesson(3))
        before = classifier.memory.rows([1, 2, 3, 5])
    stopped: list[int] = []

    def stop(done: int, total: int) -> None:
        stopped.append(done)
        if stopped == [1, 2, 3, 4]:
            raise KeyboardInterrupt

    with open_memory(tmp_path / "a", read_only=True) as source:
        with pytest.raises(KeyboardInterrupt):
            reencode(source, tmp_path / "b", model(), codec="tokens-fp32", progress=stop)
        made = reencode(source, tmp_path / "b", model(), codec="tokens-fp32", progress=stop)
    assert (made, stopped) == ((4, ()), [1, 2, 3, 4, 5])
    with opened(tmp_path / "b") as classifier:
        found = classifier.memory.rows(classifier.memory.all_ids())
        assert [row._replace(record=b"") for _, row in found] == [
            row._replace(record=b"") for _, row in before
        ]
        assert classifier.memory.find_content(digest_of(classifier.encode([picture(1)])[0])) == (
            2,
            lesson(1)[1],
        )


def test_tokens_become_another_codec_of_the_same_model_alone(tmp_path: Path) -> None:
    lived(tmp_path / "a")
    with open_memory(tmp_path / "a", read_only=True) as source:
        assert reencode(source, tmp_path / "b", model(), codec="attention-pca") == (8, ())
        with pytest.raises(StoreError, match="codec image"):
            reencode(source, tmp_path / "c", model(seed=1))
        with pytest.raises(StoreError, match="new folder"):
            reencode(source, tmp_path / "b", model())
    with (
        open_memory(tmp_path / "b", read_only=True) as source,
        pytest.raises(ModelError, match="no tokens"),
    ):
        reencode(source, tmp_path / "c", model(), codec="tokens-fp16")
    with opened(tmp_path / "b") as classifier:
        assert classifier.settings.codec == "attention-pca"


def test_reencoding_of_a_memory_that_has_forgotten_meanwhile_begins_anew(tmp_path: Path) -> None:
    with opened(tmp_path / "a", settings=settings(codec="tokens-fp32")) as classifier:
        for number in range(4):
            classifier.learn_one(picture(number), "cat", key=f"{number}")
            time.sleep(0.002)

    def stop(done: int, total: int) -> None:
        if done == 3:
            raise KeyboardInterrupt

    with open_memory(tmp_path / "a") as memory:
        with pytest.raises(KeyboardInterrupt):
            reencode(memory, tmp_path / "b", model(), codec="attention-pca", progress=stop)
        memory.forget([1])
        assert reencode(memory, tmp_path / "b", model(), codec="attention-pca") == (3, ())
    with open_memory(tmp_path / "b", read_only=True) as memory:
        assert [row.key for _, row in memory.rows(memory.all_ids())] == ["1", "2", "3"]


def test_reencoding_goes_on_where_it_was_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lived(tmp_path / "a", codec="image")
    with open_memory(tmp_path / "a") as memory:
        memory.append("cat", make_codec("image", model().spec, {}).encode_image(b"no image"))  # type: ignore[attr-defined]
        memory.append("cat", b"not even a record")

    def stop(done: int, total: int) -> None:
        if done == 9:
            raise KeyboardInterrupt

    with open_memory(tmp_path / "a", read_only=True) as source:
        with pytest.raises(KeyboardInterrupt):
            reencode(source, tmp_path / "b", model(), codec="tokens-fp32", progress=stop)
        assert not (tmp_path / "b").exists()
        done: list[int] = []
        made = reencode(
            source,
            tmp_path / "b",
            model(),
            codec="tokens-fp32",
            progress=lambda at, _: done.append(at),
        )
        assert done == [10]
        assert made == (8, (12, 13))
    with opened(tmp_path / "b") as classifier:
        assert len(classifier) == 8
