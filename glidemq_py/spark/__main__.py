"""``python -m glidemq_py.spark``: print the missing requirements of the data source."""

import sys

from glidemq_py.spark.environment import main

sys.exit(main())
