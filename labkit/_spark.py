"""What the lab uses of pyspark's TorchDistributor, and of torchrun below it, although it is not documented.

Written for pyspark 4.3 and torch 2.13. `NAMES` has what is lost without each name; the patterns are tested
with real runs (tests/spark).
"""

import re

NAMES = {
    "pyspark.ml.torch.distributor:TorchDistributor._train_on_dataframe": "its ranks are not followed",
}
LOGGER = "TorchDistributor"  # it logs that it has started
# The frame of the file in which pyspark calls the function.
CALLER = re.compile(r"^<module>, train\.py, line \d+\n(?: +output = fn\(.*\n)?", re.MULTILINE)
# In torchrun's report, a rank that was killed; it has no traceback. torchrun ends the others with SIGTERM.
KILLED = re.compile(r"rank\s*: (\d+) .*\n\s*exitcode\s*: -\d+ .*\((?!SIGTERM)(SIG\w+)\)")
# The last line of a traceback, or of a program that refuses its command line. Not torchrun's own errors.
REASON = re.compile(r"^(?:\[rank\d+\]: ?)?((?!torch\.)[\w.]+(?:Error|Exception)\b.*|.*: error: .*)$", re.M)
TORCHRUN_FAILED = "ChildFailedError"
ERROR_CODE = re.compile(r"\[[A-Z_.\d-]{6,}\]:? .+")  # and the message of one of Spark's own errors
