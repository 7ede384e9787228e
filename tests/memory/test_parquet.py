"""A memory as Parquet: others can open it, and it comes back as it was."""

from __future__ import annotations

import json
import sys
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tests.memory.checks import assert_sound, record

from anytimecl.errors import StoreError
from anytimecl.memory import (
    Event,
    RequestKey,
    Row,
    Store,
    StoreWarning,
    acts,
    exporting,
    importing,
    open_memory,
)
from anytimecl.memory.exporting import export_memory
from anytimecl.memory.importing import import_into, import_new, read_export

META = {"settings": json.dumps({"codec": "tokens-fp32"}), "fingerprint": "f"}
ROWS = [
    Row("cat", record(1, 500), None, None, 1_700_000_000_123),
    Row("dog", b"", ["dog", "cat"], "upload 1"),
    Row("naïve café", record(3, 9000), [], None),
    Row("cat", record(4, 4577), ["cat", "dog"], "上传"),
]


def made(folder: Path, extra: int = 0) -> Path:
    """A memory with every kind of row and event."""
    with open_memory(folder, create=META) as memory:
        memory.append_many(ROWS)  # 1 to 4
        memory.record_event("consolidate", {"epochs": 2})  # 5
        memory.append_many((f"label {n}", record(n, 1000)) for n in range(20 + extra))  # 6 to 25
        memory.forget([8, 9])  # 26 + extra
        memory.append("last", b"to be forgotten")
        memory.forget([memory.last])
    return folder


def exported(folder: Path, to: Path) -> Path:
    with open_memory(folder, read_only=True) as memory:
        export_memory(memory, to)
    return to


def contents(memory: Store) -> list[tuple[int, Row]]:
    return memory.rows(memory.all_ids())


def test_what_is_exported_is_imported_under_the_same_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporting, "SHARD_BYTES", 9000)  # several shards of several groups
    monkeypatch.setattr(exporting, "GROUP_BYTES", 4000)
    done: list[tuple[int, int]] = []
    with open_memory(made(tmp_path / "a"), read_only=True) as memory:
        count = export_memory(memory, tmp_path / "out", progress=lambda *at: done.append(at))
        before, last = contents(memory), memory.last
    assert count == len(before) == 22
    assert done[-1] == (22, 22)
    assert len(list((tmp_path / "out/data").iterdir())) > 2
    export = read_export(tmp_path / "out")
    assert import_new(export, tmp_path / "b") == (22, 0)
    with open_memory(tmp_path / "b") as memory:
        assert_sound(memory)
        assert contents(memory) == before
        assert memory.meta == META
        kinds = [event for event in memory.events() if event.kind != "learn"]
        assert kinds[0] == Event(5, "consolidate", {"epochs": 2})
        assert memory.append("cat", b"new") > last  # no number is given out twice


def test_a_codec_with_options_is_exported_as_json(tmp_path: Path) -> None:
    codec = {"name": "pooled-pca", "options": {"budget": 2000}}
    with open_memory(tmp_path / "a", create={"settings": json.dumps({"codec": codec})}) as memory:
        memory.append_many(ROWS)
    export = read_export(exported(tmp_path / "a", tmp_path / "out"))
    assert import_new(export, tmp_path / "b") == (len(ROWS), 0)


def test_pandas_opens_it(tmp_path: Path) -> None:
    import pandas as pd

    exported(made(tmp_path / "a"), tmp_path / "out")
    frame = pd.read_parquet(tmp_path / "out" / "data")
    assert list(frame.columns) == [
        "id",
        "label",
        "candidates",
        "key",
        "time",
        "codec",
        "checksum",
        "record",
        "content",
        "source",
        "thumbnail",
    ]
    first = frame.iloc[0]
    assert (first["id"], first["label"], first["record"]) == (1, "cat", ROWS[0].record)
    assert first["time"] == pd.Timestamp("2023-11-14 22:13:20.123", tz="UTC")
    assert first["checksum"] == zlib.crc32(ROWS[0].record)
    assert first["codec"] == "tokens-fp32"
    assert first["candidates"] is None
    assert list(frame.iloc[1]["candidates"]) == ["dog", "cat"]
    assert frame["label"].value_counts()["cat"] == 2


def test_datasets_opens_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    with open_memory(made(tmp_path / "a"), read_only=True) as memory:
        export_memory(memory, tmp_path / "out", features=lengths)  # the other files do not disturb
    rows = datasets.load_dataset(
        str(tmp_path / "out"), split="train", cache_dir=str(tmp_path / "cache")
    )
    assert len(rows) == 22
    assert rows[1]["key"] == "upload 1"
    assert rows[3]["record"] == ROWS[3].record
    assert rows[3]["candidates"] == ["cat", "dog"]


def lengths(records: Sequence[bytes]) -> Mapping[str, torch.Tensor]:
    return {"length": torch.tensor([[float(len(record))] for record in records])}


def test_features_lie_beside_the_rows_in_the_same_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporting, "SHARD_BYTES", 100)
    monkeypatch.setattr(exporting, "GROUP_BYTES", 4000)
    with open_memory(made(tmp_path / "a"), read_only=True) as memory:
        export_memory(memory, tmp_path / "out", features=lengths)
        rows = contents(memory)
    files = [load_file(path) for path in sorted((tmp_path / "out" / "features").iterdir())]
    assert len(files) > 2
    assert torch.cat([file["id"] for file in files]).tolist() == [id_ for id_, _ in rows]
    found = torch.cat([file["length"] for file in files])[:, 0].tolist()
    assert found == [len(row.record) for _, row in rows]


def test_an_import_repeated_adds_nothing(tmp_path: Path) -> None:
    export = read_export(exported(made(tmp_path / "a"), tmp_path / "out"))
    with open_memory(tmp_path / "b", create=META) as memory:
        memory.append("bird", b"here before", key="upload 1")  # the same key is the same example
        assert import_into(export, memory) == (21, 1)
        assert import_into(export, memory) == (0, 22)
        assert len(memory) == 22
        records = sorted(row.record for _, row in contents(memory))
        assert records == sorted(
            [b"here before", *(row.record for row in rows_of(export) if row.key != "upload 1")]
        )
        assert_sound(memory)
    with open_memory(tmp_path / "a") as memory:  # even into the memory that it came from
        assert import_into(export, memory) == (0, 22)


def test_an_image_that_is_there_keeps_its_label(tmp_path: Path) -> None:
    row = Row("cat", b"record", None, "upload 1", content=77)
    with open_memory(tmp_path / "a", create=META) as memory:
        example = memory.append_row(row)
        exported(tmp_path / "a", tmp_path / "out")
        with memory.writing():  # it is taught again, as another request
            acts.move(memory, [example], "dog", keys=[None])
    export = read_export(tmp_path / "out")
    with open_memory(tmp_path / "b", create=META) as memory:
        memory.append_row(row._replace(label="okapi", key=None))
    for folder, label in (("a", "dog"), ("b", "okapi")):
        with open_memory(tmp_path / folder) as memory:
            assert import_into(export, memory) == (0, 1)
            assert memory.copies(77) == [(1, label)]


def test_all_that_is_known_besides_comes_along(tmp_path: Path) -> None:
    key = RequestKey("upload-17", b"a cat")
    with open_memory(tmp_path / "a", create=META) as memory:
        memory.append_row(Row("cat", b"1", None, None, 5, -7, "cat.jpg", b"small picture"))
        memory.forget([memory.append("dog", b"2", key=key)])
        expected, used = contents(memory), memory.used_key(key)
    exported(tmp_path / "a", tmp_path / "out")
    import_new(read_export(tmp_path / "out"), tmp_path / "b")
    with open_memory(tmp_path / "b") as memory:
        assert contents(memory) == expected
        assert memory.used_key(key) == used
        assert_sound(memory)
    about = json.loads((tmp_path / "out" / "memory.json").read_text())
    del about["used_keys"]  # as older exports are
    (tmp_path / "out" / "memory.json").write_text(json.dumps(about))
    import_new(read_export(tmp_path / "out"), tmp_path / "c")
    with open_memory(tmp_path / "c") as memory:
        assert memory.used_key(key) is None


def rows_of(export: importing.Export) -> list[Row]:
    return [row for rows in importing._rows(export, None) for _, row in rows]


def test_an_interrupted_export_or_import_leaves_nothing_behind(tmp_path: Path) -> None:
    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with open_memory(made(tmp_path / "a"), read_only=True) as memory:
        with pytest.raises(KeyboardInterrupt):
            export_memory(memory, tmp_path / "out", progress=stop)
        assert {path.name for path in tmp_path.iterdir()} == {"a"}
        export_memory(memory, tmp_path / "out")
    with pytest.raises(KeyboardInterrupt):
        import_new(read_export(tmp_path / "out"), tmp_path / "b", progress=stop)
    assert {path.name for path in tmp_path.iterdir()} == {"a", "out"}


def test_an_interrupted_addition_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importing, "AT_ONCE", 5)
    export = read_export(exported(made(tmp_path / "a"), tmp_path / "out"))

    def stop(done: int, total: int) -> None:
        if done > 10:
            raise KeyboardInterrupt

    with open_memory(tmp_path / "b", create=META) as memory:
        with pytest.raises(KeyboardInterrupt):
            import_into(export, memory, progress=stop)
        assert 0 < len(memory) < 22
        new, known = import_into(export, memory)
        assert (len(memory), new + known) == (22, 22)


def test_what_is_damaged_is_left_out_of_an_export(tmp_path: Path) -> None:
    with open_memory(made(tmp_path / "a")) as memory:
        memory.db.execute("UPDATE example SET crc = crc + 1 WHERE id = 3")
        with pytest.warns(StoreWarning, match="Example 3"):
            assert export_memory(memory, tmp_path / "out") == 21
    assert 3 not in [
        id_ for rows in importing._rows(read_export(tmp_path / "out"), None) for id_, _ in rows
    ]


def test_a_damaged_export_is_refused(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    out = exported(made(tmp_path / "a"), tmp_path / "out")
    [shard] = (out / "data").iterdir()
    whole, table = shard.read_bytes(), pq.read_table(shard)
    with pytest.raises(StoreError, match="no export of a memory"):
        read_export(tmp_path / "a")
    broken = {
        "damaged": whole[: len(whole) // 2],
        "example 1 is not what": _written(
            table.set_column(7, "record", pa.array([b"other"] * len(table), pa.binary())), tmp_path
        ),
        "21 examples instead of 22": _written(table.slice(1), tmp_path),
        "example -1 has no number": _written(
            table.set_column(0, "id", pa.array([-1] * len(table))), tmp_path
        ),
        "example 1 has no number, label": _written(
            table.set_column(1, "label", pa.array([None] * len(table), pa.string())), tmp_path
        ),
        "Unsupported cast": _written(
            table.set_column(2, "candidates", pa.array([1] * len(table))), tmp_path
        ),
    }
    for told, data in broken.items():
        shard.write_bytes(data)
        with pytest.raises(StoreError, match=told):
            import_new(read_export(out), tmp_path / "b")
        assert not (tmp_path / "b").exists()
    shard.unlink()
    with pytest.raises(StoreError, match="is missing"):
        read_export(out)
    about = json.loads((out / "memory.json").read_text())
    (out / "memory.json").write_text(json.dumps(about | {"version": 9}))
    with pytest.raises(StoreError, match="version 9"):
        read_export(out)
    (out / "memory.json").write_text("[" * 100_000)
    with pytest.raises(StoreError, match="no export of a memory"):
        read_export(out)


def _written(table: object, folder: Path) -> bytes:
    import pyarrow.parquet as pq

    pq.write_table(table, folder / "table")
    data = (folder / "table").read_bytes()
    (folder / "table").unlink()
    return data


def test_nothing_is_replaced(tmp_path: Path) -> None:
    out = exported(made(tmp_path / "a"), tmp_path / "out")
    with open_memory(tmp_path / "a") as memory, pytest.raises(StoreError, match="new folder"):
        export_memory(memory, out)
    with pytest.raises(StoreError, match="new folder"):
        import_new(read_export(out), tmp_path / "a")


def test_an_empty_memory_is_exported_too(tmp_path: Path) -> None:
    open_memory(tmp_path / "a", create=META).close()
    import_new(read_export(exported(tmp_path / "a", tmp_path / "out")), tmp_path / "b")
    with open_memory(tmp_path / "b") as memory:
        assert len(memory) == 0


def test_without_pyarrow_the_way_out_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with (
        open_memory(made(tmp_path / "a"), read_only=True) as memory,
        pytest.raises(StoreError, match=r"pip install -c constraints.txt '\.\[export\]'"),
    ):
        export_memory(memory, tmp_path / "out")
    assert not (tmp_path / "out").exists()
