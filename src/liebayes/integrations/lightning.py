"""Lightning's `Trainer` with automatic optimization.

Lightning passes a closure to the optimizer, which is all that is needed, so a plain `Trainer` works. In two cases Lightning
runs the closure itself: on all micro-batches but the last (`accumulate_grad_batches`), and always under a gradient scaler
(`precision="16-mixed"`). `PosteriorSampling` puts a sample into the module then too. It also keeps DistributedDataParallel
from averaging gradients.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from ..optim import LieGroupBLR, local_gradients

if TYPE_CHECKING:  # either package has the same trainer
    from lightning.pytorch import Callback, LightningModule, Trainer
else:
    try:
        from lightning.pytorch import Callback
    except ImportError:
        try:
            from pytorch_lightning import Callback
        except ImportError:
            Callback = None


class PosteriorSampling(Callback or object):
    """Puts a sample into the module for every batch, for trainers that call the closure themselves: one of `callbacks=[...]`.

    All micro-batches of a step use one sample: their gradients, which Lightning divides by their number, add up to the
    gradient of the whole batch. Clipping and unscaling happen before the step, as usual.

    Callbacks of `lightning.pytorch` and of `pytorch_lightning` are not the same: this is one of the former if that is
    installed.
    """

    def __init__(self) -> None:
        if Callback is None:
            raise ImportError("PosteriorSampling needs Lightning: pip install lightning.")
        self._block = ExitStack()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Checks the settings, and keeps DistributedDataParallel from averaging gradients."""
        from torch.nn.parallel import DistributedDataParallel

        optimizer = self._optimizer(trainer)
        if optimizer is None:
            raise ValueError("PosteriorSampling is for one optimizer of liebayes, but the trainer has another, or several.")
        if not pl_module.automatic_optimization:
            raise ValueError(
                "PosteriorSampling is for automatic optimization. In manual optimization run the forward pass inside "
                "`with self.optimizers().optimizer.sampled():`."
            )
        if optimizer.mc_samples > 1 and self._closure_runs_outside(trainer):
            raise ValueError(
                f"mc_samples={optimizer.mc_samples} needs the closure of a batch several times, but with "
                "accumulate_grad_batches or a gradient scaler (16-mixed) Lightning runs it once. Use mc_samples=1; "
                "with bf16-mixed and without accumulation several samples work too."
            )
        model = trainer.strategy.model
        if isinstance(model, DistributedDataParallel):
            local_gradients(model)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Puts a sample into the module: a new one, or that of the previous micro-batch."""
        optimizer = self._optimizer(trainer)
        if optimizer is not None and optimizer.mc_samples == 1:
            self._block.enter_context(optimizer.sampled(again=True))

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Any) -> None:
        """Takes the sample out of the module: the gradient has been computed."""
        self._block.close()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Takes the sample out between micro-batches too, so that validation and checkpoints never see one."""
        self._block.close()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Takes the sample out after an exception."""
        self._block.close()

    @staticmethod
    def _optimizer(trainer: Trainer) -> LieGroupBLR | None:
        found = trainer.optimizers
        return found[0] if len(found) == 1 and isinstance(found[0], LieGroupBLR) else None

    @staticmethod
    def _closure_runs_outside(trainer: Trainer) -> bool:
        return trainer.accumulate_grad_batches > 1 or getattr(trainer.precision_plugin, "scaler", None) is not None
