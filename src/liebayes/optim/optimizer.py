"""The rule as a `torch.optim.Optimizer` (Alg. 1–3 for any group and base).

This file is the protocol between a training loop and the rule: when a sample is in the module, which gradients count, what a
checkpoint holds. The work on parameters is in `engine`.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils import _pytree as pytree

from ..bases import Base
from ..groups import LieGroup
from ..posterior import Posterior, unwrap
from ..rule import Absorbed, Family, Form, Metric
from ..threads import leaves_here
from . import engine, gradients, reduction, reference, sharding
from .checkpoint import own_precision, with_own_objects
from .noise import Noise, Source, choose_source
from .parallel import Evaluation
from .sampling import SampleBuffers
from .settings import OBJECTS, Prior, named, prepare, whole_number, written


class NonFiniteError(RuntimeError):
    """A gradient was not finite. The optimizer and the parameters are as they were before the step."""


class LieGroupBLR(Optimizer):
    """The Lie-group Bayesian learning rule for any group and base.

    The loss is the mean over a minibatch. Between steps the module holds one point of the posterior: the shift of the
    additive and affine groups, the mean g·E[ε] of the multiplicative group.

    Args:
        params: parameters, or dictionaries of them with settings of their own: groups, bases and all options up to
            `initial_scale`, but for `mc_samples`, and `maximize` may differ from one to the next, which is the Cartesian
            product of Sec. 3.1. The other options belong to the whole optimizer.
        group: the Lie group that moves the base.
        base: the base distribution, in the units of the parameters.
        lr: the step size α.
        data_size: N, the number of training data; the entropy and the prior count 1/N of the mean loss.
        scale_lr: the step size of everything that is not a shift, `lr` by default; kept as a multiple of `lr`, so that
            schedulers move both.
        temperature: τ.
        momentum: β, for affine groups the β₁ of the shift.
        scale_momentum: the β₂ of everything else; `momentum` by default.
        mc_samples: Monte Carlo samples per step.
        prior: the regulariser R: a precision δ for R(θ) = ½δ‖θ‖², or a function from one parameter tensor to a scalar.
        metric: `Absorbed()`, `Fisher()` or `Adaptive()`.
        max_step: the bound on one step in the algebra.
        initial_scale: a factor on the base: the width the posterior starts with.
        seed: fixes all noise.
        noise: where noise comes from: "xoshiro" (the native kernel, fastest), "philox" (the same with and without the
            kernel, to rounding) or "torch"; the fastest there is by default.
        maximize: ascend the objective instead.
        nonfinite: what to do about gradients that are not finite: "raise", or "skip" the step. The state stays as it was.
        foreach: work on many parameters at once; the same numbers as one by one, to rounding.
        parallel: evaluate the samples of `step(closure)` in threads, one sample in each; the same numbers as one after the
            other, to rounding. By default from 8 samples and 10,000 weights on (where it begins to pay), if torch has several
            threads and the closure allows it; `evaluation` tells. True insists.
        process_group: the processes to average covectors over; all of them by default where torch.distributed runs.

    >>> model = nn.Linear(3, 1)
    >>> from liebayes.groups import DiagonalAffine
    >>> from liebayes.bases import StudentT
    >>> optimizer = LieGroupBLR(model.parameters(), DiagonalAffine(), StudentT(5, 0.01), lr=0.1, data_size=100)
    >>> with optimizer.sampled():
    ...     loss = model(torch.ones(8, 3)).square().mean()
    >>> loss.backward()
    >>> optimizer.step()
    """

    def __init__(
        self,
        params: Iterable[Any],
        group: LieGroup[Any],
        base: Base,
        lr: float,
        *,
        data_size: int,
        scale_lr: float | None = None,
        temperature: float = 1.0,
        momentum: float = 0.9,
        scale_momentum: float | None = None,
        mc_samples: int = 1,
        prior: Prior = 0.0,
        metric: Metric | None = None,
        max_step: float | None = None,
        initial_scale: float = 1.0,
        seed: int = 0,
        noise: Source | None = None,
        maximize: bool = False,
        nonfinite: Literal["raise", "skip"] = "raise",
        foreach: bool = True,
        parallel: bool | None = None,
        process_group: Any = None,
    ) -> None:
        if nonfinite not in ("raise", "skip"):
            raise ValueError(f'nonfinite must be "raise" or "skip", but got {nonfinite!r}.')
        self.mc_samples: int = whole_number("mc_samples", mc_samples, "a whole number of at least 1", least=1)
        self.nonfinite = nonfinite
        self.foreach = foreach
        self.parallel = parallel
        self.process_group: Any = process_group
        self.seed: int = whole_number("seed", seed)
        self.steps: int = 0
        self.skipped: int = 0
        self.clock: int = 0  # numbers the noise: it ticks with every step, taken or skipped, and with every sample dropped
        self.bounded: int | Tensor = 0
        self._clear()
        super().__init__(
            params,
            {
                "lr": lr,
                "scale_lr": scale_lr,
                "data_size": data_size,
                "temperature": temperature,
                "momentum": momentum,
                "scale_momentum": scale_momentum,
                "prior": prior,
                "metric": Absorbed() if metric is None else metric,
                "max_step": max_step,
                "initial_scale": initial_scale,
                "maximize": maximize,
                "group": group,
                "base": base,
            },
        )
        self.noise: Source = choose_source(noise, self._trained())

    _own_defaults: Mapping[str, Any] = {}
    """Options of parameter groups that a rule has beside those of this class."""

    # What a step does to a bucket. The baselines share this protocol with other formulas.
    _start_state = staticmethod(reference.start_state)
    _covector = staticmethod(reference.covector)
    _advance = staticmethod(reference.advance)

    @property
    def _formulas(self) -> engine.Formulas:
        return engine.Formulas(self._covector, self._advance)

    def _clear(self) -> None:
        self._buffers = SampleBuffers()
        self._sums: engine.Sums = {}
        self._memo: engine.Memo = {}
        self._known_states: list[Any] = []
        self._numbers: dict[Tensor, int] = {}
        self._sharded = False
        self._forms: dict[Any, Form[Any]] = {}
        self._sampled: list[Tensor] = []
        self._ranks_checked = False
        self._evaluation = Evaluation()
        self._forget()

    def _forget(self) -> None:
        """Drops the samples since the last step."""
        self._buffers.pending = False
        self._folded: set[Tensor] = set()
        self._folds = 0
        self._poisoned = False  # a folded gradient was not finite
        self._marks = gradients.GradientMarks(self._trained())
        self._stray = gradients.GradientMarks([])  # gradients that no sample has given
        for records in self._memo.values():
            records.drop_gradients()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds parameters, also in mid-training, with settings of their own or the defaults."""
        self._refuse_inside("Parameters cannot be added")
        super().add_param_group(param_group)
        try:
            prepare(self.param_groups[-1], {*self.defaults, *self._own_defaults})
        except Exception:
            self.param_groups.pop()
            raise

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
        again = again and self._buffers.pending
        if not again:
            self._settle()
        several = self.mc_samples > 1 or self._folds > 0
        with self._sample_in_module(late_backward=not several, again=again):
            yield
        if several:
            self._fold()

    @contextmanager
    def _sample_in_module(self, late_backward: bool, again: bool = False) -> Iterator[None]:
        self._refuse_inside("Another sample cannot be drawn")
        parameters = self._sampled if again else self._new_sample()
        late_backward = late_backward and not self._sharded
        with self._buffers.in_module(parameters, late_backward=late_backward, again=again, sharded=self._sharded):
            yield
        if self._sharded and not self._marks.changed(parameters):
            raise RuntimeError(
                "A block of sampled() ended without a gradient. With fully_shard call backward inside it: afterwards FSDP "
                "would gather the point between steps, not the sample."
            )
        self._buffers.pending = True
        self._sampled = parameters

    def _new_sample(self) -> list[Tensor]:
        self._settle()
        parameters = self._trained()
        if self._folds:
            for p in parameters:
                p.grad = None  # folded in already; the next block must not count it again
        changed = self._marks.changed(parameters)
        self._stray = gradients.GradientMarks([p for p in changed if gradients.nonzero(p)])
        self._buffers.release()
        self._make_room(parameters)
        self._draw_into(self._buffers.values, self._folds, self._memo)
        if changed or len(self._marks) != len(gradients.present(parameters)):  # those taken away may be put back
            self._marks = gradients.GradientMarks(parameters)
        return parameters

    def _make_room(self, parameters: list[Tensor]) -> None:
        """Buffers, states and sums that fit the parameters as they are now."""
        with torch.inference_mode(False):  # what is made here outlives a block of inference
            fresh = self._buffers.require(parameters)
            if fresh or not self._states_are_known():
                self._memo.clear()
                try:
                    self._start_states()
                    self._known_states = list(self.state.values())
                except BaseException:
                    self._buffers.forget()  # or the next sample would find nothing new
                    raise
            for p in fresh:
                if self._folds and p in self._sums:  # of this step's earlier samples
                    self._sums[p] = [reference.in_layout_of(p, block) for block in self._sums[p]]
                else:
                    self._sums.pop(p, None)

    def _refuse_inside(self, what: str) -> None:
        if self._buffers.active:
            raise RuntimeError(f"{what} while a sample is in the module. Leave the block of sampled(), or the closure, first.")

    def _trained(self) -> list[Tensor]:
        groups = getattr(self, "param_groups", [])  # none yet while the optimizer is being built
        return [p for settings in groups for p in settings["params"] if p.requires_grad]

    def _states_are_known(self) -> bool:
        """Whether no others were put in their place since the last sample, by a reset for example."""
        known = self._known_states
        return len(self.state) == len(known) and all(map(operator.is_, self.state.values(), known))

    @torch.no_grad()
    def _start_states(self) -> None:
        for settings in self.param_groups:
            for name, p in named(settings):
                if p.requires_grad and not self.state[p]:
                    self.state[p].update(self._start_state(p, settings))
                elif p.requires_grad:
                    reference.follow(name, p, self.state[p], settings, self._start_state)

    @torch.no_grad()
    def _draw_into(self, targets: engine.Tensors, number: int, memo: engine.Memo | None = None) -> None:
        """Sample `number` of this step for all parameters that are trained, which have a state. Workers call this too.

        Streams are numbered over all ranks, the `mc_samples` of each first, and blocks beyond them afterwards; ranks that
        share one model by sharding share its sample.
        """
        every = [p for settings in self.param_groups for p in settings["params"]]
        if len(self._numbers) != len(every) or not all(map(operator.is_, self._numbers, every)):
            self._sharded = sharding.all_sharded(every)
            self._numbers = {p: k for k, p in enumerate(every)}
        rank, ranks = 0, 1
        if not self._sharded:
            rank, ranks = reduction.rank(self.process_group), reduction.world_size(self.process_group)
        beyond = number - self.mc_samples
        stream = rank * self.mc_samples + number if beyond < 0 else ranks * (self.mc_samples + beyond) + rank
        noise = Noise(self.noise, self.seed, self.clock, stream, self._numbers)
        for settings in self.param_groups:
            chosen = [p for p in settings["params"] if p.requires_grad]
            engine.draw(chosen, self.state, settings, noise, targets, self.foreach, memo)

    # Gradients.

    def _fold(self, watch: bool = True) -> None:
        """Adds the covector of the sample in the buffers to those of this step's other samples."""
        parameters = self._sampled
        self._refuse_stray_gradients(parameters)
        if not self._marks.changed(parameters):  # what is there is of an earlier sample
            raise _no_gradient()
        self._fold_in(self._buffers.values, {p: p.grad for p in parameters if p.grad is not None})
        self._finish_folding(parameters, watch)

    @torch.no_grad()
    def _fold_in(self, samples: engine.Tensors, grads: engine.Tensors) -> None:
        """Adds a covector, from a sample and its gradients, to those of this step's other samples. Workers call this too.

        A parameter that only other samples use has its prior and entropy here too: these belong to every sample.
        """
        if not grads:
            raise _no_gradient()
        gradients.require_dense(self.param_groups, grads)
        first = self._folds == 0
        if first:
            self._sums = {p: blocks for p, blocks in self._sums.items() if p in samples}
        try:
            for settings in self.param_groups:
                chosen = [p for p in settings["params"] if p in samples and p.requires_grad]
                self._poisoned |= not engine.fold(
                    self._formulas, chosen, self.state, settings, samples, grads, self._sums, first, self.foreach
                )
                if callable(settings["prior"]):  # whose gradient may not be finite either
                    self._poisoned |= not gradients.all_finite([block for p in chosen for block in self._sums[p]])
        except BaseException:
            self._forget()  # a sum of half a sample is none
            raise
        self._folded.update(grads)
        self._folds += 1

    def _finish_folding(self, parameters: list[Tensor], watch: bool) -> None:
        """Remembers the gradients that have been folded in, to tell later changes by. A closure leaves no time for any."""
        self._sampled = parameters
        self._buffers.pending = False
        self._marks = gradients.GradientMarks(parameters)
        self._sizes = gradients.gradient_sizes(parameters) if watch else None

    def _settle(self, keep_unanswered: bool = False) -> None:
        """Takes in the gradient of a sample that still waits. A step skipped for its gradients leaves a sample to drop."""
        if not self._buffers.pending:
            return
        fresh = self._marks.changed(self._sampled)
        gradients.require_dense(self.param_groups)
        if fresh and (not keep_unanswered or gradients.all_finite(gradients.present(fresh))):
            self._fold()  # what is not finite is skipped, or refused, with the step
        elif fresh or not keep_unanswered:
            self._buffers.pending = False
            self.clock += 1

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clears gradients. A sample whose gradient has come is folded in first: no sample is ever discarded by this."""
        leaves = leaves_here(self)
        if leaves is not None:  # a closure in one of several threads, which has gradients of its own
            return leaves.clear(set_to_none)
        if not self._buffers.active:
            self._settle(keep_unanswered=True)
        super().zero_grad(set_to_none)
        self._stray = gradients.GradientMarks([])
        self._marks = gradients.GradientMarks([] if set_to_none else self._trained())

    # Steps.

    def step(self, closure: Callable[..., Any] | None = None, *, batch: tuple[Any, ...] | None = None) -> Any:
        """One step of the rule.

        With a closure: it is called with `mc_samples` samples of the posterior in the module, one after the other, and returns
        the mean loss. Without: the samples of the blocks of `sampled()` since the last step are used.

        With `batch`, a tuple of tensors, the closure is called with an equal part of each for every sample: several samples at
        the cost of one.
        """
        loss = None
        if self._buffers.active and closure is not None and self.mc_samples == 1:
            with torch.enable_grad():
                loss = closure()  # of a trainer, which has drawn the sample and leaves its block here
            closure = None
        self._refuse_inside("A step cannot be taken")
        if closure is not None:
            loss = self._evaluate(closure, batch)
        elif batch is not None:
            raise ValueError("batch goes with a closure, which is called with a part of it for every sample.")
        elif not (self._buffers.pending or self._folds):
            raise RuntimeError(
                "step() without a sample: the gradients were taken at the point the module holds, not at a sample. "
                "Pass a closure, or run the forward pass inside `with optimizer.sampled():`. A trainer that calls step() this "
                "way needs the callback of liebayes.integrations."
            )
        self._unscale()
        if self._folds and self._buffers.pending:
            self._fold()
        if self._folds and closure is None:
            self._refuse_late_changes()
        self._apply()
        return loss

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """Asks GradScaler to call step() also if this rank's gradients have overflowed: ranks skip a step together."""
        return reduction.world_size(self.process_group) > 1

    @torch.no_grad()
    def _unscale(self) -> None:
        scale = getattr(self, "grad_scale", None)  # set by GradScaler, unless its unscale_ was called
        if scale is not None:
            for gradient in [p.grad for p in self._sampled if p.grad is not None]:
                sharding.local(gradient).div_(scale)

    def _evaluate(self, closure: Callable[..., Any], batch: tuple[Any, ...] | None) -> Any:
        parts = [()] * self.mc_samples if batch is None else _split(batch, self.mc_samples)
        try:
            losses = self._evaluation.losses(self, closure, parts)
            alone = reduction.world_size(self.process_group) == 1  # or another rank may have gradients
            if alone and self._sampled and not (self._folds or gradients.present(self._sampled)):
                raise _no_gradient()
            return losses[0] if len(losses) == 1 else pytree.tree_map(_mean, *losses)
        except BaseException:
            self._forget()
            raise

    def _evaluate_in_module(self, closure: Callable[..., Any], part: tuple[Any, ...], fold: bool = True) -> Any:
        """The next sample, in the module: one step of the loop that threads are measured against."""
        with self._sample_in_module(late_backward=False), torch.enable_grad():
            loss = closure(*part)
        if fold and self.mc_samples > 1:
            self._fold(watch=False)
        return loss

    @property
    def evaluation(self) -> str:
        """How `step(closure)` evaluates several samples: in "threads", or by the "loop" and why; "undecided" at first."""
        return str(self._evaluation)

    def _refuse_stray_gradients(self, parameters: list[Tensor]) -> None:
        # Gradients that were there and that no backward has touched since are the user's own, and count as they are.
        if self._stray and any(self._stray.same_tensor(p) for p in self._marks.changed(parameters)):
            self._forget()
            raise RuntimeError(
                "Gradients were taken at the point the module holds, and those of a sample were added to them. Run every "
                "backward of a step on samples (accumulation: `with optimizer.sampled(again=True):`; a trainer that "
                "accumulates: the callback of liebayes.integrations), or call zero_grad() before."
            )

    def _refuse_late_changes(self) -> None:
        touched = self._marks.changed(self._sampled)
        changed = [p for p in touched if gradients.nonzero(p)]
        if not self._poisoned and self._sizes is not None:
            ids = {id(p) for p in touched}
            pairs = zip(self._sampled, self._sizes, gradients.gradient_sizes(self._sampled), strict=True)
            # A norm has other roundings with another number of threads; a scaler changes it by far more.
            same = [now == 0 or math.isclose(now, then, rel_tol=1e-3) for _, then, now in pairs]
            changed += [p for p, kept in zip(self._sampled, same, strict=True) if not kept and id(p) not in ids]
        if changed:
            self._forget()
            raise RuntimeError(
                f"Gradients of {len(changed)} parameters were changed after their samples had been folded in, which would not "
                "count. With several samples clip, unscale and accumulate inside the closure or the block."
            )

    @torch.no_grad()
    def _apply(self) -> None:
        """The update, for every parameter that has a gradient on any rank; nothing is written before all ranks agree."""
        parameters = self._sampled
        found = {p: gradient for p in parameters if (gradient := p.grad) is not None}
        gradients.require_dense(self.param_groups, found)
        if not self._folds:
            self._refuse_stray_gradients(parameters)
            if found and any(callable(settings["prior"]) for settings in self.param_groups):
                self._fold_in(self._buffers.values, found)  # a user's function may fail: before anything is written
        active: list[Tensor] = [p for p in parameters if p in self._folded] if self._folds else list(found)
        groups = self._by_group(active)
        finite = not self._poisoned and (
            bool(self._folds) or all(engine.all_finite(chosen, settings, found, self._memo) for chosen, settings in groups)
        )
        if reduction.world_size(self.process_group) > 1:
            finite, active = self._agreed(finite, active)
            groups = self._by_group(active)
        if not finite:
            self._forget()
            self.clock += 1
            if self.nonfinite == "skip" or hasattr(self, "found_inf"):  # GradScaler lowers its scale and goes on
                self.skipped += 1
                return
            raise NonFiniteError(
                f"A gradient was not finite at step {self.steps}; nothing was changed. Lower lr or the loss's scale, "
                'or pass nonfinite="skip" to leave such steps out.'
            )
        for chosen, settings in groups:
            self.bounded = self.bounded + engine.advance(
                self._formulas, chosen, self.state, settings, partial(self._form, settings), self._buffers.values, found,
                self._sums, self._folds, self.process_group, local=self._sharded, together=self.foreach,
                memo=self._memo,
            )  # fmt: skip
        self.steps += 1
        self.clock += 1
        self._forget()

    def _by_group(self, parameters: Iterable[Tensor]) -> list[tuple[list[Tensor], dict[str, Any]]]:
        if len(self.param_groups) == 1:
            return [(list(parameters), self.param_groups[0])]
        ids = set(map(id, parameters))
        return [([p for p in settings["params"] if id(p) in ids], settings) for settings in self.param_groups]

    def _agreed(self, finite: bool, active: list[Tensor]) -> tuple[bool, list[Tensor]]:
        """Whether all ranks have finite gradients, and the parameters that have one on any rank."""
        parameters, ids = self._sampled, set(map(id, active))
        device = parameters[0].device if parameters else None
        flags = torch.tensor([not finite, *(id(p) in ids for p in parameters)], dtype=torch.int32, device=device)
        lost, *use = reduction.any_rank(flags, self.process_group).tolist()
        if not (lost or self._sharded or self._ranks_checked):
            self._ranks_checked = gradients.require_own(parameters, self.param_groups, self.process_group)
        return not lost, [p for p, yes in zip(parameters, use, strict=True) if yes]

    def _form(self, settings: dict[str, Any], element: Any) -> Form[Any]:
        """The metric's form, computed once for a group and base; for matrix groups once for each shape."""
        group, base, metric = settings["group"], settings["base"], settings["metric"]
        shape = None if group.elementwise else group.event_shape(element)
        key = (group, id(base), metric, shape)
        if key not in self._forms:
            self._forms[key] = metric.on(group, base, element)
        return self._forms[key]

    # Checkpoints: tensors, numbers and strings only.

    def state_dict(self) -> dict[str, Any]:
        """The state for torch.save; `torch.load(weights_only=True)` reads it back."""
        saved = super().state_dict()
        saved["param_groups"] = [written(settings) for settings in saved["param_groups"]]
        saved["liebayes"] = {
            "noise": self.noise,
            "seed": self.seed,
            "steps": self.steps,
            "clock": self.clock + self._buffers.pending,  # a sample that waits does not travel
            "skipped": self.skipped,
            "bounded": int(self.bounded),
            "evaluation": self._evaluation.method,  # threads and the loop differ in the last bits
        }
        return saved

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continues from a checkpoint, to the bit. Groups, bases, metrics and priors must be those it was written with."""
        self._refuse_inside("A checkpoint cannot be loaded")
        restored = with_own_objects(self.param_groups, state_dict)
        own = state_dict["liebayes"]
        noise = choose_source(own["noise"])
        states: dict[Tensor, dict[str, Any]] = {}
        for settings, saved in zip(self.param_groups, restored, strict=True):
            for number, (name, p) in zip(saved["params"], named(settings), strict=False):  # torch says if there are others
                found = state_dict["state"].get(number)
                if found:
                    states[p] = {key: own_precision(value, p) for key, value in found.items()}
                    reference.follow(name, p, states[p], settings, self._start_state)
        super().load_state_dict({"state": state_dict["state"], "param_groups": restored})
        for settings, own_objects in zip(self.param_groups, restored, strict=True):
            settings |= {key: own_objects[key] for key in OBJECTS}  # of which torch makes copies
        self.state.update(states)
        self.seed, self.steps, self.clock = own["seed"], own["steps"], own["clock"]
        self.skipped, self.bounded, self.noise = own["skipped"], own["bounded"], noise
        self._clear()
        self._evaluation = Evaluation(own.get("evaluation"))

    def __getstate__(self) -> dict[str, Any]:
        # Samples and buffers do not travel: a copy starts between two steps.
        self._refuse_inside("A copy cannot be made")
        own = ("mc_samples", "nonfinite", "foreach", "parallel", "seed", "noise", "steps", "skipped")
        here = {name: getattr(self, name) for name in own} | {"clock": self.clock + self._buffers.pending}
        return {**super().__getstate__(), **here, "bounded": int(self.bounded)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.noise = choose_source(self.noise)
        self.process_group = None
        self._clear()

    # The posterior.

    def families(self) -> dict[Tensor, Family[Any]]:
        """The member of its family that each trained parameter has reached."""
        self._refuse_inside("The posterior cannot be taken")
        if sharding.all_sharded(self._trained()):
            sharding.forget_gathered_weights()  # the model then has its shards as parameters, by which they are found
        found: dict[Tensor, Family[Any]] = {}
        with torch.no_grad():
            for settings in self.param_groups:
                for name, p in named(settings):
                    if p.requires_grad:
                        state = dict(self.state[p])
                        if state:
                            reference.follow(name, p, state, settings, self._start_state)
                        else:
                            state = self._start_state(p, settings)
                        found[p] = reference.family(p, state, settings)
        return found

    def posterior(self, model: nn.Module) -> Posterior:
        """A snapshot of the posterior over the model's weights, buffers included; it does not follow later training."""
        families = self.families()
        temperature = {settings["temperature"] for settings in self.param_groups}
        members = {name: families[p] for name, p in unwrap(model).named_parameters() if p in families}
        if not members:
            raise ValueError("None of the model's parameters is trained by this optimizer. Pass the model it was built for.")
        return Posterior(model, members, temperature=max(temperature))


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
        raise ValueError(f"The tensors of a batch must have one length, but have {sorted(sizes)}.")
    size = sizes.pop()
    if size % parts or not size:
        raise ValueError(f"A batch of {size} cannot be split into {parts} equal parts, one for each sample.")
    step = size // parts
    return [tuple(tensor[i : i + step] for tensor in batch) for i in range(0, size, step)]
