"""What users rely on in an optimizer, one function for each point: it returns, or raises what went wrong.

The registry runs on every optimizer through its adapter: `tests/optim/test_behaviours.py` for ours,
`benchmarks/behaviours.py` for the table of who passes what. Importing a file of behaviours registers them.
"""

# In the order of the table.
from . import samples, gradients, parameters, runs  # noqa: F401, I001
from .checks import REGISTRY, Behaviour, verdict
from .parameters import train_compiled

__all__ = ["REGISTRY", "Behaviour", "train_compiled", "verdict"]
