"""Two ranks of fully_shard (FSDP2) equal one process: one sample, whose noise belongs to the global element."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from ranks import Ranks, results, results_of_two_ranks
from small_problem import OPTIMIZERS, batches, largest_difference, network, one_process, optimizer_for, states, train

import liebayes as lb

pytestmark = pytest.mark.skipif(not (dist.is_available() and dist.is_gloo_available()), reason="needs gloo")
pytest.importorskip("torch.distributed.fsdp", reason="needs FSDP2").FSDPModule  # noqa: B018

ROUNDING = 1e-13


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Ranks:
    return results_of_two_ranks("sharded_scenarios", tmp_path_factory)


@pytest.mark.parametrize("foreach", [True, False])
@pytest.mark.parametrize("mc_samples", [1, 2])
@pytest.mark.parametrize("kind", [*OPTIMIZERS, "ivon"])
def test_two_ranks_equal_one_process(ranks: Ranks, kind: str, mc_samples: int, foreach: bool):
    first, second = results(ranks, f"{kind} {mc_samples} {foreach}")
    assert largest_difference(first, second) == 0
    assert largest_difference(first, one_process(kind, mc_samples)) < ROUNDING


def test_vogn_is_refused(ranks: Ranks):
    for text in results(ranks, "vogn"):
        assert "The parameter number 0 is sharded" in text
        assert "Use IVON" in text


def test_gathered_weights_are_never_stale(ranks: Ranks):
    first, _ = results(ranks, "evaluated")
    assert largest_difference(first["states"], one_process()) < ROUNDING
    model = network()
    optimizer = optimizer_for("affine", model)
    for batch, output in zip(batches(), first["outputs"], strict=True):
        torch.testing.assert_close(model(batches()[0][0]).detach(), output)
        train(model, optimizer, [batch])


def test_micro_batches_of_one_sample_equal_the_whole_batch(ranks: Ranks):
    assert largest_difference(results(ranks, "micro-batches")[0], one_process()) < ROUNDING


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("late backward", "With fully_shard call backward inside"),
        ("matrix group", "TriangularAffine.*acts on whole tensors"),
        ("some sharded", "Some parameters are sharded"),
        ("not positive", "not positive"),
    ],
)
def test_refused_by_name_on_every_rank(ranks: Ranks, name: str, message: str):
    for error in ranks[name]:
        with pytest.raises((RuntimeError, ValueError), match=message):
            raise error


def test_ranks_agree_on_what_is_not_finite(ranks: Ranks):
    for result in results(ranks, "nonfinite"):
        assert largest_difference(result["before"], result["after"]) == 0
        assert (result["skipped"], result["steps"]) == (2, 3)


def test_an_exception_leaves_the_shards_as_they_were(ranks: Ranks):
    for result in results(ranks, "exception"):
        points = [name for name in result["before"] if name.startswith("point")]
        assert all(not torch.equal(result["before"][name], result["inside"][name]) for name in points)
        assert all(torch.equal(result["before"][name], result["after"][name]) for name in points)


def test_noise_of_a_large_parameter(ranks: Ranks):
    from sharded_scenarios import large_network

    model = large_network()
    optimizer = lb.AffineBLR(model.parameters(), data_size=50, seed=4, base=lb.bases.StudentT(5, 0.03), curvature="samples")
    optimizer.step(lambda: model(torch.ones(1, 600)).square().mean().backward())
    assert largest_difference(results(ranks, "large")[0], states(model, optimizer)) < 1e-5


def test_a_checkpoint_of_shards_continues_on_one_process_and_on_two(ranks: Ranks):
    checkpoint = results(ranks, "first half")[0]
    assert not checkpoint["plain"]
    expected = one_process()
    assert largest_difference(checkpoint["continued"], expected) < ROUNDING
    assert largest_difference(results(ranks, "second half")[1], expected) < ROUNDING
    model = network()
    optimizer = optimizer_for("affine", model)
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    train(model, optimizer, batches()[2:])
    assert largest_difference(states(model, optimizer), expected) < ROUNDING


def test_the_posterior_is_whole_and_predicts_with_a_plain_model(ranks: Ranks):
    model = network()
    model[2].bias.requires_grad_(False)
    optimizer = optimizer_for("affine", model)
    train(model, optimizer, batches())
    expected = optimizer.posterior(model)
    for result in results(ranks, "posterior"):
        assert largest_difference(result["std"], expected.std()) < ROUNDING
        torch.testing.assert_close(result["mean"], expected.predict(batches()[0][0], task="regression", samples=3).mean)
        assert "Posterior.load" in result["refused"]
