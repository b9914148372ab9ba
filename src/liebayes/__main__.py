"""`python -m liebayes` is the program `liebayes`."""

import os
import sys

from .cli import main

status: int = main()
if int(os.environ.get("WORLD_SIZE", "1")) > 1:
    # All is written. Past this point torch's threads for communication may abort a process that has done its work.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
sys.exit(status)
