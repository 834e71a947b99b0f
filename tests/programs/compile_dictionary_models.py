"""Compile small models of many kinds, for `tools.dictionary`. No benchmark measures any of them.

    python compile_dictionary_models.py

The caller decides where the caches are.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class Attention(nn.Module):
    """Bidirectional, with an additive mask and dropout that is off."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self._attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self._norm = nn.LayerNorm(width)
        self._feed_forward = nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        mixed, _ = self._attention(x, x, x, need_weights=False)
        return self._norm(x + mixed + self._feed_forward(x))


class Rotary(nn.Module):
    """Queries that are rotated by their position."""

    def forward(self, x: Tensor) -> Tensor:
        angles = torch.arange(x.shape[1])[:, None] * torch.arange(x.shape[2] // 2)[None, :] * 0.1
        left, right = x.chunk(2, dim=-1)
        return torch.cat([left * angles.cos() - right * angles.sin(), right * angles.cos() + left * angles.sin()], -1)


class Depthwise(nn.Module):
    """A residual block of an image model."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self._inner = nn.Sequential(
            nn.Conv2d(channels, channels, 5, padding=2, groups=channels), nn.GroupNorm(4, channels), nn.Hardswish(),
            nn.Conv2d(channels, channels, 1),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        mixed: Tensor = x + self._inner(x)
        return functional.interpolate(mixed, scale_factor=2.0, mode="nearest")


class Sampler(nn.Module):
    """What follows the logits of a language model."""

    def forward(self, logits: Tensor) -> Tensor:
        scaled = logits / 0.7
        values, found = scaled.topk(8, dim=-1)
        return torch.zeros_like(scaled).scatter(-1, found, values.softmax(dim=-1)).cumsum(dim=-1)


class Bag(nn.Module):
    """Embeddings, averaged where there is something to average."""

    def __init__(self, words: int, width: int) -> None:
        super().__init__()
        self._words = nn.Embedding(words, width)
        self._out = nn.Linear(width, 5)

    def forward(self, x: Tensor) -> Tensor:
        mask = (x > 0).unsqueeze(-1)
        mean = (self._words(x) * mask).sum(dim=1) / mask.sum(dim=1).clamp(min=1)
        return self._out(torch.tanh(mean)).log_softmax(dim=-1)


class Experts(nn.Module):
    """A weight for each of several layers."""

    def __init__(self, width: int, experts: int) -> None:
        super().__init__()
        self._gate = nn.Linear(width, experts)
        self._experts = nn.ModuleList(nn.Linear(width, width) for _ in range(experts))

    def forward(self, x: Tensor) -> Tensor:
        weights = torch.sigmoid(self._gate(x))
        return torch.stack([expert(x) * weights[:, i : i + 1] for i, expert in enumerate(self._experts)]).amax(dim=0)


INFERENCE: list[tuple[nn.Module, tuple[int, ...], torch.dtype]] = [
    (Attention(48, 3), (3, 20, 48), torch.float32),
    (Rotary(), (2, 24, 32), torch.float32),
    (Depthwise(24), (1, 24, 20, 20), torch.float32),
    (Sampler(), (4, 500), torch.float32),
    (Bag(300, 40), (6, 12), torch.int64),
    (Experts(40, 3), (10, 40), torch.float32),
    (Attention(64, 4).to(torch.bfloat16), (2, 16, 64), torch.bfloat16),
    (
        nn.Sequential(nn.Conv1d(4, 12, 5, stride=2), nn.ELU(), nn.AvgPool1d(3), nn.Flatten(), nn.LazyLinear(6)),
        (3, 4, 60),
        torch.float32,
    ),
]


def infer(model: nn.Module, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    values = torch.randint(9, shape) if dtype is torch.int64 else torch.randn(shape, dtype=dtype)
    model.eval()(values)
    with torch.no_grad():
        torch.compile(model)(values)


def train() -> None:
    """Forward, backward and a step of the optimizer."""
    model = nn.Sequential(nn.Linear(24, 40), nn.LeakyReLU(), nn.Dropout(0.1), nn.Linear(40, 40), nn.RMSNorm(40))
    optimizer = torch.optim.AdamW(model.parameters())
    step = torch.compile(optimizer.step)
    functional.mse_loss(torch.compile(model)(torch.randn(12, 24)), torch.randn(12, 40)).backward()
    step()


def infer_sizes() -> None:
    """One graph for several sizes."""
    model = torch.compile(
        nn.Sequential(nn.Linear(20, 60), nn.Softplus(), nn.BatchNorm1d(60), nn.Sigmoid()).eval(), dynamic=True
    )
    with torch.no_grad():
        for count in (3, 8, 15):
            model(torch.randn(count, 20))


if __name__ == "__main__":
    torch.manual_seed(1)
    torch.set_num_threads(2)
    for model, shape, dtype in INFERENCE:
        torch._dynamo.reset()
        infer(model, shape, dtype)
    train()
    infer_sizes()
