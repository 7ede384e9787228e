"""The recipes of the repository: all can be read, and have what the paper's tables ask for."""

from __future__ import annotations

from pathlib import Path

import pytest

from anytimecl.errors import ModelError
from anytimecl.registry import Named
from anytimecl_lab.recipe import Recipe, read_recipe

FOLDER = Path(__file__).resolve().parents[2] / "recipes" / "paper"
NAMES = sorted(file.stem for file in FOLDER.glob("*.toml") if file.name != "groups.toml")
ABLATIONS = ("batch_size", "other_loss", "samplers", "tuned_parts")


def recipe(name: str, group: str | None = None) -> Recipe:
    return read_recipe(FOLDER / f"{name}.toml", group)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("group", [None, "subsets", "paper", "true_vectors"])
def test_every_recipe_can_be_read_in_every_group(name: str, group: str | None) -> None:
    assert recipe(name, group).methods


def test_the_papers_recipes_are_of_the_papers_group_unless_told() -> None:
    shown = [name for name in NAMES if recipe(name).shows]
    assert {"data_incremental", "mtil", "codecs_protocol", "dinov2", "partitions"} <= set(shown)
    assert {recipe(name).group for name in shown} == {"paper"}
    assert recipe("quick").group == "subsets"


def test_the_papers_tasks_have_226_080_training_images() -> None:
    found = recipe("data_incremental")
    assert set(found.counts) == set(found.tasks)
    assert sum(found.counts.values()) == 226_080
    assert found.published


def test_mtil_has_the_model_of_its_zero_shot_row() -> None:
    assert recipe("mtil").backbone == "openai/clip-vit-base-patch16"
    assert recipe("data_incremental").backbone == "openai/clip-vit-base-patch32"
    assert recipe("mtil", "subsets").backbone == "embedded"


@pytest.mark.parametrize(
    "name",
    [f"{each}_incremental" for each in ("data", "class", "task", "union_data")] + ["mtil"],
)
def test_scenarios_have_the_peers_of_few_shot_learning(name: str) -> None:
    """But for RAIL's kernel form, with the same settings."""
    peers = [each for each in recipe("few_shot").methods if each.name != "RAIL (kernel)"]
    assert len(peers) == 10
    assert all(each in recipe(name).methods for each in peers)


def test_true_vectors_have_all_of_imagenet() -> None:
    found = recipe("task_incremental", "true_vectors")
    own = [found.cuts[name] for name in (*found.tasks, *found.novel) if name in found.cuts]
    assert [(cut.first, cut.last) for cut in own] == [(n, n + 100) for n in range(0, 1000, 100)]


@pytest.mark.parametrize("name", ["few_shot", "data_incremental", "class_incremental", "imprint"])
def test_defaults_can_be_checked_on_sets_that_they_were_not_chosen_on(name: str) -> None:
    found = recipe(name, "others")
    assert not set(found.tasks) & set(recipe(name, "subsets").tasks)
    assert {found.cuts[task].archive for task in found.tasks} == {"caltech101", "dtd10"}


@pytest.mark.parametrize("name", ABLATIONS)
def test_ablations_are_run_in_both_settings(name: str) -> None:
    methods = [each for each in recipe(name).methods if each.method == "online"]
    theirs = {each.name for each in methods if each.options.get("paper")}
    ours = {each.name for each in methods if not each.options.get("paper")}
    assert theirs
    assert ours == {f"{name}, this project's setting" for name in theirs}
    assert recipe(name).per_class is None
    assert recipe(name, "subsets").per_class == 15


def test_eta_has_streams_long_enough_for_a_moving_average() -> None:
    """100 examples a label of the smaller set, three times, against the 100 of a plain mean."""
    found = recipe("eta", "subsets")
    assert (found.tasks, found.repeats, found.per_class) == (("cifar100",), 3, None)


def test_codecs_have_the_papers_protocol() -> None:
    found = recipe("codecs_protocol")
    assert len(found.seeds) == 6
    assert {each.method for each in found.methods} == {"fine-tune"}
    names = {each.name for each in found.methods}
    assert {"pca-image-cls-int8 5", "pca-image-literal-int8 5", "vq", "tokens-fp16"} <= names


def test_another_encoder_is_the_groups() -> None:
    for name in ("dinov2", "dinov2_class", "dinov2_data", "dinov2_union"):
        for group, encoder in (("paper", "facebook/dinov2-base"), ("subsets", "dinov2-small")):
            (own,) = [each for each in recipe(name, group).methods if each.method == "encoder"]
            assert own.encoder == encoder


def test_methods_may_be_those_of_another_recipe(tmp_path: Path) -> None:
    head = 'title = "ours"\nscenario = "mtil"\ntasks = ["pets"]\n'
    one, two = tmp_path / "one.toml", tmp_path / "two.toml"
    one.write_text(head + '[[methods]]\nname = "zero-shot"\nmethod = "original"\n')
    two.write_text(head + 'methods = "one"\n')
    assert read_recipe(two).methods == read_recipe(one).methods
    for slip in ('"two"', '["original"]'):
        two.write_text(head + f"methods = {slip}\n")
        with pytest.raises(ModelError, match="methods is a list of tables"):
            read_recipe(two)
    two.write_text(head + 'methods = "three"\n')
    with pytest.raises(ModelError, match=r"three\.toml cannot be read"):
        read_recipe(two)


def test_a_codec_and_a_sampler_may_have_options(tmp_path: Path) -> None:
    file = tmp_path / "own.toml"
    text = """
title = "ours"
scenario = "data-incremental"
tasks = ["pets"]
[[methods]]
name = "a few components"
method = "online"
codec = { name = "attention-pca", options = { components = 4 } }
options = { sampler = { name = "frequency_weighted", options = { xi = 0.9 } } }
"""
    file.write_text(text, encoding="utf-8")
    [method] = read_recipe(file).methods
    assert method.codec == Named("attention-pca", {"components": 4})
    file.write_text(text.replace("components", "parts"), encoding="utf-8")
    with pytest.raises(ModelError, match=r"own\.toml cannot be followed: .* no option 'parts'"):
        read_recipe(file)
