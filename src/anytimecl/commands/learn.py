"""`anytimecl learn`: learns a folder or zip of labelled images, one by one."""

from __future__ import annotations

import hashlib
import random
import sys
import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from anytimecl.commands import _common, _screen
from anytimecl.commands.retrain import consolidate_all
from anytimecl.errors import AnytimeError, ImageError, LabelError

if TYPE_CHECKING:
    from torch import Tensor

    from anytimecl.classifier import AnytimeClassifier
    from anytimecl.images import ImageRef
    from anytimecl.memory import FileKey
    from anytimecl.settings import Settings
    from anytimecl.trainer import Learned

RECENT = 200  # examples in the running accuracy
_SHOWN = 12  # labels printed before learning
TRAIN = "train"


def register(main: typer.Typer) -> None:
    """Add `anytimecl learn` to the program."""
    main.command("learn")(learn)


def learn(
    folder: Annotated[
        Path, typer.Argument(help="Folder or zip of <class>/<file> or <split>/<class>/<file>.")
    ],
    memory: _common.MemoryOption,
    model: _common.ModelOption = None,
    split: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help=f"Only this split. Unless given: {TRAIN}, where there is one."
        ),
    ] = None,
    codec: Annotated[
        str | None,
        typer.Option(
            metavar="C", help="How a new memory stores examples: a name, or JSON with it."
        ),
    ] = None,
    sampler: Annotated[
        str | None,
        typer.Option(metavar="S", help="How a new memory draws examples for replay."),
    ] = None,
    expert: Annotated[
        list[str] | None,
        typer.Option(metavar="E", help="An expert of your own in the pool of a new memory."),
    ] = None,
    blend: Annotated[
        str | None, typer.Option(metavar="B", help="How the experts are combined.")
    ] = None,
    store: Annotated[
        str | None,
        typer.Option(metavar="S", help="Where a new memory is stored; by default SQLite."),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(metavar="N", help="Of a new memory, and of its --shuffle.")
    ] = None,
    shuffle: Annotated[
        bool,
        typer.Option(help="In random order, which gives better accuracy than class by class."),
    ] = True,
    limit: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Only the first N images.")
    ] = None,
    cap: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="Keep at most N examples; evict from the largest class."
        ),
    ] = None,
    durability: Annotated[
        str,
        typer.Option(
            metavar="D",
            help="What a learned image survives: a killed process (process) or a power cut (full).",
        ),
    ] = "process",
    epochs: Annotated[
        int, typer.Option("--consolidate", min=0, metavar="EPOCHS", help="Consolidate at the end.")
    ] = 0,
    thumbnails: Annotated[
        bool, typer.Option("--thumbnails", help="Store a thumbnail of each image too.")
    ] = False,
    ids: Annotated[
        bool, typer.Option("--ids", help="Print number, label and file of every image.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be learned, and learn nothing.")
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Do not ask, however odd the labels look.")
    ] = False,
) -> None:
    """Learn from a folder or zip of labelled images, one by one.

    Labels and counts are printed first; if they look wrong, it asks for confirmation. Each image is
    durable once learned. Ctrl-C stops between two of them; the same command resumes, since files
    learned before with the same label are skipped. A file that was moved to another label's folder
    gets that label.

    Ends with 0 if all went well, 1 if some image could not be used, 2 if nothing was done, and 130
    after Ctrl-C.
    """
    options = _store_options(store, cap, durability, thumbnails=thumbnails)
    refs = _choose_split(folder, split)
    if not _agreed(refs, folder, memory, dry_run=dry_run, yes=yes):
        return

    def choose(settings: Settings) -> Settings:
        return _common.chosen_settings(settings, codec, sampler, seed, expert, blend)

    with _common.owning(memory, model, choose, **options) as classifier:
        if shuffle:
            random.Random(classifier.settings.seed).shuffle(refs)
        refs = refs[:limit]
        tally = Tally(listed=ids)
        _teach(classifier, refs, tally)
        _summarise(classifier, tally)
        if tally.seen < len(refs):
            typer.echo(
                f"Stopped after {tally.seen:,} of {len(refs):,} images; what was learned is kept. "
                "The same command goes on from here.",
                err=True,
            )
            raise typer.Exit(_common.INTERRUPTED)
        if epochs:
            consolidate_all(classifier, epochs)
    if tally.failures:
        raise typer.Exit(1)


def _store_options(
    store: str | None, cap: int | None, durability: str, *, thumbnails: bool
) -> dict[str, Any]:
    """Options of the memory; a store that is named has its own."""
    if durability not in ("process", "full"):
        raise typer.BadParameter("Give process or full.", param_hint="--durability")
    options = {"cap": cap, "durability": durability, "thumbnails": thumbnails}
    if store is None:
        return options
    if options != {"cap": None, "durability": "process", "thumbnails": False}:
        raise typer.BadParameter(
            "With --store, --cap, --durability and --thumbnails are options of the store: "
            '{"name": ..., "options": {"cap": 1000}}.',
            param_hint="--store",
        )
    return {"store": _common.choice(store)}


def _agreed(
    refs: Sequence[ImageRef], folder: Path, memory: Path, *, dry_run: bool, yes: bool
) -> bool:
    """Print what is about to be learned; returns whether to continue."""
    from anytimecl.commands._layout import counts_of, doubts_about

    counts = counts_of(refs)
    if not counts:
        raise ImageError(
            f"None of the {_screen.counted(len(refs), 'image')} in {folder} lies in a folder of "
            "its label: make such folders, or label them with `anytimecl label`."
        )
    images = _screen.counted(sum(counts.values()), "image")
    told = [f"{label} {count:,}" for label, count in list(counts.items())[:_SHOWN]]
    more = f", and {len(counts) - _SHOWN:,} more" if len(counts) > _SHOWN else ""
    labels = _screen.counted(len(counts), "label")
    typer.echo(_screen.printable(f"{images} of {labels}: {', '.join(told)}{more}."), err=True)
    if loose := sum(ref.label is None for ref in refs):
        count = _screen.counted(loose, "image")
        typer.echo(f"Not in a folder of a label, and not learned: {count}.", err=True)
    doubts = doubts_about(refs, _known_in(memory))
    for doubt in doubts:
        typer.secho(_screen.printable(doubt), fg="yellow", err=True)
    if dry_run:
        return False
    if doubts and not yes:
        if not sys.stdin.isatty():
            raise AnytimeError(
                f"Nothing was learned. Look at {folder} with --dry-run; if its labels are right, "
                "say --yes."
            )
        typer.confirm("Learn these labels?", abort=True, err=True)
    return True


def _known_in(memory: Path) -> list[str]:
    """Labels of a memory, if they can be read without its model."""
    from anytimecl.memory import open_memory
    from anytimecl.opening import store_of

    if not _common.exists(memory) or store_of(None, memory, {}).name != "sqlite":
        return []
    with open_memory(memory, read_only=True) as store:
        return list(store.labels())


def _choose_split(folder: Path, split: str | None) -> list[ImageRef]:
    from anytimecl.images import iter_images

    passed: Counter[str] = Counter()
    refs = list(iter_images(folder, passed=passed))
    if passed:
        told = ", ".join(f"{count:,} {why}" for why, count in passed.most_common())
        typer.echo(_screen.printable(f"Passed over: {told}."), err=True)
    splits = sorted({ref.split for ref in refs if ref.split is not None})
    if split is None and TRAIN in splits:
        split = TRAIN
        if others := [name for name in splits if name != TRAIN]:
            told = f"Learning the split {TRAIN}; left alone: {', '.join(others)}."
            typer.echo(_screen.printable(told), err=True)
    chosen = refs if split is None else [ref for ref in refs if ref.split == split]
    if chosen:
        return chosen
    if refs:
        known = f"It has {', '.join(splits)}." if splits else "It has none."
        raise typer.BadParameter(f"{folder} has no split {split!r}. {known}", param_hint="--split")
    raise _common.no_images(folder)


# Learning


@dataclass
class Tally:
    """Counts of a run."""

    started: float = field(default_factory=time.monotonic)
    learned: int = 0
    known: int = 0  # already in the memory
    moved: list[str] = field(default_factory=list)  # messages about images that had another label
    listed: bool = False  # whether every image is printed
    numbers: list[int] = field(default_factory=list)  # first and last of those learned
    dealt: dict[bytes, str] = field(default_factory=dict)  # digest of file -> label in this run
    failures: list[str] = field(default_factory=list)
    right: list[int] = field(default_factory=lambda: [0, 0, 0])  # blend, tuned, original
    recent: deque[tuple[bool, bool, bool]] = field(default_factory=lambda: deque(maxlen=RECENT))
    times: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))

    @property
    def seen(self) -> int:
        """Number of images processed."""
        return self.learned + self.known + len(self.failures)

    def add(self, learned: Learned) -> None:
        """Count a learned example."""
        who = learned.right, learned.tuned, learned.original
        self.learned += 1
        self.numbers = [*self.numbers[:1], learned.id]
        self.right = [total + right for total, right in zip(self.right, who, strict=True)]
        self.recent.append(who)
        self.times.append(time.monotonic())

    def tell(self, example: int, label: str, ref: ImageRef, what: str) -> None:
        """Print a line about an image, if wanted."""
        from anytimecl.commands._files import shown

        if self.listed:
            fields = (str(example), label, shown(ref), what)
            typer.echo("\t".join(map(_screen.printable, fields)))

    def accuracy(self) -> list[float]:
        """Accuracies of blend, tuned and original model before updates, on recent examples."""
        return [sum(model) / len(self.recent) for model in zip(*self.recent, strict=True)]

    def note(self) -> str:
        """Throughput and running accuracy, for a progress bar."""
        if len(self.times) < 2:
            return ""
        speed = (len(self.times) - 1) / max(self.times[-1] - self.times[0], 1e-9)
        blend, tuned, original = (f"{100 * value:.0f}" for value in self.accuracy())
        return f"{speed:.1f}/s, right {blend} % (tuned {tuned}, original {original})"


class _Ready(NamedTuple):
    """An image that is ready to be learned."""

    ref: ImageRef
    file: bytes
    digest: bytes
    label: str
    key: FileKey
    tokens: Tensor | None = None  # None: already learned, or stored as a file
    thumbnail: bytes | None = None


def _teach(classifier: AnytimeClassifier, refs: Sequence[ImageRef], tally: Tally) -> None:
    with _common.asked_to_stop() as stopping, _screen.progress("learn") as advance:
        for made in classifier.ahead(refs, partial(_prepare, classifier)):
            try:
                learned = _teach_one(classifier, made(), tally)
            except (ImageError, LabelError) as error:
                tally.failures.append(str(error))
            else:
                if learned is None:
                    tally.known += 1
                else:
                    tally.add(learned)
            advance(tally.seen, len(refs), tally.note())
            if stopping():
                return


def _prepare(classifier: AnytimeClassifier, ref: ImageRef) -> _Ready:
    """Read and encode an image, unless the file was learned with this label before."""
    from anytimecl.commands._files import shown
    from anytimecl.images import load_image
    from anytimecl.inbox import file_key
    from anytimecl.labels import clean_label
    from anytimecl.thumbnails import thumbnail_of

    if ref.label is None:
        raise LabelError(f"{shown(ref)!r} lies in no class folder, so it has no label")
    try:
        label = clean_label(ref.label)
    except LabelError as error:
        raise LabelError(f"{shown(ref)!r}: {error}") from error
    file = ref.read()
    digest = hashlib.sha256(file).digest()
    ready = _Ready(ref, file, digest, label, file_key(digest, label))
    if classifier.memory.has_key(ready.key) is not None:
        return ready
    image = load_image({"bytes": file, "path": shown(ref)})
    if classifier.settings.name_of("codec") == "image":
        return ready
    small = thumbnail_of(image) if classifier.memory.thumbnails else None
    return ready._replace(tokens=classifier.encode([image])[0], thumbnail=small)


def _teach_one(classifier: AnytimeClassifier, ready: _Ready, tally: Tally) -> Learned | None:
    """Learn an image; None if it is already learned."""
    from anytimecl.commands._files import shown

    ref, label, key = ready.ref, ready.label, ready.key
    if (other := tally.dealt.setdefault(ready.digest, label)) != label:
        raise LabelError(
            f"{shown(ref)!r} lies in the folder of {other!r} too: an image has one label, so "
            "remove one of the two"
        )
    if (known := classifier.memory.has_key(key)) is not None:
        tally.tell(known, label, ref, "known")
        return None
    before = classifier.memory.last
    about: dict[str, Any] = {"key": key, "source": shown(ref)}
    if ready.tokens is None:
        learned = classifier.learn_one(ready.file, label, **about)
    else:
        about["thumbnail"] = ready.thumbnail
        learned = classifier.learn_tokens(ready.tokens, label, **about)
    if classifier.memory.last == before:  # the same image in another file
        tally.tell(learned.id, label, ref, "known")
        return None
    told = "learned"
    if learned.replaced is not None:
        tally.moved.append(f"{learned.id}: {learned.replaced!r} is {label!r} now ({shown(ref)})")
        told = f"relabelled from {learned.replaced}"
    tally.tell(learned.id, label, ref, told)
    return learned


def _summarise(classifier: AnytimeClassifier, tally: Tally) -> None:
    seconds = time.monotonic() - tally.started
    facts = [("learned", _screen.counted(tally.learned, "image"))]
    if tally.learned:
        facts[0] = ("learned", f"{facts[0][1]} in {seconds:.1f} s, {tally.learned / seconds:.1f}/s")
    if tally.numbers:
        facts.append(("numbers", f"{min(tally.numbers)} to {max(tally.numbers)}"))
    if tally.moved:
        facts.append(("relabelled", f"{len(tally.moved):,} that had another label"))
    if tally.known:
        facts.append(("passed over", f"{tally.known:,} that were learned before"))
    if tally.failures:
        facts.append(("unusable", f"{len(tally.failures):,}"))
    labels = _screen.counted(len(classifier.labels), "label")
    facts.append(("in memory", f"{_screen.counted(len(classifier), 'example')} of {labels}"))
    _screen.show_facts(facts)
    if tally.learned:
        whole = [count / tally.learned for count in tally.right]
        rows = [[f"these {tally.learned:,}", *map(_screen.percent, whole)]]
        if tally.learned > RECENT:
            rows.append([f"last {RECENT}", *map(_screen.percent, tally.accuracy())])
        headings = ["right before learning", "blend", "tuned", "original"]
        _screen.show_table(headings, rows, numbers=headings[1:])
    _screen.report(tally.moved, "Relabelled")
    _screen.report(tally.failures, "Not learned")
