"""What is known of a model's image vectors before the first example: a prior for the experts.

Measured once for a model, on images of many labels (`recipes/embedded/prior.py` for the embedded
one, `anytimecl model prior` for any other): how far labels lie apart, how much images of one label
differ, and how much pictures of one scene do (cropped, mirrored, compressed again).
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import PIL.Image
import PIL.ImageOps
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from anytimecl.errors import ModelError
from anytimecl.files import replacing

FEWEST = 2  # images of a label, and labels, to measure with
NARROW = 1e-3  # the least variance that is believed of unit vectors where nothing was measured


@dataclass(frozen=True, eq=False)
class Prior:
    """Mean [dim] and covariances [dim, dim] of unit image vectors, in double precision."""

    mean: Tensor  # of all images
    within: Tensor  # of images around the mean of their label
    between: Tensor  # of the means of labels
    view: Tensor  # of pictures of one scene around the first of them
    near: (
        Tensor  # [4]: log-distance of such a picture, and of the nearest other image: mean, spread
    )

    def save(self, file: Path) -> None:
        """As half-precision triangles, each with its scale: a megabyte at 512 dimensions."""
        file.parent.mkdir(parents=True, exist_ok=True)
        tensors = {"mean": self.mean.float(), "near": self.near.float()}
        upper = torch.triu_indices(*self.within.shape)
        for name in ("within", "between", "view"):
            matrix = getattr(self, name)
            scale = torch.exp2(matrix.diagonal().mean().log2().floor())  # what is read saves alike
            tensors[name] = (matrix / scale)[upper[0], upper[1]].half()
            tensors[f"{name}.scale"] = scale.float().reshape(1)
        with replacing(file) as draft:
            save_file(tensors, draft)

    @classmethod
    def load(cls, file: Path) -> Prior:
        """Back from `save`."""
        try:
            tensors = load_file(file)
            mean = tensors["mean"].double()
            upper = torch.triu_indices(len(mean), len(mean))

            def square(name: str) -> Tensor:
                matrix = torch.zeros(len(mean), len(mean), dtype=torch.float64)
                matrix[upper[0], upper[1]] = tensors[name].double()
                return (matrix + matrix.triu(1).T) * tensors[f"{name}.scale"].double()

            within, between, view = (square(name) for name in ("within", "between", "view"))
            return cls(mean, within, between, view, tensors["near"].double())
        except (OSError, KeyError, IndexError, RuntimeError, SafetensorError) as error:
            raise ModelError(f"{file} is not a whole prior ({error}): measure it again.") from error


def measure(images: Tensor, labels: Sequence[int], views: Sequence[Tensor]) -> Prior:
    """From unit vectors [image, dim] with their labels; `views` show the first of them.

    >>> images = torch.nn.functional.normalize(torch.randn(12, 3), dim=1)
    >>> measure(images, [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3], [images + 0.01]).within.shape
    torch.Size([3, 3])
    """
    images, at = images.double(), torch.tensor(labels)
    counts = torch.bincount(at).double()
    if len(counts) < FEWEST or counts.min() < FEWEST:
        raise ModelError("A prior is measured on two labels or more, with two images or more each.")
    sums = torch.zeros(len(counts), images.shape[1], dtype=torch.float64).index_add_(0, at, images)
    means = sums / counts.unsqueeze(1)
    centre = means.mean(0)
    around = images - means[at]
    within = around.T @ around / (len(images) - len(counts))
    spread = (means - centre).T @ (means - centre) / (len(counts) - 1)
    # The mean of few images varies by itself: what is left is the labels'.
    between = _positive(spread - within * (1 / counts).mean())
    moved = torch.stack([view.double() - images[: len(view)] for view in views], 1)
    half = len(moved) // 2  # what is measured on one is judged by the other
    space = view_space(within, _covariance(moved[:half]))
    seen = images[half : len(moved)] @ space
    copies = (moved[half:] @ space).square().sum(-1).flatten()
    apart = torch.cdist(seen, seen).square().fill_diagonal_(torch.inf).amin(1)
    near = [value for found in (copies, apart) for value in (found.log().mean(), found.log().std())]
    return Prior(centre, within, between, _covariance(moved), torch.stack(near))


def isotropic(means: Tensor, scatter: Tensor, count: int) -> Prior:
    """Where nothing was measured: alike in all directions, as wide as what was learned.

    From means [label, dim], the scatter [dim, dim] around them, and of how many images they are.
    """
    labels, dim = means.shape
    centre = means.mean(0) if labels else means.new_zeros(dim)
    spread = max(1 - float(centre.square().sum()), NARROW) if labels > 1 else 0.5
    within = float(scatter.trace()) / max(1, count - labels) if count > labels else spread / 2
    within = max(within, NARROW * spread)  # one image taught again and again has no spread
    between = max(spread - within, 0.1 * spread)
    one = torch.eye(dim, dtype=torch.float64) / dim
    return Prior(centre, within * one, between * one, 0.1 * within * one, centre.new_zeros(4))


def view_space(within: Tensor, view: Tensor) -> Tensor:
    """[dim, dim]: there, square distances are log-likelihood ratios, times two.

    Of two pictures of one scene against two images of one label: `d' (Sv^-1 - (2 Sw)^-1) d`.
    """
    within, view = (_shrunk(matrix, by) for matrix, by in ((within, 0.5), (view, 0.3)))
    lower = torch.linalg.cholesky(within)
    half = torch.linalg.solve_triangular(lower, view, upper=False)
    inner = torch.linalg.solve_triangular(lower, half.T, upper=False)
    share, turn = torch.linalg.eigh((inner + inner.T) / 2)
    whiten = torch.linalg.solve_triangular(lower.T, turn, upper=True)
    found: Tensor = whiten * (1 / share - 0.5).clamp_min(0).sqrt()
    return found


def _shrunk(matrix: Tensor, by: float) -> Tensor:
    return matrix + by * matrix.diagonal().mean() * torch.eye(len(matrix), dtype=matrix.dtype)


def _covariance(moved: Tensor) -> Tensor:
    flat = moved.flatten(0, 1)
    return flat.T @ flat / len(flat)


def _positive(matrix: Tensor) -> Tensor:
    """The nearest covariance with no negative direction."""
    values, vectors = torch.linalg.eigh(matrix)
    found: Tensor = (vectors * values.clamp_min(1e-6 * float(values.max()))) @ vectors.T
    return found


def _cropped(image: PIL.Image.Image) -> PIL.Image.Image:
    width, height = image.size
    return image.crop((width // 20, height // 20, width - width // 20, height - height // 20))


def _compressed(image: PIL.Image.Image) -> PIL.Image.Image:
    out = io.BytesIO()
    image.convert("RGB").save(out, "JPEG", quality=50)
    return PIL.Image.open(out).convert("RGB")


VIEWS: tuple[Callable[[PIL.Image.Image], PIL.Image.Image], ...] = (
    _cropped,
    PIL.ImageOps.mirror,
    _compressed,
)


def prior_file(cache: Path, fingerprint: str) -> Path:
    """Where the prior of a model is kept once it was measured."""
    return cache / "priors" / f"{hashlib.sha256(fingerprint.encode()).hexdigest()[:16]}.safetensors"
