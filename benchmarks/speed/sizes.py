"""How large the work is. The limits are for the full size; the others show that it runs, and about how fast."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Sizes:
    """The work of all rows and of the scaling."""

    rounds: int = 9
    seconds: float = 0.2
    """Short work is repeated this long in a round."""
    parameters: int = 50_000_000
    tensors: int = 200
    noise: int = 1 << 22
    hidden: tuple[int, ...] = (1024, 512, 256, 256, 256)
    """Of the MLP of Table 1."""
    batch: int = 50
    samples: int = 32
    images: int = 10_000
    images_at_once: int = 500
    resnet_width: int = 16
    resnet_blocks: tuple[int, ...] = (3, 3, 3)
    resnet_batch: int = 200
    compiler: str = "inductor"
    memory: int = 1 << 20
    """Numbers in each of the eight tensors of benchmarks/memory.py."""

    scaling_rounds: int = 5
    parameter_counts: tuple[int, ...] = (100_000, 300_000, 1_000_000, 3_000_000, 10_000_000, 30_000_000, 100_000_000)
    sample_counts: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64)
    rank_samples: tuple[int, ...] = (1, 8)
    """Samples of each rank."""
    rank_steps: int = 15


SIZES = {
    "full": Sizes(),
    "quick": Sizes(
        rounds=3,
        seconds=0.1,
        parameters=5_000_000,
        samples=16,
        images=1_000,
        resnet_blocks=(1, 1, 1),
        resnet_batch=50,
        scaling_rounds=2,
        parameter_counts=(100_000, 1_000_000, 10_000_000),
        sample_counts=(1, 4, 16),
        rank_samples=(1,),
        rank_steps=5,
    ),
    "tiny": Sizes(
        rounds=2,
        seconds=0.0,
        parameters=20_000,
        tensors=10,
        noise=4_096,
        hidden=(16, 8),
        batch=4,
        samples=2,
        images=20,
        images_at_once=10,
        resnet_width=2,
        resnet_blocks=(1, 1, 1),
        resnet_batch=2,
        compiler="eager",
        memory=1 << 10,
        scaling_rounds=1,
        parameter_counts=(1_000, 10_000),
        sample_counts=(1, 2),
        rank_samples=(1,),
        rank_steps=2,
    ),
}
