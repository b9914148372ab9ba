"""`python -m liebayes` is the program `liebayes`."""

import sys

from .cli import main

sys.exit(main())
