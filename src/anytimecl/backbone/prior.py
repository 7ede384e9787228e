"""The prior of a model's image embeddings, for the Gaussian and the instance expert.

Measured once for each model, on images of many labels (`recipes/embedded/prior.py` for the embedded
one, `anytimecl model prior` for others): covariances between labels, within labels, and between
views of one image (cropped, mirrored, recompressed).
"""

from __future__ import annotations

import hashlib
import io
import math
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

FEWEST = 2  # minimal number of labels, and of images of each
VIEWED = 3  # minimal number of images with views: one for covariances, two for distances
NARROW = 1e-3  # minimal variance of an isotropic prior
LEAST = 1e-3  # lower bound of a distance, for the logarithm
SURE = 0.1  # standard deviation of log-distances at that bound
SLACK = 1e-3  # of a covariance's norm: more than half precision takes from an eigenvalue


@dataclass(frozen=True, eq=False)
class Prior:
    """Mean [dim] and covariances [dim, dim] of unit image embeddings, in double precision."""

    mean: Tensor  # m0, of all images
    within: Tensor  # Sw0, of images around the mean of their label
    between: Tensor  # Sb, of the means of labels
    view: Tensor  # Sv, of views around their image
    near: Tensor  # [4]: log D of a view, then of the nearest other image: mean, standard deviation

    def save(self, file: Path) -> None:
        """Save as half-precision triangles with a scale each: 1 MB at 512 dimensions."""
        file.parent.mkdir(parents=True, exist_ok=True)
        tensors = {"mean": self.mean.float(), "near": self.near.float()}
        upper = torch.triu_indices(*self.within.shape)
        for name in ("within", "between", "view"):
            matrix = getattr(self, name)
            scale = torch.exp2(matrix.diagonal().mean().log2().floor())  # exact when saved again
            tensors[name] = (matrix / scale)[upper[0], upper[1]].half()
            tensors[f"{name}.scale"] = scale.float().reshape(1)
        with replacing(file) as draft:
            save_file(tensors, draft)

    @classmethod
    def load(cls, file: Path) -> Prior:
        """Load what `save` wrote."""
        try:
            tensors = load_file(file)
            if not all(t.isfinite().all() for name, t in tensors.items() if name != "near"):
                raise ValueError("it has numbers that are not finite")
            mean = tensors["mean"].double()
            (dim,) = mean.shape
            upper = torch.triu_indices(dim, dim)

            def square(name: str) -> Tensor:
                matrix = torch.zeros(dim, dim, dtype=torch.float64)
                matrix[upper[0], upper[1]] = tensors[name].double()
                matrix = (matrix + matrix.triu(1).T) * tensors[f"{name}.scale"].double()
                ridge = SLACK * matrix.norm() * torch.eye(dim, dtype=torch.float64)
                if torch.linalg.cholesky_ex(matrix + ridge).info:
                    raise ValueError(f"its {name!r} is no covariance: not positive definite")
                return matrix

            within, between, view = (square(name) for name in ("within", "between", "view"))
            near = tensors["near"].double().reshape(4)
            # Versions without `LEAST` measured log 0 on equal images: now only those are copies.
            equal = torch.tensor([math.log(LEAST), SURE] * 2, dtype=torch.float64)
            near = torch.where(near.isfinite(), near, equal)
            return cls(mean, within, between, view, near)
        except (OSError, LookupError, ValueError, RuntimeError, SafetensorError) as error:
            raise ModelError(f"{file} is not a whole prior ({error}): measure it again.") from error


def measure(images: Tensor, labels: Sequence[int], views: Sequence[Tensor]) -> Prior:
    """Estimate from unit embeddings [image, dim] and labels; `views` are of the first images.

    >>> images = torch.nn.functional.normalize(torch.randn(12, 3), dim=1)
    >>> measure(images, [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3], [images + 0.01]).within.shape
    torch.Size([3, 3])
    """
    images, at = images.double(), torch.tensor(labels)
    counts = torch.bincount(at).double()
    if len(counts) < FEWEST or counts.min() < FEWEST:
        raise ModelError("A prior is measured on two labels or more, with two images or more each.")
    if len(views[0]) < VIEWED:
        raise ModelError(
            f"A prior is measured on views of {VIEWED} images or more, not of {len(views[0])}: "
            "`anytimecl model prior` views every fifth image."
        )
    sums = torch.zeros(len(counts), images.shape[1], dtype=torch.float64).index_add_(0, at, images)
    means = sums / counts.unsqueeze(1)
    centre = means.mean(0)
    around = images - means[at]
    within = around.T @ around / (len(images) - len(counts))
    spread = (means - centre).T @ (means - centre) / (len(counts) - 1)
    # Subtract the sampling variance of the means.
    between = _positive(spread - within * (1 / counts).mean())
    moved = torch.stack([view.double() - images[: len(view)] for view in views], 1)
    half = len(moved) // 2  # covariance from one half, distances from the other
    space = view_space(within, _covariance(moved[:half]))
    seen = images[half : len(moved)] @ space
    copies = (moved[half:] @ space).square().sum(-1).flatten()
    apart = torch.cdist(seen, seen).square().fill_diagonal_(torch.inf).amin(1)
    # Equal images have the distance 0, and so has a symmetric one from its mirror image.
    logs = [found.clamp_min(LEAST).log() for found in (copies, apart)]
    near = [value for found in logs for value in (found.mean(), found.std())]
    return Prior(centre, within, between, _covariance(moved), torch.stack(near))


def isotropic(means: Tensor, scatter: Tensor, count: int) -> Prior:
    """An isotropic prior with the variance of the learned examples, for models without one.

    From means [label, dim], the scatter [dim, dim] around them, and the number of images.
    """
    labels, dim = means.shape
    centre = means.mean(0) if labels else means.new_zeros(dim)
    spread = max(1 - float(centre.square().sum()), NARROW) if labels > 1 else 0.5
    within = float(scatter.trace()) / max(1, count - labels) if count > labels else spread / 2
    within = max(within, NARROW * spread)  # copies of one image have no variance
    between = max(spread - within, 0.1 * spread)
    one = torch.eye(dim, dtype=torch.float64) / dim
    return Prior(centre, within * one, between * one, 0.1 * within * one, centre.new_zeros(4))


def view_space(within: Tensor, view: Tensor) -> Tensor:
    """Projection [dim, dim] in which squared distances are -2 log-likelihood ratios.

    Of two views of one image against two images of one label: `d' (Sv^-1 - (2 Sw)^-1) d`, without
    negative directions.
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
    """The nearest positive definite matrix."""
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
    """File of a model's measured prior."""
    return cache / "priors" / f"{hashlib.sha256(fingerprint.encode()).hexdigest()[:16]}.safetensors"
