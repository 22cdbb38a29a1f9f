"""What the index costs and what it keeps up with, measured beside a host that never rests.

    python -m tests.bench [--only NAME] [--quick] [--json FILE] [--dir DIR]

One module is one subject. No figure is asserted anywhere: a test only runs `--quick` and looks at the form.
"""
