"""Sparse LU factorisations behind handles, for JAX.

`analyze` looks at the structure of a matrix, `factor` makes factors, and their token goes into programs: `refactor`
changes the factors in place, `solve` uses them. Put `entangle_jax.ordered` around a program that does both.
"""

from sparse_lu._factors import Factors, analyze, factor
from sparse_lu._native import Pattern, live
from sparse_lu._solve import free, refactor, solve

__all__ = ["Factors", "Pattern", "analyze", "factor", "free", "live", "refactor", "solve"]
