"""`faulty.py FUNCTION ERROR LIBRARY`: a program during which the next call of that function by that library fails.

Prints what came of it: "right", "error" or "WRONG". Without a function, the functions that were called, after that word.
"""

import sys
from pathlib import Path

sys.path += [str(Path(__file__).parent), str(Path(__file__).parent.parent / "tests_gpu")]

import jax
import model
import numpy as np
import programs

from entangle_jax import entangle, testing


def program(token, x):
    before = testing.read(token, x, label="before")
    token = entangle(token, before)
    token = entangle(token, testing.write(token, 1.0, label="write"))
    return before, testing.read(token, label="after"), entangle(x, before)


token, x = testing.slot(0), jax.device_put(np.ones(3, np.float32))
jax.block_until_ready((token, x))
model.forgive()
function, answer, caller = sys.argv[1:]
before = model.report()
outcomes = []
with model.failing(function, error=int(answer), caller=caller) as answered:
    compiled = None
    for _ in range(4):
        testing.reset()
        try:
            compiled = compiled or jax.jit(program).lower(token, x).compile(programs.recorded("CONCURRENT"))
            found = [float(value) for value in jax.block_until_ready(compiled(token, x))[:2]]
            outcomes.append("right" if found == [0.0, 1.0] else "WRONG")
        except Exception as error:
            print(error, file=sys.stderr)
            assert str(error)
            outcomes.append("error")
    assert not function or answered(), f"{function} was not called"
model.forgive()
word = max(outcomes, key=["right", "error", "WRONG"].index)
print(word, *([] if function else (model.report() - before).calls))
