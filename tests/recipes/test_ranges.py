"""Ranges are the largest outputs of the norms, channel by channel."""

from __future__ import annotations

import torch
from recipes.embedded.ranges import ranges
from transformers import CLIPVisionConfig, CLIPVisionModelWithProjection


@torch.no_grad()
def test_ranges_are_the_largest_outputs() -> None:
    torch.manual_seed(0)
    config = CLIPVisionConfig(
        hidden_size=16, intermediate_size=24, num_hidden_layers=3, num_attention_heads=2,
        image_size=8, patch_size=4, projection_dim=8,
    )  # fmt: skip
    model = CLIPVisionModelWithProjection(config).eval()
    batches = [torch.randn(2, 3, 8, 8) for _ in range(3)]
    found = ranges(model, batches)
    assert sorted(found) == [f"layers.{i}.layer_norm{n}" for i in range(3) for n in (1, 2)]
    for index, layer in enumerate(model.vision_model.encoder.layers):
        outputs = [
            layer.layer_norm1(model(pixels, output_hidden_states=True).hidden_states[index])
            for pixels in batches
        ]
        expected = torch.cat(outputs).abs().flatten(0, 1).amax(0)
        torch.testing.assert_close(found[f"layers.{index}.layer_norm1"], expected)
