"""What has to be true of an installation: looked at before all else, so that what is wrong is said once and plainly."""

import os

import jax

OLDEST_JAX = (0, 10, 0)
"""The oldest jax that is supported, as in `pyproject.toml`."""

if jax.__version_info__ < OLDEST_JAX:
    _oldest = ".".join(map(str, OLDEST_JAX))
    raise ImportError(
        f"entangle-jax needs jax {_oldest} or newer and found jax {jax.__version__} in "
        f"{os.path.dirname(jax.__file__)}: nothing was registered, so programs that need it cannot run. Upgrade jax: "
        "`pip install --upgrade jax`; "
        "for a GPU, name the same extra as before, such as `pip install --upgrade 'jax[cuda12]'`."
    )


def _broken(error: ImportError) -> str:
    """What it means that the native module cannot be imported."""
    import platform  # noqa: PLC0415 (only now: a working import has no use for it)

    here = os.path.dirname(os.path.abspath(__file__))
    files = sorted(name for name in os.listdir(here) if name.startswith("_native") and not name.endswith(".pyi"))
    found = (
        f"of the files there ({', '.join(files)}) none can be loaded: {error}"
        if files
        else "there is none there: this is a source tree that was not built, or an incomplete copy of the package"
    )
    return (
        f"entangle-jax has no working native module in {here}; {found}. This is Python {platform.python_version()} on "
        f"{platform.system()} {platform.machine()}, where a native module made for another system or processor is of "
        "no use. Install the package for this machine: `pip install --force-reinstall --no-cache-dir --no-deps "
        "entangle-jax`, from outside of its source tree."
    )


try:
    import entangle_jax._native  # noqa: F401 (whether it loads is the question)
except ImportError as error:
    raise ImportError(_broken(error)) from error
