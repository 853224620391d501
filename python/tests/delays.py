"""Work that takes its time before an access, so that a missing edge shows: numbers to sort."""

import os

import numpy as np


def at_most(count):
    """`count`, or fewer where `ENTANGLE_TESTS_NUMBERS` says so: on a model of a GPU, sorting is slow and work starts late anyway."""
    return min(count, int(os.environ.get("ENTANGLE_TESTS_NUMBERS", count)))


def numbers(count, seed=0):
    """Random numbers."""
    return np.random.default_rng(seed).integers(2**31, size=at_most(count), dtype=np.int32)
