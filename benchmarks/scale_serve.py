"""Answering replicas, a leaf that stops, and very many labels, each beside its reference.

    python -m benchmarks.scale serve [--replicas 1,2] [--images 8] [--labels 500] [--seconds 15]
    python -m benchmarks.scale stopped [--leaves 4] [--seconds 10]
    python -m benchmarks.scale labels DATA [--counts 1000,10000] [--asked 200]

`serve` asks answering replicas on Ray Serve about images that are encoded already, without HTTP, so
that a machine of few cores shows what replicas do, not what its proxy does; each has one core.
Where others use the machine too, the wall clock says how much of it they left: the last column is
from the CPU time that an answer takes with one replica, and with so many.
`stopped` teaches and asks a tree on Ray through its router while one leaf's process is stopped.
`labels` asks a leaf that has learned pets about names that its text side has a table of, beside
the breeds, weighing all of them or those that are shortlisted.
"""

from __future__ import annotations

import argparse
import functools
import os
import pickle
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anytimecl import AnytimeClassifier
from anytimecl import backbone as backbones
from anytimecl.backbone import Backbone
from anytimecl.scale.leaf import Leaf
from anytimecl.scale.shortlist import ManyLabels

AHEAD = 8  # questions under way at once


def pictures_of(model: Backbone, count: int) -> Tensor:
    """Tokens [image, token, width] of pictures, each a little different."""
    from benchmarks.scale import noise

    return noise(model, count)


@contextmanager
def ray_here(cpus: int) -> Iterator[Any]:
    """Ray on this machine alone."""
    os.environ.setdefault("RAY_worker_niceness", "0")  # else whoever shares the machine goes first
    import ray

    ray.init(
        address="local",  # not that of somebody else on this machine
        num_cpus=cpus,
        include_dashboard=False,
        log_to_driver=False,
        object_store_memory=400_000_000,
    )
    try:
        yield ray
    finally:
        ray.shutdown()


# --------------------------------------------------------------------------------------- serve


def serve(given: argparse.Namespace) -> None:
    """A table: replicas, answers a second, and the ratio to the first."""
    from ray import serve as ray_serve

    from anytimecl.scale.serving.hosts import AnswerHost, Encoders, KeeperHost, ServedMemory
    from anytimecl.scale.serving.state import taken_from

    torch.set_num_threads(1)  # as a replica has: sums in other parts have other last bits
    model = backbones.load("embedded")
    labels = [f"thing {number}" for number in range(given.labels)]
    with tempfile.TemporaryDirectory() as name, ray_here(8) as ray:
        with AnytimeClassifier.open(Path(name) / "memory", model=model) as classifier:
            for number, tokens in enumerate(pictures_of(model, 60)):
                classifier.learn_tokens(tokens, labels[number % 20])
            asked = pictures_of(model, given.images).numpy() + np.float32(0.01)
            vectors = model.embed_labels(labels)
            expected = classifier.predict_tokens(torch.tensor(asked), labels)
            sent = len(pickle.dumps(taken_from(classifier)))
        served = ServedMemory(str(Path(name) / "memory"), every=3600.0)

        class Keeper(KeeperHost):
            def __init__(self) -> None:
                super().__init__(served, ray.put)

        class Answers(AnswerHost):
            """A replica without HTTP."""

            async def __init__(self, keeper: Any) -> None:  # type: ignore[misc]
                AnswerHost.__init__(self, served, Encoders(None), keeper)
                self._cache.put("null", dict(zip(labels, vectors, strict=True)))

                async def fetch(shared: Any) -> Any:
                    return await shared

                await self.begin(fetch)

            async def answer(self, tokens: Any) -> tuple[int, float, bytes]:
                engine = self._memories.default  # type: ignore[union-attr]
                given_tokens = torch.tensor(tokens)
                told = await engine.answer(
                    lambda: engine.classifier.predict_tokens(given_tokens, labels)
                )
                return os.getpid(), time.process_time(), packed(told)

        def packed(told: Sequence[Any]) -> bytes:
            """As few bytes as may be: who asks is on the same cores, and shall not work."""
            return np.array([list(one.probabilities.values()) for one in told]).tobytes()

        alone: tuple[float, float] | None = None
        print(f"state: {sent / 1e6:.1f} MB of 60 examples of 20 labels")
        print(f"{len(os.sched_getaffinity(0))} cores; {given.images} images, {given.labels} labels")
        print(
            "| replicas | answers a second | ratio | CPU ms an answer | ratio where cores allow |"
        )
        print("|---" * 5 + "|")
        for count in map(int, given.replicas.split(",")):
            keeper = ray_serve.deployment(Keeper).bind()
            answers = ray_serve.deployment(
                Answers, num_replicas=count, max_ongoing_requests=AHEAD
            ).bind(keeper)
            handle = ray_serve.run(answers, name=f"of {count}", route_prefix=None)
            shared = ray.put(asked)
            _, _, same = handle.answer.remote(shared).result()
            assert same == packed(expected), "not the same bits"
            ask = functools.partial(handle.answer.remote, shared)
            rate, cpu = _rate(ask, AHEAD * count, given.seconds)
            alone = alone or (rate, cpu)
            print(
                f"| {count} | {rate * given.images:.1f} | {rate / alone[0]:.2f} "
                f"| {1000 * cpu / given.images:.2f} | {count * alone[1] / cpu:.2f} |",
                flush=True,
            )
            ray_serve.delete(f"of {count}")
        ray_serve.shutdown()


def _rate(ask: Callable[[], Any], ahead: int, seconds: float) -> tuple[float, float]:
    """Questions a second, with so many under way; and the CPU seconds of replicas for each."""
    under_way = [ask() for _ in range(ahead)]
    for one in under_way:  # everybody is warm
        one.result()
    under_way = [ask() for _ in range(ahead)]
    spent: dict[int, list[float]] = {}
    began, done = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        process, cpu, _ = under_way.pop(0).result()
        spent.setdefault(process, []).append(cpu)
        done += 1
        under_way.append(ask())
    rate = done / (time.perf_counter() - began)
    for one in under_way:
        one.result()
    took = sum(max(each) - min(each) for each in spent.values())
    return rate, took / sum(len(each) - 1 for each in spent.values())


# ------------------------------------------------------------------------------------- stopped


def stopped(given: argparse.Namespace) -> None:
    """Lessons of the other leaves and predictions, before and while one leaf is stopped."""
    from tests.scale.raylets import processes

    from anytimecl.scale import router
    from anytimecl.scale.record_host import Looked, RecordMaker
    from anytimecl.scale.tree import TreeClassifier

    torch.set_num_threads(1)
    model = backbones.load("embedded")
    tokens = pictures_of(model, 480)
    labels = [f"thing {number}" for number in range(20)]
    with tempfile.TemporaryDirectory() as name, ray_here(16) as ray:
        with TreeClassifier.open(Path(name), model=model) as young:
            maker = RecordMaker(model, young.settings)
            images = [maker.located(young.codec.encode(one)) for one in tokens]
            for number, one in enumerate(images[:60]):
                young.learn_record(one.record, labels[number % 20])
            while len(young.routes.leaves()) < given.leaves:
                sizes = dict(young._sizes)
                young._split(max(sizes, key=lambda leaf: sizes[leaf]))
            routes = young.routes
        tree = router.up(name, cpus=0.5)
        of = [routes.leaf_of(torch.tensor(one.vector)) for one in images]
        looked = [
            Looked(tokens[n : n + 1].numpy(), images[n].vector[None]) for n in range(len(images))
        ]
        counts: dict[str, int] = {}
        halt, numbers = threading.Event(), iter(range(10**9))

        def teach(leaf: int) -> None:
            own = [n for n, its in enumerate(of) if its == leaf]
            while not halt.is_set():
                n = next(numbers)
                told = images[own[n % len(own)]], labels[n % 20], None, f"{leaf} {n}"
                try:
                    tree._call("learn", "learn_all", [told])
                except ConnectionError:  # the leaf is given up on
                    time.sleep(0.1)
                    continue
                counts[f"lessons {leaf}"] = counts.get(f"lessons {leaf}", 0) + 1

        def ask(_: int) -> None:
            while not halt.is_set():
                n = next(numbers) % len(looked)
                tree._call("ask", "predict", looked[n], labels, 0.5)
                counts["predictions"] = counts.get("predictions", 0) + 1

        threads = [
            threading.Thread(target=work, args=(leaf,), daemon=True)
            for leaf in routes.leaves()
            for work in (teach, teach, ask)
        ]
        for thread in threads:
            thread.start()
        time.sleep(5)
        before = _counted(counts, given.seconds)
        dying = processes(ray, "ray::LeafHost")[0]
        os.kill(dying, signal.SIGSTOP)
        time.sleep(0.5)
        at_once = _counted(counts, given.seconds)
        time.sleep(max(0.0, 35 - given.seconds))  # until it is given up on
        later = _counted(counts, given.seconds)
        os.kill(dying, signal.SIGCONT)
        halt.set()
        for thread in threads:
            thread.join()
        own = min(later, key=lambda kind: later[kind] / max(before[kind], 1e-9))
        print(f"{given.leaves} leaves, of which one is stopped ({own}); per second")
        print(
            "| | before | as soon as it is stopped | ratio | later | ratio |\n" + "|---" * 6 + "|"
        )
        others = [kind for kind in before if kind not in (own, "predictions")]
        for kind, parts in (("lessons of the others", others), ("predictions", ["predictions"])):
            rates = [sum(each[part] for part in parts) for each in (before, at_once, later)]
            print(
                f"| {kind} | {rates[0]:.1f} | {rates[1]:.1f} | {rates[1] / rates[0]:.2f} "
                f"| {rates[2]:.1f} | {rates[2] / rates[0]:.2f} |"
            )
        tree.down()


def _counted(counts: dict[str, int], seconds: float) -> dict[str, float]:
    began, first = time.perf_counter(), dict(counts)
    time.sleep(seconds)
    over = time.perf_counter() - began
    return {kind: (count - first.get(kind, 0)) / over for kind, count in dict(counts).items()}


# -------------------------------------------------------------------------------------- labels


def many_labels(given: argparse.Namespace) -> None:
    """How often the best of all labels is among those that are shortlisted, and what it takes."""
    from benchmarks.encoders import parts

    from anytimecl_lab.data import open_set
    from anytimecl_lab.features import features

    torch.set_num_threads(1)
    model = backbones.load("embedded")
    names = list(open_set("pets", given.data).names)
    train, learned, test, shown = parts("pets", given.data, False, None)
    words = [word for word in _words(model) if word not in names]
    with tempfile.TemporaryDirectory() as name, Leaf.open(Path(name), model=model) as leaf:
        chosen = _some(learned, given.taught)
        for at, tokens in zip(chosen, features(train, model, chosen)[chosen], strict=True):
            leaf.learn_tokens(torch.tensor(tokens).float(), train.labels[at])
        places = _some(shown, given.asked)
        asked = torch.tensor(features(test, model, places)[places]).float()
        print(
            "| labels | best of all is among the few | of the best five | few, on average "
            "| all, ms an image | few, ms an image | right, all | right, few |\n" + "|---" * 8 + "|"
        )
        for count in map(int, given.counts.split(",")):
            labels = names + words[: max(0, count - len(names))]
            many = ManyLabels.of(labels, model.embed_labels(labels))
            _compare(leaf, asked, [test.labels[at] for at in places], many)


def _compare(leaf: Leaf, asked: Tensor, truth: Sequence[str], many: ManyLabels) -> None:
    best = five = sizes = right_all = right_few = 0
    took = [0.0, 0.0]
    for tokens, label in zip(asked.split(1), truth, strict=True):
        began = time.process_time()
        whole = leaf.answer(tokens, many.labels, many.vectors).values[0]
        took[0] += time.process_time() - began
        began = time.process_time()
        [few] = leaf.shortlist(tokens, many)
        short = leaf.answer(tokens, [many.labels[at] for at in few], many.vectors[few]).values[0]
        took[1] += time.process_time() - began
        top = whole.topk(5).indices.tolist()
        best += top[0] in few
        five += sum(at in few for at in top)
        sizes += len(few)
        right_all += many.labels[top[0]] == label
        right_few += many.labels[few[int(short.argmax())]] == label
    count = len(truth)
    print(
        f"| {len(many.labels):,} | {100 * best / count:.1f} % | {20 * five / count:.1f} % "
        f"| {sizes / count:.0f} | {1000 * took[0] / count:.1f} | {1000 * took[1] / count:.1f} "
        f"| {100 * right_all / count:.1f} % | {100 * right_few / count:.1f} % |",
        flush=True,
    )


def _some(of: Sequence[int], count: int) -> list[int]:
    """So many of them, whichever."""
    order = np.random.default_rng(0).permutation(len(of))[:count]
    return [of[at] for at in order]


def _words(model: Backbone) -> list[str]:
    """The names that the model's text side has a table of, in order."""
    text: Any = model.require_text()
    text(["cat"])  # it is read when first asked
    return sorted(text._found.known.row)
