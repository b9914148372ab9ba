"""Hugging Face's Trainer, with adapters of peft: training equals a loop by hand, and predictions equal averages by hand."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import liebayes as lb
from liebayes.posterior import Posterior

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from liebayes.integrations.transformers import PosteriorSampling, posterior_of  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # advice of the packages about settings that keep the tests small

SIZES: dict[str, Any] = {"vocab_size": 20, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


def bert(dropout: float = 0.0) -> nn.Module:
    torch.manual_seed(0)
    config = transformers.BertConfig(
        **SIZES, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16, max_position_embeddings=8,
        num_labels=3, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout,
    )  # fmt: skip
    return transformers.BertForSequenceClassification(config)


def gpt2(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    config = transformers.GPT2Config(
        **SIZES, n_embd=16, n_layer=2, n_head=2, n_positions=8, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0
    )
    return transformers.GPT2LMHeadModel(config)


def sentences(causal: bool = False) -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(3, 20, (24, 6), generator=generator)
    mask = torch.ones(6, dtype=torch.long)
    first = torch.tensor([-100])  # nothing predicts it, and the trainer would count it
    labels = [torch.cat([first, t[1:]]) if causal else t[0] % 3 for t in tokens]
    return [{"input_ids": t, "attention_mask": mask, "labels": y} for t, y in zip(tokens, labels, strict=True)]


class Recorder:
    """A collator that remembers the batches it has made."""

    def __init__(self) -> None:
        self.batches: list[dict[str, Tensor]] = []

    def __call__(self, rows: list[dict[str, Tensor]]) -> dict[str, Tensor]:
        self.batches.append({key: torch.stack([row[key] for row in rows]) for key in rows[0]})
        return dict(self.batches[-1])


def optimizer_for(model: nn.Module, **options: Any) -> lb.AffineBLR:
    parameters = [p for p in model.parameters() if p.requires_grad]
    return lb.AffineBLR(parameters, lr=2.0, data_size=24, base=lb.bases.Normal(0.05), curvature="samples", **options)


def trainer_for(model: nn.Module, folder: Path, *, optimizer: Any = None, causal: bool = False, **settings: Any) -> Any:
    options = {"eval_dataset": sentences(causal), "compute_metrics": settings.pop("compute_metrics", None)}
    arguments = transformers.TrainingArguments(
        str(folder), **{"per_device_train_batch_size": 4, "max_steps": 3, "report_to": [], "use_cpu": True, "seed": 0,
        "save_strategy": "no", "logging_strategy": "no", "disable_tqdm": True, "lr_scheduler_type": "constant", **settings},
    )  # fmt: skip
    optimizer = optimizer or optimizer_for(model)
    trainer = transformers.Trainer(
        model, arguments, train_dataset=sentences(causal), data_collator=Recorder(), optimizers=(optimizer, None), **options
    )
    trainer.add_callback(PosteriorSampling(trainer))
    return trainer


def averaged(posterior: Posterior, batches: list[dict[str, Tensor]], samples: int) -> Tensor:
    """Probabilities by hand: draws loaded into a copy of the model, one after the other."""
    model, generator = copy.deepcopy(posterior.model).eval(), torch.Generator().manual_seed(0)
    total: Any = 0.0
    for _ in range(samples):
        model.load_state_dict(posterior.sample(generator))
        with torch.no_grad():
            logits = [model(input_ids=b["input_ids"], attention_mask=b["attention_mask"]).logits for b in batches]
        total = total + torch.cat(logits).double().softmax(-1)
    return (total / samples).float()


def state_of(optimizer: lb.LieGroupBLR) -> list[Tensor]:
    """Points and everything that is kept of them."""
    state = [value for each in optimizer.state.values() for value in each.values() if isinstance(value, Tensor)]
    return [p.detach().clone() for group in optimizer.param_groups for p in group["params"]] + state


@pytest.mark.parametrize(
    ("build", "settings"),
    [
        (bert, {"max_grad_norm": 0.0}),
        (bert, {"gradient_accumulation_steps": 2, "max_grad_norm": 0.05}),
        (bert, {"gradient_accumulation_steps": 2, "gradient_checkpointing": True}),
        (gpt2, {"gradient_accumulation_steps": 3, "max_grad_norm": 0.0}),
        (gpt2, {"bf16": True, "max_grad_norm": 0.1}),
        (gpt2, {"bf16": True, "max_grad_norm": 0.1, "gradient_checkpointing": True, "gradient_accumulation_steps": 2}),
    ],
    ids=lambda value: value.__name__ if callable(value) else " ".join(value),
)
def test_training_equals_a_loop_by_hand(build: Callable[[], nn.Module], settings: dict[str, Any], tmp_path: Path) -> None:
    model, causal = build(), build is gpt2
    trainer = trainer_for(model, tmp_path, causal=causal, **settings)
    trainer.train()
    parts, clip = settings.get("gradient_accumulation_steps", 1), settings.get("max_grad_norm", 1.0)
    batches = trainer.data_collator.batches
    other = build().train()
    optimizer = optimizer_for(other)
    for i in range(3):
        whole = {key: torch.cat([batch[key] for batch in batches[i * parts : (i + 1) * parts]]) for key in batches[0]}
        with optimizer.sampled(), torch.autocast("cpu", torch.bfloat16, enabled="bf16" in settings):
            other(**whole).loss.backward()
        norm = nn.utils.clip_grad_norm_(other.parameters(), clip or torch.inf)
        assert clip == 1.0 or not clip or norm > clip
        optimizer.step()
        optimizer.zero_grad()
    tolerance = 2e-4 if "bf16" in settings else 1e-5  # of sums in another order
    moved = [float((p - q).abs().max()) for p, q in zip(other.parameters(), build().parameters(), strict=True)]
    assert max(moved) > 20 * tolerance
    torch.testing.assert_close(state_of(trainer.optimizer.optimizer), state_of(optimizer), rtol=20 * tolerance, atol=tolerance)


@pytest.mark.parametrize("causal", [False, True])
def test_predictions_are_averages(causal: bool, tmp_path: Path) -> None:
    """From the trainer's own batches, of sentences and of tokens."""
    trainer = trainer_for(gpt2() if causal else bert(), tmp_path, causal=causal)
    trainer.train()
    posterior = posterior_of(trainer)
    batches = list(trainer.get_eval_dataloader())
    expected = averaged(posterior, batches, 3)
    assert expected.shape == ((24, 6, 20) if causal else (24, 3))
    prediction = posterior.predict(trainer.get_eval_dataloader(), samples=3)
    torch.testing.assert_close(prediction.probabilities, expected)
    assert bool((prediction.mutual_information > 0).all())
    if causal:
        last = posterior.predict(batches, samples=3, output=lambda out: out.logits[:, -1])
        torch.testing.assert_close(last.probabilities, expected[:, -1])
    together = {key: torch.cat([batch[key] for batch in batches]) for key in ("input_ids", "attention_mask")}
    tokenized = transformers.BatchEncoding(together)
    torch.testing.assert_close(posterior.predict(tokenized, samples=3, batch_size=5).probabilities, expected)


def test_resume_to_the_bit(tmp_path: Path) -> None:
    """With dropout, a schedule, and everything at once."""
    settings = {"max_steps": 6, "save_strategy": "steps", "save_steps": 3, "lr_scheduler_type": "linear", "bf16": True,
                "gradient_checkpointing": True, "gradient_accumulation_steps": 2, "max_grad_norm": 0.1}  # fmt: skip
    whole = trainer_for(bert(dropout=0.1), tmp_path / "whole", **settings)
    whole.train()
    again = trainer_for(bert(dropout=0.1), tmp_path / "again", **settings)
    again.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-3"))
    torch.testing.assert_close(state_of(again.optimizer.optimizer), state_of(whole.optimizer.optimizer), rtol=0, atol=0)
    assert again.optimizer.optimizer.steps == 6


def test_the_widths_of_the_best_checkpoint(tmp_path: Path) -> None:
    """load_best_model_at_end: the posterior is that of the step the weights come from."""
    scores = iter([1.0, 3.0, 2.0])
    settings = {"save_strategy": "steps", "save_steps": 1, "eval_strategy": "steps", "eval_steps": 1,
                "load_best_model_at_end": True, "metric_for_best_model": "score", "greater_is_better": True}  # fmt: skip
    trainer = trainer_for(bert(), tmp_path / "best", **settings, compute_metrics=lambda _: {"score": next(scores)})
    trainer.train()
    short = trainer_for(bert(), tmp_path / "short", max_steps=2)
    short.train()
    torch.testing.assert_close(state_of(trainer.optimizer.optimizer), state_of(short.optimizer.optimizer), rtol=0, atol=0)


def test_no_sample_is_left_after_an_exception(tmp_path: Path) -> None:
    model = bert()
    trainer = trainer_for(model, tmp_path)
    compute, calls = trainer.compute_loss, iter(range(10))

    def failing(*args: Any, **kwargs: Any) -> Any:
        loss = compute(*args, **kwargs)
        if next(calls) == 1:
            raise KeyboardInterrupt
        return loss

    trainer.compute_loss = failing
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    held = {name: p.detach().clone() for name, p in model.named_parameters()}
    point = posterior_of(trainer).point()
    assert all(torch.equal(value, point[name]) for name, value in held.items())
    trainer.train()  # from the start again, by the same callback
    assert "training_step" not in vars(trainer)


def test_what_is_refused(tmp_path: Path) -> None:
    model = bert()
    with pytest.raises(ValueError, match=r"mc_samples=2 needs every batch several times"):
        trainer_for(model, tmp_path, optimizer=optimizer_for(model, mc_samples=2)).train()
    with pytest.raises(ValueError, match=r"must be one of liebayes, but is AdamW"):
        trainer_for(model, tmp_path, optimizer=torch.optim.AdamW(model.parameters())).train()
    with pytest.raises(ValueError, match=r"widths are lost\. Set save_only_model=False"):
        trainer_for(
            model, tmp_path, save_strategy="steps", eval_strategy="steps", load_best_model_at_end=True, save_only_model=True
        ).train()
    with pytest.raises(TypeError, match=r"takes the trainer it is for, but got a NoneType"):
        PosteriorSampling(None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"must be one of liebayes, but is NoneType"):
        posterior_of(None)  # type: ignore[arg-type]


def adapter(seed: int = 0) -> Any:
    peft = pytest.importorskip("peft")
    model = gpt2(seed)
    torch.manual_seed(5)  # of the adapter alone
    config = peft.LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True, task_type="CAUSAL_LM")
    return peft.get_peft_model(model, config)


def test_an_adapter(tmp_path: Path) -> None:
    model = adapter()
    frozen = {name: p.detach().clone() for name, p in model.named_parameters() if not p.requires_grad}
    trainer = trainer_for(model, tmp_path, causal=True, gradient_accumulation_steps=2)
    trainer.train()
    posterior = posterior_of(trainer)
    assert set(posterior.frozen) == set(frozen)
    assert all("lora_" in name for name in posterior.families)
    assert not posterior.fixed
    parameters = dict(model.named_parameters())
    assert all(torch.equal(value, parameters[name]) for name, value in frozen.items())
    batches = list(trainer.get_eval_dataloader())
    expected = averaged(posterior, batches, 3)
    torch.testing.assert_close(posterior.predict(batches, samples=3).probabilities, expected)

    path = tmp_path / "adapter.safetensors"
    posterior.save(path)
    loaded = Posterior.load(path, adapter())
    torch.testing.assert_close(loaded.predict(batches, samples=3).probabilities, expected)
    with pytest.raises(ValueError, match=r"adapter\.safetensors does not fit the model: .* frozen weights"):
        Posterior.load(path, adapter(seed=1))


def test_texts_from_draws(tmp_path: Path) -> None:
    """Inside `sampled()` a model generates as one with these weights does."""
    model = adapter()
    trainer = trainer_for(model, tmp_path, causal=True)
    trainer.train()
    posterior = posterior_of(trainer)
    prompt = {"input_ids": torch.tensor([[3, 4]]), "attention_mask": torch.ones(1, 2, dtype=torch.long)}
    texts = []
    for seed in range(3):
        with posterior.sampled(torch.Generator().manual_seed(seed)) as drawn:
            drawn.eval()
            scores = drawn.generate(**prompt, max_new_tokens=3, output_scores=True, return_dict_in_generate=True)
        module = posterior.sample_module(torch.Generator().manual_seed(seed))
        expected = module(scores.sequences[:, :-1]).logits[:, -3:]
        torch.testing.assert_close(torch.stack(scores.scores, 1), expected, rtol=1e-4, atol=1e-5)
        texts.append(torch.stack(scores.scores))
    assert not torch.equal(texts[0], texts[1])
