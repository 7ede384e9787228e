"""`anytimecl encode`: the records of `learn`, from any source, whoever is killed on the way."""

from __future__ import annotations

import errno
import io
import json
import tarfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.commands.conftest import COLOURS, Run, zipped
from tests.commands.test_learn import opinion

from anytimecl import files
from anytimecl.commands.encode import _names_in
from anytimecl.errors import AnytimeError, LabelError, StoreError
from anytimecl.images import iter_images
from anytimecl.memory import open_memory
from anytimecl.memory.contract import Row
from anytimecl.scale.encoding import blocks, running
from anytimecl.scale.encoding.blocks import BlockEncoder
from anytimecl.scale.encoding.finishing import finish
from anytimecl.scale.encoding.job import BlockPlace, EncodingJob, begun, load
from anytimecl.scale.encoding.sources import Picture, Reading, open_source


def rows_in(memory: Path) -> list[tuple[int, Row]]:
    """What a memory holds; when an example came is nobody's business here."""
    with open_memory(memory, read_only=True) as store:
        rows = store.rows([example for example, _ in store.ids()])
    return [(number, row._replace(time=None)) for number, row in rows]


def encoded(run: Run, source: object, model: Path, to: str = "records", *words: object) -> str:
    result = run("encode", source, "--to", to, "--model", model, "--workers", 1, *words)
    assert result.exit_code == 0, result.output
    return result.output


def imported(run: Run, to: str = "records", memory: str = "imported") -> Path:
    result = run("memory", "import", to, "--to", memory)
    assert result.exit_code == 0, result.output
    return Path(memory)


def train_files(photos: Path) -> list[tuple[str, bytes]]:
    return [(str(ref.label), ref.read()) for ref in iter_images(photos) if ref.split == "train"]


# Sources


@pytest.fixture
def tar(photos: Path) -> Path:
    """The pictures as two tars of WebDataset."""
    folder = photos.parent / "tars"
    folder.mkdir()
    files = train_files(photos)
    for part, some in enumerate((files[:7], files[7:])):
        with tarfile.open(folder / f"{part}.tar", "w") as made:
            for number, (label, data) in enumerate(some):
                key = f"{'long' * 40}/{part}{number}"  # needs a header of its own
                told = json.dumps({"label": label}).encode()
                for ending, content in (("png", data), ("json", told)):
                    info = tarfile.TarInfo(f"{key}.{ending}")
                    info.size = len(content)
                    made.addfile(info, io.BytesIO(content))
    return folder


@pytest.fixture
def parquet(photos: Path) -> Path:
    """The pictures as Hugging Face keeps them: labels are numbers, and the file has their names."""
    folder = photos.parent / "parquet"
    folder.mkdir()
    names = sorted(COLOURS)
    features = {"label": {"names": names, "_type": "ClassLabel"}}
    about = {b"huggingface": json.dumps({"info": {"features": features}}).encode()}
    files = train_files(photos)
    for part, some in enumerate((files[:7], files[7:])):
        images = [{"bytes": data, "path": None} for _, data in some]
        table = pa.table({"image": images, "label": [names.index(label) for label, _ in some]})
        pq.write_table(
            table.replace_schema_metadata(about), folder / f"{part}.parquet", row_group_size=3
        )
    return folder


@pytest.fixture
def store(photos: Path) -> Iterator[str]:
    """The pictures in a store that is no disk."""
    fs = fsspec.filesystem("memory")
    for file in photos.rglob("*.png"):
        fs.pipe_file(f"/bucket/photos/{file.relative_to(photos).as_posix()}", file.read_bytes())
    fs.pipe_file("/bucket/photos/train/readme.txt", b"not a picture")
    yield "memory://bucket/photos"
    fs.rm("/bucket", recursive=True)


@pytest.mark.parametrize("kind", ["folder", "zip", "store", "tar", "parquet"])
@pytest.mark.parametrize("size", [5, 256])
def test_every_source_gives_the_same_pictures(
    kind: str, size: int, photos: Path, request: pytest.FixtureRequest
) -> None:
    address = {"folder": lambda: photos, "zip": lambda: zipped(photos)}.get(
        kind, lambda: request.getfixturevalue(kind)
    )()
    source = open_source(str(address), Reading())
    cut = list(source.blocks(size))
    read = [picture for block in cut for picture in source.read(json.loads(json.dumps(block.what)))]
    assert sum(block.images for block in cut) == len(read) == 12
    assert max(block.images for block in cut) <= size
    assert [(label, data) for _, label, data in read] == train_files(photos)


def test_sources_that_cannot_be_read_are_told(photos: Path, parquet: Path, tar: Path) -> None:
    (tar / "more.parquet").write_bytes(b"no")
    for address, reading, told in (
        (photos.parent / "none", Reading(), "nothing"),
        (tar, Reading(), "one kind"),
        (photos, Reading(split="x"), "no split 'x'. It has test, train"),
        (parquet, Reading(shuffle=1, insist=True), "in their order"),
        (parquet, Reading(label_column="y"), "no column 'y'.*image, label"),
        ("nowhere://x", Reading(), "nowhere"),
        (tar / "more.parquet", Reading(), "as Parquet"),
    ):
        with pytest.raises(AnytimeError, match=told):
            list(open_source(str(address), reading).blocks(5))


# Records


@pytest.mark.parametrize("words", [("--no-shuffle",), ("--seed", 3)])
def test_records_and_the_model_they_make_are_those_of_learn(
    run: Run, photos: Path, model: Path, words: tuple[object, ...]
) -> None:
    result = run("learn", photos, "--memory", "learned", "--model", model, *words)
    assert result.exit_code == 0, result.output
    encoded(run, photos, model, "records", "--block", 5, *words)
    memory = imported(run)
    assert rows_in(memory) == rows_in(Path("learned"))
    assert all(row.content is not None for _, row in rows_in(memory))
    np.testing.assert_array_equal(
        opinion(memory, model, photos), opinion(Path("learned"), model, photos)
    )
    again = run("learn", photos, "--memory", memory, "--model", model)
    assert "12 that were learned before" in again.stdout


def test_images_that_cannot_be_used_or_are_there_twice_leave_no_gap(
    run: Run, photos: Path, model: Path
) -> None:
    (photos / "train/cat/00.png").write_bytes(b"no picture")
    (photos / "train/dog/0 again.png").write_bytes((photos / "train/dog/0.png").read_bytes())
    (photos / "train/dog/cat.png").write_bytes((photos / "train/cat/1.png").read_bytes())
    run("learn", photos, "--memory", "learned", "--model", model, "--no-shuffle")
    words = ("--to", "r", "--model", model, "--workers", 1, "--block", 4, "--no-shuffle")
    result = run("encode", photos, *words)
    assert result.exit_code == 1
    assert "00.png" in result.stderr
    assert "came as 'cat' before" in " ".join(result.stderr.split())
    assert "1 that are there twice" in result.stdout
    assert rows_in(imported(run, "r")) == rows_in(Path("learned"))
    again = run("encode", photos, *words)
    assert (again.exit_code, again.stdout) == (1, result.stdout)


def test_images_themselves_are_kept_where_that_is_asked_for(
    run: Run, photos: Path, model: Path
) -> None:
    run("learn", photos, "--memory", "learned", "--model", model, "--codec", "image")
    encoded(run, photos, model, "records", "--codec", "image")
    assert rows_in(imported(run)) == rows_in(Path("learned"))


def test_several_processes_give_the_same_records(run: Run, learned: Path, model: Path) -> None:
    job = begun(made_job(run, learned.parent / "photos", model, block=3))
    done = list(running.in_processes(job, running.missing(job), 2))
    assert sorted(one.number for one in done) == [0, 1, 2, 3]
    assert not list(running.on_ray(job, running.missing(job), 2))  # needs no cluster any more
    assert finish(job).examples == 12
    assert rows_in(imported(run, str(job.folder))) == rows_in(learned)


def made_job(run: Run, photos: Path, model: Path, **options: Any) -> EncodingJob:
    """A job as the command makes it, with nothing encoded yet."""
    encoded(run, photos, model, "made", "--limit", 1)
    meta = load(Path("made")).meta
    return EncodingJob(Path("records").resolve(), str(photos), Reading(), meta, **options)


# Stopped and gone on


class Killed(BaseException):
    """The process is gone."""


def test_a_kill_anywhere_costs_a_block_and_changes_nothing(
    run: Run, learned: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed at each image in turn, until none is left; what was written is never done again."""
    photos = learned.parent / "photos"
    job = begun(made_job(run, photos, model, block=3))
    begin = blocks._checked
    seen: list[str] = []
    left = 0

    def dies(picture: Picture) -> Any:
        seen.append(picture.name)
        if len(seen) == left:
            raise Killed
        return begin(picture)

    monkeypatch.setattr(blocks, "_checked", dies)
    total = 0
    for turn in (1, 2, 4, 5, 3, 2, 99):
        left = turn
        seen.clear()
        todo = running.missing(job)
        try:
            done = list(running.here(job, todo))
        except Killed:
            done = []
        total += len(seen)
        written = 4 - len(running.missing(job))
        # Of what this run has looked at, at most one block was not kept.
        assert len(seen) - 3 * (written - (4 - len(todo))) <= 3
    assert len(done) > 0
    assert total > 12
    finish(job)
    assert rows_in(imported(run, str(job.folder))) == rows_in(learned)


def test_a_block_is_there_whole_or_not_at_all(
    run: Run, photos: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = begun(made_job(run, photos, model, block=6))
    encoder = BlockEncoder(job)
    first = job.places()[0]
    with monkeypatch.context() as patched:
        patched.setattr(pq, "write_table", lambda *_, **__: (_ for _ in ()).throw(Killed))
        with pytest.raises(Killed):
            encoder(first)
    assert running.missing(job) == job.places()
    assert encoder(first)[:3] == (0, 6, 0)
    assert running.missing(job) == job.places()[1:]
    with pytest.raises(StoreError, match=r"1 blocks are not in.*every machine"):
        finish(job)


def test_a_folder_of_another_job_is_left_alone(run: Run, photos: Path, model: Path) -> None:
    encoded(run, photos, model, "records", "--limit", 2)
    result = run("encode", photos, "--to", "records", "--model", model, "--workers", 1)
    assert result.exit_code == 2
    assert "another limit (2)" in result.stderr
    result = run("encode", photos, "--to", photos, "--model", model)
    assert result.exit_code == 2
    assert "something else" in result.stderr


def test_what_is_listed_at_first_is_what_is_encoded(run: Run, photos: Path, model: Path) -> None:
    job = begun(made_job(run, photos, model, block=5))
    (photos / "train/cat/0 new.png").write_bytes(b"came later")
    assert begun(job).places() == job.places()
    assert [place.images for place in job.places()] == [5, 5, 2]
    list(running.here(job, [BlockPlace(*place) for place in job.places()]))
    assert finish(job).examples == 12


def test_a_kill_while_the_source_is_listed_is_no_other_job(
    run: Run, photos: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = made_job(run, photos, model, block=5)
    with monkeypatch.context() as patched:

        def dies(*_: object) -> None:
            raise Killed

        patched.setattr(files, "_remove", lambda draft: None)  # as nobody does who is killed
        patched.setattr(files, "move_into_place", dies)
        for _ in range(2):
            with pytest.raises(Killed):
                begun(wanted)
    left = {file.name for file in wanted.folder.iterdir()} - {"data"}
    assert len(left) == 2
    assert all(name.startswith(".plan.jsonl.") and name.endswith(".part") for name in left)
    assert sum(place.images for place in begun(wanted).places()) == 12
    assert {file.name for file in wanted.folder.iterdir()} == {"data", "plan.jsonl", "job.json"}


def test_two_who_begin_the_same_job_have_one_whole_plan(
    run: Run, photos: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = made_job(run, photos, model, block=5)
    whole = EncodingJob.open_source
    gates = [(threading.Event(), threading.Event()) for _ in range(2)]
    coming = iter(gates)

    class Slow:
        """A source that stops when it has listed its first block."""

        def __init__(self, job: EncodingJob) -> None:
            self._source, (self._there, self._go_on) = whole(job), next(coming)

        def blocks(self, size: int) -> Iterator[Any]:
            for block in self._source.blocks(size):
                yield block
                self._there.set()
                assert self._go_on.wait(60)

    monkeypatch.setattr(EncodingJob, "open_source", lambda job: Slow(job))
    with ThreadPoolExecutor(2) as starters:
        begins = []
        for there, _ in gates:
            begins.append(starters.submit(begun, wanted))
            assert there.wait(60)
        for (_, go_on), begin in zip(gates, begins, strict=True):
            go_on.set()
            job = begin.result(60)
            assert [place.images for place in job.places()] == [5, 5, 2]
    assert {file.name for file in wanted.folder.iterdir()} == {"data", "plan.jsonl", "job.json"}


def test_who_comes_late_with_a_block_changes_nothing(run: Run, learned: Path, model: Path) -> None:
    job = begun(made_job(run, learned.parent / "photos", model, block=5))
    late = BlockEncoder(job)
    list(running.here(job, running.missing(job)))
    assert finish(job).examples == 12
    for place in job.places():  # its node was out of reach, and others have done its work
        late(place)
    assert rows_in(imported(run, str(job.folder))) == rows_in(learned)


def test_what_the_source_has_no_more_is_named(
    run: Run, photos: Path, parquet: Path, model: Path
) -> None:
    meta = made_job(run, photos, model).meta
    job = begun(EncodingJob(Path("short").resolve(), str(parquet), Reading(), meta, block=5))
    for file in parquet.glob("*.parquet"):
        pq.write_table(pq.read_table(file).slice(0, 4), file)
    list(running.here(job, running.missing(job)))
    done = finish(job)
    assert (done.examples, done.repeated, len(done.failures)) == (8, 0, 4)
    assert "block 0, image 4: the source has it no more" in done.failures[0]


def test_a_store_that_is_away_costs_no_image(
    run: Run, photos: Path, store: str, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    meta = made_job(run, photos, model).meta
    job = begun(EncodingJob(Path("away").resolve(), store, Reading(), meta, block=12))
    fs = type(fsspec.filesystem("memory"))
    with monkeypatch.context() as patched:

        def away(*_: object, **__: object) -> bytes:
            raise OSError(errno.EIO, "Connection reset by peer")

        patched.setattr(fs, "cat_file", away)
        with pytest.raises(AnytimeError, match=r"reset by peer.*the same command goes on"):
            list(running.here(job, running.missing(job)))
    list(running.here(job, running.missing(job)))
    assert finish(job).examples == 12


def test_two_who_write_the_same_block_do_not_meet(
    run: Run, photos: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = begun(made_job(run, photos, model, block=12))
    [place] = job.places()
    whole, half, go_on = pq.write_table, threading.Event(), threading.Event()

    def meeting(table: Any, to: Path, **options: Any) -> None:
        whole(table, to, **options)
        if threading.current_thread() is threading.main_thread():
            other.start()
            assert half.wait(60)
        else:  # half of it is written when the first one is done
            to.write_bytes(to.read_bytes()[:100])
            half.set()
            assert go_on.wait(60)
            raise OSError("killed")

    monkeypatch.setattr(pq, "write_table", meeting)
    failed: list[OSError] = []

    def encode_too() -> None:
        try:
            BlockEncoder(job)(place)
        except OSError as error:
            failed.append(error)

    other = threading.Thread(target=encode_too)
    try:
        assert BlockEncoder(job)(place).images == 12
        assert pq.read_table(job.file(0)).num_rows == 12
    finally:
        go_on.set()
        other.join()
    assert str(failed[0]) == "killed"
    monkeypatch.undo()
    (job.file(0).parent / ".block-000000.parquet.left.part").write_bytes(b"by a kill")
    assert finish(job).examples == 12
    assert [file.name for file in job.file(0).parent.iterdir()] == ["block-000000.parquet"]


def test_names_of_classes_begin_after_a_byte_order_mark(tmp_path: Path) -> None:
    classes = tmp_path / "classes.txt"
    classes.write_bytes(b"\xef\xbb\xbfcat\r\ndog\r\n")
    assert _names_in(classes) == ("cat", "dog")
    classes.write_text("cat\n\ndog\n")  # left out, it would give the third class the wrong name
    with pytest.raises(LabelError, match=r"classes\.txt, line 2: The label is empty"):
        _names_in(classes)
