"""What corrections are worth, and what they cost.

    python -m benchmarks.curation DATA [--only suspicious,inbox,relabel] [--seeds 0,1,2]
                                  [--held-out] [--out FILE] [--plot FILE]

*suspicious*: a fifth of the labels of pets and cifar100 are turned wrong, and everything is taught.
Prints how many of the first tenth of the suspicious examples are truly wrong, the same for the
ranking of cleanlab (of the extra `bench`; on the probabilities of a logistic
regression of the same vectors, five folds), and the accuracy before and after these are corrected:
by the Gaussian expert alone (beside it: with as many wrong ones, drawn at random, set right, and
with all), and with --whole by the classifier. For cifar100, a fifth of the training images is asked
about. With --images N no more than N images of each split are taken, as many of each label.

*inbox*: pets and resisc12, labels called by name (they are told to the inbox beforehand) and by a
code (they are not); by the experts in closed form, and with --whole by the classifier. Prints which
part of the images must be labelled in the order of the inbox to reach the accuracy that a random
order has at 40 %, draws both, and says how long one choice among 100,000 images takes, against one
lesson.

*relabel*: one example at 1,000,000 stored and at 1,000, in turns; and renaming a label.

With --held-out, test images are not touched: a fifth of the training images takes their place.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple

import numpy as np
import torch
from benchmarks.learn import LABELS, filled, plain_backbone
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from anytimecl import AnytimeClassifier
from anytimecl.backbone import Backbone, load
from anytimecl.choosing import believed, most_telling
from anytimecl.codec import make_codec
from anytimecl.experts import GaussianExpert
from anytimecl.images import iter_images
from anytimecl.inbox import Inbox
from anytimecl.journaled import JournaledTrainer
from anytimecl.memory.acts import move, rename
from anytimecl.pool import RECENT, start_weights, weigh
from anytimecl.settings import Settings
from anytimecl.suspicion import suspicion
from anytimecl.tail import images_of
from anytimecl_lab._progress import tell
from anytimecl_lab.data import archive_split
from anytimecl_lab.features import features

FIT = 10  # examples between fits of the weights
WRONG = 5  # 1 / WRONG of the labels is wrong
TARGET = 0.4  # share of images in random order whose accuracy is the target
POINTS = {"random": (0.05, 0.1, 0.2, 0.3, TARGET), "inbox": (0.05, 0.1, 0.15, 0.2, 0.25)}
AT_ONCE = 128  # images per prediction
Line = dict[str, Any]


class Task(NamedTuple):
    """Training and test images."""

    name: str
    labels: list[str]
    tokens: NDArray[np.float16]  # [image, token, width]
    truth: NDArray[np.int64]  # [image]
    asked: NDArray[np.float16]
    answers: NDArray[np.int64]


def open_task(
    data: Path, name: str, backbone: Backbone, *, held_out: bool, images: int | None = None
) -> Task:
    """A task, with held-out or test images; at most `images` of each split, evenly spaced."""
    found = {}
    for split in ("train", "test"):
        refs = [ref for ref in iter_images(data / f"{name}.zip") if ref.split == split]
        part = archive_split(data / f"{name}.zip", split, refs)
        labels = sorted(set(part.labels))
        targets = np.array([labels.index(label) for label in part.labels])
        if split == "train" or not held_out:
            count = len(targets) if images is None else min(images, len(targets))
            wanted = [number * len(targets) // count for number in range(count)]  # label by label
            found[split] = features(part, backbone, wanted)[wanted], targets[wanted]
    tokens, truth = found["train"]
    if not held_out:
        return Task(name, labels, tokens, truth, *found["test"])
    held = np.random.default_rng(0).permutation(len(truth)) < len(truth) // 5
    return Task(name, labels, tokens[~held], truth[~held], tokens[held], truth[held])


def coded(task: Task) -> Task:
    """With meaningless label names."""
    return task._replace(labels=[f"item {number:03d}" for number in range(len(task.labels))])


class Tokens(AnytimeClassifier):
    """A classifier in RAM for encoded images, given by their number."""

    known: NDArray[np.float16]

    def encode(self, images: Sequence[Any]) -> torch.Tensor:
        return torch.from_numpy(self.known[list(images)]).float()


def opened(backbone: Backbone, task: Task, seed: int) -> Tokens:
    classifier = Tokens.open(model=backbone, settings=Settings(seed=seed))
    assert isinstance(classifier, Tokens)
    classifier.known = task.tokens
    return classifier


def teach(classifier: Tokens, number: int, label: str) -> int:
    return classifier.learn_tokens(classifier.encode([number])[0], label, source=str(number)).id


def accuracy(classifier: Tokens, task: Task) -> float:
    """Accuracy in per cent, over all labels of the task."""
    right = 0
    for start in range(0, len(task.answers), AT_ONCE):
        tokens = torch.from_numpy(task.asked[start : start + AT_ONCE]).float()
        told = classifier.predict_tokens(tokens, task.labels, threshold=1.0)
        truth = task.answers[start : start + AT_ONCE]
        right += sum(p.label == task.labels[y] for p, y in zip(told, truth, strict=True))
    return 100 * right / len(task.answers)


# Suspicious examples


def turned(task: Task, seed: int) -> tuple[NDArray[np.int64], list[int]]:
    """Labels of which a fifth is wrong, and an order to learn them in."""
    random = np.random.default_rng(seed)
    count, labels = len(task.truth), len(task.labels)
    given = task.truth.copy()
    wrong = random.permutation(count)[: count // WRONG]
    given[wrong] = (given[wrong] + random.integers(1, labels, len(wrong))) % labels
    return given, random.permutation(count).tolist()


def suspicious(backbone: Backbone, task: Task, seed: int) -> Line:
    """With the Gaussian expert only, in closed form."""
    given, _ = turned(task, seed)
    vectors, asked = (vectors_of(backbone, some) for some in (task.tokens, task.asked))
    images = torch.from_numpy(vectors)

    def taught(labels: NDArray[np.int64]) -> GaussianExpert:
        expert = GaussianExpert(backbone.spec.dim, backbone.prior)
        expert.count(range(1, len(labels) + 1), labels.tolist(), images, len(task.labels))
        return expert

    def right(expert: GaussianExpert) -> float:
        said, typical = expert.judged(torch.from_numpy(asked), range(len(task.labels)))
        return 100 * float(((said - typical).argmax(1).numpy() == task.answers).mean())

    expert = taught(given)
    order = suspicion(expert, images, given.tolist()).argsort(descending=True).numpy()
    first = order[: len(given) // 10]
    corrected = given.copy()
    corrected[first] = task.truth[first]
    about: Line = {"examples": len(given), "wrong": int((given != task.truth).sum())}
    about |= {"part": "suspicious", "task": task.name, "by": "Gaussian expert", "seed": seed}
    return about | {
        "first": len(first),
        "truly wrong": share_wrong(first, given, task),
        "cleanlab": share_wrong(by_cleanlab(vectors, given)[: len(first)], given, task),
        "before": round(right(expert), 2),
        "after": round(right(taught(corrected)), 2),
        "at random": round(right(taught(set_right(given, task, len(first), seed))), 2),
        "clean": round(right(taught(task.truth)), 2),
    }


def set_right(given: NDArray[np.int64], task: Task, count: int, seed: int) -> NDArray[np.int64]:
    """Labels with `count` of the wrong ones corrected."""
    wrong = np.random.default_rng((seed, 1)).permutation(np.flatnonzero(given != task.truth))
    corrected = given.copy()
    corrected[wrong[:count]] = task.truth[wrong[:count]]
    return corrected


def suspicious_to_all(backbone: Backbone, task: Task, seed: int) -> Line:
    """With the whole classifier, which learns, ranks and is corrected."""
    given, order = turned(task, seed)
    with opened(backbone, task, seed) as classifier:
        number_of = {}
        for done, number in enumerate(order, 1):
            number_of[teach(classifier, number, task.labels[given[number]])] = number
            if done % 200 == 0:
                tell(f"{task.name}: {done} of {len(order)} taught")
        before = accuracy(classifier, task)
        ranking = [example.id for example in _ranking(classifier, len(given) // 10)]
        for example in ranking:
            classifier.relabel(example, task.labels[task.truth[number_of[example]]])
        after = accuracy(classifier, task)
    first = np.array([number_of[example] for example in ranking])
    return {
        "part": "suspicious",
        "task": task.name,
        "by": "classifier",
        "seed": seed,
        "examples": len(given),
        "wrong": int((given != task.truth).sum()),
        "first": len(first),
        "truly wrong": share_wrong(first, given, task),
        "cleanlab": None,
        "before": round(before, 2),
        "after": round(after, 2),
    }


def share_wrong(first: NDArray[np.int64], given: NDArray[np.int64], task: Task) -> float:
    return round(100 * float(np.mean(given[first] != task.truth[first])), 2)


def by_cleanlab(vectors: NDArray[np.float32], given: NDArray[np.int64]) -> NDArray[np.int64]:
    """Examples, the most suspicious first."""
    from cleanlab.rank import get_label_quality_scores
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import cross_val_predict

    model = LogisticRegression(C=10.0, max_iter=100)
    said = cross_val_predict(model, vectors, given, cv=5, method="predict_proba")
    return np.argsort(get_label_quality_scores(given, said))


def _ranking(classifier: AnytimeClassifier, count: int) -> Iterator[Any]:
    after = None
    while count > 0:
        page = classifier.examples(suspicious=True, after=after, limit=min(count, 1000))
        yield from page.examples
        after, count = page.next, count - len(page.examples)


@torch.no_grad()
def vectors_of(backbone: Backbone, tokens: NDArray[np.float16]) -> NDArray[np.float32]:
    parts = [
        images_of(backbone.tail, backbone.spec.tail, torch.from_numpy(some).float())
        for some in np.array_split(tokens, -(-len(tokens) // AT_ONCE))
    ]
    return np.asarray(torch.cat(parts).numpy())


# The order in which images are labelled


def labelled(backbone: Backbone, task: Task, order: str, seed: int, *, told: bool) -> Line:
    """Accuracy by share of labelled images."""
    count = len(task.truth)
    points = {round(share * count): share for share in POINTS[order]}
    numbers = np.random.default_rng(seed).permutation(count).tolist()
    curve: dict[str, float] = {}
    with opened(backbone, task, seed) as classifier:
        if order == "inbox":
            inbox = Inbox(classifier, numbers, task.labels if told else None)
            inbox.prepare()
        for done in range(1, max(points) + 1):
            if order == "inbox":
                item = inbox.next()
                assert item is not None
                inbox.answer(item, task.labels[task.truth[numbers[item.number]]])
            else:
                number = numbers[done - 1]
                teach(classifier, number, task.labels[task.truth[number]])
            if done in points:
                curve[str(points[done])] = round(accuracy(classifier, task), 2)
    tell(f"{task.name}, {'name' if told else 'code'}, {order}, seed {seed}: {curve}")
    called = "name" if told else "code"
    about = {"part": "inbox", "by": "classifier", "task": task.name, "labels": called}
    return about | {"order": order, "seed": seed, "images": count, "accuracy": curve}


class Experts:
    """The closed-form experts and their pool weights, without a tuned model."""

    def __init__(self, backbone: Backbone, task: Task) -> None:
        text = backbone.embed_labels(task.labels).float()
        self.task, self.images = task, torch.from_numpy(vectors_of(backbone, task.tokens))
        self.asked = torch.from_numpy(vectors_of(backbone, task.asked))
        scale = backbone.spec.logit_scale
        self.original = (scale * self.images @ text.T).log_softmax(1)
        self.original_asked = (scale * self.asked @ text.T).log_softmax(1)
        self.expert = GaussianExpert(backbone.spec.dim, backbone.prior)
        self.weights = start_weights(["original", "gaussian"])
        self.taught: list[int] = []
        self.seen: list[int] = []  # labels, by row

    def rows(self, labels: Sequence[int]) -> list[int]:
        return [self.seen.index(label) if label in self.seen else -1 for label in labels]

    def teach(self, number: int) -> None:
        label = int(self.task.truth[number])
        if label not in self.seen:
            self.seen.append(label)
            self.expert.enter()
        self.taught.append(number)
        example = len(self.taught)
        self.expert.advance(example)
        self.expert.add(example, self.seen.index(label), self.images[number])
        if example % FIT == 0:
            recent = self.taught[-RECENT:]
            rows = self.rows(self.task.truth[recent].tolist())
            numbers = range(example - len(recent) + 1, example + 1)
            said, typical = self.expert.judged_left_out(self.images[recent], rows, numbers)
            named = self.original[recent][:, self.seen]
            self.weights = weigh(
                {"original": named, "gaussian": said - typical}, torch.tensor(rows)
            )

    def right(self) -> float:
        """Accuracy in per cent, over all labels of the task.

        An unseen label scores halfway between 0 and a typical score.
        """
        rows = self.rows(range(len(self.task.labels)))
        said, typical = self.expert.judged(self.asked, rows)
        said = said - typical - (typical == 0) * self.expert.typical().mean() / 2
        said = self.weights["gaussian"] * said + self.weights["original"] * self.original_asked
        return 100 * float((said.argmax(1).numpy() == self.task.answers).mean())

    def next(self, left: Sequence[int], seed: int, *, told: bool) -> int:
        """The choice of `Inbox`; without labels `told` beforehand, among the seen ones."""
        labels = list(range(len(self.task.labels))) if told else self.seen
        rows = self.rows(labels)
        named = self.original[left][:, labels].log_softmax(1)
        asked = believed(self.expert, self.images[left], named, rows)
        chance = np.random.default_rng((seed, len(self.taught))).random()
        return left[most_telling(self.expert, asked, rows, chance)]


def labelled_by_experts(
    backbone: Backbone, task: Task, order: str, seed: int, *, told: bool
) -> Line:
    """As `labelled`, with the closed-form experts only."""
    count = len(task.truth)
    points = {round(share * count): share for share in POINTS[order]}
    left = np.random.default_rng(seed).permutation(count).tolist()
    experts = Experts(backbone, task)
    curve: dict[str, float] = {}
    for done in range(1, max(points) + 1):
        number = experts.next(left, seed, told=told) if order == "inbox" else left[0]
        left.remove(number)
        experts.teach(number)
        if done in points:
            curve[str(points[done])] = round(experts.right(), 2)
    tell(f"{task.name}, {'name' if told else 'code'}, {order}, seed {seed}: {curve}")
    called = "name" if told else "code"
    about = {"part": "inbox", "by": "closed-form experts", "task": task.name, "labels": called}
    return about | {"order": order, "seed": seed, "images": count, "accuracy": curve}


class Needed(NamedTuple):
    """Mean over seeds with results for both orders."""

    seeds: int
    target: float  # accuracy at 40 % of the images in random order
    share: float | None  # of images in the inbox's order to reach it; None: not reached
    curves: dict[str, dict[float, float]]  # order -> share -> accuracy


def needed(lines: Sequence[Line]) -> dict[tuple[str, str, str], Needed]:
    """By kind of learner, task, and kind of labels."""
    found = {}
    own = [line for line in lines if line["part"] == "inbox"]
    names = ("by", "task", "labels")
    for key in dict.fromkeys(tuple(line[name] for name in names) for line in own):
        mine = [line for line in own if tuple(line[name] for name in names) == key]
        both = set.intersection(*({x["seed"] for x in mine if x["order"] == o} for o in POINTS))
        if not both:
            continue
        curves: dict[str, dict[float, float]] = {}
        for order in POINTS:
            runs = [x for x in mine if x["order"] == order and x["seed"] in both]
            shares = [float(share) for share in runs[0]["accuracy"]]
            curves[order] = {s: fmean(run["accuracy"][str(s)] for run in runs) for s in shares}
        target = curves["random"][TARGET]
        reached = [share for share, right in curves["inbox"].items() if right >= target]
        found[key] = Needed(len(both), target, min(reached, default=None), curves)
    return found


def draw(found: dict[tuple[str, str, str], Needed], file: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, len(found), figsize=(3.4 * len(found), 3.2), squeeze=False)
    for axis, ((by, task, called), one) in zip(axes[0], found.items(), strict=True):
        for order, curve in one.curves.items():
            axis.plot([100 * s for s in curve], list(curve.values()), marker="o", ms=3, label=order)
        axis.axhline(one.target, lw=0.8, ls=":", color="grey")
        axis.axvline(25, lw=0.8, ls=":", color="grey")
        axis.set_title(f"{task}, labels by {called}\n{by}", fontsize=10)
        axis.set_xlabel("images labelled, %")
    axes[0][0].set_ylabel("test images right, %")
    axes[0][0].legend()
    figure.tight_layout()
    figure.savefig(file, dpi=110)


def one_choice(backbone: Backbone, task: Task, count: int = 100_000) -> Line:
    """Seconds to choose the next image among `count`; and to update after a label."""
    with opened(backbone, task, 0) as classifier:
        few = np.random.default_rng(0).permutation(len(task.truth))[:200]
        for number in few.tolist():
            teach(classifier, number, task.labels[task.truth[number]])
        inbox = Inbox(classifier, list(range(count)))
        vectors = vectors_of(backbone, task.tokens[:1000]).astype(np.float16)
        for number in range(count):
            inbox._state.vectors[inbox._keys[number]] = vectors[number % len(vectors)]
        spent = []
        for _ in range(6):
            began = time.perf_counter()
            inbox._choose()
            spent.append(time.perf_counter() - began)
        began = time.perf_counter()
        teach(classifier, int(few[0]), task.labels[0])
        step = time.perf_counter() - began
    told = {"part": "choice", "images": count, "seconds": round(median(spent), 3)}
    return told | {"lesson": round(step, 3)}


# One example more or less


def relabelling(count: int, rounds: int = 20) -> Line:
    """Milliseconds to relabel an example, and to rename a label."""
    backbone = plain_backbone()
    record = make_codec("attention-pca", backbone.spec, backbone.tail).encode(torch.randn(50, 768))
    spent: dict[tuple[str, int], list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        trainers = {n: filled(Path(folder) / str(n), backbone, record, n) for n in (1000, count)}
        for size, trainer in trainers.items():
            tell_statistics(trainer, size)
        for number in range(1, rounds + 4):
            for size, trainer in trainers.items():
                memory = trainer.memory
                acts = {
                    "relabel": partial(move, memory, [number], "label 999"),
                    "rename": partial(rename, memory, f"label {100 + number}", f"new {number}"),
                }
                for name, act in acts.items():
                    began = time.perf_counter()
                    with memory.writing():
                        act()
                    for each in memory.history(trainer.event).acts.values():
                        trainer.correct(each)
                    if number > 3:
                        took = 1000 * (time.perf_counter() - began)
                        spent.setdefault((name, size), []).append(took)
        for trainer in trainers.values():
            trainer.memory.close()
    found = {name: round(median(values), 3) for name, values in spent.items()}
    acts_of = {name: [found[name, 1000], found[name, count]] for name in ("relabel", "rename")}
    return {"part": "relabel", "stored": count} | acts_of


def tell_statistics(trainer: JournaledTrainer, size: int) -> None:
    """Set the statistics that `recount` would compute, as if all images were the same."""
    expert = trainer.model.gaussian
    [record] = trainer.memory.read([1])
    image = trainer.image(record)
    each = -(-size // LABELS)
    expert.add_many(range(LABELS), image.expand(LABELS, -1))
    for part in (expert.now.counts, expert.now.sums, expert.now.moment):
        part *= each
    expert.advance(size)


def report(lines: Sequence[Line]) -> None:
    console = Console(width=110)
    ranking = [line for line in lines if line["part"] == "suspicious"]
    if ranking:
        right = "accuracy (as many at random, all)"
        table = Table("set", "by", "wrong labels", "first", "truly wrong", "cleanlab", right)
        for line in ranking:
            right = f"{line['before']:.1f} -> {line['after']:.1f}"
            if "clean" in line:
                right += f" ({line['at random']:.1f}, {line['clean']:.1f})"
            of = f"{line['wrong']} of {line['examples']}"
            other = "" if line["cleanlab"] is None else f"{line['cleanlab']:.1f} %"
            said = f"{line['truly wrong']:.1f} %"
            table.add_row(line["task"], line["by"], of, str(line["first"]), said, other, right)
        console.print(table)
        for task, by in dict.fromkeys((line["task"], line["by"]) for line in ranking):
            mine = [line for line in ranking if (line["task"], line["by"]) == (task, by)]
            gained = [line["after"] - line["before"] for line in mine]
            up = sum(gain > 0 for gain in gained)
            print(f"{task}, {by}: {fmean(gained):+.2f} in the mean, up with {up} of {len(gained)}")
    orders = needed(lines)
    if orders:
        table = Table(
            "", "set", "labels by", "seeds", "random at 40 %", "inbox at 25 %", "images needed"
        )
        for (by, task, called), one in orders.items():
            at = one.curves["inbox"].get(0.25)
            share = "not reached" if one.share is None else f"{100 * one.share:.1f} %"
            table.add_row(
                by, task, called, str(one.seeds), f"{one.target:.1f} %", f"{at:.1f} %", share
            )
        console.print(table)
    for line in lines:
        if line["part"] == "choice":
            ratio = line["seconds"] / line["lesson"]
            print(
                f"one choice among {line['images']:,} images {line['seconds']:.3f} s, one lesson "
                f"{line['lesson']:.3f} s: {ratio:.1f} x"
            )
        if line["part"] == "relabel":
            for act in ("relabel", "rename"):
                small, large = line[act]
                print(
                    f"{act} with 1,000 stored {small:.2f} ms, with {line['stored']:,} stored "
                    f"{large:.2f} ms: {large / small:.2f} x"
                )


def lines_of(given: argparse.Namespace, parts: set[str]) -> Iterator[Line]:
    seeds = [int(seed) for seed in given.seeds.split(",")]
    backbone = load("embedded")
    held_out = given.held_out
    if "suspicious" in parts:
        for name in given.noisy.split(","):
            apart = held_out or name == "cifar100"
            task = open_task(given.data, name, backbone, held_out=apart, images=given.images)
            for seed in seeds:
                yield suspicious(backbone, task, seed)
                if given.whole:
                    yield suspicious_to_all(backbone, task, seed)
    if "inbox" in parts:
        for name in given.tasks.split(","):
            task = open_task(given.data, name, backbone, held_out=held_out)
            for called in given.called.split(","):
                some, told = (task, True) if called == "name" else (coded(task), False)
                for seed in seeds:
                    for order in POINTS:
                        yield labelled_by_experts(backbone, some, order, seed, told=told)
                        if given.whole:
                            yield labelled(backbone, some, order, seed, told=told)
        yield one_choice(backbone, task)
    if "relabel" in parts:
        yield relabelling(given.stored)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("--only", default="suspicious,inbox,relabel")
    parser.add_argument("--noisy", default="pets,cifar100", help="sets with wrong labels")
    parser.add_argument("--images", type=int, help="of these sets, so many, spread evenly")
    parser.add_argument("--whole", action="store_true", help="the classifier besides the expert")
    parser.add_argument("--tasks", default="pets,resisc12", help="sets that are labelled")
    parser.add_argument("--called", default="name,code")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--stored", type=int, default=1_000_000)
    parser.add_argument("--held-out", action="store_true")
    parser.add_argument("--show", action="store_true", help="print what is in --out, run nothing")
    parser.add_argument("--out", type=Path, help="every figure, a line of JSON each, is added here")
    parser.add_argument("--plot", type=Path)
    given = parser.parse_args()
    lines: list[Line] = []
    if given.out and given.out.exists():
        lines = [json.loads(line) for line in given.out.read_text().splitlines()]
    for line in () if given.show else lines_of(given, set(given.only.split(","))):
        lines.append(line)
        if given.out:
            with given.out.open("a") as file:
                file.write(json.dumps(line) + "\n")
    report(lines)
    if given.plot and (orders := needed(lines)):
        draw(orders, given.plot)


if __name__ == "__main__":
    main()
