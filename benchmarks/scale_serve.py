"""Answering replicas, and very many labels, each beside its reference.

    python -m benchmarks.scale serve [--replicas 1,2] [--images 64] [--labels 500] [--seconds 15]
                               [--shares 1,0.5]
    python -m benchmarks.scale labels DATA [--counts 1000,10000] [--asked 200]

`serve` sends encoded images to answering replicas on Ray Serve, without HTTP, so that on a machine
with few cores the replicas are measured and not the proxy. Each computes with one thread. The
client and Ray's own processes need CPU, too, so the same replicas are measured with a whole core
each, as far as available, and with a share of one: after each response they sleep until their CPU
time is at most that share of the elapsed time. Two with half a core each leave half of a two-core
machine for the rest. Two ratios are by wall-clock time; a third is by CPU time per response of a
replica, with one and with several.

`labels` predicts with a leaf that has learned pets over names with precomputed text embeddings
besides the breeds, scoring all of them or a shortlist.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import os
import pickle
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil
import torch
from torch import Tensor

from anytimecl import AnytimeClassifier
from anytimecl import backbone as backbones
from anytimecl.backbone import Backbone
from anytimecl.scale.leaf import Leaf
from anytimecl.scale.shortlist import ManyLabels

AHEAD = 8  # concurrent requests


def pictures_of(model: Backbone, count: int) -> Tensor:
    """Tokens [image, token, width] of pictures, with noise added."""
    from benchmarks.scale import noise

    return noise(model, count)


@contextmanager
def ray_here(cpus: int) -> Iterator[Any]:
    """A local Ray cluster."""
    os.environ.setdefault("RAY_worker_niceness", "0")  # else other processes have priority
    import ray

    ray.init(
        address="local",  # a new one, even if another is running
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


class Pace:
    """Limits a replica to a share of a core, by sleeping after each response."""

    def __init__(self, share: float) -> None:
        self._share = share
        self._last = time.perf_counter(), time.process_time()

    def keep(self) -> None:
        """Called by the replica's thread after each response; counts the whole process."""
        (wall, cpu), now = self._last, time.perf_counter()
        if self._share < 1:
            time.sleep(max(0.0, wall + (time.process_time() - cpu) / self._share - now))
        self._last = time.perf_counter(), time.process_time()


class Rate(NamedTuple):
    """Results of a run."""

    questions: float  # per second
    cpu: float  # seconds of a replica per request
    rest: float  # seconds of Ray's other processes and the client, per request


def serve(given: argparse.Namespace) -> None:
    """Print a table: replicas, responses per second, and the ratio to the first."""
    from ray import serve as ray_serve

    from anytimecl.scale.serving.hosts import AnswerHost, Encoders, KeeperHost, ServedMemory
    from anytimecl.scale.serving.state import taken_from

    torch.set_num_threads(1)  # as in a replica: the order of summation affects the last bits
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

            async def __init__(self, keeper: Any, share: float) -> None:  # type: ignore[misc]
                AnswerHost.__init__(self, served, Encoders(None), keeper)
                self._cache.put("null", dict(zip(labels, vectors, strict=True)))
                self._pace = Pace(share)

                async def fetch(shared: Any) -> Any:
                    return await shared

                await self.begin(fetch)

            async def answer(self, tokens: Any) -> tuple[int, float, bytes]:
                engine = self._memories.default  # type: ignore[union-attr]
                given_tokens = torch.tensor(tokens)

                def answered() -> bytes:
                    told = packed(engine.classifier.predict_tokens(given_tokens, labels))
                    self._pace.keep()
                    return told

                told = await engine.answer(answered)
                return os.getpid(), time.process_time(), told

        def packed(told: Sequence[Any]) -> bytes:
            """Compact bytes, to keep the client's CPU time low."""
            return np.array([list(one.probabilities.values()) for one in told]).tobytes()

        print(f"state: {sent / 1e6:.1f} MB of 60 examples of 20 labels")
        print(f"{len(os.sched_getaffinity(0))} cores; {given.images} images, {given.labels} labels")
        print(
            "| a replica has | replicas | answers a second | ratio | CPU ms an answer "
            "| ratio by CPU time | all else, CPU ms an answer |\n" + "|---" * 7 + "|"
        )
        for share in map(float, given.shares.split(",")):
            alone: Rate | None = None
            for count in map(int, given.replicas.split(",")):
                keeper = ray_serve.deployment(Keeper).bind()
                answers = ray_serve.deployment(
                    Answers, num_replicas=count, max_ongoing_requests=2 * AHEAD
                ).bind(keeper, share)
                app = f"{count} of {share:g}"
                handle = ray_serve.run(answers, name=app, route_prefix=None)
                shared = ray.put(asked)
                _, _, same = handle.answer.remote(shared).result()
                assert same == packed(expected), "not the same bits"
                ask = functools.partial(handle.answer.remote, shared)
                found = asyncio.run(_rate(ask, AHEAD * count, given.seconds))
                alone = alone or found
                print(
                    f"| {share:g} of a core | {count} | {found.questions * given.images:.1f} "
                    f"| {found.questions / alone.questions:.2f} "
                    f"| {1000 * found.cpu / given.images:.2f} "
                    f"| {count * alone.cpu / found.cpu:.2f} "
                    f"| {1000 * found.rest / given.images:.2f} |",
                    flush=True,
                )
                ray_serve.delete(app)
        ray_serve.shutdown()


async def _rate(ask: Callable[[], Any], ahead: int, seconds: float) -> Rate:
    """With `ahead` concurrent requests."""
    spent: dict[int, list[float]] = {}
    begin, end = 0.0, float("inf")

    async def asker() -> None:
        while time.perf_counter() < end:
            process, cpu, _ = await ask()
            if begin:
                spent.setdefault(process, []).append(cpu)

    askers = [asyncio.ensure_future(asker()) for _ in range(ahead)]
    await asyncio.sleep(seconds / 3)  # warm-up
    begin, before = time.perf_counter(), cpu_of_all()
    await asyncio.sleep(seconds)
    took, all_spent = time.perf_counter() - begin, cpu_of_all() - before
    done = sum(map(len, spent.values()))
    own = sum(max(each) - min(each) for each in spent.values())
    end = 0.0
    await asyncio.gather(*askers)
    cpu = own / sum(len(each) - 1 for each in spent.values())
    return Rate(done / took, cpu, all_spent / done - cpu)


def cpu_of_all() -> float:
    """CPU seconds of this process and its children."""
    own = psutil.Process()
    return sum(sum(each.cpu_times()[:2]) for each in (own, *own.children(recursive=True)))


# -------------------------------------------------------------------------------------- labels


def many_labels(given: argparse.Namespace) -> None:
    """How often the best label is in the shortlist, and the time it takes."""
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
    """A random sample."""
    order = np.random.default_rng(0).permutation(len(of))[:count]
    return [of[at] for at in order]


def _words(model: Backbone) -> list[str]:
    """Names with precomputed text embeddings in the model's text encoder, in order."""
    text: Any = model.require_text()
    text(["cat"])  # loads it
    return sorted(text._found.known.row)
