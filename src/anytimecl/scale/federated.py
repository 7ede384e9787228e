"""An edge that learns with others and shows nobody its images.

It encodes and compresses at home and sends codec bytes and labels, no more. What waits to be sent
lies in an outbox on disk, each parcel under a key of its own: a batch that is cut off is sent
again, and whoever receives it twice learns from it once.
"""

from __future__ import annotations

import base64
import json
import sqlite3
import threading
import uuid
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol, Self

from anytimecl.backbone import Backbone
from anytimecl.client import Client, Record
from anytimecl.closing import Closing
from anytimecl.codec import Codec
from anytimecl.errors import AnytimeError, KeyUsedError, LabelError, ModelError, StoreError
from anytimecl.images import ImageSource, load_image
from anytimecl.labels import clean_label
from anytimecl.recording import RecordError
from anytimecl.trainer import Learned

FILE = "outbox.sqlite3"
BATCH = 64  # parcels in one sending
REQUEST = 4 << 20  # bytes of records in one request, unless a single one has more
LONGEST_KEY = 200  # characters


class Parcel(NamedTuple):
    """An example on its way: no image, no file name.

    >>> Parcel.from_json(Parcel("k", "cat", b"bytes").to_json()) == Parcel("k", "cat", b"bytes")
    True
    """

    key: str
    label: str
    record: bytes

    def to_json(self) -> str:
        """As one line of text, for whatever carries text."""
        plain = self._asdict() | {"record": base64.b64encode(self.record).decode()}
        return json.dumps(plain)

    @classmethod
    def from_json(cls, line: str) -> Self:
        """Back from `to_json`."""
        try:
            plain = json.loads(line)
            record = base64.b64decode(plain["record"], validate=True)
            return cls(str(plain["key"]), clean_label(plain["label"]), record)
        except (ValueError, KeyError, TypeError) as error:
            raise StoreError(f"This is not a parcel: {error}.") from error


class Refused(NamedTuple):
    """A parcel that the other side will never take, and why."""

    key: str
    why: str


class Receipt(NamedTuple):
    """What became of a batch; parcels in neither list are sent again."""

    taken: Sequence[str]  # keys
    refused: Sequence[Refused] = ()


Send = Callable[[Sequence[Parcel]], Receipt]


class Teacher(Protocol):
    """Whoever learns from records: a tree, a leaf, or a service in front of one."""

    def learn_record(self, record: bytes, label: str, *, key: str | None = None) -> Learned:
        """Learn it; durable when this returns, and harmless the second time."""
        ...


def straight_to(teacher: Teacher) -> Send:
    """Send by calling the teacher, in this process or over Ray.

    What a parcel is to blame for is refused. A full disk or a leaf that cannot be reached is not:
    that raises, and everything not taken is sent again.
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
    """Send to a service (`anytimecl serve`); it refuses what another model or codec has made."""

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
    """As many from the front as one request may carry: the others come next."""
    size = 0
    for count, parcel in enumerate(batch):
        size += len(parcel.record)
        if count and size > REQUEST:
            return batch[:count]
    return batch


class EdgeClient(Closing):
    """Encodes, compresses, keeps and sends.

    `fingerprint` is that of the model on the other side, where it is known: features of another
    model are refused here, before anything is encoded for nothing. An outbox that still holds
    parcels of another model or codec is refused too: nobody could tell them apart.
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
        self._lock = threading.Lock()
        Path(folder).mkdir(parents=True, exist_ok=True)
        self._db = sqlite3.connect(Path(folder) / FILE, check_same_thread=False)
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=FULL")
        with self._db:
            self._db.execute(
                "CREATE TABLE IF NOT EXISTS parcel (number INTEGER PRIMARY KEY, "
                "key TEXT UNIQUE NOT NULL, label TEXT NOT NULL, record BLOB NOT NULL, why TEXT)"
            )
            self._db.execute("CREATE TABLE IF NOT EXISTS maker (fingerprint TEXT, codec TEXT)")
        try:
            self._sign(Path(folder))
        except BaseException:
            self._db.close()
            raise

    def add(self, image: ImageSource, label: str, *, key: str | None = None) -> str:
        """Encode an example and keep it for sending; gives its key. A known key adds nothing."""
        label = clean_label(label)
        key = key or uuid.uuid4().hex
        if len(key) > LONGEST_KEY:
            raise StoreError(
                f"A key has at most {LONGEST_KEY} characters, and this one {len(key)}."
            )
        tokens = self._backbone.encode([load_image(image)])[0]
        row = (key, label, self._codec.encode(tokens))
        with self._lock, self._db:
            self._db.execute(
                "INSERT OR IGNORE INTO parcel (key, label, record) VALUES (?, ?, ?)", row
            )
        return key

    def __len__(self) -> int:
        """Parcels that wait to be sent."""
        return self._count("why IS NULL")

    def refused(self) -> list[Refused]:
        """Parcels that the other side will not take; they stay here until `drop`."""
        query = "SELECT key, why FROM parcel WHERE why IS NOT NULL ORDER BY number"
        with self._lock:
            return [Refused(*row) for row in self._db.execute(query)]

    def drop(self, keys: Iterable[str]) -> None:
        """Throw parcels away."""
        with self._lock, self._db:
            self._db.executemany("DELETE FROM parcel WHERE key = ?", ((key,) for key in keys))

    def flush(self) -> int:
        """Send all that waits, a batch at a time; returns how many were taken.

        What the line or the other side fails at raises, and everything not taken is still here.
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
            with self._lock, self._db:
                self._db.executemany(
                    "UPDATE parcel SET why = ? WHERE key = ?",
                    ((one.why, one.key) for one in refused),
                )
            done += len(taken)
        return done

    def _sign(self, folder: Path) -> None:
        """Write down who makes the parcels; those of somebody else must be gone first."""
        own = (self._backbone.spec.fingerprint, self._codec.name)
        with self._db:
            found = self._db.execute("SELECT * FROM maker").fetchone()
            if found not in (own, None) and (waiting := self._count("TRUE")):
                raise ModelError(
                    f"The outbox in {folder} still holds {waiting} parcels of another model or "
                    "codec: open it with those and send or drop them, or use another folder."
                )
            self._db.execute("DELETE FROM maker")
            self._db.execute("INSERT INTO maker VALUES (?, ?)", own)

    def _next(self) -> list[Parcel]:
        query = "SELECT key, label, record FROM parcel WHERE why IS NULL ORDER BY number LIMIT ?"
        with self._lock:
            return [Parcel(*row) for row in self._db.execute(query, (BATCH,))]

    def _count(self, where: str) -> int:
        with self._lock:
            found = self._db.execute(f"SELECT count(*) FROM parcel WHERE {where}").fetchone()
            return int(found[0])

    def close(self) -> None:
        """Let go of the outbox; what waits in it stays."""
        self._db.close()
