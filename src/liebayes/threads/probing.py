"""Whether a closure may run in several threads at once: it is watched while it runs in the usual way.

A closure is opaque, so nothing can be proved. What would give other results in threads than one after the other leaves
traces, though: state that a call leaves behind for the next, in a module, a tensor, a random generator or a captured variable;
parameters that reach autograd past torch's functions; code that is compiled, hooked, or runs forward passes again in backward.
Each of these has a sentence here that says so, and means the loop.
"""

from __future__ import annotations

import functools
import random
import sys
import types
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch._C import _autograd, _functorch  # pyright: ignore[reportAttributeAccessIssue]
from torch.nn.modules import module as module_internals
from torch.nn.utils import parametrize

from .substitution import Substitution, flat

_COMPILED = "the model is compiled"
_FUNCTIONS = {
    "compile_wrapper": _COMPILED,
    "checkpoint": "activation checkpointing runs forward passes again in backward",
}
"""Python functions of torch that a closure passes through if it does such things."""

_CONTAINERS = (dict, list, tuple, set, deque)

_TRUSTED = frozenset((*sys.stdlib_module_names, "torch"))
"""Whose functions are not searched for what they refer to."""


def obstacle(parameters: list[Tensor]) -> str | None:
    """What forbids threads whatever the closure does: kinds of parameters, or contexts that belong to the calling thread."""
    for p in parameters:
        if type(p) not in (nn.Parameter, Tensor):
            return f"a parameter is a {type(p).__name__}"
        if p.device.type != "cpu":
            return f"a parameter is on {p.device}"
        if p._backward_hooks or getattr(p, "_post_accumulate_grad_hooks", None):
            return "a parameter has hooks"
    if torch._C._len_torch_function_stack() or torch._C._len_torch_dispatch_stack():
        return "a mode of torch's functions is active"
    if _autograd._top_saved_tensors_default_hooks(False) is not None:
        return "hooks for saved tensors are active"
    if _functorch.peek_interpreter_stack() is not None:
        return "a transform of torch.func is active"
    if torch.is_inference_mode_enabled():
        return "inference mode is on"
    if parametrize._cache_enabled:
        return "parametrizations are cached"
    if any((module_internals._global_forward_hooks, module_internals._global_forward_pre_hooks,
            module_internals._global_backward_hooks, module_internals._global_backward_pre_hooks)):  # fmt: skip
        return "there are hooks for all modules"
    return None


class Probe:
    """Watches two calls of a closure: the first as it is, the second with leaves in place of the parameters."""

    def __init__(self, closure: Callable[..., Any]) -> None:
        self.code: object = code_of(closure)
        self.reason: str | None = None
        self._objects = list(_captured(closure))
        self._modules: dict[int, nn.Module] = {}
        for value in self._objects:
            if isinstance(value, nn.Module):
                self._modules |= {id(m): m for m in value.modules()}
            elif isinstance(value, Iterator):
                self._found("an iterator is read from")
            elif hasattr(value, "_torchdynamo_orig_callable"):
                self._found(_COMPILED)
        self._look_at_modules()

    @property
    def modules(self) -> list[nn.Module]:
        """Those that the closure has called or captured."""
        return list(self._modules.values())

    def _found(self, reason: str) -> None:
        self.reason = self.reason or reason

    @contextmanager
    def first_call(self) -> Iterator[None]:
        """Watches which modules are called, and what kinds of code."""

        def called(module: nn.Module, _inputs: Any) -> None:
            self._modules[id(module)] = module

        def entered(frame: types.FrameType, event: str, _argument: Any) -> None:
            reason = _FUNCTIONS.get(frame.f_code.co_name) if event == "call" else None
            if reason is not None and frame.f_globals.get("__name__", "").startswith("torch."):
                self._found(reason)

        profiler = sys.getprofile()
        hook = module_internals.register_module_forward_pre_hook(called)
        try:
            with self._randomness():
                if profiler is None:
                    sys.setprofile(entered)
                yield
        finally:
            if profiler is None:
                sys.setprofile(None)
            hook.remove()
        self._look_at_modules()

    @contextmanager
    def second_call(self) -> Iterator[None]:
        """Watches for what is left behind. By now caches have been filled that later calls only read."""
        watched = [value for value in self._objects if _is_plain_object(value) or isinstance(value, _CONTAINERS)]
        objects = [*self.modules, *watched]
        functions = [value for value in self._objects if isinstance(value, types.FunctionType)]
        contents, variables = [_contents(value) for value in objects], [_variables(value) for value in functions]
        buffers = [(b, b.clone()) for m in self.modules for b in m._buffers.values() if b is not None]
        with self._randomness():
            yield
        if not _same([_contents(value) for value in objects], contents) or not all(torch.equal(b, old) for b, old in buffers):
            self._found("a module or another object changes when it is called")
        if not _same([_variables(value) for value in functions], variables):
            self._found("variables outside of the closure are assigned to")

    @contextmanager
    def _randomness(self) -> Iterator[None]:
        before = self._random_states()
        yield
        if before != self._random_states():
            self._found("random numbers are drawn")

    def _random_states(self) -> list[Any]:
        numpy: Any = sys.modules.get("numpy")
        found = [bytes(random_state().tolist()), random.getstate()]
        if numpy is None:
            return found
        reachable = [one for value in self._objects for one in (value, *_contents(value))]
        generators = {id(one): one for one in reachable if isinstance(one, numpy.random.Generator)}
        older = {id(one): one for one in reachable if isinstance(one, numpy.random.RandomState)}
        found += [repr(one.bit_generator.state) for one in generators.values()]
        return [*found, *(repr(one.get_state()) for one in [numpy.random, *older.values()])]

    def _look_at_modules(self) -> None:
        for m in self.modules:
            if getattr(m, "_compiled_call_impl", None) is not None or hasattr(m, "_orig_mod"):
                self._found(_COMPILED)
            if m._forward_hooks or m._forward_pre_hooks or m._backward_hooks or m._backward_pre_hooks:
                self._found(f"a {type(m).__name__} has hooks")
            if m.training and getattr(m, "track_running_stats", False):
                self._found(f"a {type(m).__name__} keeps running statistics")
            if isinstance(m, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
                self._found(f"the model is in a {type(m).__name__}")

    def substitution(self, leaves: dict[int, Tensor], merge: Callable[[Tensor], None]) -> Substitution:
        """A substitution that reports what it sees; `merge` is called for a parameter before its gradient is read."""
        return _Observed(leaves, merge, self._found)


class _Observed(Substitution):
    """Looks at every argument; slow, and used for one call."""

    def __init__(self, leaves: dict[int, Tensor], merge: Callable[[Tensor], None], found: Callable[[str], None]) -> None:
        super().__init__(leaves)
        self.merge, self.found = merge, found
        self.own = {id(leaf): weakref.ref(leaf) for leaf in leaves.values()}  # leaves, and results of functions since

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func == _GET_GRADIENT and id(args[0]) in self.leaves:
            self.merge(args[0])
        if kwargs.get("generator") is not None:
            self.found("random numbers are drawn")
        if _writes(func, kwargs):
            written = kwargs.get("out", args[0] if args else None)
            if any(self._shared(t) for t in flat([written])):
                self.found("a tensor made elsewhere is written into")
        if any(self._foreign(t) and t.is_leaf and t.requires_grad for t in flat([*args, *kwargs.values()])):
            self.found("gradients come to tensors that are not trained here")
        result = super().__torch_function__(func, types, args, kwargs)
        for t in flat([result]):
            if isinstance(t, Tensor):
                self.own[id(t)] = weakref.ref(t)
        return result

    def _foreign(self, t: object) -> bool:
        if not isinstance(t, Tensor) or id(t) in self.leaves:
            return False
        known = self.own.get(id(t))
        return known is None or known() is not t

    def _shared(self, t: object) -> bool:
        """Tensors that other workers see: leaves have a gradient and belong to one worker; what has none is a buffer."""
        leaf = self.leaves.get(id(t))
        return self._foreign(t) if leaf is None else not leaf.requires_grad


_GET_GRADIENT: Any = vars(torch._C.TensorBase)["grad"].__get__


def _writes(func: Callable[..., Any], kwargs: dict[str, Any]) -> bool:
    name = getattr(func, "__name__", "")
    if name in ("__setitem__", "__set__", "__delete__"):
        return True
    return (name.endswith("_") and not name.endswith("__")) or kwargs.get("inplace") is True or kwargs.get("out") is not None


def code_of(closure: Callable[..., Any]) -> object:
    """What makes two closures the same: those of a training loop are new functions with the same code in every round."""
    return getattr(closure, "__code__", None) or type(closure)


def signature(modules: list[nn.Module]) -> list[Any]:
    """What may change between steps and would make another probe necessary."""
    return [(m.training, len(m._forward_hooks), len(m._forward_pre_hooks), len(m._backward_hooks)) for m in modules]


def random_state() -> Tensor:
    """The state of torch's own generator."""
    return torch.default_generator.get_state()


def _captured(closure: object) -> Iterator[Any]:
    """Objects that a function can reach by its variables, its owner, and the functions among them."""
    todo, seen = [closure], {id(closure)}
    while todo and len(seen) < 10_000:
        value = todo.pop()
        yield value
        found: list[Any] = []
        if isinstance(value, types.MethodType):
            found = [value.__self__, value.__func__]
        elif isinstance(value, types.FunctionType) and (value.__module__ or "").split(".")[0] not in _TRUSTED:
            found = [*_variables(value), *(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
        elif isinstance(value, functools.partial):
            found = [value.func, *value.args, *value.keywords.values()]
        elif value is closure and hasattr(value, "__dict__"):
            found = [*vars(value).values(), type(value).__call__]
        elif value is getattr(closure, "__self__", None) and hasattr(value, "__dict__"):
            found = list(vars(value).values())
        new = [one for one in found if id(one) not in seen]
        seen.update(map(id, new))
        todo += new


def _variables(closure: object) -> list[Any]:
    """The values of the variables that a function has from outside."""
    code, names = getattr(closure, "__code__", None), getattr(closure, "__globals__", {})
    found = [names[name] for name in code.co_names if name in names] if code is not None else []
    for cell in getattr(closure, "__closure__", None) or ():
        try:
            found.append(cell.cell_contents)
        except ValueError:  # a variable that has no value yet
            found.append(None)
    return found


def _is_plain_object(value: object) -> bool:
    kinds = (nn.Module, Tensor, torch.optim.Optimizer, type, types.ModuleType, types.FunctionType, types.MethodType)
    return hasattr(value, "__dict__") and not isinstance(value, kinds)


def _contents(value: Any) -> list[Any]:
    """An object's attributes and members and, one level down, the members of attributes and the attributes of members."""
    found: list[Any] = []
    for name, attribute in getattr(value, "__dict__", {}).items():
        found += [name, attribute, *_members(attribute)]
    for member in _members(value):
        found += [member, *(vars(member).values() if _is_plain_object(member) else ())]
    return found


def _members(value: object) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return list(value) if isinstance(value, _CONTAINERS) else []


def _same(a: list[list[Any]], b: list[list[Any]]) -> bool:
    """Whether these are the same objects; small numbers and texts may be equal ones."""

    def same(x: Any, y: Any) -> bool:
        return x is y or (type(x) is type(y) and isinstance(x, (int, float, str)) and x == y)

    return all(len(x) == len(y) and all(map(same, x, y)) for x, y in zip(a, b, strict=True))
