"""Trees of learners: what capacity, leaves and nodes do, and what a billion examples would take.

    python -m benchmarks.scale capacity DATA [--tasks cifar100] [--capacities 500,1000,2000]
                               [--seeds 0] [--device cuda] [--plot FILE] [--validation]
    python -m benchmarks.scale throughput [--leaves 1,2,4,8] [--nodes 1,2]
    python -m benchmarks.scale memory
    python -m benchmarks.scale regions DATA
    python -m benchmarks.scale encode [--workers 1,2,4] [--ray]
    python -m benchmarks.scale serve | stopped | split | labels DATA
    python -m benchmarks.scale billion [--simulate 10000000] [--capacity 1000000] [--cpus 1]

`capacity` is the paper's ablation of node capacities: accuracy over the whole task as examples
arrive, with a tuned tail per leaf; without a limit there is one leaf. `throughput` learns with
leaves on Ray, relative to one leaf on one node. `memory` measures the RAM of a leaf, loaded,
unloaded, and as a low-rank difference. `regions` compares a region of an image with encoding the
crop. `billion` measures this machine, prints the capacity model and checks it by a simulation.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import os
import resource
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import PIL.Image
import torch
from benchmarks.scale_encode import encode
from benchmarks.scale_serve import many_labels, serve
from benchmarks.scale_split import split, stopped
from torch import Tensor

from anytimecl import AnytimeClassifier
from anytimecl import backbone as backbones
from anytimecl.backbone import Backbone
from anytimecl.backbone._pictures import pictures
from anytimecl.codec import make_codec
from anytimecl.memory.store import CACHE_BYTES
from anytimecl.scale.answers import original_only
from anytimecl.scale.leaf import Leaf, LeafAnswer, LeafLesson, image_vectors
from anytimecl.scale.leaf_host import LeafHost, write_tail
from anytimecl.scale.leaves import Here, leaf_folder
from anytimecl.scale.routes import Routes, nearer, two_means
from anytimecl.scale.shortlist import ManyLabels
from anytimecl.scale.told import LabelFile
from anytimecl.scale.tree import TreeClassifier
from anytimecl.settings import Settings
from anytimecl.trainer import Learned
from anytimecl_lab.data import Split

SETTINGS = Settings()
INDEX = 61  # bytes of RAM per example, measured by `python -m benchmarks.memory`


def noise(model: Backbone, count: int) -> Tensor:
    """Tokens [image, token, width] of pictures, with noise added."""
    tokens = model.encode(pictures())
    some = tokens[torch.arange(count) % len(tokens)]
    return some + 0.1 * some.std() * torch.randn(
        some.shape, generator=torch.Generator().manual_seed(0)
    )


# ------------------------------------------------------------------------------------ capacity


def capacity(given: argparse.Namespace) -> None:
    """The paper's ablation."""
    from benchmarks.encoders import accuracy, parts

    from anytimecl.scale.tree_stream import TreeStream
    from anytimecl_lab.data import open_set
    from anytimecl_lab.examples import chunks, resident
    from anytimecl_lab.features import features
    from anytimecl_lab.scenarios import data_incremental

    model = backbones.load("embedded", device=given.device)
    limits = [None, *(int(one) for one in given.capacities.split(","))]
    lines: dict[str, dict[str, list[float]]] = {}
    for name in given.tasks.split(","):
        split, learned, asked_split, asked = parts(
            name, given.data, given.validation, given.per_class
        )
        names = open_set(name, given.data).names
        vectors = dict(zip(names, model.embed_labels(names), strict=True))
        labels = [split.labels[i] for i in learned]
        train = resident([features(split, model, learned)[learned]], model.spec, given.device)
        test = resident([features(asked_split, model, asked)[asked]], model.spec, given.device)
        routing = torch.cat([image_vectors(model, part) for part in chunks(train)])
        batches = [(part, image_vectors(model, part)) for part in chunks(test)]
        target = torch.tensor([names.index(asked_split.labels[i]) for i in asked])
        for limit in limits:
            rows: dict[str, list[float]] = defaultdict(list)
            counts = []
            for seed in map(int, given.seeds.split(",")):
                settings = Settings(seed=seed)
                given_to = (train, labels, vectors, routing, limit, model.prior)
                tree = TreeStream(model.spec, model.tail, settings, *given_to)
                for stage in data_incremental(len(labels), seed):
                    tree.learn(stage.examples)
                    said = tree.answers(batches, names, settings.blend)
                    rows[stage.name].append(accuracy(said.cpu(), target))
                counts.append(len(tree.leaves))
            title = f"{name}, {limit or 'no limit'} ({np.mean(counts):.0f} leaves)"
            lines[title] = rows
            print(title, {k: round(float(np.mean(v)), 1) for k, v in rows.items()}, flush=True)
    _table(lines)
    if given.plot:
        _plot(lines, given.plot)


def _table(lines: dict[str, dict[str, list[float]]]) -> None:
    stages = list(next(iter(lines.values())))
    print("\n| capacity of a leaf | " + " | ".join(stages) + " | mean |")
    print("|---" * (len(stages) + 2) + "|")
    for title, rows in lines.items():
        means = [float(np.mean(values)) for values in rows.values()]
        cells = [f"{value:.1f}" for value in [*means, float(np.mean(means))]]
        print(f"| {title} | " + " | ".join(cells) + " |")


def _plot(lines: dict[str, dict[str, list[float]]], file: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 4))
    for title, rows in lines.items():
        axes.plot(list(rows), [np.mean(values) for values in rows.values()], "o-", label=title)
    axes.set(xlabel="examples seen", ylabel="accuracy over the task, %")
    axes.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(file, dpi=150)
    print(f"\nplotted in {file}")


# ---------------------------------------------------------------------------------- throughput


def throughput(given: argparse.Namespace) -> None:
    """Examples learned per second, by number of leaves and nodes."""
    os.environ.setdefault("RAY_worker_niceness", "0")  # else other processes have priority
    import ray
    from ray.cluster_utils import Cluster

    from anytimecl.scale.on_ray import OnRay

    model = backbones.load("embedded")
    codec = make_codec(SETTINGS.codec, model.spec, model.tail)
    records = [codec.encode(tokens) for tokens in noise(model, 64)]
    labels = [f"thing {i}" for i in range(20)]
    base = 0.0
    print("| nodes | leaves | lessons/s | ratio to one leaf on one node |\n|---|---|---|---|")
    for nodes in map(int, given.nodes.split(",")):
        cluster = Cluster(
            initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False}
        )
        for _ in range(nodes):
            cluster.add_node(num_cpus=16, object_store_memory=200_000_000)
        ray.init(address=cluster.address, log_to_driver=False)
        for count in map(int, given.leaves.split(",")):
            if count < nodes:
                continue
            with tempfile.TemporaryDirectory() as folder:
                leaves = OnRay(Path(folder), model, SETTINGS, cpus=1.0)
                leaves.start(range(count))
                rate = _rate(leaves, count, records, labels, given.lessons)
                leaves.close()
            base = base or rate
            print(f"| {nodes} | {count} | {rate:.1f} | {rate / base:.2f} |", flush=True)
        ray.shutdown()
        cluster.shutdown()


def _rate(
    leaves: Any, count: int, records: Sequence[bytes], labels: Sequence[str], lessons: int
) -> float:
    def teach(number: int) -> list[Any]:
        return [
            leaves.teach(i % count, LeafLesson(records[i % len(records)], labels[i % len(labels)]))
            for i in range(number)
        ]

    for future in teach(32 * count):  # warm-up, until batches are full
        future.result()
    began = time.perf_counter()
    for future in teach(lessons):
        future.result()
    return lessons / (time.perf_counter() - began)


# -------------------------------------------------------------------------------------- memory


def memory(given: argparse.Namespace) -> None:
    """RAM and disk of a leaf."""
    from anytimecl.scale.lowrank import compressed, size_of

    model = backbones.load("embedded")
    codec = make_codec(SETTINGS.codec, model.spec, model.tail)
    records = [codec.encode(tokens) for tokens in noise(model, 64)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for awake in (None, 1):
            leaves = Here(folder / str(awake), model, SETTINGS, awake=awake)
            before = _resident()
            for leaf in range(given.count):
                leaves.start([leaf])
                for i in range(8):
                    leaves.teach(leaf, LeafLesson(records[i], f"thing {i % 4}")).result()
            used = (_resident() - before) / given.count
            kept = "all awake" if awake is None else f"{awake} awake"
            print(f"{given.count} leaves, {kept}: {used / 1e6:.1f} MB of RAM a leaf", flush=True)
            leaves.close()
        files = sum(f.stat().st_size for f in leaf_folder(folder / "1", 0).rglob("*"))
        print(f"on disk, 8 examples: {files / 1e6:.1f} MB a leaf")
        leaf = Leaf.open(leaf_folder(folder / "1", 0), model=model)
        for i in range(given.steps):
            leaf.learn_record(LeafLesson(records[i % 64], f"thing {i % 12}"))
        learner = leaf._trainer.learner
        tokens = noise(model, 64)
        vectors = model.embed_labels([f"thing {i}" for i in range(12)])
        rows = torch.arange(12)
        with torch.no_grad():
            whole = learner.tuned_logits(tokens, vectors, rows).softmax(1)
            block = sum(p.nbytes for n, p in learner.params.items() if n.startswith("layers."))
            print(f"tuned block after {given.steps} steps: {block / 1e6:.1f} MB; as a difference:")
            print("| rank | MB | largest change of a probability |\n|---|---|---|")
            for rank in (1, 4, 16, 64):
                kept_block = compressed(learner.original, learner.params, rank)
                thin = model.spec.logit_scale * image_vectors_of(
                    model, kept_block.restored(learner.original), tokens
                )
                change = (thin @ vectors.T).softmax(1) - whole
                print(f"| {rank} | {size_of(kept_block) / 1e6:.2f} | {change.abs().max():.4f} |")
        leaf.close()


def image_vectors_of(model: Backbone, params: dict[str, Tensor], tokens: Tensor) -> Tensor:
    """Unit embeddings [image, dim] with other weights of the tail."""
    from anytimecl.tail import embed

    return torch.nn.functional.normalize(embed(params, model.spec.tail, tokens), dim=-1)


def _resident() -> int:
    """Resident memory of this process, in bytes."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


# ------------------------------------------------------------------------------------- regions


QUARTERS = [(x, y, x + 224, y + 224) for y in (0, 224) for x in (0, 224)]


def fours(split: Split, count: int) -> Iterator[tuple[PIL.Image.Image, list[PIL.Image.Image], Any]]:
    """Pictures composed of four images each, the four images, and their labels."""
    order = np.random.default_rng(0).permutation(len(split))[: 4 * count]
    for four in order[: len(order) // 4 * 4].reshape(-1, 4).tolist():
        crops = [split.load(i).resize((224, 224)) for i in four]
        picture = PIL.Image.new("RGB", (448, 448))
        for crop, box in zip(crops, QUARTERS, strict=True):
            picture.paste(crop, box)
        yield picture, crops, [split.labels[i] for i in four]


def regions(given: argparse.Namespace) -> None:
    """Compares regions with crops and the whole picture; then learns from regions."""
    from anytimecl.scale.regions import encode_regions, learn_region, predict_regions
    from anytimecl_lab.data import open_set

    model = backbones.load("embedded", device=given.device)
    print(
        "| task | images | crop encoded | region of one encoding | whole picture "
        f"| region, after {4 * given.taught} regions of others |"
    )
    print("|---" * 6 + "|")
    for name in given.tasks.split(","):
        task = open_set(name, given.data)
        clf = AnytimeClassifier.open(model=model)
        vectors = model.embed_labels(task.names)
        hits: dict[str, list[bool]] = defaultdict(list)
        for picture, crops, labels in fours(task.test, given.count):
            tokens = {"crop": model.encode(crops)}
            tokens["region"] = encode_regions(clf, model.spec, picture, QUARTERS)
            tokens["whole"] = model.encode([picture]).expand(4, -1, -1)
            for way, seen in tokens.items():
                best = (image_vectors(model, seen) @ vectors.T).argmax(1).tolist()
                hits[way] += [task.names[b] == y for b, y in zip(best, labels, strict=True)]
        for picture, _, labels in fours(task.train, given.taught) if task.train else ():
            for box, label in zip(QUARTERS, labels, strict=True):
                learn_region(clf, picture, box, label)
        for picture, _, labels in fours(task.test, given.count) if len(clf) else ():
            said = predict_regions(clf, picture, QUARTERS, task.names)
            hits["taught"] += [one.label == y for one, y in zip(said, labels, strict=True)]
        ways = ("crop", "region", "whole", "taught")
        cells = [f"{100 * np.mean(hits[way]):.1f}" if hits[way] else "-" for way in ways]
        print(f"| {name} | {len(hits['crop'])} | " + " | ".join(cells) + " |", flush=True)


# ------------------------------------------------------------------------- a billion examples


def billion(given: argparse.Namespace) -> None:
    """Constants of this machine, the model, the simulation, and costs of large goals."""
    constants = measured()
    print("| one core of this machine | |\n|---|---|")
    for name, (value, unit) in constants.items():
        print(f"| {name} | {value:,.4g} {unit} |")
    found = simulated(given.simulate, given.simulated, given.dim)
    copies, depth = found["copies"], found["depth"]
    expected = predicted_shape(given.simulate, given.simulated, found["early_fill"])
    print(f"\n| {given.simulate:,} examples, capacity {given.simulated:,} | model | simulation |")
    print("|---|---|---|")
    print(f"| leaves | {expected['leaves']:,.0f} | {found['leaves']:,.0f} |")
    print(f"| times an example is copied by splits | {expected['copies']:.2f} | {copies:.2f} |")
    print(f"| forks on the way to a leaf | {expected['depth']:.1f} | {depth:.1f} |")
    early = f"{found['early_fill']:.3f} at {found['early']:,} examples, as the model has it"
    print(f"\nfilled share of a leaf: {early}; {found['fill']:.3f} at the end")
    print(f"\nleaves of {given.capacity:,} examples, {given.cpus:g} core each:")
    print(
        "| examples | leaves | disk, GB | nodes for disk | for RAM | for cores "
        "| lessons/s of the most of these | days to learn them all | network, MB/s |"
    )
    print("|---" * 9 + "|")
    for power in range(5, 10):
        shape = predicted_shape(10**power, given.capacity, found["early_fill"])
        print(_row(10**power, shape, constants, given.cpus))
    _goals({name: number for name, (number, _) in constants.items()}, given.capacity)


def _goals(value: dict[str, float], capacity: int) -> None:
    """A billion examples, a million labels, 100,000 predictions a second."""
    day = 86_400_000.0  # milliseconds
    examples, labels, asked = 1e9, 1e6, 1e5
    encoding = (value["trunk"] + value["compress"]) * examples / day
    print("\n| goal | part | takes |\n|---|---|---|")
    rows = [
        ("a billion examples", "encode them", f"{encoding:,.0f} core-days"),
        ("", "route them, at the encoders", f"{value['route'] * examples / day:,.0f} core-days"),
        ("", "learn them, on cores", f"{value['step'] * examples / day:,.0f} core-days"),
        (
            "",
            "pass the router",
            f"{(value['router'] + value['call']) * examples / day:,.1f} days of its one core",
        ),
        (
            "",
            f"split a leaf of {capacity:,}, whose lessons wait meanwhile",
            f"{value['copy'] * capacity / 60_000:,.0f} minutes of one core",
        ),
        ("", "records", f"{value['record'] * examples / 1e12:.1f} TB"),
        ("", "keys", f"{value['key'] * examples / 1e9:,.0f} GB beside the routes"),
        ("a million labels", "embed them", f"{value['label'] * labels / day * 24:,.1f} core-hours"),
        ("", "vectors", f"{2048 * labels / 1e9:.1f} GB in each leaf and answering replica"),
        (
            "",
            "shortlist, an image",
            f"{value['shortlist'] * labels / 1e5:,.0f} ms of one core "
            f"({value['shortlist']:,.0f} measured with 100,000)",
        ),
        ("100,000 predictions a second", "trunk", f"{value['trunk'] * asked / 1000:,.0f} cores"),
        ("", "answers of 100 labels", f"{value['answer'] * asked / 1000:,.0f} cores"),
        (
            "",
            "a tree's router",
            f"{1000 / (value['question'] + value['call']):,.0f} a second are the most that one "
            "passes on",
        ),
    ]
    for goal, part, takes in rows:
        print(f"| {goal} | {part} | {takes} |")


def predicted_shape(examples: float, capacity: int, fill: float) -> dict[str, float]:
    """The capacity model: leaves, copies by splits, and depth.

    Every split copies the `capacity` examples of one leaf and adds one leaf, so each example is
    copied 1 / fill times. Even splits give log2(leaves) forks.
    """
    leaves = max(1.0, examples / (capacity * fill))
    return {
        "leaves": leaves,
        "copies": (leaves - 1) * capacity / examples,
        "depth": math.log2(leaves),
    }


class Node(NamedTuple):
    """Resources of a machine."""

    cores: int = 16
    ram: float = 64e9  # bytes
    disk: float = 4e12


NODE = Node()


class Needed(NamedTuple):
    """Number of nodes needed for each resource."""

    disk: int
    ram: int
    cores: int


def needed(disk: float, awake: float, leaf_ram: float, cpus: float, node: Node = NODE) -> Needed:
    """From bytes on disk and the number of loaded leaves, each with its RAM and cores."""
    amounts = disk / node.disk, awake * leaf_ram / node.ram, awake * cpus / node.cores
    return Needed(*(max(1, math.ceil(amount)) for amount in amounts))


def _row(examples: int, shape: dict[str, float], constants: dict[str, Any], cpus: float) -> str:
    value = {name: number for name, (number, _) in constants.items()}
    disk = examples * value["record"] + shape["leaves"] * value["leaf on disk"]
    held = examples / shape["leaves"]
    ram = value["leaf in RAM"] + min(CACHE_BYTES, held * value["record"]) + held * INDEX
    nodes = needed(disk, shape["leaves"], ram, cpus)
    work = value["route"] + value["step"] + shape["copies"] * value["copy"]
    # A leaf learns on one core, so at most one core per leaf is used; and every example
    # goes through the single router.
    router = 1 / (value["router"] + value["call"])
    rate = min(max(nodes) * NODE.cores / work, shape["leaves"] / value["step"], router) * 1000
    return (
        f"| {examples:,} | {shape['leaves']:,.0f} | {disk / 1e9:,.1f} | {nodes.disk:,} "
        f"| {nodes.ram:,} | {nodes.cores:,} | {rate:,.0f} | {examples / rate / 86400:,.2f} "
        f"| {rate * value['record'] / 1e6:,.1f} |"
    )


def measured() -> dict[str, tuple[float, str]]:
    """The constants, on one core of this machine."""
    torch.set_num_threads(1)
    model = backbones.load("embedded")
    codec = make_codec(SETTINGS.codec, model.spec, model.tail)
    tokens = noise(model, 256)
    records = [codec.encode(one) for one in tokens]
    labels = [f"thing {i}" for i in range(100)]
    vectors = model.embed_labels(labels)
    pixels = model.pixels(pictures())[:1]
    with tempfile.TemporaryDirectory() as name, _opened(Path(name) / "leaf", model) as leaf:
        for i in range(64):
            leaf.learn_record(LeafLesson(records[i], f"thing {i % 20}"))
        step = _milliseconds(
            lambda i: leaf.learn_record(LeafLesson(records[i % 256], f"thing {i % 20}")), 192
        )
        route = _milliseconds(lambda i: image_vectors(model, codec.decode([records[i % 256]])), 32)
        answer = _milliseconds(lambda i: leaf.answer(tokens[i : i + 1], labels, vectors), 32)
        made_up = torch.nn.functional.normalize(torch.randn(100_000, model.spec.dim), dim=1)
        many = ManyLabels.of([f"thing {i}" for i in range(100_000)], made_up)
        short = _milliseconds(lambda i: leaf.shortlist(tokens[i : i + 1], many), 8)
        began = time.process_time()
        assert leaf.divide((Path(name) / "a", Path(name) / "b")) is not None
        copy = (time.process_time() - began) * 1000 / len(leaf)
        leaf._save()
        disk = sum(f.stat().st_size for f in (Path(name) / "leaf/checkpoint").rglob("*"))
        router, question, key = _passing(Path(name) / "tree", model, records, tokens)
    fresh = iter(range(10**9))
    return {
        "trunk": (_milliseconds(lambda _: model.trunk(pixels), 32), "ms an image"),
        "compress": (_milliseconds(lambda i: codec.encode(tokens[i]), 64), "ms an image"),
        "route": (route, "ms, to decode a record and embed it"),
        "router": (router, "ms, to pass a lesson to its leaf"),
        "question": (question, "ms, to pass a question to its leaf and the answer back"),
        "call": (_ray_call(), "ms of an actor, to pass a call on by Ray and its answer back"),
        "step": (step, "ms, to store and learn an example"),
        "copy": (copy, "ms, to move an example when its leaf splits"),
        "answer": (answer, "ms, about an image over 100 labels"),
        "shortlist": (short, "ms, of 100,000 labels for an image"),
        "label": (
            _milliseconds(lambda _: model.require_text()([f"a thing {next(fresh)}"]), 32),
            "ms, to embed one",
        ),
        "record": (float(np.mean([len(r) for r in records])), "bytes (made-up pictures)"),
        "key": (key, "bytes in the index, of one of 20 characters"),
        "leaf on disk": (float(disk), "bytes, the checkpoint of weights and optimiser"),
        "leaf in RAM": (_leaf_in_ram(model, records), "bytes of its own, a process with one leaf"),
    }


def _ray_call(count: int = 2000) -> float:
    """Milliseconds of an actor to forward a call to another and return its result."""
    os.environ.setdefault("RAY_worker_niceness", "0")
    import ray

    class Leaf:
        def teach(self, what: bytes) -> int:
            return len(what)

    class Router:
        def __init__(self, leaf: Any) -> None:
            self._leaf = leaf

        async def learn(self, what: bytes) -> int:
            return int(await self._leaf.teach.remote(what))

        async def seconds(self) -> float:
            return time.process_time()

    ray.init("local", num_cpus=4, include_dashboard=False, log_to_driver=False)
    router = ray.remote(Router).options(max_concurrency=1000).remote(ray.remote(Leaf).remote())
    took = []
    for _ in range(2):  # the first round is the warm-up
        began = ray.get(router.seconds.remote())
        ray.get([router.learn.remote(b"record" * 500) for _ in range(count)])
        took.append(ray.get(router.seconds.remote()) - began)
    ray.shutdown()
    return 1000 * took[1] / count


class _Elsewhere(Here):
    """Leaves without cost for the router: theirs is counted separately."""

    def teach(self, leaf: int, lesson: LeafLesson) -> Future[Learned]:
        return _now(Learned(1, right=True, tuned=True, original=True))

    def ask(self, *_: Any) -> Future[LeafAnswer]:
        return _now(self.answer)

    answer: LeafAnswer


def _now(what: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(what)
    return future


def _passing(
    folder: Path, model: Backbone, records: Sequence[bytes], tokens: Tensor
) -> tuple[float, float, float]:
    """The router's own work for learning and for predicting, and bytes per key."""
    labels = [f"thing {i}" for i in range(100)]
    with TreeClassifier.open(folder, model=model, leaves=_Elsewhere) as tree:
        assert isinstance(tree.leaves, _Elsewhere)
        vectors = image_vectors(model, tokens)
        asked = tree._asked(labels)
        tree.leaves.answer = original_only(model, tokens[:1], asked.vectors)

        def lesson(i: int) -> None:
            at = i % len(records)
            key = f"{i:020d}"
            tree.submit(records[at], labels[i % 20], key=key, vector=vectors[at]).result()

        def question(i: int) -> None:
            at = i % len(records)
            tree.predict_tokens(tokens[at : at + 1], labels, vectors=vectors[at : at + 1])

        router, asking = _milliseconds(lesson, 2000), _milliseconds(question, 500)
    return router, asking, (folder / "keys.sqlite3").stat().st_size / 2000


def _leaf_in_ram(model: Backbone, records: Sequence[bytes]) -> float:
    """RAM of a leaf as on Ray, in a process without a trunk; without Ray's own."""
    labels = [f"thing {i}" for i in range(20)]
    with tempfile.TemporaryDirectory() as folder:
        write_tail(model, Path(folder))
        LabelFile(Path(folder)).put(dict(zip(labels, model.embed_labels(labels), strict=True)))
        lessons = [LeafLesson(record, labels[i % 20]) for i, record in enumerate(records[:64])]
        given = folder, 0, model.spec.to_dict(), SETTINGS.to_json(), lessons
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            return pool.apply(_own_bytes, given)


def _own_bytes(
    folder: str, leaf: int, spec: dict[str, Any], settings: str, lessons: Sequence[LeafLesson]
) -> float:
    host = LeafHost(folder, leaf, spec, settings)
    for lesson in lessons:
        host.teach(lesson)
    found = Path("/proc/self/smaps_rollup").read_text().split("Anonymous:")[1].split()[0]
    host.call("close")
    return float(found) * 1024


@contextmanager
def _opened(folder: Path, model: Backbone) -> Iterator[Leaf]:
    with Leaf.open(folder, model=model, settings=SETTINGS) as leaf:
        yield leaf


def _milliseconds(work: Any, times: int) -> float:
    began = time.process_time()  # CPU time: the machine may be shared
    for i in range(times):
        work(i)
    return (time.process_time() - began) * 1000 / times


def simulated(examples: int, capacity: int, dim: int, seed: int = 0) -> dict[str, float]:
    """Simulate routes and splits of a tree on synthetic embeddings, without weights or records.

    Embeddings are from clusters of very different sizes, like those of images. Leaves are checked
    after each chunk of the stream, so they may slightly exceed their capacity.
    """
    rng = np.random.default_rng(seed)
    kinds = rng.normal(size=(1000, dim)).astype(np.float32)
    shares = 1 / np.arange(1, 1001)
    shares /= shares.sum()
    routes = Routes.single(dim)
    held: dict[int, list[Tensor]] = {0: []}
    sizes: dict[int, int] = {0: 0}
    seen = copied = 0
    early: tuple[int, float] | None = None
    while seen < examples:
        stretch = int(min(examples - seen, max(200, min(20_000, capacity // 50 * len(sizes)))))
        of = rng.choice(1000, stretch, p=shares)
        fresh = kinds[of] + 0.5 * rng.normal(size=(stretch, dim)).astype(np.float32)
        for leaf, part in _routed(routes, torch.from_numpy(fresh)):
            held[leaf].append(part)
            sizes[leaf] += len(part)
        seen += stretch
        todo = [leaf for leaf, size in sizes.items() if size > capacity]
        while todo:
            leaf = todo.pop()
            own = torch.cat(held[leaf])
            halves = two_means(own)
            if halves is None:
                continue
            copied += len(own)
            routes, new = routes.split(leaf, halves.centres)
            del held[leaf], sizes[leaf]
            for side, child in enumerate(new):
                held[child] = [own[halves.side == side]]
                sizes[child] = len(held[child][0])
                if sizes[child] > capacity:
                    todo.append(child)
        if early is None and seen >= examples // 10:
            early = seen, seen / (len(sizes) * capacity)
    depths = _depths(routes)
    assert early is not None
    return {
        "leaves": float(len(sizes)),
        "fill": seen / (len(sizes) * capacity),
        "copies": copied / seen,
        "depth": sum(depths[leaf] * size for leaf, size in sizes.items()) / seen,
        "early": early[0],
        "early_fill": early[1],
    }


def _routed(routes: Routes, vectors: Tensor) -> Iterator[tuple[int, Tensor]]:
    """Embeddings grouped by leaf."""
    todo = [(0 if routes.children else -1, vectors)]
    while todo:
        at, some = todo.pop()
        if not len(some):
            continue
        if at < 0:
            yield -1 - at, some
            continue
        side = nearer(some, routes.centres[at])
        todo += [(routes.children[at][part], some[side == part]) for part in (0, 1)]


def _depths(routes: Routes) -> dict[int, int]:
    """Number of forks on the way to each leaf."""
    found, todo = {}, [(0 if routes.children else -1, 0)]
    while todo:
        at, depth = todo.pop()
        if at < 0:
            found[-1 - at] = depth
        else:
            todo += [(child, depth + 1) for child in routes.children[at]]
    return found


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    kinds = parser.add_subparsers(required=True)
    one = kinds.add_parser("capacity")
    one.add_argument("data", type=Path)
    one.add_argument("--tasks", default="cifar100")
    one.add_argument("--capacities", default="500,1000,2000,5000")
    one.add_argument("--seeds", default="0")
    one.add_argument("--device", default="cpu")
    one.add_argument("--per-class", type=int)
    one.add_argument("--validation", action="store_true")
    one.add_argument("--plot", type=Path)
    one.set_defaults(run=capacity)
    one = kinds.add_parser("throughput")
    one.add_argument("--leaves", default="1,2,4,8")
    one.add_argument("--nodes", default="1,2")
    one.add_argument("--lessons", type=int, default=200)
    one.set_defaults(run=throughput)
    one = kinds.add_parser("memory")
    one.add_argument("--count", type=int, default=8, help="leaves")
    one.add_argument("--steps", type=int, default=200)
    one.set_defaults(run=memory)
    one = kinds.add_parser("regions")
    one.add_argument("--taught", type=int, default=75, help="pictures of four to learn from")
    one.add_argument("data", type=Path)
    one.add_argument("--tasks", default="caltech101,pets,resisc12")
    one.add_argument("--count", type=int, default=40, help="pictures of four")
    one.add_argument("--device", default="cpu")
    one.set_defaults(run=regions)
    one = kinds.add_parser("encode")
    one.add_argument("--workers", default="1,2,4")
    one.add_argument("--images", type=int, default=384)
    one.add_argument("--rounds", type=int, default=3)
    one.add_argument("--ray", action="store_true")
    one.set_defaults(run=encode)
    one = kinds.add_parser("serve")
    one.add_argument("--replicas", default="1,2")
    one.add_argument("--images", type=int, default=64, help="of a question")
    one.add_argument("--labels", type=int, default=500)
    one.add_argument("--seconds", type=float, default=15.0)
    one.add_argument("--shares", default="1,0.5", help="of a core, that a replica may have")
    one.set_defaults(run=serve)
    one = kinds.add_parser("stopped")
    one.add_argument("--leaves", type=int, default=4)
    one.add_argument("--seconds", type=float, default=10.0)
    one.set_defaults(run=stopped)
    one = kinds.add_parser("split")
    one.add_argument("--examples", type=int, default=10_000)
    one.add_argument("--seconds", type=float, default=20.0, help="of lessons before")
    one.add_argument("--folder", type=Path, help="a tree to fill, or one that was filled so")
    one.set_defaults(run=split)
    one = kinds.add_parser("labels")
    one.add_argument("data", type=Path)
    one.add_argument("--counts", default="1000,5000,10000,17000")
    one.add_argument("--taught", type=int, default=400)
    one.add_argument("--asked", type=int, default=200)
    one.set_defaults(run=many_labels)
    one = kinds.add_parser("billion")
    one.add_argument("--simulate", type=int, default=10_000_000)
    one.add_argument("--simulated", type=int, default=10_000, help="capacity in the simulation")
    one.add_argument("--capacity", type=int, default=1_000_000, help="in the table")
    one.add_argument("--dim", type=int, default=8)
    one.add_argument("--cpus", type=float, default=1.0, help="that a leaf asks of its node")
    one.set_defaults(run=billion)
    given = parser.parse_args(words)
    given.run(given)


if __name__ == "__main__":
    main()
