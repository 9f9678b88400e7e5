"""Files are written whole, read without trust, and deleted only where kinfed wrote them."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import kinfed
from kinfed.errors import InputError, plain
from kinfed.files import claimed, delete, new_folder, read_json, read_json_lines, write_whole, written

OWN = re.compile(r"(?:sub/)?a\d\.txt")
DELETING = {"unlink", "rmtree", "rmdir", "remove", "removedirs", "rename", "replace"}


def test_nothing_else_in_the_source_deletes() -> None:
    """`Path.replace` and `rename` are how a file that is whole gets its name; only these are used elsewhere."""
    root = Path(kinfed.__file__).parent
    used = set()
    for path in root.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and node.attr in DELETING - {"rename", "replace"}:
                used.add((str(path.relative_to(root)), node.attr))
            if isinstance(node, ast.ImportFrom) and node.module in ("shutil", "os"):
                used |= {(str(path.relative_to(root)), name.name) for name in node.names if name.name in DELETING}
    assert used == {("files.py", "unlink"), ("files.py", "rmdir")}


def test_only_what_kinfed_wrote_is_deleted(tmp_path: Path) -> None:
    outside = tmp_path / "a1.txt"
    folder = tmp_path / "folder"
    (folder / "sub" / "deep").mkdir(parents=True)
    ours = [folder / "a1.txt", folder / "sub" / "a2.txt"]
    theirs = [folder / "b.txt", folder / "sub" / "deep" / "a1.txt", outside]
    for path in (*ours, *theirs):
        path.write_text("x")
    (folder / "a3.txt").symlink_to(outside)
    assert written(folder, OWN) == ours
    delete([*ours, *theirs[:2], folder / "a3.txt"], folder, OWN)
    assert not any(path.exists() for path in ours)
    assert all(path.exists() for path in (*theirs, folder / "a3.txt"))


def test_folders_that_are_empty_then_go_too_but_none_above(tmp_path: Path) -> None:
    folder = tmp_path / "above" / "folder"
    (folder / "sub").mkdir(parents=True)
    (folder / "sub" / "a1.txt").write_text("x")
    delete(written(folder, OWN), folder, OWN)
    assert not folder.exists()
    assert folder.parent.is_dir()


def test_a_path_that_leads_out_of_the_folder_is_an_error(tmp_path: Path) -> None:
    folder, other = tmp_path / "folder", tmp_path / "other"
    folder.mkdir()
    other.mkdir()
    (other / "a1.txt").write_text("x")
    for path in (other / "a1.txt", folder / ".." / "other" / "a1.txt"):
        with pytest.raises(ValueError, match="is not in the subpath"):
            delete([path], folder, OWN)
    assert (other / "a1.txt").is_file()


def elsewhere(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_a_folder_belongs_to_one_process(tmp_path: Path) -> None:  # case 303
    folder = tmp_path / "new" / "folder"
    claim = (
        f"from pathlib import Path; from kinfed.files import claimed\nwith claimed(Path({str(folder)!r}), 'run'): pass"
    )
    with claimed(folder), claimed(folder):  # claims of one process may be within each other
        told = elsewhere(claim)
    assert told.stderr.splitlines()[-1] == (
        f"kinfed.errors.InputError: run: {str(folder)!r} is in use by another kinfed process"
    )
    assert not folder.exists()  # nothing was written
    assert not folder.parent.exists()
    assert elsewhere(claim).returncode == 0


def test_a_claimed_folder_in_which_something_was_written_stays(tmp_path: Path) -> None:
    with claimed(tmp_path / "out"):
        (tmp_path / "out" / "result").touch()
    assert (tmp_path / "out" / "result").is_file()


@pytest.mark.parametrize("place", ["file/x", "dangling", "n" * 300, "/proc/x"])
def test_a_place_that_cannot_be_written_is_told(place: str, tmp_path: Path) -> None:  # case 314
    (tmp_path / "file").touch()
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere" / "at" / "all")
    for opened in (claimed, new_folder):
        with pytest.raises(InputError, match=r"^out: .* cannot be written: "), opened(tmp_path / place):
            pass


def test_a_claim_under_which_nothing_was_written_leaves_everything_as_it_was(tmp_path: Path) -> None:
    empty, full = tmp_path / "empty", tmp_path / "full"
    for folder in (empty, full):
        folder.mkdir()
    (full / "mine").touch()
    for folder in (empty, full):
        with pytest.raises(InputError, match="refused"), claimed(folder):
            raise InputError("refused")
    assert [*empty.iterdir()] == []
    assert [*full.iterdir()] == [full / "mine"]


def test_a_new_folder_must_be_empty(tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    with pytest.raises(InputError, match="exists; choose another folder"), new_folder(tmp_path):
        pass


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "is not valid JSON"),
        (b'{"a": 1', "is not valid JSON"),
        (b"\xff\xfe", "is not text"),
        (b"[" * 100_000, "is not valid JSON: it is nested too deeply"),
        (None, "cannot be read: No such file or directory"),
    ],
)
def test_what_is_no_json_is_told_with_the_name_of_the_file(content: bytes | None, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=rf"a\.json.*: {reason}"):
        read_json(path)


def test_lines_of_json(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"a": 1}\n{"a": 2}\n{"a"')
    with pytest.raises(InputError, match=r"a\.jsonl: is cut short in line 3"):
        read_json_lines(path)
    assert read_json_lines(path, cut=True) == [{"a": 1}, {"a": 2}]
    path.write_text('{"a": 1}\n[2]\n')
    with pytest.raises(InputError, match=r"a\.jsonl, line 2: is not a JSON object"):
        read_json_lines(path)
    path.write_text('{"a": 1}\n{"a"\n')
    with pytest.raises(InputError, match=r"a\.jsonl, line 2: is not valid JSON"):
        read_json_lines(path, cut=True)


def test_a_text_is_written_in_utf_8_whatever_the_host_prefers(tmp_path: Path) -> None:
    code = "from pathlib import Path; from kinfed.files import write_whole; "
    code += f"write_whole(Path({str(tmp_path)!r}) / 'a', chr(181))"
    told = subprocess.run(
        [sys.executable, "-X", "utf8=0", "-c", code], env={"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0"}, check=False
    )
    assert told.returncode == 0
    assert (tmp_path / "a").read_bytes() == "µ".encode()
    write_whole(tmp_path / "b", "lone \udcff")
    assert (tmp_path / "b").read_bytes() == b"lone \\udcff"


def test_an_error_is_one_printable_line_of_bounded_length() -> None:
    assert str(InputError("a\nb\x1b[2J\udcff")) == r"a b\x1b[2J\udcff"
    assert plain("Δ µ 漢字") == "Δ µ 漢字"
    assert len(str(InputError("x" * 10_000))) < 700
