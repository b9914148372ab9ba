"""Training on samples of a posterior: when one is in the module, and what its gradient does.

A step reads: draw a sample, install it in the module, call the closure, fold the covector in, advance the elements. A loop may
do these one by one (`sampled()`, backward, `step()`); `protocol` draws the order as a state machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, ClassVar, Literal, TypeVar

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils import _pytree as pytree

from .. import distributed
from ..training_warnings import Watch
from .noise import Noise, Source
from .protocol import GradientMarks, Phase, Progress, SampleBuffers, nonzero, require_dense, require_local_gradients
from .rule import Rule
from .settings import NUMBERS, named, require_numbers, require_parameter
from .store import all_finite
from .stores import Stores

R = TypeVar("R")


class NonFiniteError(RuntimeError):
    """A gradient, or the result of a step, was not finite. Parameters and optimizer are as they were before the step."""


def in_turn(method: Callable[[Any], R]) -> Callable[[Any], R]:
    """A method that reads or writes parameters: it waits while another thread has a sample in them."""

    @wraps(method)
    def waiting(self: SamplingOptimizer) -> R:
        with self._stores.turn():
            return method(self)

    return waiting


class SamplingOptimizer(Optimizer):
    """The protocol that all optimizers of this library share; their formulas are a `Rule`."""

    rule_type: ClassVar[type[Rule]]
    """The formulas of a step."""

    mc_samples: int
    nonfinite: Literal["raise", "skip"]
    foreach: bool
    process_group: Any
    seed: int
    noise: Source
    steps: int
    skipped: int
    clock: int
    """Numbers the noise: it ticks with every step, taken or skipped, and with every sample that is dropped."""
    bounded: int | Tensor

    def rule_for(self, settings: dict[str, Any]) -> Rule:
        """The formulas for a parameter group."""
        return self.rule

    def _clear(self) -> None:
        """Forgets everything but settings, counters and states."""
        self.rule: Rule = self.rule_type()
        self._buffers = SampleBuffers()
        self._stores = Stores(self)
        self._ranks_checked = False
        self._settings_checked: list[Any] = []
        self._progress = Progress([])
        self._watch = Watch()

    def _forget(self) -> None:
        """Drops the samples since the last step."""
        self._stores.release()
        self._buffers.in_use = False
        self._progress = Progress(self._trained())

    # Samples.

    @contextmanager
    def sampled(self, *, again: bool = False) -> Iterator[None]:
        """A block in which the module holds one sample of the posterior; run the forward pass inside.

        With one sample the backward pass may follow later, and what `.grad` holds when `step()` is called counts: clip,
        unscale and accumulate as usual. With more samples (`mc_samples` of them, or several blocks before a step) run backward
        inside: each block's gradient is folded in at its end. Several backwards in one block add up; several blocks are
        averaged. Networks with activation checkpointing, those of fully_shard, and blocks with hooks for saved tensors of
        one's own always run backward inside.

        With `again=True` the sample of the last block comes back, unless a step has been taken since: the gradients of several
        blocks then add up as those of one, for micro-batches whose losses were divided by their number.
        """
        if again and self.mc_samples > 1:
            raise ValueError("again=True adds up gradients of one sample over several blocks, so it needs mc_samples=1.")
        again = again and self._progress.phase is Phase.WAITING
        if not again:
            self._settle()
        several = self.mc_samples > 1 or self._progress.folds > 0
        with self._sample_in_module(late_backward=not several, again=again):
            yield
        if several:
            self._fold()

    @contextmanager
    def _sample_in_module(self, late_backward: bool, again: bool = False) -> Iterator[None]:
        self._refuse_inside("Another sample cannot be drawn")
        if not again:
            self._draw()
        else:
            self._stores.require(self._progress.parameters)
        progress = self._progress
        before, progress.phase, self._buffers.in_use = progress.phase, Phase.SAMPLING, True
        try:
            self._watch.await_loss([] if self._stores.sharded else progress.parameters)
            keep = self._buffers.alias if late_backward else None
            with self._stores.installed(keep), self.rule.observing(progress.parameters, again=again):
                yield
        except BaseException:
            progress.phase, self._buffers.in_use = before, before is Phase.WAITING
            raise
        progress.phase = Phase.WAITING
        if self._stores.sharded and not progress.new_gradients():
            progress.phase, self._buffers.in_use = before, False
            raise RuntimeError(
                "A block of sampled() ended without a gradient. With fully_shard call backward inside it: afterwards FSDP "
                "would gather the point between steps, not the sample."
            )

    @torch.no_grad()
    @in_turn
    def _draw(self) -> None:
        """A new sample into the buffers."""
        self._settle()
        progress, parameters = self._progress, self._trained()
        if progress.folds:
            for p in parameters:
                p.grad = None  # folded in already; the next block must not count it again
        changed = progress.marks.changed(parameters)
        progress.stray = GradientMarks([p for p in changed if nonzero(p)])
        if not self._buffers.release():
            self._stores.rebuild(parameters)
        self._stores.require(parameters)
        self._stores.draw(self._noise())
        if changed or len(progress.marks) != sum([p.grad is not None for p in parameters]):  # one taken away may come back
            progress.marks = GradientMarks(parameters)
        progress.parameters = parameters

    def _noise(self) -> Noise:
        """The noise of the next sample of this step.

        Streams are numbered over all ranks, the `mc_samples` of each first, and blocks beyond them afterwards; ranks that
        share one model by sharding share its sample.
        """
        rank, ranks = 0, 1
        if not self._stores.sharded:
            rank, ranks = distributed.rank(self.process_group), distributed.world_size(self.process_group)
        number = self._progress.folds
        beyond = number - self.mc_samples
        stream = rank * self.mc_samples + number if beyond < 0 else ranks * (self.mc_samples + beyond) + rank
        return Noise(self.noise, self.seed, self.clock, stream, self._stores.numbers)

    def _trained(self) -> list[Tensor]:
        return [p for settings in self.param_groups for p in settings["params"] if p.requires_grad]

    def _refuse_inside(self, what: str) -> None:
        if self._progress.phase is Phase.SAMPLING:
            raise RuntimeError(f"{what} while a sample is in the module. Leave the block of sampled(), or the closure, first.")

    # Gradients.

    @torch.no_grad()
    def _fold(self, watch: bool = True) -> None:
        """Adds the covector of the last sample to those of this step's other samples.

        A parameter that only other samples use has its prior and entropy here too: these belong to every sample.
        """
        progress = self._progress
        self._refuse_stray_gradients()
        if not progress.new_gradients():  # .grad still holds the previous sample's gradient
            raise _no_gradient()
        self._fold_gradients()
        progress.remember_gradients(watch)

    @in_turn
    def _fold_gradients(self) -> None:
        progress = self._progress
        found = {id(p): gradient for p in progress.parameters if (gradient := p.grad) is not None}
        if not found:
            raise _no_gradient()
        try:
            require_dense(self.param_groups, found.values())
            self.rule.require_observations(progress.parameters)
            self._stores.require_unmoved(progress.parameters)
            self._stores.gather()
            finite = self._stores.fold(first=progress.folds == 0)
            self._stores.release()
        except BaseException:
            self._forget()  # a partial sum is unusable
            raise
        progress.count_fold(found, finite)
        self._buffers.in_use = False

    def _settle(self, keep_unanswered: bool = False) -> None:
        """Folds in the gradient of a sample that still waits, or drops a sample that no gradient followed."""
        progress = self._progress
        if progress.phase is not Phase.WAITING:
            return
        fresh = progress.new_gradients()
        present = [gradient for p in progress.parameters if (gradient := p.grad) is not None]
        require_dense(self.param_groups, present)
        if fresh and (not keep_unanswered or all_finite([p.grad for p in fresh if p.grad is not None])):
            self._fold()  # what is not finite is skipped, or refused, with the step
        elif fresh or not keep_unanswered:
            progress.phase, self._buffers.in_use = Phase.READY, False
            self.clock += 1

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clears gradients. A sample whose gradient has come is folded in first: no sample is ever discarded by this."""
        progress = self._progress
        if progress.phase is not Phase.SAMPLING:
            self._settle(keep_unanswered=True)
        super().zero_grad(set_to_none)
        self.rule.forget_observations()
        progress.stray = GradientMarks([])
        progress.marks = GradientMarks([] if set_to_none else self._trained())

    # Steps.

    def step(self, closure: Callable[..., Any] | None = None, *, batch: tuple[Any, ...] | None = None) -> Any:
        """One step of the rule.

        With a closure: it is called with `mc_samples` samples of the posterior in the module, one after the other, and returns
        the mean loss. Without: the samples of the blocks of `sampled()` since the last step are used.

        With `batch`, a tuple of tensors, the closure is called with an equal part of each for every sample: several samples at
        the cost of one.
        """
        loss = None
        if self._progress.phase is Phase.SAMPLING and closure is not None and self.mc_samples == 1:
            with torch.enable_grad():
                loss = closure()  # of a trainer, which has drawn the sample and leaves its block here
            closure = None
        self._refuse_inside("A step cannot be taken")
        if closure is not None:
            loss = self._evaluate(closure, batch)
        elif batch is not None:
            raise ValueError("batch needs a closure, which is called with a part of it for every sample.")
        elif self._progress.phase is Phase.READY:
            raise RuntimeError(
                "step() without a sample: the gradients were taken at the point the module holds, not at a sample. "
                "Pass a closure, or run the forward pass inside `with optimizer.sampled():`. A trainer that calls step() this "
                "way needs the callback of liebayes.integrations."
            )
        self._unscale()
        if self._progress.folds and closure is None:
            self._refuse_late_changes()
        self._advance()
        self._watch.see_step(self.param_groups, self.bounded, loss)
        return loss

    def _evaluate(self, closure: Callable[..., Any], batch: tuple[Any, ...] | None) -> Any:
        """The closure's results for all samples of a step, averaged."""
        parts = [()] * self.mc_samples if batch is None else _split(batch, self.mc_samples)
        losses = []
        try:
            for part in parts:
                with self._sample_in_module(late_backward=False), torch.enable_grad():
                    losses.append(closure(*part))
                if self.mc_samples > 1:
                    self._fold(watch=False)
            progress = self._progress
            alone = distributed.world_size(self.process_group) == 1  # or another rank may have gradients
            if alone and progress.parameters and not progress.folds and all(p.grad is None for p in progress.parameters):
                raise _no_gradient()
            return losses[0] if len(losses) == 1 else pytree.tree_map(_mean, *losses)
        except BaseException:
            self._forget()
            raise

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """Asks GradScaler to call step() also if this rank's gradients have overflowed: ranks skip a step together."""
        return distributed.world_size(self.process_group) > 1

    @torch.no_grad()
    def _unscale(self) -> None:
        scale = getattr(self, "grad_scale", None)  # set by GradScaler, unless its unscale_ was called
        if scale is not None:
            for gradient in [p.grad for p in self._progress.parameters if p.grad is not None]:
                distributed.local(gradient).div_(scale)

    def _refuse_stray_gradients(self) -> None:
        if self._progress.mixes_stray_gradients():
            self._forget()
            raise RuntimeError(
                "Gradients were taken at the point the module holds, and those of a sample were added to them. Run every "
                "backward of a step on samples (accumulation: `with optimizer.sampled(again=True):`; a trainer that "
                "accumulates: the callback of liebayes.integrations), or call zero_grad() before."
            )

    def _refuse_late_changes(self) -> None:
        changed = self._progress.changed_after_folding()
        if changed:
            self._forget()
            raise RuntimeError(
                f"Gradients of {len(changed)} parameters were changed after their samples had been folded in, which would not "
                "count. With several samples clip, unscale and accumulate inside the closure or the block."
            )

    @torch.no_grad()
    @in_turn
    def _advance(self) -> None:
        """The update, for every parameter that has a gradient on any rank; nothing is written before all ranks agree."""
        progress = self._progress
        ranks = distributed.world_size(self.process_group)
        self._require_settings()
        if not progress.folds:
            self._refuse_stray_gradients()
            found = [gradient for p in progress.parameters if (gradient := p.grad) is not None]
            require_dense(self.param_groups, found)
            averaging = ranks > 1 and not self._stores.sharded
            if found and (averaging or any(callable(settings["prior"]) for settings in self.param_groups)):
                self._fold_gradients()  # a user's prior may fail, so this comes before anything is written
        self._stores.require_unmoved(progress.parameters)
        if not progress.folds:
            self._stores.gather()
        finite = progress.finite if progress.folds else self._stores.all_finite()
        used = progress.folded
        if ranks > 1:
            own = used if progress.folds else {id(p) for p in progress.parameters if p.grad is not None}
            finite, used = self._agree(finite, own)
        if not finite:
            return self._skip()
        if not self._plan(used, ranks):
            return self._skip_result()
        self.bounded = self.bounded + self._stores.advance()
        self.steps += 1
        self.clock += 1
        self._forget()

    def _plan(self, used: set[int], ranks: int) -> bool:
        """Prepares the step. Returns whether all that it would write is finite, on all ranks; nothing has changed yet."""
        try:
            if self._progress.folds or (ranks > 1 and not self._stores.sharded):
                finite = self._stores.plan_by_sums(used, self._progress.folds)
            else:
                self.rule.require_observations(self._progress.parameters)
                finite = self._stores.plan()
            if ranks > 1:
                finite, _ = self._agree(finite, used)
            return finite
        except BaseException:
            self._forget()
            raise

    def _agree(self, finite: bool, used: set[int]) -> tuple[bool, set[int]]:
        """Whether all ranks have finite gradients, and the parameters that have one on any rank."""
        parameters = self._progress.parameters
        device = distributed.local(parameters[0]).device if parameters else None
        flags = torch.tensor([not finite, *(id(p) in used for p in parameters)], dtype=torch.int32, device=device)
        lost, *use = distributed.any_rank(flags, self.process_group).tolist()
        if not (lost or self._stores.sharded or self._ranks_checked):
            self._ranks_checked = require_local_gradients(parameters, self.param_groups, self.process_group)
        return not lost, {id(p) for p, yes in zip(parameters, use, strict=True) if yes}

    def _skip(self) -> None:
        """A gradient was not finite: the step is left out, or refused."""
        self._forget()
        self.clock += 1
        if self.nonfinite == "skip" or hasattr(self, "found_inf"):  # GradScaler lowers its scale and goes on
            self.skipped += 1
            return
        raise NonFiniteError(
            f"A gradient was not finite at step {self.steps}; nothing was changed. Lower lr or the loss's scale, "
            'or pass nonfinite="skip" to leave such steps out.'
        )

    def _skip_result(self) -> None:
        """The same of a step whose gradients are finite, but whose result is not."""
        self._forget()
        self.clock += 1
        for settings in self.param_groups:
            for name, p in named(settings):
                require_parameter(name, p, settings["group"])  # a magnitude that was set to 0, for one
        if self.nonfinite == "skip":
            self.skipped += 1
            return
        limits = sorted({str(settings["max_step"]) for settings in self.param_groups})
        raise NonFiniteError(
            f"Gradients were finite at step {self.steps}, but the step would have written infinite or NaN numbers; nothing "
            f"was changed. Lower lr or the loss's scale, bound steps by max_step (now {', '.join(limits)}), or pass "
            'nonfinite="skip" to leave such steps out.'
        )

    def _require_settings(self) -> None:
        """Settings may be changed at any time, by schedulers for one: those that are new are checked."""
        now = [tuple(map(settings.get, NUMBERS)) for settings in self.param_groups]
        if now != self._settings_checked:
            try:
                for i, settings in enumerate(self.param_groups):
                    require_numbers(settings, f"Parameter group {i}: ")
            except ValueError:
                self._forget()
                raise
            self._settings_checked = now


def _no_gradient() -> RuntimeError:
    return RuntimeError(
        "A sample ended without a gradient. Every closure, and with several samples every block of sampled(), calls backward."
    )


def _mean(*values: Any) -> Any:
    """Of what a closure has returned for every sample; of what is no number, the first."""
    values = tuple(value.detach() if isinstance(value, Tensor) else value for value in values)
    tensors = all(isinstance(value, Tensor) and value.shape == values[0].shape for value in values)
    return sum(values) / len(values) if tensors or all(isinstance(value, (int, float)) for value in values) else values[0]


def _split(batch: tuple[Any, ...], parts: int) -> list[tuple[Any, ...]]:
    if not isinstance(batch, (tuple, list)):
        raise ValueError(
            f"batch must be a tuple of tensors, such as (inputs, targets), but is a {type(batch).__name__}. A tuple of one "
            "tensor is (inputs,)."
        )
    sizes = {len(tensor) for tensor in batch}
    if len(sizes) != 1:
        raise ValueError(f"The tensors of a batch must have the same length, but have {sorted(sizes)}.")
    size = sizes.pop()
    if size % parts or not size:
        raise ValueError(f"A batch of {size} cannot be split into {parts} equal parts, one for each sample.")
    step = size // parts
    return [tuple(tensor[i : i + step] for tensor in batch) for i in range(0, size, step)]
