"""``python -m glidemq_py.cli``: the command `glidemq`, where its script is not installed."""

import sys

from glidemq_py.cli import main

sys.exit(main())
