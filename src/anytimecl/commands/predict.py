"""`anytimecl predict`: classify images."""

from __future__ import annotations

import csv
import dataclasses
import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from anytimecl.commands import _common, _screen

if TYPE_CHECKING:
    from PIL.Image import Image

    from anytimecl.backbone import Backbone
    from anytimecl.classifier import AnytimeClassifier
    from anytimecl.commands._files import Failure
    from anytimecl.images import ImageRef
    from anytimecl.prediction import Prediction

IMAGES_AT_ONCE = 8  # decoded images in RAM: photographs take 36 MB each
VALUES_AT_ONCE = 4_000_000  # images times labels: each takes some hundred bytes
LABELS_AT_ONCE = 1024
LABELS_IN_RAM, LABELS_ON_DISK = 20_000, 100_000  # sizes of a model's default label caches
TOP_OF_ONE, TOP_OF_MANY = 5, 1
COMMONEST = 10  # labels counted in the last line


@dataclass(frozen=True)
class AnswerRow:
    """Output for one image. A `Prediction` over a million labels would take too much memory."""

    image: str
    best: tuple[tuple[str, float], ...] = ()  # labels with probabilities, best first
    none_of_these: float = 0.0
    spoke: str = ""
    error: str = ""  # why there is no prediction


def register(main: typer.Typer) -> None:
    """Add `anytimecl predict` to the program."""
    main.command("predict")(predict)


def predict(
    images: Annotated[
        list[Path],
        typer.Argument(metavar="IMAGE", help="Images, folders of images, or zips of folders."),
    ],
    labels: Annotated[
        str | None,
        typer.Option("--labels", metavar="A,B,...", help="Candidate labels, separated by commas."),
    ] = None,
    labels_file: Annotated[
        Path | None,
        typer.Option(metavar="F", help="Labels to choose from, one a line; # begins a comment."),
    ] = None,
    top: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="K",
            help=f"Labels to show of each image. Unless given: {TOP_OF_ONE} for one image, "
            f"{TOP_OF_MANY} for several.",
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object a line instead of a table.")
    ] = False,
    csv_file: Annotated[
        Path | None, typer.Option("--csv", metavar="OUT", help="Write a CSV file, not a table.")
    ] = None,
    memory: Annotated[
        Path | None,
        typer.Option(
            metavar="M", help="Folder of the memory. Its labels are the default candidates."
        ),
    ] = None,
    model: _common.ModelOption = None,
    threshold: Annotated[
        float,
        typer.Option(
            min=0,
            max=1,
            metavar="T",
            help='Predict "none of these" if its probability is above this.',
        ),
    ] = 0.5,
) -> None:
    """Predict the label of each image.

    Ends with 1 if some image could not be read; the others are predicted all the same.
    """
    from anytimecl.commands import _files

    asked = _common.read_labels(labels, labels_file)
    if asked is None and memory is None:
        raise typer.BadParameter(
            "Say which labels to choose from: --labels, --labels-file, or --memory for those "
            "that were learned."
        )
    found = list(_files.find(images))
    if not found:
        raise typer.BadParameter(f"There are no images in {', '.join(map(str, images))}.")
    top = top or (TOP_OF_ONE if len(found) == 1 else TOP_OF_MANY)
    answers: list[AnswerRow] = []
    failures: list[str] = []
    if csv_file is not None:
        _common.writable(csv_file, "--csv")
    with ExitStack() as stack:
        classifier = stack.enter_context(_open(memory, model, asked))
        writers: list[Callable[[AnswerRow], None]] = []
        if csv_file is not None:  # opened late: a run that fails early must not overwrite the file
            writers.append(_csv_writer(stack.enter_context(_created(csv_file)), top))
        if as_json:
            writers.append(lambda answer: typer.echo(json.dumps(_as_json(answer))))
        _embed(classifier, asked or [])
        stopping = stack.enter_context(_common.asked_to_stop())
        advance = stack.enter_context(_screen.progress("predict"))
        for done, answer in enumerate(_answers(classifier, found, asked, threshold, top), 1):
            for write in writers or [answers.append]:
                write(answer)
            if answer.error:
                failures.append(answer.error)
            advance(done, len(found))
            if stopping():
                break
    if answers:
        _show(answers, learned=memory is not None)
    elif csv_file is not None:
        typer.echo(f"{_screen.counted(done, 'image')}, written to {csv_file}", err=True)
    _screen.report(failures, "Without an answer")
    if done < len(found):
        typer.echo(f"Stopped after {done:,} of {len(found):,} images.", err=True)
        raise typer.Exit(_common.INTERRUPTED)
    if failures:
        raise typer.Exit(1)


def _open(memory: Path | None, model: str | None, asked: list[str] | None) -> AnytimeClassifier:
    from anytimecl.classifier import AnytimeClassifier
    from anytimecl.errors import LabelError

    if memory is None:
        backbone = _with_room(_common.load_model(model), asked)
        return AnytimeClassifier.open(model=backbone, settings=_common.fitting_settings(backbone))
    meta = _common.read_meta(memory, read_only=True)
    backbone = _with_room(_common.load_model(model, meta), asked)
    classifier = AnytimeClassifier.open(memory, model=backbone, read_only=True)
    if asked is None and not classifier.labels:
        classifier.close()
        raise LabelError(
            f"Nothing is learned yet in {memory}: say which labels to choose from with --labels "
            "or --labels-file."
        )
    return classifier


def _with_room(backbone: Backbone, asked: list[str] | None) -> Backbone:
    """A model whose label cache has room for all labels, so that each is embedded once."""
    if asked is None or len(asked) <= LABELS_IN_RAM:
        return backbone
    from anytimecl.backbone.text import LabelCache, cache_folder

    # More labels than the file holds would only evict its other entries.
    file = cache_folder() / "labels.sqlite3" if len(asked) <= LABELS_ON_DISK else None
    return dataclasses.replace(backbone, label_cache=LabelCache(file, in_ram=len(asked)))


def _embed(classifier: AnytimeClassifier, labels: list[str]) -> None:
    """Embed many labels first, with a progress bar: the text encoder may take minutes."""
    if len(labels) <= LABELS_AT_ONCE:
        return
    with _screen.progress("embed labels") as advance:
        for start in range(0, len(labels), LABELS_AT_ONCE):
            some = labels[start : start + LABELS_AT_ONCE]
            classifier.backbone.embed_labels(some, classifier.settings.templates)
            advance(start + len(some), len(labels))


def _answers(
    classifier: AnytimeClassifier,
    found: Iterable[ImageRef | Failure],
    asked: list[str] | None,
    threshold: float,
    top: int,
) -> Iterator[AnswerRow]:
    """A row for each image, predicted in batches."""
    count = len(classifier.labels if asked is None else asked)
    at_once = max(1, min(IMAGES_AT_ONCE, VALUES_AT_ONCE // count))
    left = iter(found)
    while some := [_load(item) for item in islice(left, at_once)]:
        good = [image for _, image in some if not isinstance(image, str)]
        said = iter(classifier.predict(good, asked, threshold=threshold) if good else ())
        for name, image in some:
            yield (
                AnswerRow(name, error=image)
                if isinstance(image, str)
                else _told(name, next(said), top)
            )


def _load(item: ImageRef | Failure) -> tuple[str, Image | str]:
    """The name, and the image or an error message."""
    from anytimecl.commands._files import Failure, shown
    from anytimecl.commands._words import in_options
    from anytimecl.errors import ImageError

    if isinstance(item, Failure):
        return item
    try:
        return shown(item), item.load()
    except ImageError as error:
        return shown(item), in_options(str(error))


def _told(name: str, prediction: Prediction, top: int) -> AnswerRow:
    best = prediction.top(top)
    if prediction.label != best[0][0]:  # none of these
        best = [(prediction.label, prediction.probability), *best][:top]
    return AnswerRow(name, tuple(best), prediction.none_of_these, prediction.spoke)


# Output


def _show(answers: Sequence[AnswerRow], *, learned: bool) -> None:
    folder = _common_folder([answer.image for answer in answers])
    headings = ["image", "label", "probability"]
    if learned:
        headings += ["none of these", "by"]
    rows = [row for answer in answers for row in _rows(answer, folder, learned)]
    _screen.show_table(headings, rows, numbers={"probability", "none of these"})
    if len(answers) > 1:
        counts = Counter(answer.best[0][0] for answer in answers if answer.best)
        common = [f"{label} {count:,}" for label, count in counts.most_common(COMMONEST)]
        others = len(counts) - len(common)
        more = [f"and {_screen.counted(others, 'other label')}"] if others else []
        where = f" in {folder}" if folder else ""
        told = f"{len(answers):,} images{where}: {', '.join(common + more)}"
        typer.echo(_screen.printable(told))


def _common_folder(names: Sequence[str]) -> str:
    """The common folder of several names, printed once."""
    try:
        return os.path.commonpath(map(os.path.dirname, names)) if len(names) > 1 else ""
    except ValueError:  # some are absolute, some are not
        return ""


def _rows(answer: AnswerRow, folder: str, learned: bool) -> Iterator[list[str]]:
    name = os.path.relpath(answer.image, folder) if folder else answer.image
    beside = [_screen.percent(answer.none_of_these), answer.spoke]
    if answer.error:
        yield [name, "(cannot be read)", "", *(["", ""] if learned else [])]
    for label, probability in answer.best:
        yield [name, label, _screen.percent(probability), *(beside if learned else [])]
        name, beside = "", ["", ""]  # printed once per image


def _as_json(answer: AnswerRow) -> dict[str, Any]:
    if answer.error:
        return {"image": answer.image, "error": answer.error}
    top = [{"label": label, "probability": value} for label, value in answer.best]
    return {
        "image": answer.image,
        **top[0],
        "none_of_these": answer.none_of_these,
        "spoke": answer.spoke,
        "top": top,
    }


def _created(file: Path) -> IO[str]:
    # Names that are not UTF-8 keep their bytes.
    return file.open("w", encoding="utf-8", errors="surrogateescape", newline="")


def _csv_writer(file: IO[str], top: int) -> Callable[[AnswerRow], None]:
    """Writes a CSV row per image; `error` is set if it cannot be predicted."""
    heading = ["image", "label", "probability", "none_of_these", "spoke", "error"]
    for place in range(2, top + 1):
        heading += [f"label_{place}", f"probability_{place}"]
    writer = csv.DictWriter(file, heading)
    writer.writeheader()

    def write(answer: AnswerRow) -> None:
        row = {"image": answer.image, "error": answer.error}
        if answer.best:
            row |= {"none_of_these": f"{answer.none_of_these:.6g}", "spoke": answer.spoke}
        for place, (label, value) in enumerate(answer.best, 1):
            suffix = "" if place == 1 else f"_{place}"
            row |= {f"label{suffix}": label, f"probability{suffix}": f"{value:.6g}"}
        writer.writerow(row)
        file.flush()

    return write
