"""The table of times: ours beside torch's optimizers, ivon-opt and loops written by hand.

    python benchmarks/speed              # all rows, some ten minutes; writes results/benchmarks/speed.json
    python benchmarks/speed --quick      # about a minute, smaller; writes nothing
    python benchmarks/speed --parts      # what rows 2 and 4 consist of; writes speed_parts.json
    python benchmarks/speed --checks     # what the checks of a step cost, in CPU time; writes speed_checks.json
    python benchmarks/speed --scaling    # cost with parameters, samples, ranks; writes speed_scaling.json and docs/speed.png

Refuses to measure while other processes take the cores, unless told `--anyway`; for --checks that is no hindrance.
"""

from __future__ import annotations

import sys
from pathlib import Path

# For `python benchmarks/speed` Python looks inside the folder, but its modules are those of a package.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from speed.command import main

if __name__ == "__main__":
    sys.exit(main(__doc__))
