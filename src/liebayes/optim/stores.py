"""All stores of an optimizer as one: built for the parameters as they are, and rebuilt when something has changed.

A parameter group has a native store for what the kernel takes and one in torch for the rest. What must outlive a change in
the middle of a step (buffers with a sample, sums of covectors) is passed on.
"""

from __future__ import annotations

import operator
import weakref
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from .. import distributed, native
from ..install import Exchange, Keep, Turn
from .native_store import NativeGaussNewtonStore, NativeStore, in_plain_memory, kernel_has
from .noise import Noise
from .rule import GaussNewtonRule, Rule
from .settings import named
from .store import Store, Sums, TorchStore, all_finite, fit_state, in_layout_of, starting_state

if TYPE_CHECKING:
    from .sampling import SamplingOptimizer

_owners: Any = WeakTensorKeyDictionary()
"""For every parameter that is trained, a weak reference to the stores that hold its state."""


class Stores:
    """The stores of an optimizer."""

    def __init__(self, optimizer: SamplingOptimizer) -> None:
        self._optimizer: Any = weakref.proxy(optimizer)
        self._stores: list[Store] = []
        self._sums: Sums = {}
        self._exchange: Exchange | None = None
        self._built_for: list[Any] = []
        self._superseded = False
        self.sharded: bool = False
        self.numbers: dict[Tensor, int] = {}
        """Which of the optimizer's parameters each one is: it fixes its noise."""

    def turn(self) -> AbstractContextManager[None]:
        """A block in which no other thread has values in the parameters: they are read, or written."""
        if self.sharded:
            return nullcontext()
        return Turn(self._exchange or self._optimizer._trained())

    # Building.

    def require(self, parameters: list[Tensor]) -> None:
        """Makes sure that the stores are those of these parameters, as they are now."""
        now = self._circumstances(parameters)
        if not (
            len(now) == len(self._built_for)
            and all(map(operator.is_, now, self._built_for))
            and all([store.is_current() for store in self._stores])  # noqa: C419
        ):
            self.rebuild(parameters)

    def require_unmoved(self, parameters: list[Tensor]) -> None:
        """The same between a sample and its step, where a quick look is enough."""
        if not self._built_for or any(store.has_moved() for store in self._stores):
            self.rebuild(parameters)

    def _circumstances(self, parameters: list[Tensor]) -> list[Any]:
        return [native.available(), *parameters, *self._optimizer.state.values()]

    @torch.no_grad()
    def rebuild(self, parameters: list[Tensor]) -> None:
        """Stores with states, buffers and sums that fit the parameters as they are now."""
        optimizer = self._optimizer
        self._built_for = []  # if this fails, the next sample tries again
        every = [p for settings in optimizer.param_groups for p in settings["params"]]
        self._claim(parameters)
        with torch.inference_mode(False):  # what is made here outlives a block of inference
            self.sharded = distributed.all_sharded(every)
            self.numbers = {p: number for number, p in enumerate(every)}
            self._fit_states()
            samples = dict(zip(parameters, optimizer._buffers.fit(parameters), strict=True))
            for p in [p for p in parameters if p in self._sums]:
                if optimizer._progress.folds:
                    self._sums[p] = [in_layout_of(p, block) for block in self._sums[p]]
                else:
                    del self._sums[p]
            self._stores = list(self._make(samples))
            ordered = [p for store in self._stores for p in store.parameters]
            self._exchange = None if self.sharded else Exchange(ordered, [samples[p] for p in ordered])
        self._built_for = self._circumstances(parameters)

    def _make(self, samples: dict[Tensor, Tensor]) -> Iterator[Store]:
        optimizer = self._optimizer
        for settings in optimizer.param_groups:
            chosen = [p for p in settings["params"] if p in samples]
            rule = optimizer.rule_for(settings)
            fast = kernel_has(settings, rule, optimizer.noise)
            by_kernel = [p for p in chosen if fast and in_plain_memory(p)]
            others = [p for p in chosen if not (fast and in_plain_memory(p))]

            def arguments(own: list[Tensor], settings: dict[str, Any] = settings, rule: Rule = rule) -> tuple[Any, ...]:
                return own, [optimizer.state[p] for p in own], settings, rule, [samples[p] for p in own], self._sums

            if by_kernel:
                kind = NativeGaussNewtonStore if isinstance(rule, GaussNewtonRule) else NativeStore
                yield kind(*arguments(by_kernel), numbers=[self.numbers[p] for p in by_kernel])
            if others:
                yield TorchStore(*arguments(others), together=optimizer.foreach)

    def _fit_states(self) -> None:
        optimizer = self._optimizer
        for settings in optimizer.param_groups:
            for name, p in named(settings):
                if p.requires_grad and not optimizer.state[p]:
                    optimizer.state[p].update(starting_state(p, settings, optimizer.rule_for(settings)))
                elif p.requires_grad:
                    fit_state(name, p, optimizer.state[p], settings, optimizer.rule_for(settings))

    def _claim(self, parameters: list[Tensor]) -> None:
        """One optimizer trains a parameter at a time: another one's momenta and widths would be those of the past."""
        if self._superseded:
            raise RuntimeError(
                "Another liebayes optimizer has trained these parameters since. Continue with that one, or build a new "
                "optimizer."
            )
        for p in parameters:
            other = _owners.get(p, lambda: None)()
            if other is not None and other is not self:
                other._optimizer._refuse_inside("Another optimizer cannot train these parameters")
                other._superseded, other._built_for = True, []
            _owners[p] = weakref.ref(self)

    # A step.

    def draw(self, noise: Noise) -> None:
        """θ = g·ε into the buffers."""
        for store in self._stores:
            store.draw(noise)

    @contextmanager
    def installed(self, keep: Keep | None) -> Iterator[None]:
        """A block in which the module holds the sample; `keep` is for backward after it, as in `install.Exchange`."""
        exchange = self._exchange
        if exchange is None:
            samples = [sample for store in self._stores for sample in store.samples]
            with distributed.contents_exchanged([p for store in self._stores for p in store.parameters], samples):
                yield
            return
        try:
            with exchange.installed(keep):
                yield
        finally:
            if keep is None:  # a later backward through a graph of this block becomes an error, not a wrong gradient
                torch.autograd.graph.increment_version(exchange.slots)

    def gather(self) -> None:
        """Takes the gradients as they are now."""
        for store in self._stores:
            store.gather()

    def release(self) -> None:
        """Keeps no gradient and no plan alive."""
        for store in self._stores:
            store.release()

    def all_finite(self) -> bool:
        """Whether all gradients are finite."""
        return all(store.all_finite() for store in self._stores)

    def fold(self, *, first: bool) -> bool:
        """Adds the covector of the sample in the buffers to the sums. Returns whether it is finite."""
        finite = True
        for store in self._stores:
            finite &= store.fold(first=first)
            if callable(store.settings["prior"]):  # its gradient may not be finite either
                finite &= all_finite([block for p in store.parameters for block in self._sums[p]])
        return finite

    def plan(self) -> bool:
        """Prepares a step along the covector of the sample in the buffers. Returns whether it is finite; nothing changes."""
        self._begin_step(1)
        return all(store.plan() for store in self._stores)

    def plan_by_sums(self, used: set[int], folds: int) -> bool:
        """The same along the mean of the folded covectors, of all ranks, for the parameters with these identities."""
        group = self._optimizer.process_group
        count = max(folds, 1)
        if distributed.world_size(group) > 1 and not self.sharded:
            self._average_over_ranks(used, folds, group)
            count = 1
        self._begin_step(max(folds, 1) * (1 if self.sharded else distributed.world_size(group)))
        return all(store.plan_by_sums([id(p) in used for p in store.parameters], count) for store in self._stores)

    def advance(self) -> int | Tensor:
        """Takes the step that was planned. Returns how many coordinates were bounded."""
        bounded: int | Tensor = 0
        for store in self._stores:
            bounded = bounded + store.advance()
        return bounded

    def _begin_step(self, samples: int) -> None:
        """Gives stores whose rule has levels those of their parameters, which depend on the traces of all."""
        for rule in {id(store.rule): store.rule for store in self._stores if store.has_traces}.values():
            own = [store for store in self._stores if store.rule is rule]
            steps = [count for store in own for count in store.steps]
            levels = rule.levels(torch.cat([store.traces() for store in own]), steps, samples)
            for store, part in zip(own, levels.split([len(store.parameters) for store in own]), strict=True):
                store.levels = part

    def _average_over_ranks(self, used: set[int], folds: int, group: Any) -> None:
        if not folds:  # only other ranks have gradients; here prior and entropy count
            self.fold(first=True)
        blocks = [block for store in self._stores for p in store.parameters if id(p) in used for block in self._sums[p]]
        for store in self._stores:
            store.sums_changed = True
        for block in blocks if folds > 1 else []:
            block.div_(folds)  # this rank's own number of samples, which others need not have
        if blocks:
            distributed.average_over_ranks(blocks, group)
