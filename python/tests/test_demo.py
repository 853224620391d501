"""The demo's scenarios: their order is in the compiled program with entangle, and nowhere without it."""

import argparse
import functools
import importlib.metadata
import json
import subprocess
import sys

import jax
import pytest

import entangle_jax
from entangle_jax import _registration, audit, entangle
from entangle_jax.__main__ import main
from entangle_jax._demo import (
    METHODS,
    SCENARIOS,
    Method,
    Result,
    add_arguments,
    data_paths,
    measure,
    needed,
    run,
    verdict,
)

BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}
WITHOUT = [method for method in METHODS if method.name not in ("entangle", "ordered")]
ORDERED, ENTANGLE = METHODS[-2:]


@functools.cache
def compiled(scenario, method):
    return BY_NAME[scenario].compile(method)


def with_path(scenario, method):
    """The pairs that have a data path in the compiled program."""
    paths = data_paths(compiled(scenario.name, method), scenario.pairs)
    return [pair for pair, there in zip(scenario.pairs, paths, strict=True) if there]


def native_calls(program):
    """How many calls of entangle a compiled program has."""
    return len(audit(program).entangles)


def name(thing):
    return thing.name


def test_the_methods_and_scenarios_of_the_issue_are_all_there():
    names = [method.name for method in METHODS]
    assert names[:2] == ["nothing", "optimization_barrier"]
    assert names[-1] == "entangle"
    assert ("program_order" in names) == (jax.__version_info__ >= (0, 11, 2))
    assert {"read-write-read", "sorts", "loop"} | {f"chain-{i}" for i in range(2, 7)} == set(BY_NAME)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=name)
def test_one_native_call_for_each_entangle(scenario):
    ties = 0

    def counted(payload, *witnesses):
        nonlocal ties
        ties += 1
        return entangle(payload, *witnesses)

    program = scenario.compile(Method("counted", tie=counted))
    # A loop's body is traced more than once: what it holds is counted in the program that jax hands to XLA.
    if scenario.name == "loop":
        ties = str(jax.make_jaxpr(scenario.build(entangle, lambda f: f))(*scenario.arguments())).count(" entangle[")
    assert native_calls(program) == ties > 0


@pytest.mark.parametrize("scenario", SCENARIOS, ids=name)
def test_each_consumer_has_a_data_path_from_each_producer(scenario):
    assert with_path(scenario, ENTANGLE) == list(scenario.pairs)


@pytest.mark.parametrize("method", WITHOUT, ids=name)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=name)
def test_without_entangle_no_pair_has_a_data_path(scenario, method):
    assert with_path(scenario, method) == []


@pytest.mark.parametrize("scenario", SCENARIOS, ids=name)
def test_ordered_alone_gives_every_pair_a_data_path(scenario):
    wanted = needed(scenario.pairs, ORDERED)
    assert wanted
    assert [pair for pair in with_path(scenario, ORDERED) if pair in wanted] == wanted


@pytest.mark.parametrize("scenario", SCENARIOS, ids=name)
def test_each_single_entangle_is_needed(scenario):
    """Leave out one call after the other: a path is gone each time."""
    calls = native_calls(compiled(scenario.name, ENTANGLE))
    for missing in range(calls):
        count = 0

        def tie(payload, *witnesses, missing=missing):
            nonlocal count
            count += 1
            # Loops trace their body several times; each time it has the same calls in the same order.
            return payload if (count - 1) % calls == missing else entangle(payload, *witnesses)

        there = data_paths(scenario.compile(Method("one less", tie=tie)), scenario.pairs)
        assert there.count(False) == 1, f"without call {missing} of {calls}"


@pytest.mark.parametrize("scenario", SCENARIOS, ids=name)
def test_entangle_is_right_in_every_run(scenario):
    result = measure(scenario, ENTANGLE, 10)
    assert result == Result(scenario.name, "entangle", 10, 10, data_path=True)
    assert result.proven


def test_without_anything_the_reads_around_a_write_are_wrong():
    assert measure(BY_NAME["read-write-read"], METHODS[0], 1).right == 0  # merged into one: no matter of luck


def of(*rows):
    return [Result(scenario, method, right, 20, path) for scenario, method, right, path in rows]


GOOD = of(
    ("a", "nothing", 0, False), ("a", "entangle", 20, True), ("b", "nothing", 20, False), ("b", "entangle", 20, True)
)


def test_a_verdict_is_good_whatever_the_others_do():
    assert verdict(GOOD) == (
        True,
        "entangle: right in all 40 runs, with the data path in all 2 programs. "
        "Wrong answers of 2 programs: nothing in 1.",
    )


@pytest.mark.parametrize(("right", "path"), [(19, True), (0, True), (20, False)])
def test_a_verdict_is_bad_after_one_wrong_run_and_without_a_data_path(right, path):
    assert verdict(GOOD + of(("c", "entangle", right, path))) == (False, "entangle FAILED in: c")


def test_a_verdict_on_nothing_is_bad():
    assert verdict(GOOD[:1]) == (False, "entangle FAILED in: nothing was run")


SMALL = SCENARIOS[:2]


def test_the_exit_status_is_0_if_entangle_was_right(capsys):
    assert run(argparse.Namespace(runs=3, json=False), scenarios=SMALL) == 0
    lines = capsys.readouterr().out.splitlines()
    table = [line.split() for line in lines if "/3" in line]
    assert [row[:2] for row in table] == [[scenario.name, method.name] for scenario in SMALL for method in METHODS]
    ours = ("ordered", "entangle")
    assert all(row[2:] == ["3/3", "yes"] for row in table if row[1] in ours)
    assert all(row[3] == "no" for row in table if row[1] not in ours)
    assert lines[-1].startswith("entangle: right in all 6 runs")


def test_the_exit_status_is_1_if_entangle_is_a_fake(capsys):
    fake = Method("entangle", tie=lambda payload, *_: payload)
    assert run(argparse.Namespace(runs=3, json=False), scenarios=SMALL, methods=(*WITHOUT, fake)) == 1
    assert "entangle FAILED in: read-write-read, chain-2" in capsys.readouterr().out


def test_json_holds_the_same_table_and_the_verdict(capsys):
    assert run(argparse.Namespace(runs=2, json=True), scenarios=SMALL) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["ok"] is True
    assert found["jax"] == jax.__version__
    assert found["platform"] == jax.default_backend()
    rows = {(row["scenario"], row["method"]): row for row in found["results"]}
    assert set(rows) == {(scenario.name, method.name) for scenario in SMALL for method in METHODS}
    assert rows["chain-2", "entangle"] == {
        "scenario": "chain-2", "method": "entangle", "right": 2, "runs": 2, "data_path": True
    }  # fmt: skip


def test_the_package_runs_as_a_command():
    # `ci/demo` runs the demo so, all of it.
    command = [sys.executable, "-m", "entangle_jax", "info", "--json"]
    done = subprocess.run(command, capture_output=True, check=False, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["versions"]["entangle-jax"] == entangle_jax.__version__


def test_options_of_the_demo():
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    assert parser.parse_args(["--runs", "3", "--json"]) == argparse.Namespace(runs=3, json=True)


@pytest.mark.parametrize("arguments", [[], ["dema"], ["demo", "--runs", "0"], ["demo", "--runs", "many"]])
def test_a_wrong_command_line_is_refused(arguments, capsys):
    with pytest.raises(SystemExit) as refused:
        main(arguments)
    assert refused.value.code == 2
    assert "usage: python -m entangle_jax" in capsys.readouterr().err


def test_info_says_what_is_installed_and_registered(capsys):
    assert main(["info", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["versions"]["entangle-jax"] == entangle_jax.__version__
    assert found["versions"]["jax"] == jax.__version__
    assert found["versions"]["jaxlib"] == importlib.metadata.version("jaxlib")
    assert found["backend"]["name"] == jax.default_backend()
    assert found["backend"]["devices"] == [device.device_kind for device in jax.devices()]
    assert set(found["platforms"]) == set(_registration.registered()) >= {"cpu"}
    for platform in found["platforms"].values():
        assert {"entangle", "entangle_testing_read", "entangle_testing_write"} <= set(platform["targets"])
        assert isinstance(platform["graphs"], bool)
    assert found["platforms"]["cpu"]["graphs"] is False
    assert found["kernels"] == ["TPU"]
    handlers, jaxlib = (tuple(map(int, found["ffi_api"][of].split("."))) for of in ("handlers", "jaxlib"))
    assert handlers == (0, 1) <= jaxlib


def test_info_can_be_read_by_people(capsys):
    assert main(["info"]) == 0
    text = capsys.readouterr().out
    for platform, there in _registration.registered().items():
        assert (
            f"  {platform}: {', '.join(there.targets)}\n    graph-compatible: {'yes' if there.graphs else 'no'}" in text
        )
    assert "\nordered by an empty kernel, without native targets\n  TPU\n" in text
    assert f"jax              {jax.__version__}\n" in text
    assert "0.1 (this jaxlib: 0." in text


def test_info_says_what_is_wrong_with_an_installation(capsys, monkeypatch, tmp_path):
    def broken():
        raise RuntimeError("no such backend")

    monkeypatch.setattr(jax.ffi, "include_dir", lambda: str(tmp_path))
    monkeypatch.setattr(jax, "default_backend", broken)
    assert main(["info", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["backend"] == {"error": "no such backend"}
    assert found["ffi_api"]["jaxlib"].startswith("unknown (FileNotFoundError(")
    assert main(["info"]) == 0
    assert "no such backend" in capsys.readouterr().out
