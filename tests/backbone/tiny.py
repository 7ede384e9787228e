"""Tiny random models, saved as the hub keeps them. Every weight is random, norms and biases too:
a weight that lands under another's name then changes the result."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import (
    ChineseCLIPConfig,
    ChineseCLIPModel,
    CLIPConfig,
    CLIPModel,
    CLIPTokenizer,
    CLIPVisionConfig,
    CLIPVisionModel,
    CLIPVisionModelWithProjection,
    Dinov2Config,
    Dinov2Model,
    Dinov2WithRegistersConfig,
    Dinov2WithRegistersModel,
    DINOv3ViTConfig,
    DINOv3ViTModel,
    MetaClip2Config,
    MetaClip2Model,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    SiglipConfig,
    SiglipModel,
    SiglipTokenizer,
    SiglipVisionConfig,
    SiglipVisionModel,
    ViTConfig,
    ViTForImageClassification,
    ViTModel,
    ViTMSNConfig,
    ViTMSNModel,
)

BLOCKS = 3
_VISION = {
    "hidden_size": 32, "num_hidden_layers": BLOCKS, "num_attention_heads": 4,
    "intermediate_size": 64, "image_size": 32, "patch_size": 8,
}  # fmt: skip
_TEXT = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64,
    "max_position_embeddings": 20,
}  # fmt: skip
WORDS = "a photo of the an cat dog tabby great white shark golden retriever itap bad".split()


def clip(folder: Path, *, seed: int = 0, dim: int = 24, **vision: Any) -> Path:
    """A CLIP with a byte-level BPE tokeniser, as OpenAI's is."""
    tokenizer = clip_tokenizer()
    config = CLIPConfig(
        vision_config={
            "hidden_size": 32, "num_hidden_layers": BLOCKS, "num_attention_heads": 4,
            "intermediate_size": 64, "image_size": 32, "patch_size": 8, **vision,
        },
        text_config={
            "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
            "intermediate_size": 64, "vocab_size": len(tokenizer), "max_position_embeddings": 20,
            "bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id,
            "pad_token_id": tokenizer.pad_token_id,
        },
        projection_dim=dim,
    )  # fmt: skip
    _save(CLIPModel(config), folder, seed)
    tokenizer.save_pretrained(folder)
    return _preprocessor(
        folder,
        crop_size={"height": 32, "width": 32},
        do_center_crop=True,
        do_normalize=True,
        do_resize=True,
        image_mean=[0.48145466, 0.4578275, 0.40821073],
        image_std=[0.26862954, 0.26130258, 0.27577711],
        resample=3,
        size={"shortest_edge": 32},
    )


def metaclip2(folder: Path, *, seed: int = 0, **vision: Any) -> Path:
    """A MetaCLIP 2, whose tokeniser is of words here and of SentencePiece there."""
    tokenizer = word_tokenizer()
    config = MetaClip2Config(
        vision_config={**_VISION, **vision},
        text_config={**_TEXT, "vocab_size": len(tokenizer), "eos_token_id": 1, "pad_token_id": 0},
        projection_dim=24,
    )
    _save(MetaClip2Model(config), folder, seed)
    tokenizer.save_pretrained(folder)
    return _clip_preprocessor(folder)


def chinese_clip(folder: Path, *, seed: int = 0, **vision: Any) -> Path:
    """A Chinese CLIP: the image side of CLIP, and BERT for texts."""
    tokenizer = word_tokenizer()
    config = ChineseCLIPConfig(
        vision_config={**_VISION, **vision},
        text_config={**_TEXT, "vocab_size": len(tokenizer), "pad_token_id": 0},
        projection_dim=24,
    )
    _save(ChineseCLIPModel(config), folder, seed)
    tokenizer.save_pretrained(folder)
    return _preprocessor(
        folder,
        image_processor_type="ChineseCLIPImageProcessor",
        do_center_crop=False,
        size={"height": 32, "width": 32},
        resample=3,
    )


def vit(folder: Path, *, seed: int = 0, classifier: bool = False, **vision: Any) -> Path:
    """A plain vision transformer, as of ImageNet (with a classifier) or of DINO."""
    config = ViTConfig(**{**_VISION, **vision})
    kind = ViTForImageClassification if classifier else ViTModel
    _save(kind(config), folder, seed)
    return _preprocessor(
        folder, image_processor_type="ViTImageProcessor", size={"height": 32, "width": 32}
    )


def vit_msn(folder: Path, *, seed: int = 0, **vision: Any) -> Path:
    """A plain vision transformer that learned from masked siblings."""
    _save(ViTMSNModel(ViTMSNConfig(**{**_VISION, **vision})), folder, seed)
    return _preprocessor(
        folder, image_processor_type="ViTImageProcessor", size={"height": 32, "width": 32}
    )


def siglip_vision(folder: Path, *, seed: int = 0, **vision: Any) -> Path:
    """The image side of a SigLIP by itself, with its pooling head."""
    _save(SiglipVisionModel(SiglipVisionConfig(**{**_VISION, **vision})), folder, seed)
    return _preprocessor(
        folder,
        image_processor_type="SiglipImageProcessor",
        size={"height": 32, "width": 32},
        resample=3,
    )


def clip_vision(folder: Path, *, seed: int = 0, projection: bool = True) -> Path:
    """An image tower of CLIP, mostly with its projection, and no text side."""
    config = CLIPVisionConfig(
        hidden_size=32, num_hidden_layers=BLOCKS, num_attention_heads=4, intermediate_size=64,
        image_size=32, patch_size=8, projection_dim=24,
    )  # fmt: skip
    kind = CLIPVisionModelWithProjection if projection else CLIPVisionModel
    _save(kind(config), folder, seed)
    return _clip_preprocessor(folder)


def siglip(folder: Path, *, seed: int = 0, pieces: bool = False, **vision: Any) -> Path:
    """A SigLIP, whose tokeniser pads with its end token; `pieces`: the one of the first SigLIP."""
    tokenizer = _piece_tokenizer(folder) if pieces else word_tokenizer()
    config = SiglipConfig(
        vision_config={
            "hidden_size": 32, "num_hidden_layers": BLOCKS, "num_attention_heads": 4,
            "intermediate_size": 64, "image_size": 32, "patch_size": 8, **vision,
        },
        text_config={
            "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
            "intermediate_size": 64, "vocab_size": len(tokenizer), "max_position_embeddings": 16,
            "bos_token_id": None, "eos_token_id": 1, "pad_token_id": 1,
        },
    )  # fmt: skip
    _save(SiglipModel(config), folder, seed)
    tokenizer.save_pretrained(folder)
    return _preprocessor(
        folder,
        do_rescale=True,
        do_resize=True,
        do_normalize=True,
        image_mean=[0.5, 0.5, 0.5],
        image_std=[0.5, 0.5, 0.5],
        resample=3,
        rescale_factor=0.00392156862745098,
        size={"height": 32, "width": 32},
    )


def dinov2(
    folder: Path, *, seed: int = 0, registers: int = 0, swiglu: bool = False, **vision: Any
) -> Path:
    """A DINOv2. Its positions are for a larger grid than its images have, as in the real ones."""
    shape = {
        "hidden_size": 32, "num_hidden_layers": BLOCKS, "num_attention_heads": 4,
        "image_size": 70, "patch_size": 14, "use_swiglu_ffn": swiglu, **vision,
    }  # fmt: skip
    model: PreTrainedModel
    if registers:
        config = Dinov2WithRegistersConfig(num_register_tokens=registers, **shape)
        model = Dinov2WithRegistersModel(config)
    else:
        model = Dinov2Model(Dinov2Config(**shape))
    _save(model, folder, seed)
    return _preprocessor(
        folder,
        image_processor_type="BitImageProcessor",
        crop_size={"height": 42, "width": 42},
        do_center_crop=True,
        do_convert_rgb=True,
        do_normalize=True,
        do_rescale=True,
        do_resize=True,
        image_mean=[0.485, 0.456, 0.406],
        image_std=[0.229, 0.224, 0.225],
        resample=3,
        rescale_factor=0.00392156862745098,
        size={"shortest_edge": 48},
    )


def dinov3(
    folder: Path, *, seed: int = 0, registers: int = 3, width: int = 32, **vision: Any
) -> Path:
    """A DINOv3, whose patches know their place by rotary positions."""
    config = DINOv3ViTConfig(**{**_VISION, "num_register_tokens": registers, **vision})
    _save(DINOv3ViTModel(config), folder, seed)
    return _preprocessor(
        folder,
        # Its own needs torchvision, and resizes before it rounds to 8 bits.
        image_processor_type="ViTImageProcessor",
        size={"height": 32, "width": width},
        image_mean=[0.485, 0.456, 0.406],
        image_std=[0.229, 0.224, 0.225],
        resample=2,
    )


def edit(file: Path, **changes: Any) -> None:
    """Change values of a JSON file; a value of None takes its key away."""
    values = json.loads(file.read_text())
    for key, value in changes.items():
        part, *rest = key.split("__")
        if rest:
            values.setdefault(part, {})[rest[0]] = value
        elif value is None:
            values.pop(part)
        else:
            values[part] = value
    file.write_text(json.dumps(values))


def _save(model: PreTrainedModel, folder: Path, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, value in model.named_parameters():
            noise = torch.randn(value.shape, generator=generator)
            gain = value.ndim == 1 and ("norm" in name or "lambda" in name) and "bias" not in name
            value.copy_(1 + 0.2 * noise if gain else 0.2 * noise)
    model.save_pretrained(folder)


def _clip_preprocessor(folder: Path) -> Path:
    return _preprocessor(
        folder,
        image_processor_type="CLIPImageProcessor",
        crop_size={"height": 32, "width": 32},
        size={"shortest_edge": 32},
        resample=3,
    )


def _preprocessor(folder: Path, **values: Any) -> Path:
    (folder / "preprocessor_config.json").write_text(json.dumps(values))
    return folder


def clip_tokenizer() -> CLIPTokenizer:
    """Byte-level BPE with a handful of merges."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    pieces = [*letters, *(letter + "</w>" for letter in letters)]
    merges = [("c", "a"), ("ca", "t</w>"), ("d", "o"), ("do", "g</w>"), ("o", "f</w>")]
    pieces += ["".join(pair) for pair in merges]
    pieces += ["<|startoftext|>", "<|endoftext|>"]
    vocab = {piece: index for index, piece in enumerate(pieces)}
    return CLIPTokenizer(vocab=vocab, merges=merges)


def word_tokenizer() -> PreTrainedTokenizerFast:
    """Of words, in small letters."""
    vocab = {piece: index for index, piece in enumerate(["<unk>", "</s>", *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", 1)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", eos_token="</s>", pad_token="</s>"
    )


def _piece_tokenizer(folder: Path) -> SiglipTokenizer:
    import sentencepiece

    folder.mkdir(parents=True)
    lines = [f"{first} {second}" for first in WORDS for second in WORDS]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_prefix=str(folder / "spiece"),
        vocab_size=36,
        pad_id=0, eos_id=1, unk_id=2, bos_id=-1,
        minloglevel=2,
    )  # fmt: skip
    return SiglipTokenizer(str(folder / "spiece.model"))
