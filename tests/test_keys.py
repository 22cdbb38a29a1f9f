import doctest
import pickle
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from nixl_index import keys
from nixl_index.keys import POOL_NAMES, KeyScheme

CASES = Path(__file__).parent / "cases"


def rows(file: str) -> list[tuple[str, ...]]:
    lines = (CASES / file).read_text(encoding="ascii").splitlines()
    return [tuple(cell.encode("ascii").decode("unicode_escape") for cell in line.split("\t")) for line in lines[1:]]


def seed_groups() -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    for name, key, why in rows("keys.tsv"):
        if why.startswith("seed"):
            groups.setdefault(key, []).append(name)
    return groups


@pytest.mark.parametrize(("name", "key", "why"), rows("keys.tsv"))
def test_table(name: str, key: str, why: str) -> None:
    expected = None if key == "-" else (key, name[len(key) :])
    scheme = KeyScheme()
    for _ in ("cold", "warm"):
        assert scheme.split(name) == expected, why
        assert scheme(name) == (expected and key), why
        assert not scheme.foreign(name)


@pytest.mark.parametrize(("models", "name", "key", "why"), rows("keys_exact.tsv"))
def test_exact_table(models: str, name: str, key: str, why: str) -> None:
    expected = None if key == "-" else (key, name[len(key) :])
    scheme = KeyScheme(models.split(","))
    for _ in ("cold", "warm"):
        assert scheme.split(name) == expected, why
        assert scheme(name) == (expected and key), why
        assert scheme.foreign(name) == (key == "-"), why


@pytest.mark.parametrize(("key", "names"), seed_groups().items())
def test_every_shape_of_a_seed_page_falls_into_one_group(key: str, names: list[str]) -> None:
    assert len(names) >= 9
    assert {KeyScheme()(name) for name in names} == {key}
    assert {KeyScheme(["model"])(name) for name in names} == {key}


def test_pool_names_are_those_of_the_table() -> None:
    assert "\n".join(POOL_NAMES) == (CASES / "pools.txt").read_text(encoding="ascii").strip()


# Names are built from parts and must give the group back. A name is ambiguous by itself where the model ends like a
# component or a rank and no rank follows: so a model without a rank has no underscore here and is no component, and a
# model with one may be anything. The alphabet cannot spell a temp suffix.
HASHES = st.text("0123456789abcdef", min_size=1, max_size=64)
PLAIN_MODELS = st.text("kvswa018.-Q", min_size=1, max_size=20)
MODELS = st.text("kvswa018.-Q_\n\u0663\udc80", min_size=1, max_size=20) | st.builds(
    "{}_{}".format, PLAIN_MODELS, st.sampled_from([*POOL_NAMES, "k", "0_8", "swa_k", "mamba_conv_1"])
)
RANKS = st.integers(1, 4096).flatmap(lambda size: st.builds("_{}_{}".format, st.integers(0, size - 1), st.just(size)))
INDEXES = st.integers(0, 200)
PARTS = st.sampled_from(["", "_k", "_v", "_temporal"]) | st.builds("_conv_{}".format, INDEXES)
COMPONENTS = st.sampled_from(["", "_k", "_v"]) | st.builds(
    "_{}{}".format, st.sampled_from(POOL_NAMES), PARTS | st.builds("_{}".format, INDEXES)
)
SUFFIXES = st.tuples(MODELS, RANKS) | st.tuples(st.builds("Q{}".format, PLAIN_MODELS), st.just(""))


@given(HASHES, SUFFIXES, COMPONENTS)
def test_built_names_give_their_group_back(digest: str, suffix: tuple[str, str], component: str) -> None:
    model, rank = suffix
    expected = (f"{digest}_{model}", rank + component)
    assert KeyScheme().split("".join(expected)) == expected


# An exact scheme has no such ambiguity as long as no model's name is the start of another's.
@given(HASHES, MODELS, st.just("") | RANKS, COMPONENTS | st.builds("_newpool_{}".format, INDEXES))
def test_built_names_give_their_group_back_exactly(digest: str, model: str, rank: str, component: str) -> None:
    expected = (f"{digest}_{model}", rank + component)
    name = "".join(expected)
    assert KeyScheme([model, "other/model"]).split(name) == expected
    other = KeyScheme([model + "-AWQ"])
    assert other(name) is None
    assert other.foreign(name)


SHARED = (KeyScheme(), KeyScheme(["k/v", "0", "tmp", "k-v_0_1"]))


@settings(max_examples=500)
@given(st.text("._kv01-tmpa\n\0\udc80\u0663") | st.text(), st.sampled_from(SHARED))
@example("x.tmp.1_2", SHARED[0])
@example("_0_0_1", SHARED[1])
@example("a" * 250 + "_0_1", SHARED[0])
@example("h_0_" + "9" * 5000, SHARED[0])
def test_any_text_splits_the_same_cold_and_warm(name: str, scheme: KeyScheme) -> None:
    scheme.split("head_" + name.partition("_")[2])  # another name may have filled the cache
    parts = scheme.split(name)
    assert parts == KeyScheme(scheme.models).split(name)
    assert scheme(name) == (parts and parts[0])
    assert scheme.foreign(name) in ((False,) if parts else (False, True))
    if parts:
        assert parts[0]
        assert "".join(parts) == name
        assert not name.startswith(".")


def test_the_cache_is_bounded_and_changes_no_answer() -> None:
    scheme = KeyScheme()
    sizes = set()
    for number in range(10_000):
        assert scheme.split(f"h_model{number}_0_8_k") == (f"h_model{number}", "_0_8_k")
        sizes.add(len(scheme._tails))
    assert max(sizes) == 4096
    assert scheme("h_model0_0_8_k") == "h_model0"


def test_names_of_one_suffix_share_one_cache_entry_and_tail() -> None:
    scheme = KeyScheme()
    tails = {id(parts[1]) for number in range(100) if (parts := scheme.split(f"{number:064x}_m_0_8_swa_k"))}
    assert len(tails) == len(scheme._tails) == 1


@pytest.mark.parametrize("models", [None, ["m"]])
@pytest.mark.parametrize("extension", [".tmp", ".temp", ".part", ".partial"])
@pytest.mark.parametrize("more", ["", ".1234", ".a_b", ".\n"])
@pytest.mark.parametrize("stem", ["h_m_0_8", "h_m", "h", "h.1_m"])
def test_temp_files_are_ignored_and_not_foreign(models: list[str] | None, extension: str, more: str, stem: str) -> None:
    scheme = KeyScheme(models)
    name = stem + extension + more
    assert scheme.split(name) is None
    assert not scheme.foreign(name)


@pytest.mark.parametrize("name", ["h_m.tmp_0_8", "h_m.tmpx", "h_m.tmp.1.2", "h_m.parts", "h.tmp_m", "h_m_tmp"])
def test_what_only_resembles_a_temp_file_is_a_shard(name: str) -> None:
    assert KeyScheme()(name) is not None


@pytest.mark.parametrize(
    ("name", "foreign"),
    [
        ("h_other_0_8", True),
        ("README", True),
        ("h_mm", True),
        ("h_m.x", True),
        ("m", True),
        ("m_0_8", True),
        ("h_m", False),
        ("h.1_m_0_8", False),
        (".h_other", False),
        ("h_other.tmp", False),
        ("_m_0_8", False),
        ("_other", False),
        ("", False),
    ],
)
def test_foreign_names_are_told_apart_from_ignored_ones(name: str, foreign: bool) -> None:
    assert KeyScheme(["m"]).foreign(name) is foreign
    assert not KeyScheme().foreign(name)


def test_the_first_model_in_a_name_counts() -> None:
    assert KeyScheme(["m"]).split("h_m_0_8_m_k") == ("h_m", "_0_8_m_k")
    assert KeyScheme(["m"]).split("a_b_m_0_8") == ("a_b_m", "_0_8")


class PlainPool(Enum):
    DRAFT = "draft"
    DRAFT_SWA = "draft_swa"


class StringPool(str, Enum):
    DRAFT = "draft"
    DRAFT_SWA = "draft_swa"


@pytest.mark.parametrize(
    "pools", [PlainPool, StringPool, list(StringPool), ["draft", PlainPool.DRAFT_SWA], iter(["draft_swa", "draft"])]
)
def test_pools_may_be_an_enum_or_any_iterable(pools: Any) -> None:
    scheme = KeyScheme(pools=pools)
    assert scheme.pools == ("draft_swa", "draft")
    assert scheme.split("h_m_0_8_draft_swa_k") == ("h_m", "_0_8_draft_swa_k")
    assert scheme("h_m_0_8_swa_k") == "h_m_0_8_swa"  # not a pool here


def test_pools_may_be_none_at_all_and_are_no_patterns() -> None:
    assert KeyScheme(pools=())("h_m_0_8_k") == "h_m"
    assert KeyScheme(pools=())("h_m_0_8__k") == "h_m_0_8_"
    assert KeyScheme(pools=["a.c"])("h_m_0_8_abc") == "h_m_0_8_abc"
    assert KeyScheme(["m.x"])("h_max") is None


class NumberPool(Enum):
    ONE = 1


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"models": "org/name"}, TypeError, r"models must be an iterable of names.*'org/name'"),
        ({"models": b"org/name"}, TypeError, r"models must be an iterable of names.*b'org/name'"),
        ({"models": 7}, TypeError, r"models must be an iterable of names.*7"),
        ({"models": [b"m"]}, TypeError, r"models must be strings, not b'm'"),
        ({"models": []}, ValueError, r"models is empty"),
        ({"models": ["m", ""]}, ValueError, r"models: '' cannot"),
        ({"models": ["m\0"]}, ValueError, r"models: 'm\\x00' cannot"),
        ({"pools": "swa"}, TypeError, r"pools must be an iterable of names.*'swa'"),
        ({"pools": StringPool.DRAFT}, TypeError, r"pools must be an iterable of names.*DRAFT"),
        ({"pools": None}, TypeError, r"pools must be an iterable of names.*None"),
        ({"pools": [1]}, TypeError, r"pools must be strings, not 1"),
        ({"pools": NumberPool}, TypeError, r"pools must be strings, not <NumberPool.ONE: 1>"),
        ({"pools": [""]}, ValueError, r"pools: '' cannot"),
        ({"pools": ["a/b"]}, ValueError, r"pools: 'a/b' cannot"),
        ({"pools": ["a\0"]}, ValueError, r"pools: 'a\\x00' cannot"),
    ],
)
def test_bad_arguments(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        KeyScheme(**arguments)


def test_equal_by_models_and_pools() -> None:
    assert KeyScheme() == KeyScheme(pools=reversed(POOL_NAMES))
    assert KeyScheme(["a/b", "c"]) == KeyScheme(["c", "a-b", "c"])
    assert len({KeyScheme(), KeyScheme(), KeyScheme(["a"]), KeyScheme(["a", "b"]), KeyScheme(pools=["a"])}) == 4
    assert KeyScheme() != "KeyScheme()"


@pytest.mark.parametrize("scheme", [KeyScheme(), KeyScheme(["a/b", "c"]), KeyScheme(["a"], pools=["x", "yy"])])
def test_repr_and_pickle_give_an_equal_scheme(scheme: KeyScheme) -> None:
    assert eval(repr(scheme)) == scheme
    assert pickle.loads(pickle.dumps(scheme)) == scheme


def test_docstring_examples() -> None:
    result = doctest.testmod(keys)
    assert result.attempted
    assert not result.failed
