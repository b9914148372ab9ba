"""Settings of the whole test suite: one thread for each process, and examples that are the same in every run."""

import warnings

import torch
from hypothesis import HealthCheck, Phase, settings

torch.set_num_threads(1)

with warnings.catch_warnings():
    # The first forward-mode derivative makes torch import a module of its own that warns about itself.
    warnings.simplefilter("ignore", DeprecationWarning)
    torch.func.jvp(torch.sin, (torch.zeros(()),), (torch.ones(()),))

settings.register_profile(
    "liebayes",
    deadline=None,
    derandomize=True,
    max_examples=25,
    phases=(Phase.explicit, Phase.generate, Phase.shrink),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("liebayes")
