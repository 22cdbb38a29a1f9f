"""The snippets of README run, on a tree of their own."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support import page_key, write_page

README = Path(__file__).parents[1] / "README.md"
SNIPPETS = re.findall(r"```python\n(.*?)```", README.read_text(), re.S)
SAYS = ["3 groups", f"tenant/{page_key(0)}", "live", "", "/metrics"]
"""What each of them has to print."""


def test_every_snippet_is_known() -> None:
    assert len(SNIPPETS) == len(SAYS)


@pytest.mark.parametrize("snippet", SNIPPETS, ids=range(len(SNIPPETS)))
def test_snippet(snippet: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for disk in ("disk0", "disk1"):
        for tenant in ("", "tenant"):
            (tmp_path / disk / "l3" / tenant).mkdir(parents=True, exist_ok=True)
    disks = [tmp_path / disk / "l3" for disk in ("disk0", "disk1")]
    for page in range(3):
        write_page(disks, page)
        write_page([disk / "tenant" for disk in disks], page)
    exec(compile(snippet.replace("/mnt/", f"{tmp_path}/"), str(README), "exec"), {})
    printed = capsys.readouterr().out
    assert SAYS[SNIPPETS.index(snippet)] in printed
