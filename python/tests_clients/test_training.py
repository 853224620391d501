"""The training loop of `training.py`: in one process, and in two with two devices each."""

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

RUNS = 5
PROGRAM = Path(__file__).parent / "training.py"


def start(*arguments):
    command = [sys.executable, str(PROGRAM), *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def result(process):
    out, _ = process.communicate(timeout=600)
    assert process.returncode == 0
    return json.loads(out.splitlines()[-1])


def check(results, how, tally):
    """Untied each run is wrong and the audit says why; ordered none is, and the audit finds no race."""
    for found in results:
        tally(f"training, {len(results)} process(es)", how, found["wrong"], RUNS)
    wrong, races = {"untied": (RUNS, True), "ordered": (0, False)}[how]
    assert [found["wrong"] for found in results] == [wrong] * len(results)
    for found in results:
        of_loop, of_evaluation = found["races"]
        assert (of_loop > 0) is races
        assert of_evaluation == 0


@pytest.mark.parametrize("how", ["untied", "ordered"])
def test_in_one_process(how, tally):
    check([result(start(how, RUNS))], how, tally)


@pytest.mark.parametrize("how", ["untied", "ordered"])
def test_in_two_processes(how, tally):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{listener.getsockname()[1]}"
    processes = [start(how, RUNS, address, number) for number in range(2)]
    check([result(process) for process in processes], how, tally)
