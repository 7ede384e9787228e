"""An edge client that contributes examples without sending images.

It encodes and compresses locally, and sends only records and labels. Parcels wait in an outbox on
disk, each with an idempotency key: an interrupted batch is sent again, and the receiver learns each
parcel once.
"""

from __future__ import annotations

import base64
import json
import sqlite3
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, Protocol, Self

from anytimecl.backbone import Backbone
from anytimecl.client import Client, Record
from anytimecl.closing import Closing
from anytimecl.codec import Codec
from anytimecl.errors import AnytimeError, KeyUsedError, LabelError, ModelError, StoreError
from anytimecl.images import ImageSource, load_image
from anytimecl.labels import clean_label, teachable
from anytimecl.recording import RecordError
from anytimecl.trainer import Learned

FILE = "outbox.sqlite3"
BATCH = 64  # parcels in a batch
REQUEST = 4 << 20  # bytes of records in a request, if more than one
LONGEST_KEY = 200  # characters


class Parcel(NamedTuple):
    """An example to send: record, label and key, without image or file name.

    >>> Parcel.from_json(Parcel("k", "cat", b"bytes").to_json()) == Parcel("k", "cat", b"bytes")
    True
    """

    key: str
    label: str
    record: bytes

    def to_json(self) -> str:
        """Serialise as one line of JSON."""
        plain = self._asdict() | {"record": base64.b64encode(self.record).decode()}
        return json.dumps(plain)

    @classmethod
    def from_json(cls, line: str) -> Self:
        """The inverse of `to_json`."""
        try:
            plain = json.loads(line)
            record = base64.b64decode(plain["record"], validate=True)
            return cls(str(plain["key"]), clean_label(plain["label"]), record)
        except (ValueError, KeyError, TypeError) as error:
            raise StoreError(f"This is not a parcel: {error}.") from error


class Refused(NamedTuple):
    """A parcel that the receiver refuses permanently, with the reason."""

    key: str
    why: str


class Receipt(NamedTuple):
    """Result of sending a batch; parcels in neither list are sent again."""

    taken: Sequence[str]  # keys
    refused: Sequence[Refused] = ()


Send = Callable[[Sequence[Parcel]], Receipt]


class Teacher(Protocol):
    """A learner from records: a tree, a leaf, or a service."""

    def learn_record(self, record: bytes, label: str, *, key: str | None = None) -> Learned:
        """Learn a record; durable when this returns, and idempotent."""
        ...


def straight_to(teacher: Teacher) -> Send:
    """Send by calling the learner, in this process or over Ray.

    Invalid parcels are refused. Other errors, such as a full disk or an unreachable leaf, raise,
    and the remaining parcels are sent again.
    """

    def send(batch: Sequence[Parcel]) -> Receipt:
        taken: list[str] = []
        refused: list[Refused] = []
        for parcel in batch:
            try:
                teacher.learn_record(parcel.record, parcel.label, key=parcel.key)
            except (LabelError, KeyUsedError, RecordError) as error:
                refused.append(Refused(parcel.key, str(error)))
            except (StoreError, ConnectionError):
                if not taken and not refused:
                    raise
                break  # so far it went well
            else:
                taken.append(parcel.key)
        return Receipt(taken, refused)

    return send


def over_http(client: Client, backbone: Backbone, codec: Codec) -> Send:
    """Send to a service (`anytimecl serve`), which refuses records of another model or codec."""

    def send(batch: Sequence[Parcel]) -> Receipt:
        answers = client.learn_records(
            [Record(*parcel) for parcel in _fitting(batch)],
            fingerprint=backbone.spec.fingerprint,
            codec=codec.name,
        )
        return Receipt(
            [one.key for one in answers if one.state in ("learned", "repeated")],
            [Refused(one.key, one.detail or "") for one in answers if one.state == "refused"],
        )

    return send


def _fitting(batch: Sequence[Parcel]) -> Sequence[Parcel]:
    """The first parcels of a batch that fit in one request."""
    size = 0
    for count, parcel in enumerate(batch):
        size += len(parcel.record)
        if count and size > REQUEST:
            return batch[:count]
    return batch


class EdgeClient(Closing):
    """Encodes, compresses, stores and sends examples.

    `fingerprint` is that of the receiver's model, if known: another model is refused here, before
    anything is encoded. So is an outbox with parcels of another model or codec.
    """

    def __init__(
        self,
        folder: str | Path,
        backbone: Backbone,
        codec: Codec,
        send: Send,
        *,
        fingerprint: str | None = None,
    ) -> None:
        if codec.needs_image:
            raise ModelError("This codec keeps images, and an edge sends none: choose another.")
        if fingerprint is not None:
            backbone = backbone.known_as(fingerprint)
        if fingerprint not in (None, backbone.spec.fingerprint):
            raise ModelError(
                f"The other side learns from the features of another model than "
                f"{backbone.spec.name}."
            )
        self._backbone, self._codec, self._send = backbone, codec, send
        self._lock = threading.RLock()
        self._folder = Path(folder)
        self._folder.mkdir(parents=True, exist_ok=True)
        self._db = sqlite3.connect(self._folder / FILE, check_same_thread=False)
        try:
            self._begin()
        except BaseException:
            self._db.close()
            raise

    def add(self, image: ImageSource, label: str, *, key: str | None = None) -> str:
        """Encode an example and store it for sending; returns its key. A known key adds nothing."""
        label = teachable(label)
        key = key or uuid.uuid4().hex
        if not isinstance(key, str):
            raise TypeError(f"A key is text, not {type(key).__name__}: {key!r}.")
        if len(key) > LONGEST_KEY:
            raise StoreError(
                f"A key has at most {LONGEST_KEY} characters, and this one {len(key)}."
            )
        tokens = self._backbone.encode([load_image(image)])[0]
        row = (key, label, self._codec.encode(tokens))
        with self._using() as db:
            db.execute("INSERT OR IGNORE INTO parcel (key, label, record) VALUES (?, ?, ?)", row)
        return key

    def __len__(self) -> int:
        """Number of parcels to send."""
        return self._count("why IS NULL")

    def refused(self) -> list[Refused]:
        """Parcels that the receiver refused; they are kept until `drop`."""
        query = "SELECT key, why FROM parcel WHERE why IS NOT NULL ORDER BY number"
        with self._using() as db:
            return [Refused(*row) for row in db.execute(query)]

    def drop(self, keys: Iterable[str]) -> None:
        """Delete parcels."""
        if isinstance(keys, str):  # its letters would be no keys
            raise TypeError(f"Keys come as a list, not as one text: write [{keys!r}].")
        with self._using() as db:
            db.executemany("DELETE FROM parcel WHERE key = ?", ((key,) for key in keys))

    def flush(self) -> int:
        """Send all parcels, in batches; returns how many were accepted.

        Errors of network or receiver raise; parcels that were not accepted are kept.
        """
        done = 0
        while batch := self._next():
            receipt = self._send(batch)
            known = {parcel.key for parcel in batch}
            taken = known.intersection(receipt.taken)
            refused = [one for one in receipt.refused if one.key in known]
            if not taken and not refused:
                raise AnytimeError(
                    f"None of {len(batch)} parcels was taken. They are kept: try again later."
                )
            self.drop(taken)
            with self._using() as db:
                db.executemany(
                    "UPDATE parcel SET why = ? WHERE key = ?",
                    ((one.why, one.key) for one in refused),
                )
            done += len(taken)
        return done

    @contextmanager
    def _using(self) -> Iterator[sqlite3.Connection]:
        """The outbox, in a transaction."""
        try:
            with self._lock, self._db:
                yield self._db
        except sqlite3.Error as error:
            raise StoreError(
                f"The outbox in {self._folder} cannot be used: {error}. If it is closed, open it "
                "again; if its disk is full, make room. What it holds is kept."
            ) from error

    def _begin(self) -> None:
        """Note model and codec of the parcels; raises if there are some of another one."""
        own = (self._backbone.spec.fingerprint, self._codec.name)
        with self._using() as db:
            db.execute("PRAGMA journal_mode=WAL")
            db.execute("PRAGMA synchronous=FULL")
            db.execute(
                "CREATE TABLE IF NOT EXISTS parcel (number INTEGER PRIMARY KEY, "
                "key TEXT UNIQUE NOT NULL, label TEXT NOT NULL, record BLOB NOT NULL, why TEXT)"
            )
            db.execute("CREATE TABLE IF NOT EXISTS maker (fingerprint TEXT, codec TEXT)")
            found = db.execute("SELECT * FROM maker").fetchone()
            if found not in (own, None) and (waiting := self._count("TRUE")):
                raise ModelError(
                    f"The outbox in {self._folder} still holds {waiting} parcels of another model "
                    "or codec: open it with those and send or drop them, or use another folder."
                )
            db.execute("DELETE FROM maker")
            db.execute("INSERT INTO maker VALUES (?, ?)", own)

    def _next(self) -> list[Parcel]:
        query = "SELECT key, label, record FROM parcel WHERE why IS NULL ORDER BY number LIMIT ?"
        with self._using() as db:
            return [Parcel(*row) for row in db.execute(query, (BATCH,))]

    def _count(self, where: str) -> int:
        with self._using() as db:
            return int(db.execute(f"SELECT count(*) FROM parcel WHERE {where}").fetchone()[0])

    def close(self) -> None:
        """Close the outbox; its parcels are kept."""
        self._db.close()
