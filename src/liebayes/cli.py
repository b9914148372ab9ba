"""The program: `liebayes train | evaluate | predict | compare | info`."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the program; returns its exit status: 0, 1 for a failure, 2 for wrong usage, 130 for an interruption."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in words
    words = [word for word in words if word != "--debug"]
    from .experiments.commands import run
    from .experiments.train import InterruptedRunError

    try:
        run(words)
    except InterruptedRunError as stop:
        print(stop, file=sys.stderr)
        return 130
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        return 130
    except SystemExit as stop:
        return int(stop.code or 0) if isinstance(stop.code, (int, type(None))) else 2
    except Exception as error:
        if debug:
            traceback.print_exc()
        else:
            text = " ".join(str(error).split()) or type(error).__name__
            print(f"liebayes: {text}", file=sys.stderr)
        return 2 if type(error) is ValueError else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
