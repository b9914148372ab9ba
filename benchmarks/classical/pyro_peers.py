"""Pyro's guides. Needs pyro-ppl."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import pyro
import torch
from pyro.infer import SVI, Trace_ELBO
from pyro.infer.autoguide import AutoMultivariateNormal, AutoNormal
from pyro.infer.autoguide.initialization import init_to_value

from .models import Arrays, Model, as_program

DRAWS = 20_000


def versions() -> dict[str, str]:
    """Of what these methods run on."""
    return {"pyro": pyro.__version__, "torch": torch.__version__}


class Guide:
    """A guide of Pyro, trained by Adam at 0.01 with one particle, as in Pyro's examples."""

    def __init__(self, full: bool) -> None:
        self.full = full

    def prepare(self, model: Model) -> Callable[[int, int], tuple[Arrays, float]]:
        """From a number of steps and a seed to draws and CPU seconds."""
        data = {name: torch.as_tensor(value) for name, value in model.data().items()}
        starts = {name: torch.tensor(value, dtype=torch.float64) for name, value in model.starts.items()}
        joint = as_program(model, pyro, torch, starts, data)

        def run(steps: int, seed: int) -> tuple[Arrays, float]:
            pyro.clear_param_store()
            pyro.set_rng_seed(seed)
            torch.set_default_dtype(torch.float64)
            try:
                guide = (AutoMultivariateNormal if self.full else AutoNormal)(joint, init_loc_fn=init_to_value(values=starts))
                svi = SVI(joint, guide, pyro.optim.Adam({"lr": 0.01}), Trace_ELBO())
                began = time.process_time()
                for _ in range(steps):
                    svi.step()
                seconds = time.process_time() - began
                with torch.no_grad(), pyro.plate("draws", DRAWS, dim=-2):
                    draws = guide()
            finally:
                torch.set_default_dtype(torch.float32)
            return {n: np.asarray(draws[n].detach()).reshape(DRAWS, *starts[n].shape) for n in starts}, seconds

        return run


METHODS: dict[str, Guide] = {"Pyro AutoNormal": Guide(False), "Pyro AutoMultivariateNormal": Guide(True)}
