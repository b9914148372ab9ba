"""Entry point of `liebayes train | evaluate | predict | compare | sweep | ...`: warnings, errors and exit status."""

from __future__ import annotations

import os
import sys
import time
import traceback
import warnings
from collections.abc import Sequence
from contextlib import suppress


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the program and returns its exit status: 0, 1 for a failure, 2 for wrong usage, 130 for an interruption."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in words
    with suppress(AttributeError):  # a replaced stdout may not have it
        sys.stdout.reconfigure(errors="backslashreplace")  # pyright: ignore[reportAttributeAccessIssue]
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            warnings.simplefilter("default", UserWarning)
            from .experiments.commands import run

            status = run([word for word in words if word != "--debug"])
            sys.stdout.flush()
            return status
    except BrokenPipeError:
        # The reader of the pipe has closed it; without this, Python would report the error again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (Exception, KeyboardInterrupt) as error:
        text, status = _account(error)
        if debug:
            traceback.print_exc()
        elif text:
            print(" ".join(text.split()), file=sys.stderr)
        elif status != 130:
            # torchrun kills all ranks as soon as one fails: a rank with nothing to say waits for the one with the message.
            with suppress(KeyboardInterrupt):
                time.sleep(10)
        return status


def _account(error: BaseException) -> tuple[str, int]:
    """The message of an error and the exit status. Ranks that would repeat the message have none."""
    if isinstance(error, KeyboardInterrupt):
        return "Interrupted.", 130
    if isinstance(error, ModuleNotFoundError):
        return f"liebayes: {error.name} is not installed: pip install 'liebayes[all]'", 1
    from .data import DataError
    from .experiments.processes import PeerError
    from .experiments.settings import SettingsError
    from .experiments.train import InterruptedRunError

    first_rank = os.environ.get("WORLD_SIZE", "1") == "1" or os.environ.get("RANK", "0") == "0"
    if isinstance(error, InterruptedRunError):
        return str(error) if first_rank else "", 130
    # Subclasses of DataError are about files; DataError itself is about the name of a data set or folder.
    if isinstance(error, SettingsError) or type(error) is DataError:
        return f"liebayes: {error}" if first_rank else "", 2  # all ranks have the same command line
    if isinstance(error, PeerError):
        return "", 1
    return f"liebayes: {str(error) or type(error).__name__}", 1


def _show_warning(message: Warning | str, *place: object) -> None:
    print(f"liebayes: warning: {' '.join(str(message).split())}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
