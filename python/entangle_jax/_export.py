"""What `jax.export` needs to know."""

from jax import export

from entangle_jax._primitive import TARGET


def export_checks() -> list[export.DisabledSafetyCheck]:
    """The safety checks to disable when a program that calls `entangle` is exported.

    `jax.export` refuses custom calls that it does not know, because a serialized program may be run with another
    version of the code that it calls. The native target of `entangle` keeps its name and meaning in all versions, so it
    is safe to disable that check for it: ::

        jax.export.export(jax.jit(f), disabled_checks=entangle_jax.export_checks())(x)

    The process that runs the program must `import entangle_jax`, which registers the target.

    Returns:
      A list for the argument `disabled_checks` of `jax.export.export`.

    Examples:
      >>> import jax
      >>> import jax.numpy as jnp
      >>> from entangle_jax import entangle, export_checks
      >>> x = jnp.arange(3.0)
      >>> exported = jax.export.export(jax.jit(entangle), disabled_checks=export_checks())(x, x + 1)
      >>> jax.export.deserialize(exported.serialize()).call(x, x + 1).tolist()
      [0.0, 1.0, 2.0]
    """
    return [export.DisabledSafetyCheck.custom_call(TARGET)]
