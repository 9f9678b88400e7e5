"""Registries of methods, models, measures and others by name: built in, from installed packages, or by import path."""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.metadata
import importlib.util
import os
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Generic, TypeVar

from kinfed.errors import InputError, check_choice

__all__ = ["Registry", "import_path", "imported", "nothing_from_files"]

T = TypeVar("T")


class Registry(Mapping[str, T], Generic[T]):
    """Registry of all objects of one kind by name; an object is imported when it is looked up.

    A name is one of kinfed's own, an entry point of an installed package in the group ``kinfed.KINDs``, or an import
    path ``package.module:Name``. Import paths are accepted everywhere, but not listed.

    Args:
        kind: Name of the kind in the singular, such as ``method``.
        own: kinfed's own names with import paths, or with the objects themselves if importing them is cheap.
        check: Function that describes what is wrong with an object from elsewhere, as the end of "'NAME' …"; it
            returns None for a valid one.
        adapt: Function of a name and an object from elsewhere that makes an object of this kind.

    >>> from kinfed.methods import METHODS
    >>> METHODS["fedprox"](mu=0.1)
    FedProx(mu=0.1)
    """

    def __init__(
        self,
        kind: str,
        own: Mapping[str, str] | Mapping[str, T],
        check: Callable[[Any], str | None] = lambda _: None,
        adapt: Callable[[str, Any], T] = lambda _, thing: thing,
    ) -> None:
        self.kind, self.group = kind, f"kinfed.{kind}s"
        self._own: dict[str, str | T] = {**own}
        self._check, self._adapt = check, adapt

    def __iter__(self) -> Iterator[str]:
        return iter([*self._own, *(name for name in self._points if name not in self._own)])

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and (":" in name or name in self._own or name in self._points)

    def __getitem__(self, name: str) -> T:
        """Look up a name.

        Raises:
            KeyError: If there is no such name.
            InputError: If the object cannot be imported, or is not of this kind.
        """
        if name in self._own:
            own = self._own[name]
            found: T = imported(own, self.kind, ask=False) if isinstance(own, str) else own
            return found
        if ":" in name:
            return self._checked(name, imported(name, self.kind))
        point = self._points[name]
        try:
            loaded = point.load()
        except Exception as error:  # whatever the package does when it is imported
            raise InputError(f"{self.kind}: {name!r} of {self.origin(name)} cannot be imported: {error}") from error
        return self._checked(name, loaded)

    def find(self, name: str) -> T:
        """Look up a name; the message for an unknown one suggests the nearest name.

        Raises:
            InputError: If there is no such name, the object cannot be imported, or it is not of this kind.
        """
        check_choice(self.kind, name, self)
        return self[name]

    def origin(self, name: str) -> str:
        """Origin of a name: ``kinfed``, an installed package with its version, or the user's own module."""
        if name in self._own:
            return "kinfed"
        if ":" in name:
            return name.partition(":")[0]
        package = self._points[name].dist
        return "an entry point" if package is None else f"{package.name} {package.version}"

    def summary(self, name: str) -> str:
        """First line of the docstring of a class of kinfed's own, read from its source: nothing is imported.

        For the names of other packages, whose code runs only when it is used, it is empty.
        """
        own = self._own.get(name)
        if not isinstance(own, str):
            return ""
        module, _, kind = own.partition(":")
        spec = importlib.util.find_spec(module)
        assert spec is not None
        source = Path(str(spec.origin)).read_text(encoding="utf-8")
        found = re.search(rf'^class {kind}\b.*:\n    """(.+?)(?:""")?$', source, re.MULTILINE)
        assert found is not None
        return found[1]

    def installed(self, name: str) -> bool:
        """Return True if a name is kinfed's own or an installed package's, not an import path."""
        return name in self and ":" not in name

    def name_of(self, thing: Any) -> str | None:
        """Name of an object: its registered name, else its import path; None if it has neither."""
        path = import_path(thing)
        for name, own in self._own.items():
            if own is thing or (path is not None and own == path):
                return name
        for name, point in self._points.items():
            if path is not None and point.value == path:
                return name
        return path

    @property
    def _points(self) -> Mapping[str, importlib.metadata.EntryPoint]:
        """Entry points of installed packages by name."""
        return _entry_points().get(self.group, {})

    def _checked(self, name: str, found: Any) -> T:
        if fault := self._check(found):
            raise InputError(f"{self.kind}: {name!r} {fault}")
        return self._adapt(name, found)


@functools.cache
def _entry_points() -> Mapping[str, Mapping[str, importlib.metadata.EntryPoint]]:
    """Entry points of kinfed's groups, by group and name; the first of several with one name.

    All groups are read at once, since every look reads the files of all installed packages.
    """
    points = importlib.metadata.entry_points()
    groups: dict[str, dict[str, importlib.metadata.EntryPoint]] = {}
    for group in points.groups:
        if group.startswith("kinfed."):
            for point in points.select(group=group):
                groups.setdefault(group, {}).setdefault(point.name, point)
    return groups


_ASKED: ContextVar[tuple[Collection[str], str] | None] = ContextVar("asked", default=None)


@contextlib.contextmanager
def nothing_from_files(asked: Collection[str], file: object, *, allow: bool = False) -> Iterator[None]:
    """Context manager that refuses to import a ``package.module:Name`` that only a file names: files run no code.

    Args:
        asked: Names that the user gave in this call; these are imported.
        file: File or folder of the other names, for the message.
        allow: True to import all names.
    """
    token = _ASKED.set(None if allow else (asked, str(file)))
    try:
        yield
    finally:
        _ASKED.reset(token)


def imported(path: str, what: str, *, ask: bool = True) -> Any:
    """Import the object at ``package.module:Name``; the module may be in the working directory.

    Args:
        path: Import path; the name may have dots.
        what: Name of the field for error messages.
        ask: True to obey `nothing_from_files`.

    Raises:
        InputError: If there is no such object, importing it fails, or only a file names it.
    """
    asked = _ASKED.get() if ask else None
    if asked is not None and path not in asked[0]:
        raise InputError(
            f"{what}: {path!r} is named in {asked[1]}, and importing it would run its code; allow that with "
            "--allow-code (allow_code=True)"
        )
    module, _, name = path.partition(":")
    sys.path.insert(0, os.getcwd())
    try:
        return functools.reduce(getattr, name.split("."), importlib.import_module(module))
    except Exception as error:  # whatever the module does when it is imported
        raise InputError(f"{what}: {path!r} cannot be imported: {error}") from error
    finally:
        with contextlib.suppress(ValueError):  # the module may have changed it
            del sys.path[sys.path.index(os.getcwd())]


def import_path(thing: Any) -> str | None:
    """Import path ``package.module:Name`` of a class or function; None if it has none, as for lambdas and in notebooks.

    >>> import_path(InputError)
    'kinfed.errors:InputError'
    """
    module, name = getattr(thing, "__module__", None), getattr(thing, "__qualname__", None)
    if not module or not name or module == "__main__" or "<" in name:
        return None
    try:
        found = functools.reduce(getattr, name.split("."), importlib.import_module(module))
    except (ImportError, AttributeError):
        return None
    return f"{module}:{name}" if found is thing else None
