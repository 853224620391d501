"""What `jax.export` needs to know."""

from entangle_jax._primitive import TARGET


def export_checks() -> list["DisabledSafetyCheck"]:  # noqa: F821 (imported when called: jax.export is not loaded by jax)
    """The safety checks to disable when a program that calls `entangle` is exported.

    `jax.export` refuses custom calls that jax itself does not vouch for, since a serialized program outlives the
    code that it calls. The target of `entangle` keeps its name and meaning, so ::

        jax.export.export(jax.jit(f), disabled_checks=entangle_jax.export_checks())(x)

    is safe. The process that runs the program must `import entangle_jax`, which registers the target.
    """
    from jax import export  # noqa: PLC0415

    return [export.DisabledSafetyCheck.custom_call(TARGET)]
