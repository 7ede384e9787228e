"""The paper's method, slowly: plain autograd over the whole block, its equations one by one.

    python -m tests.lab.reference DATA OUT [--tasks pets,resisc12] [--seeds 0,1] [--device cuda]
                                  [--minutes 9]

Shares nothing with the method in `src` but encoded images, label vectors and seeds. Prints
its accuracy after every stage of data-incremental learning beside that of the paper's setting of
the lab, and the largest difference. OUT gets a JSON line for every task and seed; those that it has
are not run again, so the same command goes on (status 3: some are left).
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random

import torch
import torch.nn.functional as F
from torch import Tensor

from anytimecl_lab._clock import Clock
from anytimecl_lab._progress import tell
from anytimecl_lab.ask import about, run_cell
from anytimecl_lab.features import features
from anytimecl_lab.recipe import Cell, Contestant, Recipe
from anytimecl_lab.results import key_of, read_lines
from anytimecl_lab.run import LEFT, cells_of, undone
from anytimecl_lab.studio import Studio
from anytimecl_lab.table import Table

ASKED = 64  # images that are asked about at a time
SCALE, BETA, ETA, EPSILON = 100.0, 0.1, 0.99, 1e-8


class Reference:
    """A model that learns tokens [example, token, width] one by one."""

    def __init__(
        self,
        params: Mapping[str, Tensor],
        layer: int,
        heads: int,
        norm_eps: float,
        activation: str,
        vectors: Mapping[str, Tensor],
        *,
        seed: int = 0,
        batch: int = 32,
        lr: float = 9.375e-6,
    ) -> None:
        self.fixed = {name: value.clone() for name, value in params.items()}
        self.block = {
            name: value.clone().requires_grad_()
            for name, value in params.items()
            if name.startswith("layers.")
        }
        device = next(iter(params.values())).device
        self.other = torch.zeros((), device=device, requires_grad=True)  # a bias, in logits
        self.at, self.heads, self.eps = f"layers.{layer}.", heads, norm_eps
        self.activation = activation
        self.vectors = vectors
        self.seed, self.batch = seed, batch
        self.optimiser = torch.optim.AdamW(
            [*self.block.values(), self.other], lr=lr, weight_decay=0.05
        )
        self.stored: list[tuple[Tensor, str]] = []
        self.members: dict[str, list[int]] = {}  # label -> its examples, in order of appearance
        self.right: dict[str, list[tuple[bool, bool]]] = {}  # label -> tuned, original

    def learn(self, tokens: Tensor, label: str) -> None:
        """Score, then one step on the newcomer and a class-balanced batch, then store."""
        drawn = self._draw()
        self.members.setdefault(label, [])
        names = list(self.members)
        batch = [(tokens, label), *(self.stored[i] for i in drawn)]
        target = torch.tensor([names.index(y) for _, y in batch], device=tokens.device)
        logits = self._logits(torch.stack([x for x, _ in batch]), names, self.block)
        with torch.no_grad():
            original = self._logits(tokens[None], names, {})
        tuned = bool(logits[0].argmax() == target[0])
        self.right.setdefault(label, []).append((tuned, bool(original[0].argmax() == target[0])))
        loss = self._loss(logits, target)
        self.optimiser.zero_grad()
        loss.backward()
        self.optimiser.step()
        self.members[label].append(len(self.stored))
        self.stored.append((tokens, label))

    def _draw(self) -> list[int]:
        """min(B - 1, labels) labels, equally many examples of each."""
        random = Random(f"{self.seed}:{len(self.stored) + 1}")
        room = self.batch - 1
        labels = random.sample(list(self.members), min(room, len(self.members)))
        each = room // len(labels) if labels else 0
        drawn = []
        for label in labels:
            own = self.members[label]
            enough = len(own) >= each
            drawn += random.sample(own, each) if enough else random.choices(own, k=each)
        return drawn

    def _loss(self, logits: Tensor, target: Tensor) -> Tensor:
        """Eq. 3, example by example."""
        total = torch.zeros((), device=logits.device)
        for row, y in zip(logits, target.tolist(), strict=True):
            everything = torch.cat([row, self.other[None]])
            absent = torch.cat([row[:y], row[y + 1 :], self.other[None]])
            total = total - everything.log_softmax(0)[y]
            total = total - BETA * absent.log_softmax(0)[-1]
        return total / len(logits)

    def _logits(self, tokens: Tensor, names: Sequence[str], block: Mapping[str, Tensor]) -> Tensor:
        """Eq. 2, before the softmax."""
        images = self._embed(tokens, {**self.fixed, **block})
        labels = torch.stack([self.vectors[name] for name in names]).to(images)
        return SCALE * F.cosine_similarity(images[:, None], labels[None], dim=-1)

    def _embed(self, x: Tensor, p: Mapping[str, Tensor]) -> Tensor:
        """A whole transformer block over all tokens, the class token's end of it projected."""
        at, width = self.at, x.shape[-1]

        def norm(name: str, values: Tensor) -> Tensor:
            return F.layer_norm(values, (width,), p[f"{name}.weight"], p[f"{name}.bias"], self.eps)

        def linear(name: str, values: Tensor) -> Tensor:
            return values @ p[f"{name}.weight"].T + p[f"{name}.bias"]

        y = norm(f"{at}layer_norm1", x)
        shape = (*x.shape[:2], self.heads, width // self.heads)
        q, k, v = (linear(f"{at}self_attn.{n}_proj", y).view(shape).transpose(1, 2) for n in "qkv")
        attention = (q @ k.transpose(-1, -2) / shape[-1] ** 0.5).softmax(-1)
        mixed = (attention @ v).transpose(1, 2).reshape(x.shape)
        x = x + linear(f"{at}self_attn.out_proj", mixed)
        inner = linear(f"{at}mlp.fc1", norm(f"{at}layer_norm2", x))
        quick = self.activation == "quick_gelu"
        inner = inner * torch.sigmoid(1.702 * inner) if quick else F.gelu(inner)
        x = x + linear(f"{at}mlp.fc2", inner)
        return norm("post_layernorm", x[:, 0]) @ p["visual_projection.weight"].T

    def estimates(self, label: str) -> tuple[float, float]:
        """Eq. 4: a mean over the first 1 / (1 - eta) examples, then a moving average."""
        first = round(1 / (1 - ETA))
        found = []
        for model in (0, 1):
            value = 0.0
            for number, told in enumerate(self.right.get(label, []), start=1):
                old = (number - 1) / number if number <= first else ETA
                value = old * value + (1 - old) * told[model]
            found.append(value)
        return found[0], found[1]

    @torch.no_grad()
    def predict(self, tokens: Tensor, names: Sequence[str]) -> Tensor:
        """Eq. 1 with the weights of Eq. 5."""
        tuned = self._logits(tokens, names, self.block).softmax(1)
        original = self._logits(tokens, names, {}).softmax(1)
        weights = []
        for name in names:
            c_t, c_o = self.estimates(name)
            weights.append(c_t / (c_t + c_o + EPSILON) if name in self.right else 0.0)
        alpha = torch.tensor(weights, device=tokens.device)
        return alpha * tuned + (1 - alpha) * original


def compare(studio: Studio, cell: Cell) -> list[tuple[str, float, float]]:
    """Stage, accuracy of the reference, accuracy of the lab, in per cent."""
    model, task = studio.backbone, cell.subject
    part, place = studio.train[task], studio.places[task].start
    arrays = features(part.split, model, part.chosen)
    asked, names = studio.test[task], studio.sets[task].names
    tests = features(asked.split, model, asked.chosen)
    tail = model.spec.tail
    shape = (tail.last, tail.heads, tail.norm_eps, tail.activation)
    slow = Reference(model.tail, *shape, studio.vectors, seed=cell.seed)
    told = []
    results = run_cell(studio, cell)["results"]
    for stage, line in zip(studio.streams(task, cell.seed)[0], results, strict=True):
        for i in stage.examples:
            tokens = torch.from_numpy(arrays[part.chosen[i - place]]).float()
            slow.learn(tokens.to(studio.device), studio.labels[i])
        right = 0
        for start in range(0, len(asked.chosen), ASKED):
            some = list(asked.chosen[start : start + ASKED])
            tokens = torch.from_numpy(tests[some]).float().to(studio.device)
            best = slow.predict(tokens, names).argmax(1).tolist()
            right += sum(names[n] == asked.split.labels[i] for n, i in zip(best, some, strict=True))
        told.append(
            (stage.name, 100 * right / len(asked.chosen), line["answers"]["task"][task]["ocw"])
        )
        tell(f"{task}, seed {cell.seed}, {told[-1][0]}: {told[-1][1]:.2f} {told[-1][2]:.2f}")
    return told


def main(words: Sequence[str] | None = None) -> int:
    """The program."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--tasks", default="pets,resisc12")
    parser.add_argument("--seeds", default="0,1")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--backbone", default="embedded")
    parser.add_argument("--per-class", type=int)
    parser.add_argument("--minutes", type=float, help="begin nothing that would not end by then")
    given = parser.parse_args(words)
    clock = Clock(given.minutes)
    recipe = Recipe(
        "reference",
        "",
        "data-incremental",
        tuple(given.tasks.split(",")),
        (Contestant("the lab's", "online", {"paper": True}),),
        seeds=tuple(int(seed) for seed in given.seeds.split(",")),
        per_class=given.per_class,
        backbone=given.backbone,
    )
    studio = Studio(recipe, given.data, given.device)
    cells = cells_of({recipe.name: studio})
    todo = undone({recipe.name: studio}, cells, given.out)
    for number, cell in enumerate(todo):
        spent = [float(line["seconds"]) for line in read_lines(given.out)]
        if number and clock.left() < max(spent):
            break
        began = time.perf_counter()
        stages = compare(studio, cell)
        line = about(studio, cell) | {"stages": stages}
        with given.out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line | {"seconds": time.perf_counter() - began}) + "\n")
    left = undone({recipe.name: studio}, cells, given.out)
    wanted = {cell.key for cell in cells} - {cell.key for cell in left}
    lines = {key_of(line): line for line in read_lines(given.out) if key_of(line) in wanted}
    told = [(line, *stage) for line in lines.values() for stage in line["stages"]]
    rows = [
        [str(line["subject"]), str(line["seed"]), name, f"{slow:.2f}", f"{fast:.2f}"]
        for line, name, slow, fast in told
    ]
    worst = max((abs(slow - fast) for *_, slow, fast in told), default=0.0)
    note = f"Largest difference: {worst:.2f}. Left: {len(left)} of {len(cells)}."
    headings = ["task", "seed", "examples", "reference", "lab"]
    sys.stdout.write(Table("The paper's setting", headings, rows, note).markdown())
    return LEFT if left else 0


if __name__ == "__main__":
    sys.exit(main())
