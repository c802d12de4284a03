"""Compare the parts of a ComfyUI that Keepsake uses with those of a version that it is tested with.

Only source files are read: nothing of either is imported.
"""

import ast
import functools
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from support.pack import load_pack

MOST_STEPS = 5  # from a name to where it is defined, through files that only import it


def parts() -> list[tuple[str, str]]:
    """(module, name) of each name and method of ComfyUI that Keepsake uses."""
    load_pack()
    from keepsake.host.needs import METHODS, NAMES

    entries = {
        (module, name)
        for table in (NAMES, METHODS)
        for module, names in table.items()
        for name in names.split()
    }
    return sorted(entries)


def differences(host: Path, tested: Path) -> tuple[list[str], list[str]]:
    """The parts that `host` does not have, and those that are written differently in `tested`."""
    missing, changed = [], []
    for module, name in parts():
        there = source_of(tested, module, name)
        here = source_of(host, module, name)
        if here is None and there is not None:
            missing.append(f"{module}.{name}")
        elif here != there:
            changed.append(f"{module}.{name}")
    return missing, changed


def source_of(host: Path, module: str, name: str, steps: int = MOST_STEPS) -> str | None:
    """The statement that defines a name, without comments and layout; None where there is none.

    Of `Class.method` the method, of an attribute that the class itself does not define (an
    instance's, or of a class above) the class.
    """
    file = file_of(host, module)
    if file is None:
        return None
    outer, _, inner = name.partition(".")
    for statement in statements_of(file):
        if isinstance(statement, ast.ImportFrom) and steps:
            for alias in statement.names:
                if alias.name == "*":
                    source = imported(host, module, statement, outer, inner, steps - 1)
                    if source is not None:
                        return source
                elif (alias.asname or alias.name) == outer:
                    return imported(host, module, statement, alias.name, inner, steps - 1)
        elif outer in defined(statement):
            for part in getattr(statement, "body", []):
                if inner in defined(part):
                    return ast.unparse(part)
            return ast.unparse(statement)
    return None


def imported(
    host: Path, module: str, statement: ast.ImportFrom, name: str, inner: str, steps: int
) -> str | None:
    """The source of a name that a module imports: of another module, or a module itself."""
    origin = statement.module or ""
    if statement.level:
        is_package = file_of(host, module).name == "__init__.py"
        above = module.split(".")
        above = above[: len(above) - statement.level + is_package]
        origin = ".".join([*above, *filter(None, [origin])])
    if inner and file_of(host, f"{origin}.{name}"):
        return source_of(host, f"{origin}.{name}", inner, steps)
    return source_of(host, origin, name + (f".{inner}" if inner else ""), steps)


def file_of(host: Path, module: str) -> Path | None:
    path = host.joinpath(*module.split("."))
    for file in (path.with_suffix(".py"), path / "__init__.py"):
        if file.is_file():
            return file
    return None


@functools.cache
def statements_of(file: Path) -> list[ast.stmt]:
    return list(statements(ast.parse(file.read_text(encoding="utf-8"))))


def statements(tree: ast.AST) -> Iterator[ast.stmt]:
    """All statements of a module that are not inside a function or a class."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (ast.If, ast.Try, ast.With)):
            yield from statements(node)
        elif isinstance(node, ast.stmt):
            yield node


def defined(statement: ast.stmt) -> set[str]:
    """The names that a statement gives a meaning to."""
    if isinstance(statement, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
        return {statement.name}
    if isinstance(statement, ast.Assign):
        return {ast.unparse(target) for target in statement.targets}
    if isinstance(statement, ast.AnnAssign):
        return {ast.unparse(statement.target)}
    return set()


def report(host: Path, tested: Path, tested_version: str) -> str:
    """What differs, in words."""
    missing, changed = differences(host, tested)
    words = [
        f"of the {len(parts())} names that Keepsake uses, {len(missing)} are missing and "
        f"{len(changed)} are written differently than in {tested_version}"
    ]
    for names, what in ((missing, "missing"), (changed, "different")):
        if names:
            words.append(f"{what}: {', '.join(names)}")
    return "; ".join(words)
