"""From a shard's file name to the key of its group. Pure: no I/O and no lock.

SGLang's NIXL HiCache backend names its files `{hash}{config suffix}{component}`. The config suffix is `_{model}`
(MLA) or `_{model}_{rank}_{size}` (MHA), where the model's `/` became `-`. The component is nothing, `_k`, `_v`, or
`_{pool}` followed by nothing, `_k`, `_v`, `_temporal`, `_conv_{i}` or `_{i}`. What all shards of a page share is
`{hash}_{model}`: that is the group key. The rest of the name is the tail.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Final

__all__ = ["POOL_NAMES", "KeyScheme"]

POOL_NAMES: Final[tuple[str, ...]] = (
    "kv", "mamba", "swa", "auxiliary_swa", "indexer",
    "deepseek_v4_c1", "deepseek_v4_c1_indexer", "deepseek_v4_c1_indexer_scale",
    "deepseek_v4_c2", "deepseek_v4_c2_indexer", "deepseek_v4_c2_indexer_scale",
    "deepseek_v4_c4", "deepseek_v4_c4_indexer", "deepseek_v4_c4_indexer_scale",
    "deepseek_v4_c128", "deepseek_v4_c4_rope", "deepseek_v4_c128_rope",
    "deepseek_v4_c4_state", "deepseek_v4_c4_indexer_state", "deepseek_v4_c128_state",
    "draft", "draft_indexer", "draft_swa",
)  # fmt: skip
"""The hybrid pools that SGLang writes."""

_CACHE_LIMIT = 4096

# `\Z`, not `$`: a newline is a legal character of a file name, and not its end.
_RANK = re.compile(r"_([0-9]+)_([0-9]+)\Z")
_TEMP = re.compile(r"\.(?:tmp|temp|part|partial)(?:\.[^.]*)?\Z")


class KeyScheme:
    """Reduces shard names to group keys; immutable in effect, equal and hashable by its models and pools.

    Without `models`, what may follow `{hash}_{model}` is stripped from the end: one component, then one rank
    (`rank < size`). The longest component that fits is taken, so `_draft_swa` wins over `_swa`. A model whose own
    name ends like a component, or a pool not listed, cannot be told apart that way.

    With `models`, as the server knows them (`org/name`), the scheme is exact: a name is of the first `_{model}` in
    it that has a hash before it and the end or a `_` behind it; of several models there, the longest. Everything
    after it is the tail, so unknown pools group too. Names of other models are foreign, and ignored.

    Ignored as well are names that start with `.`, temp files (`.tmp`, `.temp`, `.part`, `.partial`, and these with
    one more suffix, `.tmp.1234`), and names that would leave an empty key. Ignoring is the safe side: an ignored
    file is never evicted.

    `pools` is any iterable of names, or an Enum class such as SGLang's `PoolName`, whose values are taken. Exact
    schemes do not need it. Raises TypeError for a bare string or for a name that is not a string; ValueError for an
    empty name, a NUL, a `/` in a pool, or `models` without any model.

    Threads may share a scheme: its cache is only ever filled or cleared, and a race costs one computation more.

    >>> scheme = KeyScheme()
    >>> scheme("9f86d081_Qwen-Qwen3-32B_7_8_swa_k")
    '9f86d081_Qwen-Qwen3-32B'
    >>> KeyScheme(["Qwen/Qwen3-32B"]).foreign("9f86d081_deepseek-ai-DeepSeek-V4_k")
    True
    """

    __slots__ = ("_component", "_model", "_tails", "models", "pools")

    models: Final[tuple[str, ...] | None]  # `/` replaced, longest first; None: any model
    pools: Final[tuple[str, ...]]  # longest first

    def __init__(
        self,
        models: Iterable[str] | None = None,
        *,
        pools: Iterable[str | Enum] | type[Enum] = POOL_NAMES,
    ) -> None:
        self.pools = _names("pools", pools)
        self.models = None if models is None else _names("models", models)
        part = r"(?:_(?:[kv]|temporal|conv_[0-9]+|[0-9]+))?"
        components = [re.escape(pool) + part for pool in self.pools] + ["[kv]"]
        self._component = re.compile(rf"_(?:{'|'.join(components)})\Z")
        models_known = "|".join(map(re.escape, self.models or ()))
        self._model = re.compile(rf"_(?:{models_known})(?=_|\Z)") if models_known else None
        self._tails: dict[str, tuple[int | None, str] | None] = {}

    def __call__(self, name: str) -> str | None:
        """The group key of a shard's name, or None where the name is ignored. Complexity as `split`."""
        parts = self.split(name)
        return None if parts is None else parts[0]

    def split(self, name: str) -> tuple[str, str] | None:
        """`(key, tail)` with `key + tail == name`, or None where the name is ignored. Never raises for a string.

        O(len(name)): one look-up for a config suffix and component seen before, two searches for a new one. Equal
        tails are mostly one object, as they come from the cache.
        """
        # Names differ in the hash and share the rest, so the rest is what is cached: 0.4 us a name in place of
        # 1.8 us (CPython 3.11). It decides alone unless the head is empty (the key may be) or has a dot in it
        # (hidden, or the start of a temp suffix).
        head, _, rest = name.partition("_")
        if not head or "." in head:
            found = self._find(name)
        else:
            try:
                found = self._tails[rest]
            except KeyError:
                found = self._find(name)
                if len(self._tails) >= _CACHE_LIMIT:
                    self._tails.clear()
                self._tails[rest] = found
        if found is None:
            return None
        stop, tail = found
        return name[:stop], tail

    def foreign(self, name: str) -> bool:
        """Whether an exact scheme ignores the name only because it is of none of its models.

        False for accepted names, hidden and temp files, names without a hash, and in schemes without models.
        O(len(name)).
        """
        if self.models is None or not name or name[0] in "._" or self.split(name) is not None:
            return False
        return _TEMP.search(name) is None

    def _find(self, name: str) -> tuple[int | None, str] | None:
        """The tail and the slice's end that cuts it off (None: nothing to cut), or None to ignore the name."""
        if name.startswith(".") or _TEMP.search(name):
            return None
        if self._model is not None:
            match = self._model.search(name, 1)  # from 1: the hash is not empty
            start = match.end() if match else 0
        else:
            match = self._component.search(name)
            start = match.start() if match else len(name)
            match = _RANK.search(name, 0, start)
            if match and _below(match[1], match[2]):
                start = match.start()
        return (start - len(name) or None, name[start:]) if start else None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, KeyScheme):
            return NotImplemented
        return (self.models, self.pools) == (other.models, other.pools)

    def __hash__(self) -> int:
        return hash((self.models, self.pools))

    def __repr__(self) -> str:
        arguments = [] if self.models is None else [f"models={self.models!r}"]
        if set(self.pools) != set(POOL_NAMES):
            arguments.append(f"pools={self.pools!r}")
        return f"KeyScheme({', '.join(arguments)})"


def _below(rank: str, size: str) -> bool:
    """`int(rank) < int(size)` for any number of ASCII digits: `int` refuses more than 4,300."""
    rank, size = rank.lstrip("0"), size.lstrip("0")
    return (len(rank), rank) < (len(size), size)


def _names(argument: str, values: Iterable[str | Enum] | type[Enum]) -> tuple[str, ...]:
    """The distinct names, checked, longest first; a model's `/` replaced the way the server does."""
    if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
        raise TypeError(f"{argument} must be an iterable of names, like [{values!r}], not {values!r}")
    names = set()
    for value in values:
        name = value.value if isinstance(value, Enum) else value
        if not isinstance(name, str):
            raise TypeError(f"{argument} must be strings, not {value!r}")
        if not name or "\0" in name or (argument == "pools" and "/" in name):
            raise ValueError(f"{argument}: {name!r} cannot be part of a file name")
        names.add(name.replace("/", "-"))
    if argument == "models" and not names:
        raise ValueError("models is empty: every name would be foreign; pass None to accept any model")
    return tuple(sorted(names, key=lambda name: (-len(name), name)))


Split = Callable[[str], "tuple[str, str] | None"]


def split_by(scheme: Callable[[str], str | None], on_error: Callable[[Exception], None]) -> Split:
    """The scheme as a function from a file name to (key, tail). The tail of a key that is no prefix of the name is `/`
    and the whole name. A name that the scheme fails on is ignored: its file is never evicted."""
    if isinstance(scheme, KeyScheme):
        return scheme.split

    def split(name: str) -> tuple[str, str] | None:
        try:
            key = scheme(name)
            if key is None:
                return None
            if not isinstance(key, str) or not key:
                raise TypeError(f"it gave {key!r} for {name!r}: a group key is a string that is not empty")
        except Exception as error:  # noqa: BLE001 - it is the caller's code
            on_error(error)
            return None
        return key, name[len(key) :] if name.startswith(key) else "/" + name

    return split
