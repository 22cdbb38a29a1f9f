"""An in-memory index of the L3 KV-cache files that LLM servers write through NIXL, kept live, for eviction."""

from nixl_index.audit import Audit
from nixl_index.cleaner import Cleaner
from nixl_index.errors import (
    ClosedError,
    FailedError,
    ForkedError,
    FrozenError,
    NixlIndexError,
    NotReadyError,
    WireError,
)
from nixl_index.evict import Evictor
from nixl_index.group import Group, Shard
from nixl_index.health import CleanerHealth, Health
from nixl_index.index import GroupIndex
from nixl_index.keys import POOL_NAMES, KeyScheme
from nixl_index.layout import Layout
from nixl_index.observer import ShardObserver
from nixl_index.pins import Pin
from nixl_index.progress import Progress
from nixl_index.results import EvictedGroup, Eviction, SkippedGroup

__version__ = "0.1.0"

__all__ = [
    "POOL_NAMES",
    "Audit",
    "Cleaner",
    "CleanerHealth",
    "ClosedError",
    "EvictedGroup",
    "Eviction",
    "Evictor",
    "FailedError",
    "ForkedError",
    "FrozenError",
    "Group",
    "GroupIndex",
    "Health",
    "KeyScheme",
    "Layout",
    "NixlIndexError",
    "NotReadyError",
    "Pin",
    "Progress",
    "Shard",
    "ShardObserver",
    "SkippedGroup",
    "WireError",
    "__version__",
]
