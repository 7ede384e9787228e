"""Codecs that learn from a data set: what they learn, and what they refuse."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA
from tests.codec.tiny_tail import TOKENS, WIDTH, any_tokens, params, random_tokens, spec
from torch import Tensor

from anytimecl.backbone.spec import Spec
from anytimecl.errors import ModelError, StoreError
from anytimecl_lab.codecs import PcaDataset, PcaDatasetConfig, Vq, VqConfig, make_codec
from anytimecl_lab.codecs.vq import _reservoir, learn_codes, nearest

MAKERS = {
    "vq": lambda spec: Vq(spec, VqConfig(codes=8)),
    "pca-dataset": lambda spec: PcaDataset(spec, PcaDatasetConfig(components=6, chunk=5)),
}
Maker = Callable[[Spec], Vq | PcaDataset]
each_maker = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)


@each_maker
def test_refuses_before_it_is_fitted(make: Maker) -> None:
    codec = make(spec())
    assert not codec.fitted
    with pytest.raises(ModelError, match="call fit"):
        codec.encode(random_tokens())
    with pytest.raises(ModelError, match="call fit"):
        codec.decode([])
    with pytest.raises(ModelError, match="call fit"):
        codec.save("nowhere")
    with pytest.raises(ModelError, match="no tokens"):
        codec.fit([])
    with pytest.raises(ModelError, match=r"\[image, 17, 32\], not \[1, 2, 3\]"):
        codec.fit([torch.zeros(1, 2, 3)])
    assert not codec.fitted


@each_maker
def test_saved_and_loaded_it_is_the_same(make: Maker, tmp_path: Path) -> None:
    codec, other = make(spec()), make(spec())
    codec.fit(random_tokens(images=12))
    codec.save(tmp_path / "fit.safetensors")
    other.load(tmp_path / "fit.safetensors")
    record = codec.encode(random_tokens(50))
    assert other.encode(random_tokens(50)) == record
    assert torch.equal(other.decode([record]), codec.decode([record]))
    assert [path.name for path in tmp_path.iterdir()] == ["fit.safetensors"]


@each_maker
def test_single_images_and_batches_are_the_same_data(make: Maker) -> None:
    tokens = random_tokens(images=12)
    one_by_one, together = make(spec()), make(spec())
    one_by_one.fit(iter(tokens))
    together.fit([tokens])
    if isinstance(one_by_one, PcaDataset):  # nothing random in it, only sums in another order
        back = [codec.decode([codec.encode(tokens[0])]) for codec in (one_by_one, together)]
        torch.testing.assert_close(*back, rtol=0, atol=1e-5)
    again = make(spec())
    again.fit([tokens])
    assert again.encode(tokens[0]) == together.encode(tokens[0])


@each_maker
def test_another_model_or_fit_or_file_is_refused(make: Maker, tmp_path: Path) -> None:
    codec, path = make(spec()), tmp_path / "fit.safetensors"
    codec.fit(random_tokens(images=12))
    codec.save(path)
    with pytest.raises(ModelError, match=r"another model.*again"):
        make(spec(weights="others")).load(path)
    refitted = make(spec())
    refitted.fit(random_tokens(7, images=12))
    with pytest.raises(StoreError, match="another fit"):
        refitted.decode([codec.encode(random_tokens())])
    for other in MAKERS.values():
        if other is not make:
            with pytest.raises(StoreError, match="does not hold a fit"):
                other(spec()).load(path)
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(StoreError, match="cannot be read"):
        make(spec()).load(path)
    with pytest.raises(StoreError, match="cannot be read"):
        make(spec()).load(tmp_path / "missing")


def test_a_dataset_pca_is_scikit_learns_chunk_by_chunk() -> None:
    tokens = random_tokens(images=12) + 100  # far from zero, where careless sums lose digits
    codec = PcaDataset(spec(), PcaDatasetConfig(components=6, chunk=5))
    codec.fit([tokens[:3], tokens[3:]])
    chunks = [tokens[:5], tokens[5:10], tokens[10:]]
    pcas = [PCA(6, svd_solver="full").fit(chunk.flatten(0, 1).double().numpy()) for chunk in chunks]
    back = codec.decode([codec.encode(image) for image in tokens])
    for got, image in zip(back.numpy(), tokens.double().numpy(), strict=True):
        rebuilt = [pca.inverse_transform(pca.transform(image)) for pca in pcas]
        best = min(rebuilt, key=lambda values: float(((image - values) ** 2).sum()))
        np.testing.assert_allclose(got, best, atol=2e-3)


def test_a_dataset_pca_of_all_dimensions_is_exact() -> None:
    codec = make_codec("pca-dataset", spec(), params())  # 200 components, more than the width
    assert isinstance(codec, PcaDataset)
    codec.fit(random_tokens(images=4))
    tokens = random_tokens(9)
    torch.testing.assert_close(codec.decode([codec.encode(tokens)])[0], tokens, rtol=0, atol=1e-4)


def clusters(count: int, per: int) -> Tensor:
    """Points in tight heaps far apart, heap after heap."""
    generator = torch.Generator().manual_seed(0)
    centres = 10 * torch.randn(count, WIDTH, generator=generator)
    noise = 0.1 * torch.randn(count, per, WIDTH, generator=generator)
    return (centres[:, None] + noise).flatten(0, 1)


def test_no_code_stays_dead() -> None:
    """Nine in ten samples are the same, so nearly all codes start there, and all but one unused."""
    samples = torch.cat([torch.zeros(1800, WIDTH), clusters(20, 10)])

    def used(passes: int) -> int:
        config = VqConfig(20, batch=200, passes=passes)
        codes = learn_codes(samples, config, torch.Generator().manual_seed(0))
        return len(nearest(samples, codes).unique())

    assert used(0) < 8
    assert used(30) >= 18


def test_more_codes_than_samples_are_no_trouble() -> None:
    codes = learn_codes(clusters(5, 10), VqConfig(codes=64), torch.Generator().manual_seed(1))
    assert codes.isfinite().all()


def test_codes_are_as_good_as_k_means() -> None:
    samples = random_tokens(images=60).flatten(0, 1)
    codes = learn_codes(samples, VqConfig(codes=32, batch=256, passes=30), torch.Generator())
    error = float((samples - codes[nearest(samples, codes)]).square().sum())
    reference = KMeans(32, n_init=3, random_state=0).fit(samples.numpy()).inertia_
    assert error < 1.1 * reference


def test_tokens_become_their_nearest_codes() -> None:
    codec = Vq(spec(), VqConfig(codes=8))
    codec.fit(random_tokens(images=12))
    tokens = random_tokens(3)
    codes = codec._fits()["codes"]
    wanted = codes[torch.cdist(tokens.double(), codes.double()).argmin(1)]
    assert torch.equal(codec.decode([codec.encode(tokens)])[0], wanted)
    assert len(codec.encode(tokens)) == 10 + 4 + 2 * TOKENS
    with pytest.raises(ValueError, match="65,536"):
        Vq(spec(), VqConfig(codes=70_000))


@pytest.fixture(scope="module")
def codebook() -> Vq:
    codec = Vq(spec(), VqConfig(codes=8))
    codec.fit(random_tokens(images=12))
    return codec


@given(tokens=any_tokens())
@settings(max_examples=60, deadline=None)
def test_of_any_token_no_code_is_nearer(codebook: Vq, tokens: Tensor) -> None:
    """The stated error, but for the roundings of single precision at the size of the token."""
    back = codebook.decode([codebook.encode(tokens)])[0].double()
    codes, tokens = codebook._fits()["codes"].double(), tokens.double()
    found, best = (back - tokens).norm(dim=1), torch.cdist(tokens, codes).amin(1)
    assert (found <= best + 1e-3 * (tokens.norm(dim=1) + codes.norm(dim=1).max())).all()


@pytest.fixture(scope="module")
def bases() -> PcaDataset:
    codec = PcaDataset(spec(), PcaDatasetConfig(components=6, chunk=5))
    codec.fit(random_tokens(images=10))
    return codec


@given(tokens=any_tokens())
@settings(max_examples=60, deadline=None)
def test_any_tokens_are_within_their_projection(bases: PcaDataset, tokens: Tensor) -> None:
    """The error is that of the better basis, but for roundings at the size of the tokens."""
    back = bases.decode([bases.encode(tokens)])[0].double()
    fit, tokens = {n: v.double() for n, v in bases._fits().items()}, tokens.double()
    left = []
    for mean, components in zip(fit["mean"], fit["components"], strict=True):
        centred = tokens - mean
        left.append(float((centred - centred @ components.T @ components).norm()))
    assert (back - tokens).norm() <= min(left) + 1e-5 * (tokens.norm() + fit["mean"].norm())


def test_every_token_has_the_same_chance_to_be_a_sample() -> None:
    """Tokens that carry their own number: of 10,200, 500 are kept, from all parts alike."""

    def numbered() -> Iterator[Tensor]:
        for image in range(600):
            first = image * TOKENS
            yield torch.arange(first, first + TOKENS).float()[:, None].expand(-1, WIDTH)

    kept = _reservoir(numbered(), (TOKENS, WIDTH), 500, torch.Generator().manual_seed(0))
    numbers = kept[:, 0]
    assert len(numbers.unique()) == 500
    quarters = torch.histc(numbers, 4, 0, 10_200)
    assert quarters.min() > 95  # 125 each, give or take
