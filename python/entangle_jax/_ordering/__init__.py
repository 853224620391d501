"""What `ordered` does: a plan of a jaxpr's accesses, and an evaluation of the jaxpr that follows it.

jaxprs     the parameters of JAX's primitives, where versions of JAX differ
accesses   what is an access: marks, and calls that are named where they are used
objects    which object an access touches: where its handle comes from
plan       which equations are accesses, and which have accesses inside
world      what later accesses wait for, and the tokens that stand for it
saved      what `jax.checkpoint` around an ordered function is not to compute again
evaluate   a jaxpr with a plan, one equation after the other
rules      how each construct hands tokens through
"""
