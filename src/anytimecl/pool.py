"""The pool: every expert's word on labels that were taught, weighed by what it was worth so far.

Among labels that were seen, with `t`, `o` the log-probabilities of the tuned and the original model
and `G` the Gaussian expert's log-likelihood ratio,

    log P(y) = a t(y) + b o(y) + c G(y) + ...,   normalised,

a log-linear opinion pool. Its weights minimise the log-loss on the latest examples, each scored as
by somebody who had not learned it: the tuned model just before its step, the Gaussian expert with
the example left out, in closed form. They start near `START` and are held to it by `CERTAINTY`.

Labels never seen keep the original model's probability; `gate` decides what the seen ones get
together.

(Genest and Zidek, "Combining Probability Distributions", 1986.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

TINY = 1e-30
START = {"tuned": 0.15, "original": 0.05, "gaussian": 0.2}  # weights before any evidence
OTHERS = START["tuned"]  # of any other expert: it may be as good as the one that learns
CERTAINTY = 2.0  # of the starting weights: how little one example may move them
DOUBT = 5.0  # examples that the first guess of `Familiar` stands for
RECENT = 256  # examples that the weights are fitted on
STEPS = 60  # of Newton's method at most


def fit(scores: Tensor, target: Tensor, start: Tensor) -> Tensor:
    """Weights [expert] from scores [expert, example, label] and the true labels [example].

    The log-loss, and `CERTAINTY / 2` times the square distance of their logarithms from those of
    `start`.

    >>> right, wrong = torch.tensor([[2.0, 0.0]]), torch.tensor([[0.0, 2.0]])
    >>> weights = fit(torch.stack([right, wrong]), torch.tensor([0]), torch.tensor([0.5, 0.5]))
    >>> bool(weights[0] > weights[1])
    True
    """
    scores, origin = scores.double(), start.double().log()
    chosen = scores.gather(2, target.expand(len(scores), -1).unsqueeze(2)).squeeze(2)

    def loss(log_weights: Tensor) -> Tensor:
        mixed = torch.einsum("e,enl->nl", log_weights.exp(), scores)
        fits = mixed.logsumexp(1) - torch.einsum("e,en->n", log_weights.exp(), chosen)
        return fits.sum() + CERTAINTY / 2 * (log_weights - origin).square().sum()

    found, value = origin, loss(origin)
    for _ in range(STEPS):
        weights = found.exp()
        share = torch.einsum("e,enl->nl", weights, scores).softmax(1)
        mean = torch.einsum("nl,enl->en", share, scores)
        slope = weights * (mean - chosen).sum(1)
        second = torch.einsum("nl,enl,fnl->ef", share, scores, scores) - mean @ mean.T
        # Newton in the logarithms; where that is not convex, as if the slope's part were not there.
        curve = weights * second * weights.unsqueeze(1) + slope.clamp_min(0).diag()
        curve += CERTAINTY * torch.eye(len(found), dtype=torch.float64)
        step = torch.linalg.solve(curve, slope + CERTAINTY * (found - origin))
        for halving in range(12):
            tried = found - step / 2**halving
            after = loss(tried)
            if after <= value:
                break
        else:
            break
        gained = value - after
        found, value = tried, after
        if gained <= 1e-7 * value.abs():
            break
    return found.exp().float()


def pooled(scores: Sequence[Tensor], weights: Sequence[float], seen: Tensor) -> Tensor:
    """Probabilities [image, label] among the seen labels; 0 for the others."""
    total = sum(weight * score for weight, score in zip(weights, scores, strict=True))
    assert isinstance(total, Tensor)
    return total.masked_fill(~seen, -torch.inf).softmax(1)


def gate(
    among: Tensor,  # [image, label], sums to one over the seen labels
    tuned: Tensor,  # [image, label], probabilities
    original: Tensor,  # [image, label], probabilities
    seen: Tensor,  # [label]
    examples: Tensor,  # [label]
    known: Tensor,  # [label], how often the original model was right about it
    familiar: Tensor | None = None,  # [image], log-likelihood ratio of seen against unseen labels
    many: float = 20.0,
    caution: float = 1.0,
) -> Tensor:
    """Share out among seen labels only what belongs to them, [image, label].

    Whoever learns many examples of some labels forgets that there are others: the tuned model
    comes to give the seen labels everything. With few examples each, its odds of seen against
    unseen labels are the better ones; with many, the original model's are, as far as it knows the
    label at all, and some `caution` towards the seen ones. Unseen labels keep what the original
    model gives them, so only its favourite among them can be answered: the odds are against that
    one, whatever else the tuned model would rather have named. What the images of seen labels look
    like, `familiar`, says as much as both models together: half each, in the logarithm.
    """
    if seen.all():
        return among
    learned = 1 - 1 / (1 + (examples[seen].mean() / many) ** 2)  # from 0, a few, to 1, many
    trust = 1 - (2 * known).clamp(max=1.0) * learned  # [label], in the tuned model's odds
    unseen = original * ~seen
    rival = unseen.argmax(1, keepdim=True)  # [image, 1]
    before, after = (_odds(p, seen, rival) for p in (original, tuned))
    odds = before + trust * (after - before)  # [image, label]
    if familiar is not None:
        odds = (odds + familiar.unsqueeze(1)) / 2
    odds = odds - caution * learned
    best = unseen.gather(1, rival).clamp_min(TINY).log()
    # The rival keeps what it has, so this is what the odds leave to the seen labels.
    mass = (best + odds).clamp(max=0.0).exp()
    # Where that is enough to win, they may as well have what they are believed to have.
    wins = (mass * among).amax(1, keepdim=True) >= best.exp()
    against_all = odds + best - _total(unseen, ~seen).log()
    mass = torch.where(wins, torch.maximum(mass, against_all.sigmoid()), mass)
    return torch.where(seen, mass * among, original)


class Familiar(NamedTuple):
    """How the best score among the labels of an image tells whether its own is one of them.

    Normal for images of labels that were taught, and for others of the same domain, with one
    variance; measured on the latest examples, each left out of its label, and with its label left
    out.
    """

    taught: float
    others: float
    variance: float

    @classmethod
    def measured(cls, taught: Tensor, others: Tensor, typical: float) -> Familiar:
        """From scores [example] less half of what is `typical`, and some examples before any."""
        of_taught = float(taught.sum() + DOUBT * typical / 2) / (DOUBT + len(taught))
        of_others = float(others.sum()) / (DOUBT + len(others))
        square = (taught - of_taught).square().sum() + (others - of_others).square().sum()
        total = 2 * DOUBT + len(taught) + len(others)
        variance = float(square + 2 * DOUBT * (typical / 2) ** 2) / total
        return cls(of_taught, of_others, max(variance, TINY))

    def ratio(self, scores: Tensor) -> Tensor:
        """Log-likelihood ratio [image] of taught against others."""
        slope = max(self.taught - self.others, 0.0) / self.variance
        return slope * (scores - (self.taught + self.others) / 2)


def start_weights(experts: Sequence[str], *, names: bool = True) -> dict[str, float]:
    """Before any evidence.

    The tuned model starts as a copy of the original one, so it has a start only where that knows
    what labels mean: not where they are but codes, without `names`.
    """
    start = START if names else {**START, "tuned": START["original"]}
    return {name: start.get(name, OTHERS) for name in experts}


def weigh(scores: Mapping[str, Tensor], target: Tensor, *, names: bool = True) -> dict[str, float]:
    """`fit` by name: each expert's scores [example, label]."""
    start = torch.tensor(list(start_weights(list(scores), names=names).values()))
    found = fit(torch.stack(list(scores.values())), target, start)
    return dict(zip(scores, found.tolist(), strict=True))


def _odds(probabilities: Tensor, seen: Tensor, rival: Tensor) -> Tensor:
    """Log-odds [image, 1] of all seen labels against one unseen label, if there is any."""
    of_rival = (probabilities * ~seen).gather(1, rival).clamp_min(TINY).log()
    return _total(probabilities, seen).log() - of_rival


def _total(probabilities: Tensor, labels: Tensor) -> Tensor:
    return (probabilities * labels).sum(1, keepdim=True).clamp_min(TINY)
