"""`python -m entangle_jax audit`: XLA's dump files, and what a person says of the calls in them."""

import gzip
import json
import os
import subprocess
import sys

import pytest

from entangle_jax import _audit_command, testing
from entangle_jax.__main__ import main


@pytest.fixture(scope="module")
def dump(tmp_path_factory):
    """XLA's dump of a program with a race and of one without: folders of *.hlo.pb."""
    folder = tmp_path_factory.mktemp("dump")
    script = (
        "import jax, sys\n"
        "from entangle_jax import entangle, testing as t\n"
        "def racy(token): return t.read(token), t.write(token, 1.0)\n"
        "@jax.jit\n"
        "def tidy(token, *x): return (v := t.read(token, *x)), t.write(entangle(token, v), 1.0)\n"
        "@jax.jit\n"
        "def two(a, b): return t.read(a), t.write(b, 1.0)\n"
        "def unnamed(*args): return t.read(args[0]), t.write(args[1], 1.0)\n"
        "jax.block_until_ready((two(t.slot(0), t.slot(1)), jax.jit(unnamed)(t.slot(0), t.slot(1))))\n"
        "jax.block_until_ready((jax.jit(racy)(t.slot(0)), tidy(t.slot(0), 1.0), tidy(t.slot(0), 1.0, 2.0)))\n"
    )
    flags = f"--xla_dump_to={folder} --xla_dump_hlo_as_proto --xla_dump_hlo_as_text"
    environment = {**__import__("os").environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    subprocess.run([sys.executable, "-c", script], check=True, env=environment)
    return folder


def command(*arguments):
    options = [f"--reads={testing.READ_TARGET}", f"--writes={testing.WRITE_TARGET}"]
    return main(["audit", *map(str, arguments), *options])


def test_the_command_exits_1_on_a_race_and_0_without(dump, capsys):
    assert command(*dump.glob("*jit_racy*.hlo.pb")) == 1
    out = capsys.readouterr().out
    assert "jit_racy (as written and compiled): 1 race" in out
    assert command(*dump.glob("*jit_tidy*.hlo.pb")) == 0
    assert "jit_tidy (as written and compiled): no races" in capsys.readouterr().out


def test_the_command_writes_json_and_svg(dump, capsys, tmp_path):
    picture = tmp_path / "racy.svg"
    assert command(*dump.glob("*jit_racy*.hlo.pb"), "--json", "--svg", picture) == 1
    (report,) = json.loads(capsys.readouterr().out)
    assert report["module"] == "jit_racy"
    assert testing.READ_TARGET in picture.read_text()


def test_the_command_draws_one_program_only(dump, capsys, tmp_path):
    both = [*dump.glob("*jit_racy*.hlo.pb"), *dump.glob("*jit_tidy*.hlo.pb")]
    assert command(*both, "--svg", tmp_path / "two.svg") == 2
    assert "--svg draws one program, and the files hold 3" in capsys.readouterr().err


def test_the_command_exits_2_if_a_name_is_misspelt(dump, capsys):
    files = [*map(str, dump.glob("*jit_racy*.hlo.pb"))]
    reads = f"--reads={testing.READ_TARGET}"
    for writes in ("wriet", f"{testing.WRITE_TARGET},other", "scene=wriet"):
        assert main(["audit", *files, reads, f"--writes={writes}"]) == 2
        assert "is no native target: nothing here calls it" in capsys.readouterr().err
    assert main(["audit", *files, reads]) == 2
    assert "`reads` names targets and `writes` names none" in capsys.readouterr().err
    assert main(["audit", *files]) == 0  # only asked what entangle cost
    assert "not looked for races" in capsys.readouterr().out
    assert main(["audit", str(dump)]) == 2
    assert "this is a folder" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["T:99999999999999999999", "=T", "T:@", ""])
def test_the_command_refuses_a_target_that_is_none_in_one_line(dump, capsys, text):
    (after,) = dump.glob("*jit_racy*after_optimizations.hlo.pb")
    assert main(["audit", str(after), f"--writes={text}"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert f'"{text}" is no native target' in error


def test_the_command_takes_resources_and_arguments_that_are_one(dump, capsys):
    (after,) = dump.glob("*jit_two*after_optimizations.hlo.pb")
    assert command(after) == 0
    assert "Taken for different objects" in capsys.readouterr().out
    assert command(after, "--same", "0,1") == 1
    scene = [f"--reads=scene={testing.READ_TARGET}", f"--writes=scene={testing.WRITE_TARGET}"]
    assert main(["audit", str(after), *scene]) == 1
    assert "both touch scene" in capsys.readouterr().out
    apart = [f"{option}:0" for option in scene]
    assert main(["audit", str(after), *apart]) == 0
    assert main(["audit", str(after), f"--writes={testing.WRITE_TARGET}:*", f"--reads={testing.READ_TARGET}"]) == 1
    capsys.readouterr()


def test_the_command_says_what_it_cannot_tell_of_arguments_without_names(dump, capsys):
    (after,) = dump.glob("*jit_unnamed*after_optimizations.hlo.pb")
    assert command(after) == 2
    assert "with `--same 0,1` on the command line" in capsys.readouterr().out
    assert command(after, "--same", "0,1") == 1
    assert command(after, "--same", "none") == 0
    assert "--same" not in capsys.readouterr().out


def test_the_command_pairs_the_two_forms_of_each_program_of_one_name(dump, capsys):
    files = [*dump.glob("*jit_tidy*.hlo.pb")]
    assert len(files) == 4, "the dump holds two shapes of it"
    assert command(*files) == 0
    assert capsys.readouterr().out.count("jit_tidy (as written and compiled): no races") == 2


def test_the_command_tells_programs_of_one_name_apart(dump, capsys):
    (after,) = dump.glob("*jit_racy*after_optimizations.hlo.pb")
    assert command(after, after) == 1
    assert capsys.readouterr().out.count("jit_racy (compiled): 1 race") == 2


def test_the_command_takes_the_operands_that_hold_the_handle(dump, capsys):
    (after,) = dump.glob("*jit_racy*after_optimizations.hlo.pb")
    wrong = [f"--reads={testing.READ_TARGET}:0", f"--writes={testing.WRITE_TARGET}:1"]
    assert main(["audit", str(after), *wrong]) == 0  # operand 1 is the value that is written
    assert main(["audit", str(after), wrong[0], f"--writes={testing.WRITE_TARGET}:1,0"]) == 1
    capsys.readouterr()


def test_the_command_refuses_text_and_says_which_flag_writes_the_proto(dump, capsys, tmp_path):
    text = next(dump.glob("*jit_racy*after_optimizations.txt"))
    assert command(text) == 2
    assert f"{text}: this is a program as text" in (error := capsys.readouterr().err)
    assert "--xla_dump_hlo_as_proto" in error
    junk = tmp_path / "junk.hlo.pb"
    junk.write_bytes(b"junk" * 10)
    assert command(junk) == 2
    assert str(junk) in capsys.readouterr().err
    assert command(tmp_path / "missing.hlo.pb") == 2


def field(number, content):
    """A field of a protobuf message that holds another message."""
    length, size = len(content), bytearray()
    while length > 127:
        size.append(length & 127 | 128)
        length >>= 7
    return bytes([number << 3 | 2, *size, length]) + content


def test_the_command_reads_compressed_files_and_snapshots(dump, capsys, tmp_path):
    (after,) = dump.glob("*jit_racy*after_optimizations.hlo.pb")
    program = after.read_bytes()
    snapshot = field(1, program) + field(2, b"")  # and the arguments, of which nothing is read
    files = {
        "racy.hlo.pb.gz": gzip.compress(program),
        "racy.hlo_snapshot.pb": snapshot,
        "racy.hlo_snapshot.pb.gz": gzip.compress(snapshot),
    }
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
        assert command(tmp_path / name) == 1
        assert "jit_racy (compiled): 1 race" in capsys.readouterr().out
    (tmp_path / "cut.hlo.pb.gz").write_bytes(gzip.compress(program)[:-20])
    assert command(tmp_path / "cut.hlo.pb.gz") == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "cut.hlo.pb.gz: this is compressed with gzip, and damaged or cut short" in error


def test_a_path_that_the_terminal_cannot_show_is_no_race(tmp_path):
    script = tmp_path / "läufer.py"
    script.write_text(
        "import jax\n"
        "from entangle_jax import testing as t\n"
        "def racy(token): return t.read(token), t.write(token, 1.0)\n"
        "def tidy(token): return t.read(token)\n"
        "jax.block_until_ready((jax.jit(racy)(t.slot(0)), jax.jit(tidy)(t.slot(0))))\n",
        encoding="utf-8",
    )
    flags = f"--xla_dump_to={tmp_path / 'dump'} --xla_dump_hlo_as_proto"
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    subprocess.run([sys.executable, script], check=True, env={**environment, "XLA_FLAGS": flags})
    ascii_terminal = {**environment, "PYTHONIOENCODING": "ascii", "LC_ALL": "C", "PYTHONUTF8": "0"}
    options = [f"--reads={testing.READ_TARGET}", f"--writes={testing.WRITE_TARGET}", f"--svg={tmp_path / 'bild-ä.svg'}"]
    shown = {}
    for name, status in (("racy", 1), ("tidy", 0)):
        files = [str(file) for file in (tmp_path / "dump").glob(f"*jit_{name}*.hlo.pb")]
        done = subprocess.run(
            [sys.executable, "-m", "entangle_jax", "audit", *files, *options],
            env=ascii_terminal,
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stderr) == (status, "")
        shown[name] = done.stdout
    assert "l\\xe4ufer.py" in shown["racy"] or "l\\udcc3\\udca4ufer.py" in shown["racy"]


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("a fault"), RecursionError("too deep"), KeyError("x")])
def test_status_1_is_a_race_and_nothing_else(dump, capsys, monkeypatch, error):
    def fail(*_args, **_kwargs):
        raise error

    monkeypatch.setattr(_audit_command, "audit_programs", fail)
    assert command(*dump.glob("*jit_tidy*.hlo.pb")) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"entangle_jax audit: {type(error).__name__}")
    assert said.count("\n") == 1
