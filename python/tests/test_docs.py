"""The Python code of the README and of docs/ runs as it stands, and prints what stands below it."""

import argparse
import doctest
import inspect
import json
import re
import runpy
import warnings

import demo_table
import jax
import pages
import pytest

import entangle_jax
from entangle_jax import __main__, _demo, testing


def program_of(page):
    """The blocks that are the page's own program, each with what it is to print."""
    blocks = pages.blocks_of(page)
    return [
        (block, pages.printed(blocks, i))
        for i, block in enumerate(blocks)
        if block.language == "python" and not block.title
    ]


@pytest.mark.parametrize("page", [page for page in pages.PAGES if program_of(page)], ids=lambda page: page.name)
def test_the_code_of_a_page_runs_and_prints_what_the_page_shows(page, capsys):
    namespace = {"__name__": "__main__"}
    for block, expected in program_of(page):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            name = pages.file_of(expected)
            code = block.body if name else "\n" * block.line + block.body
            exec(compile(code, name or str(page), "exec"), namespace)
        output = capsys.readouterr().out
        if expected:
            assert pages.shows(expected, output), f"{page.name}, the block at line {block.line} printed\n{output}"


def test_the_pictures_of_reports_are_what_the_reports_draw(tmp_path, capsys):
    page = pages.ROOT / "docs/audit.md"
    text, namespace, seen = page.read_text(encoding="utf-8"), {"__name__": "__main__"}, set()
    for block, expected in program_of(page):
        name = pages.file_of(expected)
        exec(compile(block.body, name or page.name, "exec"), namespace)
        if name:
            picture = page.parent / re.search(r"\]\((audit-\w+\.svg)\)", text[text.index(expected.body) :])[1]
            drawn = tmp_path / picture.name
            drawn.write_text(namespace["report"]._repr_svg_(), encoding="utf-8")
            assert picture.read_text(encoding="utf-8") == drawn.read_text(encoding="utf-8"), f"put {drawn} in its place"
            seen.add(picture)
    assert seen == set(page.parent.glob("audit-*.svg"))
    capsys.readouterr()


PUBLIC = {
    **{name: getattr(entangle_jax, name) for name in entangle_jax.__all__ if name != "__version__"},
    **{f"testing.{name}": getattr(testing, name) for name in testing.__all__ if not name.endswith("_TARGET")},
}


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_has_an_example_that_runs(name):
    # Its own, and not those of its parts.
    (example,) = doctest.DocTestFinder(recurse=False).find(PUBLIC[name], name, module=False)
    assert example.examples, f"entangle_jax.{name} has no example"
    assert not doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(example).failed


@pytest.mark.parametrize("method", ["after", "join", "wait"])
def test_the_example_of_a_method_runs(method):
    (example,) = doctest.DocTestFinder(recurse=False).find(getattr(entangle_jax.Handle, method), method, module=False)
    assert example.examples
    assert not doctest.DocTestRunner().run(example).failed


FUNCTIONS = {name: value for name, value in PUBLIC.items() if inspect.isfunction(value)} | {
    f"Handle.{name}": getattr(entangle_jax.Handle, name) for name in ("__init__", "read", "write", "after", "join")
}


WITHOUT_ERRORS = {"export_checks", "testing.log", "testing.reset"}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_public_function_says_what_it_takes_and_what_it_raises(name):
    function = FUNCTIONS[name]
    text = inspect.getdoc(entangle_jax.Handle if name == "Handle.__init__" else function)
    sections = re.split(r"^(Args|Returns|Raises|Warns|Examples):$", text, flags=re.MULTILINE)
    documented = dict(zip(sections[1::2], sections[2::2], strict=True))
    taken = [parameter for parameter in inspect.signature(function).parameters if parameter != "self"]
    said = re.findall(r"^ {2}\*{0,2}(\w+):", documented.get("Args", ""), re.MULTILINE)
    assert sorted(said) == sorted(taken), f"{name}: documented are {said}, taken {taken}"
    assert ("Raises" in documented) != (name in WITHOUT_ERRORS), f"{name} does not say which errors it raises"


def test_every_public_name_is_in_the_reference():
    text = (pages.ROOT / "docs/reference/index.md").read_text()
    missing = [name for name in entangle_jax.__all__ if f"::: entangle_jax.{name}\n" not in text]
    assert missing == ["__version__", "testing"]  # the latter has a page of its own


@pytest.mark.parametrize("page", pages.PAGES, ids=lambda page: page.name)
def test_what_a_page_quotes_from_the_repository_stands_there(page):
    quotes = [block for block in pages.blocks_of(page) if "/" in block.title]
    for block in quotes:
        assert block.body in (pages.ROOT / block.title).read_text(), (
            f"{block.title} has changed: {page.name}:{block.line}"
        )


def figures_of_the_demo():
    return json.loads((pages.ROOT / demo_table.FIGURES).read_text())


def test_the_table_of_what_people_try_is_what_the_demo_printed():
    lines = [f"{line}\n" for line in demo_table.table(figures_of_the_demo())]
    assert demo_table.in_page((pages.ROOT / demo_table.PAGE).read_text()) == "".join(lines)


def test_the_table_of_what_ordered_costs_is_what_the_benchmark_measured():
    table = runpy.run_path(str(pages.ROOT / "bench/ordered_table.py"))
    figures = json.loads((pages.ROOT / table["FIGURES"]).read_text())
    lines = [f"{line}\n" for line in table["table"](figures)]
    assert len(lines) > 2
    assert table["in_page"]((pages.ROOT / table["PAGE"]).read_text()) == "".join(lines)


def test_the_table_of_what_people_try_has_all_that_the_demo_runs():
    # If not, `ci/demo --docs` has to be run again.
    scenarios = [scenario.name for scenario in _demo.SCENARIOS]
    summed_up = [name for names in demo_table.PROGRAMS.values() for name in names]
    assert sorted(summed_up) == sorted(scenarios)
    for output in figures_of_the_demo():
        assert [row["scenario"] for row in output["results"] if row["method"] == "nothing"] == scenarios
        if output["jax"] == jax.__version__:
            assert {row["method"] for row in output["results"]} == {method.name for method in _demo.METHODS}
        # Of the demo's own tests, on every jax: there is a path with these two, and none without.
        assert all(row["data_path"] == (row["method"] in ("entangle", "ordered")) for row in output["results"])


COUNTS = re.compile(
    r"\b(?:19|20)\d\d-\d\d-\d\d\b"  # the day of a run
    r"|\b\d[\d,]* (?:tests|checks|runs|examples)\b"
    r"|\b\d[\d,]* (?:of|out of) \d[\d,]* (?:tests|runs|programs)\b"
)


@pytest.mark.parametrize("page", pages.PAGES, ids=lambda page: page.name)
def test_no_page_counts_tests_or_dates_a_run_in_its_prose(page):
    # Such a figure is wrong at the next run. Those that are generated stand in a table of their own.
    text = page.read_text(encoding="utf-8")
    if page == pages.ROOT / demo_table.PAGE:
        text = text.replace(demo_table.in_page(text), "")
    assert COUNTS.findall(pages.prose_of(text)) == []


def test_no_file_or_command_of_a_page_is_left_out():
    # Those of these pages are followed by `python/tests_site`, all of them.
    built = {"callbacks.md", "libraries.md", "native.md"}
    assert {page.name for page in pages.PAGES if any(map(pages.of_a_project, pages.blocks_of(page)))} == built


def test_every_command_and_option_is_in_the_reference():
    text = (pages.ROOT / "docs/reference/commands.md").read_text()
    for name, (module, _) in __main__._COMMANDS.items():
        assert f"| `{name}" in text
        parser = argparse.ArgumentParser()
        module.add_arguments(parser)
        options = re.findall(r"--[a-z-]+", parser.format_help())
        assert [
            option for option in options if option != "--help" and f"`{option}" not in text and option != "--xla"
        ] == []


def test_the_readme_says_how_to_run_the_demo_and_the_tests():
    commands = re.findall(r"^ {4}(ci/\S+)$", (pages.ROOT / "README.md").read_text(), re.MULTILINE)
    assert commands == ["ci/demo", "ci/test"]


def test_every_link_to_a_file_leads_somewhere():
    dead = [
        f"{page.name}: {target}"
        for page in [*pages.PAGES, *pages.ROOT.glob("*.md")]
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())
        if not (page.parent / target).exists()
    ]
    assert not dead
