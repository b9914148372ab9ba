"""What a run of `liebayes.fit` records, besides its family."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field


class Convergence(enum.Enum):
    """What became of a run. True in conditions if it has converged: `if q.history.converged: ...`."""

    CONVERGED = "nothing moves any more, as far as the samples can tell"
    MOVING = "the steps ran out while the fit was still moving"
    UNBOUNDED = "a width grows without bound: the target has no finite mass in a direction"
    LOST = "the loss failed on the way"
    UNKNOWN = "the run was not ended by `finish`"

    def __bool__(self) -> bool:
        return self is Convergence.CONVERGED


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
    """How many coordinates (for matrix groups: blocks) `max_step` had bounded up to that step."""
    seconds: float = 0.0
    steps_per_second: float = 0.0
    stopped: str = ""
    """Why the run ended."""
    converged: Convergence = Convergence.UNKNOWN
    verdict: str = ""
    """The same as a sentence, with the parameter and the number it is based on."""
    final_objective: float = float("nan")
    """E_q[loss] − τ·H(q) of the result, from fresh samples."""
    final_error: float = float("nan")
    """The standard error of `final_objective`."""
    retreats: int = 0
    """How many steps began with narrower widths because the loss had no finite value."""
    newton_steps: int = 0
    """How many of Newton's steps were taken after the run: by mean-field families, under correlation."""
    starts: list[float] = field(default_factory=list)
    """The final objectives of all starts, if there were several."""
    modes: int = 0
    """How many of the other starts ended elsewhere, about as well: the posterior has several modes, and this is one."""
