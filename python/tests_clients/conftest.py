"""Each client says how often it was wrong as it is, and how often with this package: printed after the tests."""

import pytest

_TALLY = pytest.StashKey[list[str]]()


@pytest.fixture
def tally(request):
    """Writes down how often it was wrong in so many runs, and returns that number; None if it never ended."""
    lines = request.config.stash.setdefault(_TALLY, [])

    def note(client, how, wrong, runs, what="wrong"):
        count = "never ended" if wrong is None else f"{wrong} {what} in {runs} runs"
        lines.append(f"{client}, {how}: {count}")
        return wrong

    return note


def pytest_terminal_summary(terminalreporter, config):
    lines = config.stash.get(_TALLY, [])
    if lines:
        terminalreporter.write_sep("-", "how often it was wrong")
        for line in lines:
            terminalreporter.write_line(line)
