"""What the index costs and what it keeps up with, beside what it replaces, and beside a host that never rests.

    python -m tests.bench [--only NAME] [--runs N] [--quick] [--shards N] [--json FILE] [--dir DIR] [--peer SCRIPT]
    python -m tests.bench.report FILE.json
    python -m tests.bench.picture FILE.json OUT.svg

One module is one subject. A run of all of them takes some ten minutes, and is to have the machine to itself. No figure
is asserted anywhere: a test only runs `--quick` and looks at the form.
"""
