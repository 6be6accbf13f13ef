"""``python -m glidemq_py.spark``: what Spark lacks here, if anything."""

import sys

from glidemq_py.spark.environment import main

sys.exit(main())
