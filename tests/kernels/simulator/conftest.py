"""The simulator replaces Numba's CUDA target in the whole process, so these tests run in one of their own.

``make test-kernels-sim`` starts it; any other run of pytest leaves them out.
"""

from __future__ import annotations

import os

collect_ignore = [] if os.environ.get("NUMBA_ENABLE_CUDASIM") == "1" else ["test_simulator.py"]
