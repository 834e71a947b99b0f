"""What Python runs first in the processes of the compile programs.

torch leaves millions of objects behind. Searching them for garbage, during the import and once more at the end, is a
third of the time of a process that compiles nothing.
"""

import atexit
import gc

gc.disable()
atexit.register(gc.freeze)
