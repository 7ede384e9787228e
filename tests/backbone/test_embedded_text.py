"""The text side of the embedded model: what is committed, what is looked up, what is refused."""

from __future__ import annotations

import io
import pickle
import zipfile
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from recipes.embedded import encoder as recipe
from recipes.embedded.pieces import Pieces
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import BertConfig, BertModel

from anytimecl.backbone import embedded
from anytimecl.backbone.embedded import text
from anytimecl.backbone.embedded.encoder import NameEncoder
from anytimecl.backbone.embedded.wordnet import Nouns
from anytimecl.errors import ModelError

CONFIG = {
    "vocab_size": 10,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 12,
    "intermediate_size": 48,
    "max_position_embeddings": 40,
    "layer_norm_eps": 1e-12,
}
WORDS = ["[PAD]", "[UNK]", "red", "fox", "dog", "tabby", "cat", "a", "[CLS]", "[SEP]"]


NOUNS = Nouns(b"cat\tdog\nred fox\ta dog")


@pytest.fixture
def bert() -> BertModel:
    torch.manual_seed(0)
    return BertModel(BertConfig(**CONFIG), add_pooling_layer=False).eval()


@pytest.fixture
def weights(bert: BertModel) -> dict[str, torch.Tensor]:
    head = torch.nn.Linear(2 * CONFIG["hidden_size"], text.DIM)
    found = {f"bert.{name}": value for name, value in bert.state_dict().items()}
    return found | {"head.weight": head.weight.detach(), "head.bias": head.bias.detach()}


@pytest.fixture
def encoder(weights: dict[str, torch.Tensor]) -> NameEncoder:
    return NameEncoder.of(CONFIG, weights)


@pytest.fixture
def tokenizer() -> Tokenizer:
    made = Tokenizer(models.WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    ends = [(mark, WORDS.index(mark)) for mark in ("[CLS]", "[SEP]")]
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=ends
    )
    return made


def known_names() -> text.KnownNames:
    vectors = F.normalize(
        torch.randn(2, text.DIM, generator=torch.Generator().manual_seed(1)), dim=-1
    )
    return text.KnownNames({"dog": 0, "red fox": 1}, F.normalize(vectors, dim=-1))


@pytest.mark.parametrize(
    ("given", "plain"),
    [
        ("Maine_Coon", "maine coon"),
        ("  T-shirt ", "t shirt"),
        ("ﬁre  engine", "fire engine"),
        ("ÉCLAIR", "éclair"),
    ],
)
def test_names_are_folded(given: str, plain: str) -> None:
    assert text.plain_name(given) == plain


def test_difference_is_undone_up_to_the_rounding() -> None:
    random = torch.Generator().manual_seed(0)
    original = {"a": torch.randn(6, 5, generator=random), "b": torch.randn(5, generator=random)}
    change = 0.01 * torch.randn(6, 5, generator=random)
    added = torch.randn(3, 4, generator=random)
    small = text.difference({"a": original["a"] + change, "b": original["b"], "c": added}, original)
    assert small["a"].dtype == torch.int8
    assert "b" not in small  # what did not change costs nothing
    again = text.apply_difference(original, small)
    step = change.abs().amax(1, keepdim=True) / 127
    assert ((again["a"] - original["a"] - change).abs() <= step / 2 + 1e-6).all()
    assert torch.equal(again["b"], original["b"])
    assert (again["c"] - added).abs().max() <= added.abs().max() / 127


def test_map_is_affine_and_gives_unit_vectors() -> None:
    random = torch.Generator().manual_seed(0)
    matrix = torch.randn(text.DIM, text.DIM, generator=random)
    start, end = (torch.randn(text.DIM, generator=random) for _ in range(2))
    small = text.difference({"map.matrix": matrix, "map.from": start, "map.to": end}, {})
    vectors = torch.randn(3, text.DIM, generator=random)
    expected = F.normalize((vectors - start) @ matrix + end, dim=-1)
    mapped = text.map_names(vectors, small)
    assert torch.allclose(mapped.norm(dim=-1), torch.ones(3))
    assert (mapped * expected).sum(1).min() > 0.999


@torch.no_grad()
@pytest.mark.parametrize("lengths", [[3], [3, 3], [5, 2, 4]])
def test_what_runs_is_what_was_trained(
    bert: BertModel, weights: dict[str, torch.Tensor], encoder: NameEncoder, lengths: list[int]
) -> None:
    """Both against `transformers`, with the means written out."""
    random = torch.Generator().manual_seed(0)
    ids = torch.randint(1, len(WORDS), (len(lengths), max(lengths)), generator=random)
    mask = (torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]).long()
    name = mask * (torch.arange(max(lengths)) < 2)
    read = bert(input_ids=ids * mask, attention_mask=mask).last_hidden_state
    expected = []
    for row, length in enumerate(lengths):
        means = [read[row, :length].mean(0), read[row, :2].mean(0)]
        pooled = torch.cat([m / m.norm() * CONFIG["hidden_size"] ** 0.5 for m in means])
        vector = weights["head.weight"] @ pooled + weights["head.bias"]
        expected.append(vector / vector.norm())
    given = encoder(ids * mask, mask, name)
    assert torch.allclose(given, torch.stack(expected), atol=1e-5)
    trained = recipe.NameEncoder(weights, "cpu")
    trained.dtype = torch.float32
    assert torch.allclose(trained(Pieces(ids * mask, mask, name)), given, atol=1e-5)


def test_a_name_is_read_beside_its_context(encoder: NameEncoder, tokenizer: Tokenizer) -> None:
    with_it = text.EmbeddedText(encoder, tokenizer, NOUNS, None, 1.0)
    without = text.EmbeddedText(encoder, tokenizer, Nouns(b""), None, 1.0)
    assert torch.equal(with_it(["a"]), without(["a"]))
    assert not torch.allclose(with_it(["cat"]), without(["cat"]))
    assert text.with_context("cat", "dog") == "cat, dog"
    assert text.with_context("cat", "") == "cat"


def test_it_is_read_when_the_first_label_needs_it(
    encoder: NameEncoder, tokenizer: Tokenizer
) -> None:
    reads = []

    def read() -> text.EmbeddedText:
        reads.append(1)
        return text.EmbeddedText(encoder, tokenizer, NOUNS, None, 1.0)

    side = text.WhenAsked(read)
    assert not reads
    assert torch.equal(side(["dog"]), read()(["dog"]))
    side(["cat"])
    assert len(reads) == 2  # once here, once for the comparison


@pytest.mark.parametrize("trust", [0.0, 0.25, 1.0])
def test_a_known_name_leans_on_its_vector(
    encoder: NameEncoder, tokenizer: Tokenizer, trust: float
) -> None:
    known = known_names()
    alone = text.EmbeddedText(encoder, tokenizer, NOUNS, None, trust)(["Dog", "tabby cat"])
    both = text.EmbeddedText(encoder, tokenizer, NOUNS, known, trust)(["Dog", "tabby cat"])
    expected = F.normalize(trust * known.vectors[0] + (1 - trust) * alone[0], dim=-1)
    assert torch.allclose(both[0], expected, atol=1e-6)
    assert torch.equal(both[1], alone[1])


def test_a_vector_does_not_depend_on_its_neighbours(
    encoder: NameEncoder, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["a red fox", "dog", "cat", "tabby cat", "a a a a dog", "red"]
    embed = text.EmbeddedText(encoder, tokenizer, NOUNS, known_names(), 0.5)
    together = embed(names)
    assert torch.allclose(together, torch.cat([embed([name]) for name in names]), atol=1e-5)
    monkeypatch.setattr(text, "BATCH", 2)
    assert torch.allclose(embed(names), together, atol=1e-5)


def test_nothing_gives_nothing(encoder: NameEncoder, tokenizer: Tokenizer) -> None:
    assert text.EmbeddedText(encoder, tokenizer, NOUNS, None, 1.0)([]).shape == (0, text.DIM)


class _Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (print, ("this must not run",))


def test_a_table_may_hold_tensors_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "names.whl"
    with zipfile.ZipFile(file, "w") as wheel:
        wheel.writestr(text.VOCABULARY + "evil.pickle", pickle.dumps(_Evil()))
        wheel.writestr(text.VOCABULARY + "good.pickle", _old_pickle(torch.arange(3.0)))
    with zipfile.ZipFile(file) as wheel:
        assert torch.equal(text._load(wheel, "good.pickle"), torch.arange(3.0))
        with pytest.raises(ModelError, match=r"builtins\.print"):
            text._load(wheel, "evil.pickle")
    assert capsys.readouterr().out == ""


def _old_pickle(tensor: torch.Tensor) -> bytes:
    """As plain `pickle.dump` writes a tensor."""
    buffer = io.BytesIO()
    pickle.dump(tensor, buffer)
    return buffer.getvalue()


@pytest.fixture(scope="module")
def side() -> text.EmbeddedText:
    return text.EmbeddedText.load(embedded.folder())


@pytest.mark.real
class TestEmbedded:
    """On the assembled model."""

    def test_what_is_committed_is_small(self) -> None:
        assert Path(text.__file__).with_name(text.TUNED).stat().st_size <= 12_000_000

    def test_alike_names_are_alike(self, side: text.EmbeddedText) -> None:
        names = ["kitten", "cat", "fire engine", "fire truck", "basset hound", "beagle"]
        similarity = side(names) @ side(names).T
        similarity.fill_diagonal_(-1)
        assert similarity.argmax(1).tolist() == [1, 0, 3, 2, 5, 4]

    def test_german_names_are_their_english_ones(self, side: text.EmbeddedText) -> None:
        assert torch.equal(side(["Schäferhund"]), side(["german shepherd"]))
        assert torch.equal(side(["Rote Rosen"]), side(["red rose"]))

    def test_the_table_can_be_left_out(self, side: text.EmbeddedText) -> None:
        alone = text.EmbeddedText.load(embedded.folder(), look_up=False)
        assert side.known is not None
        assert len(side.known.row) > 17_000
        assert alone.known is None
        assert not torch.equal(side(["dog"]), alone(["dog"]))
        unknown = "zebra striped kettle"
        assert unknown not in side.known.row
        assert torch.equal(side([unknown]), alone([unknown]))
