"""The `Trainer` of Hugging Face transformers, also for adapters of peft.

The trainer runs forward and backward passes itself. `PosteriorSampling` puts a sample of the posterior into the model for each
`training_step`, and takes it out whatever happens: evaluation, checkpoints and what comes after an exception see the point.
`posterior_of(trainer)` returns the posterior afterwards.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ..optim import LieGroupBLR, local_gradients
from ..posterior import Posterior

if TYPE_CHECKING:
    from transformers import Trainer, TrainerCallback
else:
    try:
        from transformers import TrainerCallback
    except ImportError:
        TrainerCallback = None


class PosteriorSampling(TrainerCallback or object):
    """Trains on samples of the posterior, after `trainer.add_callback(PosteriorSampling(trainer))`.

    All micro-batches of a step (`gradient_accumulation_steps`) use one sample, and clipping happens before the step, as usual.
    The loss of a step is the mean over them, also of models for which the trainer would take the sum.
    With `load_best_model_at_end` the optimizer goes back to the best checkpoint too: widths belong to their weights.

    Args:
        trainer: the trainer it is added to.
    """

    def __init__(self, trainer: Trainer) -> None:
        if TrainerCallback is None:
            raise ImportError("PosteriorSampling needs transformers: pip install 'liebayes[transformers]'.")
        if not callable(getattr(trainer, "training_step", None)):
            raise TypeError(
                f"PosteriorSampling takes the trainer it is for, but got a {type(trainer).__name__}: "
                "trainer.add_callback(PosteriorSampling(trainer))."
            )
        self._trainer = trainer
        self._training_step: Any = None
        self._mean_is_known = False

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Checks the settings; from now on every training step is on a sample."""
        trainer, optimizer = self._trainer, _optimizer_of(self._trainer)
        if optimizer.mc_samples > 1:
            raise ValueError(
                f"mc_samples={optimizer.mc_samples} needs every batch several times, but the trainer runs it once. Use "
                "mc_samples=1; a larger batch, or more steps, do what more samples do."
            )
        if args.load_best_model_at_end and args.save_only_model:
            raise ValueError(
                "load_best_model_at_end puts the weights of an earlier step into the model, and with save_only_model their "
                "widths are lost. Set save_only_model=False."
            )
        wrapped = trainer.model_wrapped
        if isinstance(wrapped, torch.nn.parallel.DistributedDataParallel):
            local_gradients(wrapped)
        if self._training_step is None:  # a run that was interrupted has left it in place
            self._training_step = trainer.training_step
            trainer.training_step = self._on_a_sample

    def _on_a_sample(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """The trainer's own step: forward and backward of one micro-batch."""
        if not self._mean_is_known:
            self._let_micro_batches_be_averaged(model, inputs)
        with _optimizer_of(self._trainer).sampled(again=True):
            return self._training_step(model, inputs, *args, **kwargs)

    def _let_micro_batches_be_averaged(self, model: Any, inputs: Any) -> None:
        """Makes the trainer divide the losses of models that ignore `num_items_in_batch`, as BERT does.

        The trainer takes them for divided, and adds up what are means: a posterior would count the data several times.
        """
        trainer: Any = self._trainer
        self._mean_is_known = True
        if trainer.args.gradient_accumulation_steps == 1 or not trainer.model_accepts_loss_kwargs or trainer.compute_loss_func:
            return
        losses = []
        for count in (1, 2):
            with torch.no_grad(), torch.random.fork_rng():  # the same dropout for both
                losses.append(float(trainer.compute_loss(model, dict(inputs), num_items_in_batch=torch.tensor(count))))
        if losses[0] == losses[1]:
            trainer.model_accepts_loss_kwargs = False

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Gives the trainer its own step back, and the optimizer the state of the weights in the model."""
        if self._training_step is not None:
            del self._trainer.training_step  # that of its class is left
            self._training_step = None
        best = state.best_model_checkpoint if args.load_best_model_at_end else None
        if best is not None:
            saved = torch.load(Path(best) / "optimizer.pt", map_location="cpu", weights_only=True)
            _optimizer_of(self._trainer).load_state_dict(saved)


def posterior_of(trainer: Trainer) -> Posterior:
    """The posterior that a trainer has reached; that of an adapter is over its weights, with the frozen ones in the model."""
    return _optimizer_of(trainer).posterior(trainer.model)  # pyright: ignore[reportArgumentType]


def _optimizer_of(trainer: Trainer) -> LieGroupBLR:
    """The optimizer inside the wrappers of Accelerate."""
    optimizer: Any = getattr(trainer, "optimizer", None)
    while not isinstance(optimizer, LieGroupBLR) and hasattr(optimizer, "optimizer"):
        optimizer = optimizer.optimizer
    if not isinstance(optimizer, LieGroupBLR):
        raise ValueError(
            f"The trainer's optimizer must be one of liebayes, but is {type(optimizer).__name__}. Pass it to the trainer: "
            "Trainer(..., optimizers=(lb.AffineBLR(model.parameters(), data_size=N), None))."
        )
    return optimizer
