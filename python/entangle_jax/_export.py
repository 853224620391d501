"""What `jax.export` needs to know."""

from jax import export

from entangle_jax._primitive import TARGET


def export_checks() -> list[export.DisabledSafetyCheck]:
    """The safety checks to disable when a program that calls `entangle` is exported.

    `jax.export` refuses custom calls that jax itself does not vouch for, since a serialized program outlives the
    code that it calls. The target of `entangle` keeps its name and meaning, so ::

        jax.export.export(jax.jit(f), disabled_checks=entangle_jax.export_checks())(x)

    is safe. The process that runs the program must `import entangle_jax`, which registers the target.
    """
    return [export.DisabledSafetyCheck.custom_call(TARGET)]
