"""Models of public configurations with random weights: nothing is downloaded.

They are built by transformers and diffusers, which the extra `models` installs.
"""

from __future__ import annotations

import torch
from torch import Tensor


def run_gpt2() -> list[Tensor]:
    """GPT-2: 12 layers, 124 million parameters."""
    from transformers import GPT2Config, GPT2LMHeadModel

    model = torch.compile(GPT2LMHeadModel(GPT2Config(use_cache=False)).eval())
    with torch.no_grad():
        return [model(torch.arange(64).reshape(1, 64)).logits]


def run_vit() -> list[Tensor]:
    """ViT-Base for patches of 16 pixels: 12 layers, 86 million parameters."""
    from transformers import ViTConfig, ViTModel

    model = torch.compile(ViTModel(ViTConfig()).eval())
    with torch.no_grad():
        return [model(torch.randn(1, 3, 224, 224)).last_hidden_state]


def run_unet() -> list[Tensor]:
    """The UNet of google/ddpm-cifar10-32: 36 million parameters."""
    from diffusers import UNet2DModel

    down = ("DownBlock2D", "AttnDownBlock2D", "DownBlock2D", "DownBlock2D")
    up = ("UpBlock2D", "UpBlock2D", "AttnUpBlock2D", "UpBlock2D")
    network = UNet2DModel(
        sample_size=32, in_channels=3, out_channels=3, layers_per_block=2,
        block_out_channels=(128, 256, 256, 256), down_block_types=down, up_block_types=up,
    )  # fmt: skip
    with torch.no_grad():
        return [torch.compile(network.eval())(torch.randn(1, 3, 32, 32), 10).sample]
