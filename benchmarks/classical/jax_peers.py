"""NumPyro's guides, multi-path Pathfinder of blackjax, and NUTS for the references. Needs jax, numpyro and blackjax."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")

import arviz
import blackjax
import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import numpyro
import optax
from numpyro.diagnostics import effective_sample_size, split_gelman_rubin
from numpyro.infer import MCMC, NUTS, SVI, Trace_ELBO, init_to_value
from numpyro.infer.autoguide import AutoMultivariateNormal, AutoNormal
from numpyro.infer.util import initialize_model

from .models import Arrays, Model, as_program

jax.config.update("jax_enable_x64", True)

DRAWS = 20_000
CHAINS = 8


def versions() -> dict[str, str]:
    """Of what these methods run on."""
    return {"jax": jax.__version__, "numpyro": numpyro.__version__, "blackjax": blackjax.__version__}


def numpyro_model(model: Model) -> tuple[Callable[[], None], Arrays]:
    """The density as a NumPyro model, and its start."""
    data = {name: jnp.asarray(value) for name, value in model.data().items()}
    starts = {name: jnp.asarray(value, dtype=jnp.float64) for name, value in model.starts.items()}
    return as_program(model, numpyro, jnp, starts, data), starts


def nuts(model: Model, draws: int, seed: int) -> tuple[Arrays, dict[str, Any]]:
    """Draws of eight long chains, and what NUTS says of them.

    In coordinates whitened by the Hessian at the mode, which is a linear map: data as they come have condition numbers that
    no warm-up would find.
    """
    joint, starts = numpyro_model(model)
    told = initialize_model(jax.random.key(0), joint, init_strategy=init_to_value(values=starts))
    first, unravel = jax.flatten_util.ravel_pytree(told.param_info.z)

    def potential(z: Any) -> Any:
        return told.potential_fn(unravel(z))

    began = time.perf_counter()
    mode, root = whitening(potential, first)
    kernel = NUTS(potential_fn=lambda u: potential(mode + root @ u), target_accept_prob=0.95, dense_mass=True)
    mcmc = MCMC(kernel, num_warmup=1500, num_samples=draws, num_chains=CHAINS, chain_method="vectorized", progress_bar=False)
    places = 0.5 * jax.random.normal(jax.random.key(seed + 1), (CHAINS, len(first)))
    mcmc.run(jax.random.key(seed), init_params=places, extra_fields=("diverging",))
    z = jax.vmap(jax.vmap(lambda u: told.postprocess_fn(unravel(mode + root @ u))))(mcmc.get_samples(group_by_chain=True))
    found = {name: np.asarray(z[name]) for name in starts}
    judged = model.judged(found)
    flat = np.concatenate([value.reshape(*value.shape[:2], -1) for value in judged.values()], -1)
    facts = {
        "draws": CHAINS * draws,
        "divergent": int(mcmc.get_extra_fields()["diverging"].sum()),
        "smallest_effective_size": float(effective_sample_size(flat).min()),
        "largest_rhat": float(split_gelman_rubin(flat).max()),
        "seconds": round(time.perf_counter() - began, 1),
    }
    return {name: value.reshape(-1, *value.shape[2:]) for name, value in found.items()}, facts


def whitening(potential: Callable[[Any], Any], first: Any) -> tuple[Any, Any]:
    """The mode, by damped Newton steps, and a root of the inverse Hessian there, its eigenvalues taken as positive."""
    value, slope, curvature = jax.jit(potential), jax.jit(jax.grad(potential)), jax.jit(jax.hessian(potential))
    z, damping = first, 1.0
    for _ in range(500):
        values, vectors = jnp.linalg.eigh(curvature(z))
        step = vectors @ ((vectors.T @ slope(z)) / (jnp.abs(values) + damping))
        there = z - step
        if value(there) < value(z):
            z, damping = there, damping / 4
            if float(jnp.abs(step).max()) < 1e-10:
                break
        else:
            damping *= 4
    values, vectors = jnp.linalg.eigh(curvature(z))
    return z, vectors / jnp.sqrt(jnp.maximum(jnp.abs(values), 1e-3))


class Guide:
    """A guide of NumPyro, trained by Adam: `constant`, at the step size of NumPyro's examples with one particle, or `tuned`:
    a cosine from 0.05 to 0 with 16 particles."""

    def __init__(self, full: bool, tuned: bool) -> None:
        self.full, self.tuned = full, tuned

    def prepare(self, model: Model) -> Callable[[int, int], tuple[Arrays, float]]:
        """From a number of steps and a seed to draws and CPU seconds, without those of compilation."""
        joint, starts = numpyro_model(model)
        kind = AutoMultivariateNormal if self.full else AutoNormal
        guide = kind(joint, init_loc_fn=init_to_value(values=starts))

        def svi(steps: Any) -> SVI:
            rate = (lambda step: 0.025 * (1 + jnp.cos(jnp.pi * step / steps))) if self.tuned else 0.01
            optimizer = numpyro.optim.optax_to_numpyro(optax.adam(rate))
            return SVI(joint, guide, optimizer, Trace_ELBO(num_particles=16 if self.tuned else 1))

        first = svi(1)
        first.init(jax.random.key(0))

        def update(steps: Any, state: Any) -> Any:
            now = svi(steps)
            now.constrain_fn = first.constrain_fn  # which `init` finds, and `update` needs
            return now.update(state)[0]

        # The number of steps is an argument, so that all lengths are compiled once.
        loop = jax.jit(lambda state, steps: jax.lax.fori_loop(0, steps, lambda _, s: update(steps, s), state))

        sampled = jax.jit(lambda key, parameters: guide.sample_posterior(key, parameters, sample_shape=(DRAWS,)))

        def run(steps: int, seed: int) -> tuple[Arrays, float]:
            state = first.init(jax.random.key(seed))
            jax.block_until_ready(loop(state, 1))
            began = time.process_time()
            state = jax.block_until_ready(loop(state, steps))
            seconds = time.process_time() - began
            parameters = first.get_params(state)
            draws = sampled(jax.random.key(seed + 1), parameters)
            return {name: np.asarray(draws[name]) for name in starts}, seconds

        return run


class Pathfinder:
    """Multi-path Pathfinder with importance resampling: as many paths as the steps asked for."""

    def prepare(self, model: Model) -> Callable[[int, int], tuple[Arrays, float]]:
        """From a number of paths and a seed to draws and CPU seconds, without those of compilation."""
        joint, starts = numpyro_model(model)
        told = initialize_model(jax.random.key(0), joint, init_strategy=init_to_value(values=starts))
        centre = told.param_info.z

        def density(z: Arrays) -> Any:
            return -told.potential_fn(z)

        def one(key: Any) -> tuple[Arrays, Any]:
            """A path from a point within 2 of the start, as Stan begins, and its draws with their log weights."""
            leaves, tree = jax.tree.flatten(centre)
            keys = jax.random.split(key, len(leaves) + 2)
            moved = [x + jax.random.uniform(k, x.shape, minval=-2, maxval=2) for k, x in zip(keys, leaves, strict=False)]
            state, _ = blackjax.vi.pathfinder.approximate(keys[-1], density, jax.tree.unflatten(tree, moved))
            draws, logq = blackjax.vi.pathfinder.sample(keys[-2], state, 1000)
            return draws, jax.vmap(density)(draws) - logq

        path = jax.jit(one)

        def run(paths: int, seed: int) -> tuple[Arrays, float]:
            keys = jax.random.split(jax.random.key(seed), paths)
            jax.block_until_ready(path(keys[0]))
            began = time.process_time()
            found = jax.block_until_ready([path(key) for key in keys])
            draws = {name: np.stack([np.asarray(draws[name]) for draws, _ in found]) for name in found[0][0]}
            ratios = np.concatenate([np.asarray(ratios) for _, ratios in found])
            ratios = np.nan_to_num(ratios, nan=-np.inf, posinf=-np.inf)
            smoothed, _ = arviz.psislw(ratios)
            smoothed = np.asarray(smoothed)
            weights = np.exp(smoothed - smoothed.max())
            chosen = np.random.default_rng(seed).choice(len(weights), DRAWS, p=weights / weights.sum())
            seconds = time.process_time() - began
            flat = {name: np.asarray(x).reshape(-1, *x.shape[2:])[chosen] for name, x in draws.items()}
            theta = jax.vmap(told.postprocess_fn)(flat)
            return {name: np.asarray(theta[name]) for name in starts}, seconds

        return run


METHODS: dict[str, Guide | Pathfinder] = {
    "NumPyro AutoNormal": Guide(False, False),
    "NumPyro AutoNormal, tuned": Guide(False, True),
    "NumPyro AutoMultivariateNormal": Guide(True, False),
    "NumPyro AutoMultivariateNormal, tuned": Guide(True, True),
    "Pathfinder": Pathfinder(),
}
