"""The log-linear opinion pool of the experts, and the gate between seen and unseen labels.

Over the seen candidate labels,

    log P(y) = a log P_t(y) + b log P_o(y) + c (G(y) - T(y)) + ... - log Z,

where `P_t` and `P_o` are the tuned and the original model's probabilities, `G` is the Gaussian
expert's log-likelihood ratio, `T(y)` its expected value for an image of `y`, and further experts
add a term each. The weights are a MAP estimate (`fit`) on the latest examples, each scored as if it
had not been learned: by the tuned model just before the example's step, by the other experts with
the example left out. Unseen labels keep `P_o`; `gate` sets the total mass of the seen ones.

(Genest and Zidek, "Combining Probability Distributions", 1986.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

TINY = 1e-30
START = {"tuned": 0.15, "original": 0.05, "gaussian": 0.2}  # weights before any evidence
OTHERS = START["tuned"]  # prior weight of any further expert
CERTAINTY = 2.0  # kappa: precision of the log-normal prior on the weights
DOUBT = 5.0  # pseudo-examples in each class of the prior of `Familiar`
RECENT = 256  # examples that the weights are fitted on
STEPS = 60  # Newton iterations at most


def fit(scores: Tensor, target: Tensor, start: Tensor) -> Tensor:
    """Weights [expert] from scores [expert, example, label] and true labels [example].

    Minimises the log-loss plus `CERTAINTY / 2` times the squared distance between the logarithms of
    the weights and of `start`.

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
        # Newton in the log-weights; negative slopes are left out, so that it is positive definite.
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
    """Probabilities [image, label]: softmax of the weighted sum over seen labels, 0 for others."""
    total = sum(weight * score for weight, score in zip(weights, scores, strict=True))
    assert isinstance(total, Tensor)
    return total.masked_fill(~seen, -torch.inf).softmax(1)


def gate(
    among: Tensor,  # [image, label], sums to one over the seen labels
    tuned: Tensor,  # [image, label], probabilities
    original: Tensor,  # [image, label], probabilities
    seen: Tensor,  # [label]
    examples: Tensor,  # [label]
    known: Tensor,  # [label], accuracy of the original model
    familiar: Tensor | None = None,  # [image], log-likelihood ratio of seen against unseen labels
    many: float = 20.0,
    caution: float = 1.0,
) -> Tensor:
    """Probabilities [image, label], with the total mass of the seen labels set by their odds.

    The odds are those of all seen labels against the rival: the unseen label with the highest
    original probability, the only unseen one that can be predicted. The more examples the tuned
    model learned, the more mass it gives to seen labels, whatever the image. So with few examples
    per label the tuned model's odds count; with `many`, the original model's do, provided that it
    is accurate on the label, and seen labels lose `caution` nats. `familiar`, from the image
    vectors, is averaged with the models' log-odds. Unseen labels keep the original probability.
    """
    if seen.all():
        return among
    learned = 1 - 1 / (1 + (examples[seen].mean() / many) ** 2)  # from 0, a few, to 1, many
    trust = 1 - (2 * known).clamp(max=1.0) * learned  # [label], weight of the tuned model's odds
    unseen = original * ~seen
    rival = unseen.argmax(1, keepdim=True)  # [image, 1]
    before, after = (_odds(p, seen, rival) for p in (original, tuned))
    odds = before + trust * (after - before)  # [image, label]
    if familiar is not None:
        odds = (odds + familiar.unsqueeze(1)) / 2
    odds = odds - caution * learned
    best = unseen.gather(1, rival).clamp_min(TINY).log()
    # The rival keeps its probability, so this is the mass with these odds against it.
    mass = (best + odds).clamp(max=0.0).exp()
    # If a seen label wins anyway, its mass follows from the odds against all unseen labels.
    wins = (mass * among).amax(1, keepdim=True) >= best.exp()
    against_all = odds + best - _total(unseen, ~seen).log()
    mass = torch.where(wins, torch.maximum(mass, against_all.sigmoid()), mass)
    return torch.where(seen, mass * among, original)


class Familiar(NamedTuple):
    """Likelihood ratio of seen against unseen labels, from an image's best Gaussian score.

    The score is modelled as normal for images of seen labels (mean `taught`) and for images of
    unseen labels of the same domain (`others`), with a common variance. Both are estimated on the
    latest examples: with the example left out, and without its own label.
    """

    taught: float
    others: float
    variance: float

    @classmethod
    def measured(cls, taught: Tensor, others: Tensor, typical: float) -> Familiar:
        """Fit to best scores [example], less half the expected one, and to the pseudo-examples.

        `typical` is the mean expected score.
        """
        of_taught = float(taught.sum() + DOUBT * typical / 2) / (DOUBT + len(taught))
        of_others = float(others.sum()) / (DOUBT + len(others))
        square = (taught - of_taught).square().sum() + (others - of_others).square().sum()
        total = 2 * DOUBT + len(taught) + len(others)
        variance = float(square + 2 * DOUBT * (typical / 2) ** 2) / total
        return cls(of_taught, of_others, max(variance, TINY))

    def ratio(self, scores: Tensor) -> Tensor:
        """Log-likelihood ratio [image] of seen against unseen labels."""
        slope = max(self.taught - self.others, 0.0) / self.variance
        return slope * (scores - (self.taught + self.others) / 2)


def start_weights(experts: Sequence[str], *, names: bool = True) -> dict[str, float]:
    """Weights before any evidence, by expert.

    Without `names` (an image-only model, for which labels are codes), the tuned model starts
    without knowledge of the labels and gets the original model's weight.
    """
    start = START if names else {**START, "tuned": START["original"]}
    return {name: start.get(name, OTHERS) for name in experts}


def weigh(scores: Mapping[str, Tensor], target: Tensor, *, names: bool = True) -> dict[str, float]:
    """`fit` by name, from each expert's scores [example, label]."""
    start = torch.tensor(list(start_weights(list(scores), names=names).values()))
    found = fit(torch.stack(list(scores.values())), target, start)
    return dict(zip(scores, found.tolist(), strict=True))


def _odds(probabilities: Tensor, seen: Tensor, rival: Tensor) -> Tensor:
    """Log-odds [image, 1] of all seen labels against one unseen label, the rival."""
    of_rival = (probabilities * ~seen).gather(1, rival).clamp_min(TINY).log()
    return _total(probabilities, seen).log() - of_rival


def _total(probabilities: Tensor, labels: Tensor) -> Tensor:
    return (probabilities * labels).sum(1, keepdim=True).clamp_min(TINY)
