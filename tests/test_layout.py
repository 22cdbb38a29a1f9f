import ast
import copy
import fnmatch
import os
import pickle
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nixl_index import layout as module
from nixl_index.layout import Layout

HEX = "[0-9a-f][0-9a-f]"


@pytest.mark.parametrize(
    ("layout", "pattern", "levels"),
    [
        (Layout(), HEX, (HEX,)),
        (Layout(""), "", ()),
        (Layout(f"{HEX}/{HEX}"), f"{HEX}/{HEX}", (HEX, HEX)),
        (Layout(f"*/{HEX}"), f"*/{HEX}", ("*", HEX)),
    ],
)
def test_levels(layout: Layout, pattern: str, levels: tuple[str, ...]) -> None:
    assert layout.pattern == pattern
    assert layout.levels == levels
    assert layout.depth == len(levels)


@pytest.mark.parametrize(
    ("pattern", "level", "name", "expected"),
    [
        (HEX, 0, b"3f", True),
        (HEX, 0, b"3F", False),
        (HEX, 0, b"3g", False),
        (HEX, 0, b"3", False),
        (HEX, 0, b"3f0", False),
        (HEX, 0, b"3f\n", False),
        (HEX, 0, b"\n3f", False),
        (f"*/{HEX}", 0, b"tenant", True),
        (f"*/{HEX}", 0, b"a\nb\xff", True),
        (f"*/{HEX}", 0, b".hidden", False),
        (f"*/{HEX}", 1, b"tenant", False),
        (f"*/{HEX}", 1, b"00", True),
        (".*", 0, b".hidden", True),
        (".*", 0, b"shown", False),
        (".*", 0, b".", False),
        (".*", 0, b"..", False),
        ("[.]x", 0, b".x", False),
        ("?x", 0, b".x", False),
        ("A", 0, b"a", False),
        ("[!a]", 0, b"b", True),
        ("[!a]", 0, b"a", False),
        ("a.c", 0, b"abc", False),
        ("lager-\u00e4*", 0, "lager-\u00e4\u00f6".encode(), True),
        ("a\udcff", 0, b"a\xff", True),
        ("???", 0, "\u20ac".encode(), True),
    ],
)
def test_matches(pattern: str, level: int, name: bytes, expected: bool) -> None:
    assert Layout(pattern).matches(level, name) is expected


def test_there_is_no_level_below_the_bucket() -> None:
    with pytest.raises(IndexError):
        Layout().matches(1, b"00")
    with pytest.raises(IndexError):
        Layout("").matches(0, b"00")


@given(st.text("ab*?[]!-^.\\\udcff\u00e4", min_size=1), st.binary())
@example("[z-a]", b"z")
@example("[a", b"[a")
@example("[]", b"[]")
def test_a_visible_name_matches_as_fnmatch_says(pattern: str, name: bytes) -> None:
    if pattern in (".", "..", "**") or name.startswith(b"."):
        return
    assert Layout(pattern).matches(0, name) == fnmatch.fnmatchcase(name, os.fsencode(pattern))


@given(st.integers(0, 255))
def test_the_default_takes_every_two_hex_digits(number: int) -> None:
    assert Layout().matches(0, b"%02x" % number)


@pytest.mark.parametrize(
    ("pattern", "parts", "prefix"),
    [
        ("", (), ""),
        (HEX, ("3f",), ""),
        ("*", ("bucket",), ""),
        (f"{HEX}/{HEX}", ("3f", "00"), ""),
        (f"*/{HEX}", ("tenantA", "3f"), "tenantA/"),
        (f"*/{HEX}", ["tenantA", "3f"], "tenantA/"),
        (f"*/{HEX}/{HEX}", ("tenantA", "3f", "00"), "tenantA/"),
        (f"team-*/*/{HEX}", ("team-1", "b", "3f"), "team-1/b/"),
        (f"data/*/{HEX}", ("data", "tenantA", "3f"), "tenantA/"),
    ],
)
def test_key_prefix_names_the_tenants(pattern: str, parts: tuple[str, ...], prefix: str) -> None:
    assert Layout(pattern).key_prefix(parts) == prefix


@pytest.mark.parametrize("parts", [(), ("a",), ("a", "b", "c")])
def test_key_prefix_wants_one_part_a_level(parts: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="has 2 levels"):
        Layout(f"*/{HEX}").key_prefix(parts)


@pytest.mark.parametrize("pattern", ["/", "a//b", "/a", "a/", ".", "..", "a/../b", "./a", "**", "**/a", "a\0"])
def test_bad_patterns_are_shown_and_explained(pattern: str) -> None:
    with pytest.raises(ValueError, match="is no layout: give one glob per level") as error:
        Layout(pattern)
    assert repr(pattern) in str(error.value)


@pytest.mark.parametrize("pattern", [None, b"*", 2, ["*"]])
def test_a_pattern_is_a_string(pattern: Any) -> None:
    with pytest.raises(TypeError, match="must be a string, not ") as error:
        Layout(pattern)
    assert repr(pattern) in str(error.value)


def test_equal_by_pattern() -> None:
    assert Layout() == Layout(HEX)
    assert Layout() != Layout("")
    assert Layout() != HEX
    assert len({Layout(), Layout(HEX), Layout("*")}) == 2


@pytest.mark.parametrize("pattern", ["", HEX, "a'b\udcff/*"])
def test_repr_pickle_and_copy_give_an_equal_layout(pattern: str) -> None:
    layout = Layout(pattern)
    assert eval(repr(layout)) == pickle.loads(pickle.dumps(layout)) == copy.deepcopy(layout) == layout


def test_immutable() -> None:
    layout = Layout()
    with pytest.raises(AttributeError, match="cannot be changed"):
        layout.pattern = "*"
    with pytest.raises(AttributeError, match="cannot be changed"):
        del layout.levels
    with pytest.raises(AttributeError):
        layout.other = 1
    assert layout == Layout()


def test_imports_nothing_heavy() -> None:
    with open(module.__file__, encoding="utf-8") as source:
        tree = ast.parse(source.read())
    always = [node for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))]
    names = {getattr(node, "module", None) or node.names[0].name for node in always}
    assert names == {"__future__", "fnmatch", "re"}
