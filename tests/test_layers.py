"""The layers: a file imports only from lines below its own; neighbours on a line leave each other alone."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = "continual_segment"
ROOT = Path(__file__).parents[1] / "src" / PACKAGE

LINES = """
cli
lab.benchmark
lab.demo_starter
lab.demo
lab.protocol
lab.baselines lab.phantom
api
lab.methods
config
viewer
evaluation node
learning clinic
segmentation
body_parts
model training
data networks metrics engine
files processes packed
volume
organs malloc progress streams
names
errors
"""
DOORS = {("volume", "files")}
"""Higher rooms that a file may import inside a function: Volume.read and its like belong to the class."""
LAB_COMMANDS = {"cli/benchmark.py", "cli/demo.py", "cli/phantom.py"}
MAY_IMPORT = {
    "viewer/server.py": {"http"},  # answers this machine alone
    "viewer/view.py": {"webbrowser"},  # which opens a page of it
    "engine/dask_cluster.py": {"distributed"},  # the scheduler that was named
}
HEIGHT = {room: -line for line, rooms in enumerate(LINES.split("\n")) for room in rooms.split()}
FILES = sorted(ROOT.rglob("*.py"))


def room_of(path: Path) -> str:
    """The top folder or module, in the lab one level deeper; '' for both public __init__."""
    return room_in(module_name(path))


def room_in(module: str) -> str:
    parts = module.split(".")[1:]
    return ".".join(parts[:2] if parts[:1] == ["lab"] else parts[:1]).removesuffix("lab")


def imported_modules(path: Path) -> Iterator[str]:
    """Every module of ours a file names in an import, wherever in the file that stands."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names if name.name.split(".")[0] == PACKAGE)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide the package they come from"
            if (node.module or "").split(".")[0] == PACKAGE:
                yield from (home_of(str(node.module), name.name) for name in node.names)


def imported_when_loaded(path: Path) -> set[str]:
    """Modules that a file imports at its top level."""
    body = ast.parse(path.read_text(encoding="utf-8")).body
    return {node.module or "" for node in body if isinstance(node, ast.ImportFrom)}


def home_of(module: str, name: str) -> str:
    """The module a name is imported from: itself where it is one."""
    place = ROOT.joinpath(*module.split(".")[1:], name)
    return f"{module}.{name}" if place.is_dir() or place.with_suffix(".py").is_file() else module


def imported_rooms(path: Path) -> set[str]:
    return {room_in(module) for module in imported_modules(path)} - {""}


def test_every_room_has_its_line_and_every_line_its_rooms():
    assert {room_of(path) for path in FILES} - {""} == HEIGHT.keys()


def test_the_contributors_guide_shows_these_lines():
    guide = (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert [line.split() for line in LINES.strip().split("\n")] in [
        [line.split() for line in block.strip().split("\n")] for block in guide.split("```")
    ]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_file_imports_from_lower_lines_alone(path):
    room = room_of(path)
    others = imported_rooms(path) - {room}
    if not room:  # names for type checkers are not imported
        assert {room_in(module) for module in imported_when_loaded(path)} - {""} == set()
    else:
        higher = {other for other in others if HEIGHT[other] >= HEIGHT[room]}
        doors = {other for other in higher if (room, other) in DOORS}
        assert higher - doors == set()
        assert not doors & {room_in(module) for module in imported_when_loaded(path)}


def test_only_the_commands_of_the_lab_import_it():
    importers = {
        str(path.relative_to(ROOT))
        for path in FILES
        if not room_of(path).startswith("lab.")
        and any(room.startswith("lab.") for room in imported_rooms(path))
    }
    assert importers <= LAB_COMMANDS


def test_files_of_one_room_do_not_import_each_other_in_a_circle():
    graph = {module_name(path): set(imported_modules(path)) for path in FILES}
    graph[PACKAGE] = imported_when_loaded(ROOT / "__init__.py")
    graph[f"{PACKAGE}.volume"] = imported_when_loaded(ROOT / "volume.py")  # see DOORS
    finished: set[str] = set()

    def visit(module: str, way: tuple[str, ...]) -> None:
        assert module not in way, " -> ".join((*way, module))
        if module in finished or module not in graph:
            return
        for other in graph[module]:
            visit(other, (*way, module))
        finished.add(module)

    for module in graph:
        visit(module, ())


def module_name(path: Path) -> str:
    parts = (PACKAGE, *path.relative_to(ROOT).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def test_only_files_opens_a_scan():
    openers = {
        path
        for path in FILES
        if {"nibabel", "pydicom", "highdicom", "nrrd", "SimpleITK"} & outside_modules(path)
    }
    assert {room_of(path) for path in openers} - {"volume"} == {"files"}  # volume names a type of nibabel


def test_nothing_loads_pickled_objects_and_only_the_node_speaks_to_a_network():
    network = {"socket", "ssl", "urllib", "http", "requests", "webbrowser", "pynetdicom", "distributed"}
    for path in FILES:
        allowed = MAY_IMPORT.get(str(path.relative_to(ROOT)), set())
        if room_of(path) != "processes":  # which talks to its own children
            assert "pickle" not in outside_modules(path), path
        if room_of(path) not in ("processes", "node"):
            assert network & outside_modules(path) <= allowed, path
        text = path.read_text(encoding="utf-8")
        assert text.count("torch.load(") == text.count("weights_only=True)"), path


def outside_modules(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {name.name.split(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add((node.module or "").split(".")[0])
    return names
