"""Several Monte Carlo samples at once: one in each thread, with single-threaded matrix products.

The loop, one sample after the other in the module, is the reference. Threads give the same numbers to rounding, and the same
bits for any number of them: sample k has the noise of stream k, and covectors are added in the order of the samples.

Nothing is written into the module. Every worker has leaves of its own, so memory grows by two numbers for each weight and
worker, which bounds the number of workers. Whether a closure may run in threads is found out in the first step with it
(`Probe`): its first sample is evaluated by the loop, the second by the loop too, but with leaves in place of the parameters
that are in the module, so that its gradient is right whether or not the leaves have reached everything.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from .. import threads
from ..threads import CallersContext, Leaves, Probe, Substitution, shared_workers, single_threaded

if TYPE_CHECKING:
    from .optimizer import LieGroupBLR

MIN_SAMPLES = 8
"""With fewer, handing the cores over to the workers and back costs what they save (docs/speed.md, the picture)."""

Closure = Callable[..., Any]
Parts = list[tuple[Any, ...]]


class Evaluation:
    """How an optimizer evaluates the samples of a step.

    Its `method` is "threads" or "loop" once that is settled, by an earlier step or the checkpoint of one.
    """

    def __init__(self, method: str | None = None) -> None:
        self.method = method
        self.reason: str | None = "as before the checkpoint" if method == "loop" else None
        self._leaves: list[Leaves] = []
        self._code: object = None  # of the closure that has been watched
        self._modules: list[nn.Module] = []
        self._signature: list[Any] = []

    def __str__(self) -> str:
        return f"loop: {self.reason}" if self.reason else self.method or "undecided"

    def losses(self, optimizer: LieGroupBLR, closure: Closure, parts: Parts) -> list[Any]:
        """What the closure returns for each sample; their covectors are folded in."""
        reason = self._reason_for_loop(optimizer)
        if reason is not None:
            return self._by_loop(optimizer, closure, parts, reason)
        if self._known(closure):
            return self._by_threads(optimizer, closure, parts, [])
        return self._by_probe(optimizer, closure, parts)

    def _reason_for_loop(self, optimizer: LieGroupBLR) -> str | None:
        insisting = optimizer.parallel
        if insisting is False:
            return "parallel=False"
        if optimizer.mc_samples == 1:
            return "there is one sample in a step"
        if self.method == "loop" and not insisting:
            return self.reason
        parameters = optimizer._trained()
        if not (insisting or self.method):
            if torch.get_num_threads() == 1:
                return "torch has one thread"
            if optimizer.mc_samples < MIN_SAMPLES:
                return f"there are fewer than {MIN_SAMPLES} samples in a step"
            reason = threads.not_worthwhile(sum(p.numel() for p in parameters))
            if reason is not None:
                return reason
        if hasattr(optimizer, "grad_scale"):
            return "a GradScaler is used"
        return threads.obstacle(parameters)

    def _known(self, closure: Closure) -> bool:
        return self._code is threads.code_of(closure) and threads.signature(self._modules) == self._signature

    # The loop.

    def _by_loop(self, optimizer: LieGroupBLR, closure: Closure, parts: Parts, reason: str | None) -> list[Any]:
        if optimizer.parallel and optimizer.mc_samples > 1:
            raise RuntimeError(
                f"parallel=True, but samples cannot be evaluated in threads: {reason}. With parallel=None they are evaluated "
                "one after the other where they must be."
            )
        self.reason = reason
        return [optimizer._evaluate_in_module(closure, part) for part in parts]

    # The first step with a closure.

    def _by_probe(self, optimizer: LieGroupBLR, closure: Closure, parts: Parts) -> list[Any]:
        probe, losses = Probe(closure), []
        if probe.reason is None:
            with single_threaded():  # the bits of the workers
                with probe.first_call():
                    losses.append(optimizer._evaluate_in_module(closure, parts[0]))
                if probe.reason is None:
                    losses.append(self._second_sample(optimizer, closure, parts[1], probe))
        if probe.reason is not None:
            self.method = "loop"
            return losses + self._by_loop(optimizer, closure, parts[len(losses) :], probe.reason)
        self.method = "threads"
        self._code, self._modules, self._signature = probe.code, probe.modules, threads.signature(probe.modules)
        return self._by_threads(optimizer, closure, parts, losses)

    def _second_sample(self, optimizer: LieGroupBLR, closure: Closure, part: tuple[Any, ...], probe: Probe) -> Any:
        """The sample in the module and in leaves. Whatever went past the leaves is in `.grad` of the parameters."""
        expected = {p for p in optimizer._sampled if p.grad is not None}
        leaves = Leaves()

        def merge(p: Tensor) -> None:
            with torch._C.DisableTorchFunction(), torch.no_grad():
                leaf = leaves.of[p]
                if p.grad is not None:
                    probe.reason = probe.reason or "something takes a parameter past torch's functions"
                    leaf.grad = p.grad if leaf.grad is None else leaf.grad + p.grad
                    p.grad = None

        def call(*arguments: Any) -> Any:
            leaves.fit(optimizer._trained())
            with torch.no_grad():
                for p, value in leaves.values.items():
                    value.copy_(p)
            with leaves.in_place_of_parameters(optimizer, lambda known: probe.substitution(known, merge)):
                loss = closure(*arguments)
            for p, leaf in leaves.of.items():
                merge(p)
                p.grad, leaf.grad = leaf.grad, None
            return loss

        try:
            with probe.second_call():
                loss = optimizer._evaluate_in_module(call, part, fold=False)
        except Exception:  # perhaps because of the leaves, so it is not tried again
            self.method, self.reason = "loop", "the closure failed when leaves took the place of its parameters"
            raise
        if {p for p in optimizer._sampled if p.grad is not None} != expected:
            probe.reason = probe.reason or "gradients came for other parameters with leaves in their place"
            if all(p.grad is None for p in optimizer._sampled):
                optimizer._buffers.pending = False
                return optimizer._evaluate_in_module(closure, part)  # the only case of a call more than there are samples
        optimizer._fold(watch=False)
        return loss

    # Threads.

    def _by_threads(self, optimizer: LieGroupBLR, closure: Closure, parts: Parts, losses: list[Any]) -> list[Any]:
        """The samples that have no loss yet."""
        parameters = optimizer._trained()
        if not optimizer._folds and optimizer._marks.changed(parameters):
            with single_threaded():  # the loop knows what to do about gradients that no sample has given
                losses.append(optimizer._evaluate_in_module(closure, parts[0]))
        rest = parts[len(losses) :]
        if not rest:
            return losses
        self.reason = None
        before = threads.random_state()
        inherited = {p: p.grad for p in parameters if p.grad is not None and not optimizer._folds}
        for p in parameters:
            p.grad = None
        first = optimizer._folds
        context, workers = CallersContext(), threads.affordable_workers(sum(p.numel() for p in parameters))
        self._leaves = self._leaves[:workers]
        self._leaves += [Leaves() for _ in range(min(workers, len(rest)) - len(self._leaves))]
        optimizer._make_room(parameters)
        for leaves in self._leaves:
            leaves.fit(parameters)

        def compute(worker: int, number: int, _: None) -> tuple[Any, Leaves]:
            leaves = self._leaves[worker]
            optimizer._draw_into(leaves.values, first + number)
            leaves.clear()
            if number == 0:
                for p, gradient in inherited.items():
                    leaves.of[p].grad = gradient
            with context.here(), torch.enable_grad(), leaves.in_place_of_parameters(optimizer, Substitution):
                return context.run(closure, *rest[number]), leaves

        def take(number: int, result: tuple[Any, Leaves]) -> None:
            loss, leaves = result
            losses.append(loss)
            gradients = leaves.gradients
            optimizer._fold_in(leaves.values, gradients)
            if number == len(rest) - 1:
                last.update(gradients)
                leaves.clear()

        last: dict[Tensor, Tensor] = {}
        optimizer._buffers.active = True
        try:
            shared_workers().run(len(rest), workers, lambda _: None, compute, take)
        finally:
            optimizer._buffers.active = False
        if any(p.grad is not None for p in parameters):
            return self._again_by_loop(optimizer, closure, parts)
        if not torch.equal(before, threads.random_state()):
            self.method, self.reason = "loop", "random numbers are drawn"
        for p in parameters:
            p.grad = last.get(p)
        optimizer._finish_folding(parameters, watch=False)
        return losses

    def _again_by_loop(self, optimizer: LieGroupBLR, closure: Closure, parts: Parts) -> list[Any]:
        """The closure has done what it did not do when it was watched: these gradients are not those of the samples."""
        optimizer._forget()
        optimizer.zero_grad()
        self.method = "loop"
        return self._by_loop(optimizer, closure, parts, "something takes a parameter past torch's functions")
