"""`python -m entangle_jax COMMAND`: see `--help`."""

import argparse
import sys
from collections.abc import Sequence

from entangle_jax import __version__, _audit_command, _calls_command, _demo, _info

_COMMANDS = {
    "audit": (_audit_command, "find races of native calls in XLA's dump files, and what entangle cost"),
    "calls": (_calls_command, "list the native calls and callbacks of a function"),
    "demo": (_demo, "run native calls in and out of order on this machine, with and without entangle"),
    "info": (_info, "print versions, platforms and native targets"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that the arguments name. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m entangle_jax", description="Order native calls in JAX programs.")
    parser.add_argument("--version", action="version", version=f"entangle-jax {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, (module, summary) in _COMMANDS.items():
        command = commands.add_parser(name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.")
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    arguments = parser.parse_args(argv)
    status: int = arguments.run(arguments)
    return status


if __name__ == "__main__":
    sys.exit(main())
