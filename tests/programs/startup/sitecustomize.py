"""What Python runs first in the processes of the compile programs.

torch leaves millions of objects behind. Searching them for garbage, during the import, after a compile and once more at
the end, is a third of the time of a process that compiles nothing.
"""

import atexit
import gc
import os

gc.disable()
os.environ.setdefault("TORCH_DYNAMO_RUN_GC_AFTER_COMPILE", "0")
atexit.register(gc.freeze)
