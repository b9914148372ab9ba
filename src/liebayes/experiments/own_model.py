"""The user's own network: `--model package.module:function`."""

from __future__ import annotations

import importlib
import math
import sys
from typing import Any

import torch
from torch import nn

from .settings import SettingsError


def own_network(name: str, shape: tuple[int, ...], outputs: int) -> nn.Module:
    """The network that the function builds from an input's shape and the number of outputs; modules may be in this folder.

    The network is called once, with zeros for two inputs, and must give (2, outputs).
    """
    module_name, _, function_name = name.partition(":")
    here = f"--model {name}"
    sys.path.insert(0, "")  # as `python -m` has it; the program `liebayes` has not
    try:
        module: Any = importlib.import_module(module_name)
    except ImportError as error:
        raise SettingsError(f"{here}: {module_name} cannot be imported: {error}. Run the program where it can be.") from error
    except Exception as error:  # the user's code may raise anything
        raise SettingsError(f"{here}: importing {module_name} raised {type(error).__name__}: {error}") from error
    finally:
        sys.path.remove("")
    function = getattr(module, function_name, None)
    if not callable(function):
        known = ", ".join(n for n, f in vars(module).items() if callable(f) and getattr(f, "__module__", "") == module_name)
        raise SettingsError(f"{here}: {module_name} has no function {function_name!r}; it has {known or 'none'}.")
    try:
        model = function(shape, outputs)
        if not isinstance(model, nn.Module):
            raise TypeError(f"it returned a {type(model).__name__}, not a network (torch.nn.Module)")
        was = model.training
        with torch.no_grad():
            found = model.eval()(torch.zeros(2, *shape))
        model.train(was)
        came = tuple(found.shape) if isinstance(found, torch.Tensor) else type(found).__name__
        if came != (2, outputs):
            raise TypeError(f"for two inputs of shape {shape} its network gives {came}, not {(2, outputs)}")
    except Exception as error:
        what = f"{function_name}({shape}, {outputs}) must make a network for inputs of {math.prod(shape)} numbers"
        raise SettingsError(f"{here}: {what}: {' '.join(str(error).split())}") from error
    return model
