"""`python -m nixl_index`: the command line."""

import sys

from nixl_index.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
