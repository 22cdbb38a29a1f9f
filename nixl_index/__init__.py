"""An in-memory index of the L3 KV-cache files that LLM servers write through NIXL, kept live, for eviction."""

from nixl_index.group import Group, Shard
from nixl_index.keys import POOL_NAMES, KeyScheme
from nixl_index.layout import Layout

__version__ = "0.1.0"

__all__ = ["POOL_NAMES", "Group", "KeyScheme", "Layout", "Shard", "__version__"]
