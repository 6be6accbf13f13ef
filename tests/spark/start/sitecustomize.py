"""Python runs this module at the start of each of Spark's Python processes.

Spark puts PySpark as a zip file in front of their path: each of about ten processes per session would compile it, which
takes as long as all the rest until its first task. The installed package has the same files, compiled.
"""

import sys

sys.path[:] = [place for place in sys.path if not place.endswith(("pyspark.zip", "-src.zip"))]
