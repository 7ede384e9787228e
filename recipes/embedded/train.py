"""Teach a sentence encoder CLIP's vectors of names.

    python -m recipes.embedded.train INPUTS SPLIT OUT [field=value ...]

INPUTS is what `prepare` and `pack` wrote, SPLIT one of `validation`, `families` and `everything`.
OUT becomes a file of weights, of which `recipes.embedded.finish` makes what the package carries.
Training takes the time that it is given: on a GPU a step is one CUDA graph.
"""

from __future__ import annotations

import dataclasses
import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from recipes.embedded.encoder import NameEncoder, load_weights
from recipes.embedded.pieces import Forms, Pieces
from recipes.embedded.targets import in_bytes


@dataclass(frozen=True)
class Config:
    """Every choice; the defaults are what the committed weights were made with."""

    steps: int = 1500
    until: float = math.inf  # the clock's time at which to stop, whatever was done
    batch: int = 512
    classes: int = 320  # ImageNet classes in each batch of the image loss
    lr: float = 6e-4
    cosine: float = 10.0  # 1 - cos to the true vector
    image: float = 0.5  # difference of logits on ImageNet images
    relation: float = 1.0  # KL between the names' similarities, true and given
    cross_entropy: float = 0.3  # against ImageNet images
    mix: float = 0.5  # share of true vectors among the candidates of the image loss
    template: float = 0.15  # how often a name is put into a prompt
    context: float = 0.6  # how often a name comes with what WordNet says of it
    seed: int = 0
    graph: bool = True


class Data:
    """What is drawn from, on the device."""

    def __init__(self, folder: Path, split: str, device: str) -> None:
        raw, words = np.load(folder / f"{split}.npz"), np.load(folder / "texts.npz")
        put = lambda array: torch.from_numpy(array).to(device)  # noqa: E731
        forms = {
            kind: Pieces.of(put(words[kind].astype(np.int64)), put(words[f"{kind}_length"]))
            for kind in ("bare", "full")
        }
        self.forms = Forms(forms["bare"], forms["full"])
        self.rows = put(raw["rows"])
        values = put(raw["targets"]).float() * put(raw["scales"]).unsqueeze(1)
        self.targets = F.normalize(values, dim=-1)
        self.shares = put(raw["weights"]).cumsum(0)
        self.head = put(raw["head"]).float()
        self.map = {n: raw[f"map_{n}"] for n in ("matrix", "from", "to")}
        found = np.load(folder / "images.npz")
        images = F.normalize(put(found["images"]).float(), dim=-1)
        image_class = put(found["image_class"])
        held = torch.zeros(len(raw["counts"]), dtype=torch.bool, device=device)
        held[put(raw["held"]).long()] = True
        self.taught = torch.where(~held)[0]
        place = torch.full((len(held),), -1, device=device)
        place[self.taught] = torch.arange(len(self.taught), device=device)
        usable = torch.where(place[image_class] >= 0)[0]
        self.images, self.place = images[usable], place[image_class[usable]]
        self.centred = images - images.mean(0)
        counts = put(raw["counts"])
        self.starts = (counts.cumsum(0) - counts)[self.taught]
        self.counts = counts[self.taught]
        self.synonyms = put(raw["synonyms"])
        self.class_vectors = put(raw["class_vectors"]).float()[self.taught]


class Step:
    """One step of training, all of it on the device, so that a CUDA graph can hold it."""

    def __init__(self, data: Data, encoder: NameEncoder, config: Config, device: str) -> None:
        self.data, self.encoder, self.config, self.device = data, encoder, config, device
        self.log_scale = torch.tensor(math.log(60.0), device=device)
        self.body, head = encoder.tuned("bert"), encoder.tuned("head")
        for value in (*self.body, *head, self.log_scale):
            value.requires_grad_()
        on_gpu = device != "cpu"
        self.rates = [torch.tensor(0.0, device=device) for _ in range(3)]
        groups = [
            {"params": self.body, "lr": self.rates[0], "weight_decay": 0.0},
            {"params": head, "lr": self.rates[1], "weight_decay": 1e-4},
            {"params": [self.log_scale], "lr": self.rates[2], "weight_decay": 0.0},
        ]
        self.optimiser = torch.optim.AdamW(
            groups, betas=(0.9, 0.98), fused=on_gpu or None, capturable=on_gpu
        )
        self.loss = torch.zeros((), device=device)

    def set_rate(self, done: float, step: int) -> None:
        """A short start, then half a cosine over what is to be done."""
        rate = min(1.0, (step + 1) / 100) * (0.5 + 0.5 * math.cos(math.pi * done) + 0.01)
        factors = (self.config.lr, 3 * self.config.lr, 1e-3)
        for tensor, factor in zip(self.rates, factors, strict=True):
            tensor.fill_(factor * rate)

    def __call__(self) -> None:
        self.optimiser.zero_grad(set_to_none=True)
        loss = self._loss()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.body, 1.0)
        self.optimiser.step()
        self.loss.copy_(loss.detach())

    def _loss(self) -> Tensor:
        data, config = self.data, self.config
        drawn = self._drawn()
        some = self._random(len(data.taught)).argsort()[: config.classes]
        pick = data.starts[some] + (self._random(len(some)) * data.counts[some]).long()
        given, candidates = self._read(data.rows[drawn], data.synonyms[pick])
        true = data.targets[drawn]
        loss = config.cosine * (1 - (given * true).sum(1)).mean()
        sample = data.centred[(self._random(2048) * len(data.centred)).long()]
        loss = loss + config.image * ((given - true) @ sample.T * 100).pow(2).mean()
        same = drawn.unsqueeze(1) == drawn
        loss = loss + config.relation * relation_loss(given, true, same)
        return loss + config.cross_entropy * self._image_loss(candidates, some)

    def _random(self, *shape: int) -> Tensor:
        return torch.rand(*shape, device=self.device)

    def _drawn(self) -> Tensor:
        """Rows of names, by their weights."""
        shares = self.data.shares
        found = torch.searchsorted(shares, self._random(self.config.batch) * shares[-1])
        return found.clamp(max=len(shares) - 1)

    def _template(self, count: int) -> Tensor:
        """The prompt that each of some names is put into; mostly none."""
        last = len(self.data.forms.bare.ids) - 1
        prompt = 1 + (self._random(count) * last).long()
        return torch.where(self._random(count) < self.config.template, prompt, 0)

    def _read(self, names: Tensor, classes: Tensor) -> tuple[Tensor, Tensor]:
        """Vectors of names and of classes, some read with their contexts and some bare."""
        forms, share = self.data.forms, self.config.context
        vectors = []
        for of_names, of_classes in zip(
            forms.draw(names, self._template(len(names)), share),
            forms.draw(classes, self._template(len(classes)), share),
            strict=True,
        ):
            made = self.encoder(Pieces.joined([of_names, of_classes]))
            vectors.append(made.split([len(of_names.ids), len(of_classes.ids)]))
        given, candidates = (torch.cat(parts) for parts in zip(*vectors, strict=True))
        return given, candidates

    def _image_loss(self, given: Tensor, some: Tensor) -> Tensor:
        """Some of the names have their true vectors, so that both kinds can compete."""
        data = self.data
        own = self._random(len(some), 1) < self.config.mix
        candidates = torch.where(own, data.class_vectors[some], given)
        column = torch.full((len(data.taught),), -1, device=self.device)
        column = column.scatter(0, some, torch.arange(len(some), device=self.device))
        shown = (self._random(1024) * len(data.images)).long()
        logits = data.images[shown] @ candidates.T * self.log_scale.exp()
        return F.cross_entropy(logits, column[data.place[shown]], ignore_index=-1)


def relation_loss(given: Tensor, true: Tensor, same: Tensor, sharpness: float = 30.0) -> Tensor:
    """KL between how names relate to each other, in the true space and in ours."""
    blank = -1e4
    ours = (given @ given.T * sharpness).masked_fill(same, blank).log_softmax(1)
    theirs = (true @ true.T * sharpness).masked_fill(same, blank).log_softmax(1)
    return F.kl_div(ours, theirs, log_target=True, reduction="batchmean")


def as_graph(step: Step) -> Callable[[], None]:
    """The same step, replayed at once."""
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    step.optimiser.zero_grad(set_to_none=True)
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def train(data: Data, folder: Path, config: Config, device: str) -> NameEncoder:
    """One run, until the steps or the time are over."""
    torch.manual_seed(config.seed)
    encoder = NameEncoder(load_weights(folder), device)
    encoder.weights["head.weight"] = data.head[:-1].T.contiguous()
    encoder.weights["head.bias"] = data.head[-1].clone()
    encoder.training = True
    step = Step(data, encoder, config, device)
    act = as_graph(step) if config.graph and device != "cpu" else step
    start = time.time()
    for number in range(config.steps):
        if number % 10 == 0:
            if device != "cpu":
                torch.cuda.synchronize()
            now = time.time()
            spent = (now - start) / (config.until - start)
            if spent >= 1:
                break
            if number % 200 == 0:
                print(f"{now - start:.1f} s, step {number}: {step.loss.item():.3f}", flush=True)
        step.set_rate(max(spent, number / config.steps), number)
        act()
    print(f"{number + 1} steps, {time.time() - start:.1f} s: {step.loss.item():.3f}")
    encoder.training = False
    return encoder


def save(encoder: NameEncoder, data: Data, folder: Path, file: Path) -> None:
    """What training changed, in int8, and the map of the wheel's names."""
    start, small = load_weights(folder), {}
    for name, tuned in encoder.weights.items():
        change = tuned.detach().cpu() - start.get(name, 0)
        if change.ndim == 2 and change.any():
            small[name], small[name + ".scale"] = in_bytes(change)
        elif change.any():
            small[name] = change.numpy()
    for name, value in data.map.items():
        small[f"map.{name}"] = value
    np.savez(file, **small)  # type: ignore[arg-type]


def main(folder: Path, split: str, out: Path, changes: dict[str, str]) -> None:
    began = time.perf_counter()
    kinds: dict[str, Any] = {f.name: type(f.default) for f in dataclasses.fields(Config)}
    read = {int: int, float: float, bool: lambda word: word == "1"}
    config = Config(**{name: read[kinds[name]](value) for name, value in changes.items()})
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cuda.matmul.allow_tf32 = True
    data = Data(folder, split, device)
    print(
        f"{split}: {len(data.rows):,} names after {time.perf_counter() - began:.1f} s", flush=True
    )
    out.parent.mkdir(parents=True, exist_ok=True)
    save(train(data, folder, config, device), data, folder, out)


if __name__ == "__main__":
    given = dict(a.split("=", 1) for a in sys.argv[4:])
    main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), given)
