"""Teach a sentence encoder CLIP's vectors of names.

    python -m recipes.embedded.train INPUTS OUT [field=value ...]

INPUTS is what `prepare` wrote; OUT receives `text.safetensors` (to be committed) and
`report.json`. Fields of `Config` can be set for ablations. About two minutes on an H200.
"""

from __future__ import annotations

import dataclasses
import json
import math
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor

from anytimecl.backbone.embedded.text import difference, plain_name
from recipes.embedded.encoder import NameEncoder

PLAIN = ("imagenet998_TML25", "broden1197_clipdissect")  # sources with plain names, not prompts
ENSEMBLES = ("cocostuff171_zegclip_multi", "ade150_brsacr", "cocopanoptic133_clipself")
TEMPLATES = ("{}", "a photo of a {}.", "an image of the {}")
PIECES = 20  # word pieces of the longest name that training reads whole


@dataclass(frozen=True)
class Config:
    """Every choice; the defaults are what the committed weights were made with."""

    steps: int = 1800
    batch: int = 512
    classes: int = 400  # ImageNet classes in each batch of the image loss
    lr: float = 6e-4
    cosine: float = 10.0  # 1 - cos to the true vector
    image: float = 0.5  # difference of logits on ImageNet images
    relation: float = 1.0  # KL between the names' similarities, true and given
    cross_entropy: float = 0.3  # against ImageNet images
    mix: float = 0.5  # share of true vectors among the candidates of the image loss
    template: float = 0.15  # how often a batch is put into a prompt
    stay: float = 0.05  # pull towards the original weights
    true_weight: float = 3.0  # how often true ViT-B/16 names are drawn, against mapped ones
    ridge: float = 0.1
    held_out: int = 150  # ImageNet classes never trained on: validation, scale and trust
    seed: int = 0


@dataclass
class Names:
    """Names with targets, and how often each is drawn."""

    texts: list[str]
    targets: Tensor  # [name, DIM]
    weights: Tensor  # [name]


def ridge_map(source: Tensor, target: Tensor, strength: float) -> dict[str, Tensor]:
    """The affine map from one text space to another."""
    start, end = source.mean(0), target.mean(0)
    a, b = (source - start).double(), (target - end).double()
    eye = torch.eye(a.shape[1], dtype=a.dtype, device=a.device)
    matrix = torch.linalg.solve(a.T @ a + strength * eye, a.T @ b).float()
    return {"from": start, "matrix": matrix, "to": end}


def apply_map(fitted: dict[str, Tensor], x: Tensor) -> Tensor:
    return F.normalize((x - fitted["from"]) @ fitted["matrix"] + fitted["to"], dim=-1)


class Inputs:
    """All data, on the device; held-out classes appear in no training list."""

    def __init__(self, folder: Path, config: Config, device: str) -> None:
        raw = np.load(folder / "inputs.npz")
        unit = lambda name: F.normalize(torch.from_numpy(raw[name]).float(), dim=-1).to(device)  # noqa: E731
        self.images = unit("images")
        self.image_class = torch.from_numpy(raw["image_class"]).to(device)
        self.synonyms = [[plain_name(s) for s in c.split(",")] for c in raw["class_names"]]
        order = np.random.default_rng(config.seed).permutation(len(self.synonyms))
        self.held = torch.zeros(len(order), dtype=torch.bool, device=device)
        self.held[order[: config.held_out]] = True
        held_names = {s for i in order[: config.held_out] for s in self.synonyms[i]}

        vectors, sources = unit("true_vectors"), raw["true_source"]
        gather = lambda wanted: {  # noqa: E731
            plain_name(str(raw["true_names"][i])): vectors[i]
            for source in reversed(wanted)
            for i in np.flatnonzero(sources == source)
        }
        self.true = gather(PLAIN)
        ensembles = gather(ENSEMBLES)
        names = map(str, raw["known_names"])
        self.raw_known = dict(zip(names, unit("known_vectors"), strict=True))  # ViT-B/32's space
        self.map = self.fit_map(held_names, config.ridge)
        mapped = apply_map(self.map, torch.stack(list(self.raw_known.values())))
        self.known = dict(zip(self.raw_known, mapped, strict=True))
        from_ensemble = ridge_map(
            *(
                torch.stack([t[n] for n in ensembles if n in self.true and n not in held_names])
                for t in (ensembles, self.true)
            ),
            strength=6 * config.ridge,
        )
        rows: list[tuple[str, Tensor, float]] = [
            (n, v, config.true_weight) for n, v in self.true.items()
        ]
        rows += [
            (n, apply_map(from_ensemble, v), 2.0)
            for n, v in ensembles.items()
            if n not in self.true
        ]
        rows += [
            (n, v, 0.6 if len(n) > 2 else 0.2) for n, v in self.known.items() if n not in self.true
        ]
        self.first = [next(s for s in names if s in self.true) for names in self.synonyms]
        for first, names in zip(self.first, self.synonyms, strict=True):
            rows += [(s, self.true[first], 0.7) for s in names if s not in self.true]
        rows = [row for row in rows if row[0] not in held_names]
        self.names = Names(
            [r[0] for r in rows],
            torch.stack([r[1] for r in rows]),
            torch.tensor([r[2] for r in rows]),
        )
        self.class_vectors = torch.stack([self.true[first] for first in self.first])

    def fit_map(self, away: set[str], strength: float) -> dict[str, Tensor]:
        """ViT-B/32's text space to ViT-B/16's, from the names known in both but not `away`."""
        both = [n for n in self.true if n in self.raw_known and n not in away]
        source, target = (torch.stack([t[n] for n in both]) for t in (self.raw_known, self.true))
        return ridge_map(source, target, strength)


class Reader:
    """Texts to the encoder's inputs, on the device."""

    def __init__(self, folder: Path, device: str) -> None:
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.tokenizer.enable_truncation(PIECES)
        self.tokenizer.enable_padding(length=PIECES)
        self.device = device

    def __call__(self, texts: list[str]) -> tuple[Tensor, Tensor]:
        """Ids and mask, each [text, piece]."""
        pieces = self.tokenizer.encode_batch(texts)
        ids = torch.tensor([p.ids for p in pieces], device=self.device)
        return ids, torch.tensor([p.attention_mask for p in pieces], device=self.device)


def relation_loss(given: Tensor, true: Tensor, same: Tensor, sharpness: float = 30.0) -> Tensor:
    """KL between how names relate to each other, in the true space and in ours."""
    blank = -1e4
    ours = (given @ given.T * sharpness).masked_fill(same, blank).log_softmax(1)
    theirs = (true @ true.T * sharpness).masked_fill(same, blank).log_softmax(1)
    return F.kl_div(ours, theirs, log_target=True, reduction="batchmean")


def train(inputs: Inputs, reader: Reader, folder: Path, config: Config, device: str) -> NameEncoder:
    torch.manual_seed(config.seed)
    encoder = NameEncoder.untrained(json.loads((folder / "minilm.json").read_text()))
    original = {k: v.float() for k, v in load_file(folder / "minilm.safetensors").items()}
    encoder.load_state_dict(original, strict=False)
    encoder.to(device).train()
    for name, parameter in encoder.named_parameters():
        parameter.requires_grad_("embeddings" not in name)
    names = inputs.names
    prompts = [reader([t.format(n) for n in names.texts]) for t in TEMPLATES]
    start_head(encoder, prompts[0], names, device)

    taught = torch.where(~inputs.held)[0]
    class_texts = [s for i in taught.tolist() for s in inputs.synonyms[i]]
    class_inputs = reader(class_texts)
    counts = torch.tensor([len(inputs.synonyms[i]) for i in taught.tolist()], device=device)
    starts = counts.cumsum(0) - counts
    place = torch.full_like(inputs.held, -1, dtype=torch.long)
    place[taught] = torch.arange(len(taught), device=device)
    usable = torch.where(place[inputs.image_class] >= 0)[0]
    images, image_place = inputs.images[usable], place[inputs.image_class[usable]]
    centred = inputs.images - inputs.images.mean(0)

    body = [p for n, p in encoder.named_parameters() if p.requires_grad and n.startswith("bert")]
    fresh = list(encoder.head.parameters())
    anchor = [p.detach().clone() for p in body]
    log_scale = torch.tensor(math.log(60.0), device=device, requires_grad=True)
    groups = [
        {"params": body, "lr": config.lr, "weight_decay": 0.0},
        {"params": fresh, "lr": 3 * config.lr, "weight_decay": 1e-4},
        {"params": [log_scale], "lr": 1e-3, "weight_decay": 0.0},
    ]
    optimiser = torch.optim.AdamW(groups, betas=(0.9, 0.98), fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimiser,
        lambda k: (
            min(1.0, (k + 1) / 200) * (0.5 + 0.5 * math.cos(math.pi * k / config.steps) + 0.01)
        ),
    )
    generator = torch.Generator(device).manual_seed(config.seed)
    random = lambda *shape: torch.rand(*shape, device=device, generator=generator)  # noqa: E731
    weights = names.weights.to(device)
    for step in range(config.steps):
        drawn = torch.multinomial(weights, config.batch, replacement=True, generator=generator)
        prompt = 1 + step % (len(prompts) - 1) if random(()) < config.template else 0
        ids, mask = (part[drawn] for part in prompts[prompt])

        some = torch.randperm(len(taught), device=device, generator=generator)[: config.classes]
        pick = starts[some] + (random(len(some)) * counts[some]).long()
        class_ids, class_mask = (part[pick] for part in class_inputs)

        both = encoder(torch.cat([ids, class_ids]), torch.cat([mask, class_mask]))
        given, candidates = both[: len(drawn)], both[len(drawn) :]
        true = names.targets[drawn]
        loss = config.cosine * (1 - (given * true).sum(1)).mean()
        sample = centred[torch.randint(len(centred), (2048,), device=device, generator=generator)]
        loss = loss + config.image * ((given - true) @ sample.T * 100).pow(2).mean()
        same = drawn.unsqueeze(1) == drawn
        loss = loss + config.relation * relation_loss(given, true, same)

        given_classes = random(len(some), 1) < config.mix
        candidates = torch.where(given_classes, inputs.class_vectors[taught[some]], candidates)
        column = torch.full((len(taught),), -1, device=device)
        column[some] = torch.arange(len(some), device=device)
        shown = torch.randint(len(images), (1024,), device=device, generator=generator)
        logits = images[shown] @ candidates.T * log_scale.exp()
        loss = loss + config.cross_entropy * F.cross_entropy(
            logits, column[image_place[shown]], ignore_index=-1
        )
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(body, 1.0)
        optimiser.step()
        schedule.step()
        with torch.no_grad():
            pull = config.stay * schedule.get_last_lr()[0]
            torch._foreach_lerp_([p.data for p in body], anchor, pull)
        if step % 500 == 0:
            print(f"step {step}: loss {loss.item():.3f}", flush=True)
    return encoder.eval()


@torch.no_grad()
def start_head(
    encoder: NameEncoder, prompt: tuple[Tensor, Tensor], names: Names, device: str
) -> None:
    """Begin with the best head for the untouched encoder, by ridge regression."""
    encoder.eval()
    parts = zip(*(part.split(1024) for part in prompt), strict=True)
    x = torch.cat([encoder.pooled(ids, mask) for ids, mask in parts])
    x = torch.cat([x, torch.ones(len(x), 1, device=device)], 1)
    weighted = x * names.weights.to(device).unsqueeze(1)
    eye = torch.eye(x.shape[1], device=device)
    solved = torch.linalg.solve(weighted.T @ x + eye, weighted.T @ names.targets)
    encoder.head.weight.copy_(solved[:-1].T)
    encoder.head.bias.copy_(solved[-1])
    encoder.train()


@torch.no_grad()
def validate(encoder: NameEncoder, inputs: Inputs, reader: Reader) -> dict[str, Any]:
    """On held-out classes: accuracy, and how far to trust a known vector."""
    ids, mask = reader(inputs.first)
    own = torch.cat([encoder(*part) for part in zip(ids.split(200), mask.split(200), strict=True)])
    held = torch.where(inputs.held)[0]

    def accuracy(vectors: Tensor) -> float:
        logits, truth = logits_among(held, vectors, inputs)
        return (logits.argmax(1) == truth).float().mean().item()

    def leaning(trust: float) -> Tensor:
        mixed = own.clone()
        for i, name in enumerate(inputs.first):
            if name in inputs.known:
                mixed[i] = trust * inputs.known[name] + (1 - trust) * mixed[i]
        return F.normalize(mixed, dim=-1)

    trusts = {trust / 10: accuracy(leaning(trust / 10)) for trust in range(11)}
    return {
        "held_out_classes": len(held),
        "accuracy_true_vectors": accuracy(inputs.class_vectors),
        "accuracy_encoder": accuracy(own),
        "accuracy_by_trust": trusts,
        "trust": max(trusts, key=lambda t: trusts[t]),
        "cosine_held_out": (own * inputs.class_vectors)[held].sum(1).mean().item(),
        "cosine_taught": (own * inputs.class_vectors)[~inputs.held].sum(1).mean().item(),
    }


def logits_among(classes: Tensor, vectors: Tensor, inputs: Inputs) -> tuple[Tensor, Tensor]:
    """The images of these classes against their vectors, not yet scaled, and the right answers."""
    place = torch.full((len(inputs.first),), -1, device=classes.device)
    place[classes] = torch.arange(len(classes), device=classes.device)
    truth = place[inputs.image_class]
    return inputs.images[truth >= 0] @ vectors[classes].T, truth[truth >= 0]


def fit_scale(
    inputs: Inputs, config: Config, folds: int = 5, labels: int = 100, rounds: int = 20
) -> dict[str, Any]:
    """The likeliest logit scale over random label sets of held-out ImageNet names.

    Each fold's names are mapped by a map that never saw them, so that every name of the table that
    ImageNet has can be used. Their vectors are about as good as CLIP's own; names that only the
    encoder knows would make it a measure of the encoder.
    """
    random = np.random.default_rng(config.seed)
    fold = random.integers(0, folds, len(inputs.first))
    vectors = torch.zeros_like(inputs.class_vectors)
    usable = [i for i, name in enumerate(inputs.first) if name in inputs.raw_known]
    for number in range(folds):
        away = {s for i in np.flatnonzero(fold == number) for s in inputs.synonyms[i]}
        fitted = inputs.fit_map(away, config.ridge)
        for i in usable:
            if fold[i] == number:
                vectors[i] = apply_map(fitted, inputs.raw_known[inputs.first[i]])
    nll = dict.fromkeys(range(60, 221, 5), 0.0)
    for _ in range(rounds):
        chosen = torch.from_numpy(random.permutation(usable)[:labels]).to(vectors.device)
        logits, truth = logits_among(chosen, vectors, inputs)
        for scale in nll:
            nll[scale] += F.cross_entropy(scale * logits, truth).item() / rounds
    best = min(nll, key=lambda scale: nll[scale])
    return {"logit_scale": best, "scale_names": len(usable), "scale_nll": nll[best]}


def main(folder: Path, out: Path, changes: dict[str, str]) -> None:
    """Once with classes held out, for what is fitted and reported; then on all, to be shipped."""
    fields = {f.name: type(f.default) for f in dataclasses.fields(Config)}
    config = Config(**{name: fields[name](value) for name, value in changes.items()})
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cuda.matmul.allow_tf32 = True
    reader = Reader(folder, device)
    began = time.perf_counter()
    inputs = Inputs(folder, config, device)
    report = validate(train(inputs, reader, folder, config, device), inputs, reader)
    report |= {"seconds": round(time.perf_counter() - began), "device": device}
    everything = Inputs(folder, dataclasses.replace(config, held_out=0), device)
    report |= fit_scale(everything, config) | {"config": dataclasses.asdict(config)}
    out.mkdir(parents=True, exist_ok=True)
    (out / "report.json").write_text(json.dumps(report, indent=2) + "\n")
    print(json.dumps(report), flush=True)
    encoder = train(everything, reader, folder, config, device)
    original = {k: v.float() for k, v in load_file(folder / "minilm.safetensors").items()}
    tuned = {name: value.cpu() for name, value in encoder.state_dict().items()}
    small = difference(tuned | {f"map.{k}": v.cpu() for k, v in everything.map.items()}, original)
    facts = {name: report[name] for name in ("logit_scale", "trust", "config")}
    save_file(small, out / "text.safetensors", {"facts": json.dumps(facts)})


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), dict(a.split("=", 1) for a in sys.argv[3:]))
