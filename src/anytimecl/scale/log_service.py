"""A second copy in a log service with Kafka's protocol: `kafka://HOST:PORT/TOPIC`.

The files of the second copy are stored in pieces. A piece is a message with the file's name and the
piece's number as its key; the last message with a key counts, and one without content deletes the
piece. So the topic must be compacted (`cleanup.policy=compact`): it keeps the last message of each
key, and drops deleted ones when it compacts.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from anytimecl.errors import StoreError
from anytimecl.memory import StoreWarning

SCHEME = "kafka"
PIECE = 900_000  # bytes of a message: brokers accept a million by default
PATIENCE = 30.0  # timeout of a broker in seconds
SILENT = "no broker answers; is the address right, and do they run?"
Place = tuple[int, int]  # partition and offset


class LogService:
    """Files in a topic; acknowledged writes are on all replicas.

    `address` may end in `?config=FILE`, a file with lines `name=value` of client properties, such
    as those for TLS and passwords, which an address must not contain.
    """

    def __init__(self, address: str) -> None:
        kafka = _imported()
        told = urlsplit(address)
        self._address, self._topic = address, told.path.strip("/")
        if not told.netloc or not self._topic or "/" in self._topic:
            raise StoreError(f"{address} is no log: it has the form {SCHEME}://HOST:PORT/TOPIC.")
        common = {"bootstrap.servers": told.netloc, "log_level": 0, **_properties(told.query)}
        self._kafka = kafka
        self._producer = kafka.Producer(
            {
                **common,
                "acks": "all",
                "enable.idempotence": True,
                "message.timeout.ms": int(1000 * PATIENCE),
            }
        )
        self._consumer = kafka.Consumer(
            {
                **common,
                "group.id": "anytimecl",  # it joins none
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "isolation.level": "read_committed",
            }
        )
        self._pieces: dict[str, dict[int, Place]] = {}  # name -> number -> where it is
        self._next: dict[int, int] = {}  # partition -> the first offset not seen
        self._sizes: dict[str, tuple[int, int]] = {}  # of what is appended: pieces, bytes
        self._check_kept(common)

    def __str__(self) -> str:
        return self._address

    def has(self, name: str) -> bool:
        self._catch_up()
        return bool(self._pieces.get(name))

    def names(self) -> list[str]:
        self._catch_up()
        return sorted(
            n for n, pieces in self._pieces.items() if pieces and n.startswith("lessons-")
        )

    def read(self, name: str) -> bytes:
        self._catch_up()
        pieces = self._pieces.get(name, {})
        if not pieces:
            raise StoreError(f"{self._address} has no {name}.")
        found = self._fetched(list(pieces.values()))
        return b"".join(found[pieces[number]] for number in sorted(pieces))

    def write(self, name: str, content: bytes) -> None:
        """Replace a file; an interruption loses nothing that is in both versions."""
        self._catch_up()
        pieces = _pieces_of(content)
        self._produce(dict(enumerate(pieces)), name)
        self._produce({n: None for n in self._pieces.get(name, {}) if n >= len(pieces)}, name)

    def append(self, name: str, lines: bytes) -> int:
        """Append to a file; returns its size."""
        number, size = self._sizes.get(name, (0, 0))
        pieces = _pieces_of(lines)
        self._produce(dict(enumerate(pieces, number)), name)
        self._sizes[name] = number + len(pieces), size + len(lines)
        return size + len(lines)

    def _produce(self, pieces: Mapping[int, bytes | None], name: str) -> None:
        """Send messages; StoreError unless all required replicas have them."""
        failed: list[object] = []
        arrived: list[object] = []

        def told(error: object, message: object) -> None:
            (arrived if error is None else failed).append(error)

        for number, piece in pieces.items():
            key = f"{name} {number}".encode()
            self._producer.produce(self._topic, value=piece, key=key, on_delivery=told)
        left = self._producer.flush(PATIENCE + 5)
        if failed or left or len(arrived) < len(pieces):
            raise StoreError(
                f"{self._address} does not take it: {failed[0] if failed else SILENT}."
            )

    def _catch_up(self) -> None:
        """Read new messages."""
        for message in self._messages(self._next, self._ends()):
            name, _, number = (message.key() or b"").decode("utf-8", "replace").rpartition(" ")
            if name and number.isdecimal():
                pieces = self._pieces.setdefault(name, {})
                if message.value() is None:
                    pieces.pop(int(number), None)
                else:
                    pieces[int(number)] = message.partition(), message.offset()
            self._next[message.partition()] = message.offset() + 1

    def _ends(self) -> dict[int, int]:
        """Offset of the next message by partition."""
        kafka = self._kafka
        try:
            topic = self._consumer.list_topics(self._topic, timeout=PATIENCE).topics[self._topic]
            ends = {}
            for number in topic.partitions if topic.error is None else ():
                place = kafka.TopicPartition(self._topic, number)
                low, high = self._consumer.get_watermark_offsets(place, timeout=PATIENCE)
                self._next.setdefault(number, low)
                ends[number] = high
        except kafka.KafkaException as error:
            raise StoreError(f"{self._address} cannot be read: {error}.") from error
        return ends

    def _fetched(self, places: Sequence[Place]) -> dict[Place, bytes]:
        """The messages at these places."""
        wanted, first, last = set(places), dict[int, int](), dict[int, int]()
        for partition, offset in places:
            first[partition] = min(offset, first.get(partition, offset))
            last[partition] = max(offset + 1, last.get(partition, 0))
        found = {
            (message.partition(), message.offset()): message.value()
            for message in self._messages(first, last)
            if (message.partition(), message.offset()) in wanted
        }
        if found.keys() < wanted:
            raise StoreError(f"{self._address} was compacted while it was read: try again.")
        return found

    def _messages(self, first: Mapping[int, int], ends: Mapping[int, int]) -> Iterator[Any]:
        """Every message from the first offsets to the ends; compaction leaves gaps."""
        kafka = self._kafka
        left = {p: end for p, end in ends.items() if first.get(p, 0) < end}
        starts = [kafka.TopicPartition(self._topic, p, first.get(p, 0)) for p in left]
        self._consumer.assign(starts)
        try:
            while left:
                message = self._consumer.poll(PATIENCE)
                if message is None:
                    raise StoreError(f"{self._address} cannot be read: {SILENT}.")
                partition, error = message.partition(), message.error()
                if error is not None and error.code() != kafka.KafkaError._PARTITION_EOF:
                    raise StoreError(f"{self._address} cannot be read: {error}.")
                if error is None and message.offset() < ends[partition]:
                    yield message
                if error is not None or message.offset() + 1 >= ends[partition]:
                    left.pop(partition, None)
        finally:
            self._consumer.unassign()

    def _check_kept(self, common: Mapping[str, Any]) -> None:
        """Refuse a topic that deletes old messages, which would silently lose examples."""
        admin: Any = importlib.import_module("confluent_kafka.admin")
        asked = admin.ConfigResource(admin.ConfigResource.Type.TOPIC, self._topic)
        try:
            [future] = admin.AdminClient(dict(common)).describe_configs([asked]).values()
            policy = str(future.result(PATIENCE)["cleanup.policy"].value)
        except (self._kafka.KafkaException, TimeoutError, KeyError) as error:
            told = f"{self._address} does not say what it keeps ({error})."
            warnings.warn(f"{told} The topic must be compacted.", StoreWarning, stacklevel=4)
            return
        if policy != "compact":
            raise StoreError(
                f"The topic {self._topic!r} has cleanup.policy={policy}, and would drop lessons "
                "that are old: set it to compact."
            )


def _pieces_of(content: bytes) -> list[bytes]:
    """Split at lines into pieces as large as a message allows."""
    pieces, piece = [], bytearray()
    for line in content.splitlines(keepends=True):
        if piece and len(piece) + len(line) > PIECE:
            pieces.append(bytes(piece))
            piece.clear()
        piece += line
    return [*pieces, bytes(piece)] if piece else pieces


def _properties(query: str) -> dict[str, str]:
    """Client properties from the file in an address."""
    found: dict[str, str] = {}
    for name in parse_qs(query).get("config", ()):
        try:
            lines = Path(name).read_text(encoding="utf-8").splitlines()
        except OSError as error:
            raise StoreError(f"{name} cannot be read: {error}.") from error
        told = (line.partition("=") for line in lines if line.strip() and line[0] != "#")
        found |= {key.strip(): value.strip() for key, _, value in told}
    return found


def _imported() -> Any:
    try:
        import confluent_kafka
    except ImportError as error:
        raise StoreError(
            "A copy in a log service needs pip install -c constraints.txt '.[kafka]'"
        ) from error
    return confluent_kafka
