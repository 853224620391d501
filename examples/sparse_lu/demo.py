"""Newton's method for the Bratu problem, -u'' - u_yy = c exp(u) on a square, with the Jacobian refactorised in place.

Each step solves twice with one Jacobian (Newton's step, and a chord step with the residual after it), and then
refactorises for the next one. To XLA the token never changes, so without `ordered` it may refactorise before the
solves. Exit status 0: `ordered` finds the solution that scipy finds, and the plain program does other steps.
"""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse
import scipy.sparse.linalg
import sparse_lu

from entangle_jax import ordered

jax.config.update("jax_enable_x64", True)
SIDE, STRENGTH, STEPS = 40, 6.0, 4

line = scipy.sparse.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(SIDE, SIDE))
laplace = scipy.sparse.coo_array(scipy.sparse.kronsum(line, line) * (SIDE + 1) ** 2)
rows, columns = laplace.coords
n = SIDE * SIDE


def newton(token, rows, columns, laplace_values, u):
    """The values after each step."""
    diagonal = rows == columns

    def residual(u):
        return jnp.zeros_like(u).at[rows].add(laplace_values * u[columns]) - STRENGTH * jnp.exp(u)

    history = []
    for _ in range(STEPS):
        u = u - sparse_lu.solve(token, residual(u))
        u = u - sparse_lu.solve(token, residual(u))
        jacobian = laplace_values - jnp.where(diagonal, STRENGTH * jnp.exp(u)[rows], 0.0)
        sparse_lu.refactor(token, jacobian)
        # What the factors are of is seen by a third solve, beside the next step.
        history.append((u, sparse_lu.solve(token, jnp.ones_like(u))))
    return history


def reference(u):
    matrix = laplace.tocsc()
    jacobian = matrix - scipy.sparse.diags_array(STRENGTH * np.exp(u))
    history = []
    for _ in range(STEPS):
        for _ in range(2):
            u = u - scipy.sparse.linalg.spsolve(jacobian.tocsc(), matrix @ u - STRENGTH * np.exp(u))
        jacobian = matrix - scipy.sparse.diags_array(STRENGTH * np.exp(u))
        history.append((u, scipy.sparse.linalg.spsolve(jacobian.tocsc(), np.ones(n))))
    return history


start = np.zeros(n)
first = laplace.data - np.where(rows == columns, STRENGTH, 0.0)
factors = sparse_lu.factor(sparse_lu.analyze(rows, columns, n), first)
expected = reference(start)
wrong = {}
for name, order in (("plain", lambda f: f), ("ordered", ordered)):
    step = jax.jit(order(newton))
    wrong[name] = []
    for _ in range(5):
        jax.block_until_ready(sparse_lu.refactor(factors.token, first))
        history = step(factors.token, rows, columns, laplace.data, start)
        pairs = zip(jax.tree.leaves(history), jax.tree.leaves(expected), strict=True)
        wrong[name].append(sum(not np.allclose(x, y, rtol=1e-9, atol=1e-12) for x, y in pairs))
    print(f"{name}: wrong arrays of {2 * STEPS}, run by run: {wrong[name]}")
sys.exit(any(wrong["ordered"]) or not any(wrong["plain"]))
