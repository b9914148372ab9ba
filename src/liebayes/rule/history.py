"""What a run of `liebayes.fit` leaves behind beside its family."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class History:
    """Figures of a run, one entry for every recorded step."""

    step: list[int] = field(default_factory=list)
    objective: list[float] = field(default_factory=list)
    """E_q[loss] − τ·H(q), from that step's samples."""
    expected_loss: list[float] = field(default_factory=list)
    """E_q[loss], with the regulariser."""
    entropy: list[float] = field(default_factory=list)
    """H(q)."""
    gradient_norm: list[float] = field(default_factory=list)
    """The Euclidean norm of the covector."""
    bounded: list[int] = field(default_factory=list)
    """How many coordinates (for matrix groups: blocks) `max_step` had bounded up to there."""
    seconds: float = 0.0
    steps_per_second: float = 0.0
    stopped: str = ""
    """Why the run ended."""
