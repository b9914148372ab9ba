"""What users rely on in an optimizer, one function for each point: it returns, or raises what went wrong.

The registry runs on every optimizer through its adapter: `tests/optim/test_behaviours.py` for ours,
`benchmarks/behaviours.py` for the table of who passes what. Importing a file of behaviours registers them.
"""

import behaviours_of_samples  # noqa: F401, I001
import behaviours_of_gradients  # noqa: F401
import behaviours_of_parameters
import behaviours_of_runs  # noqa: F401
from checks import REGISTRY, Behaviour, verdict

train_compiled = behaviours_of_parameters.train_compiled

__all__ = ["REGISTRY", "Behaviour", "train_compiled", "verdict"]
