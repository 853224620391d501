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


def wrong(process):
    out, _ = process.communicate(timeout=600)
    assert process.returncode == 0
    return json.loads(out.splitlines()[-1])["wrong"]


@pytest.mark.parametrize(("how", "expected"), [("untied", RUNS), ("ordered", 0)])
def test_in_one_process(how, expected):
    assert wrong(start(how, RUNS)) == expected


@pytest.mark.parametrize(("how", "expected"), [("untied", RUNS), ("ordered", 0)])
def test_in_two_processes(how, expected):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{listener.getsockname()[1]}"
    processes = [start(how, RUNS, address, number) for number in range(2)]
    assert [wrong(process) for process in processes] == [expected] * 2
