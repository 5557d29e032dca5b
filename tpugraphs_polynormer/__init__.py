"""TpuGraphs runtime prediction with Polynormer."""

import os
import sys

__version__ = "0.1.0"

# TF-GNN needs Keras 2, and TensorFlow picks its Keras when `tf.keras` is first touched: so this comes before it.
if "tensorflow" in sys.modules and os.environ.get("TF_USE_LEGACY_KERAS") not in ("1", "true", "True"):
    raise ImportError(
        "tensorflow was imported before tpugraphs_polynormer without TF_USE_LEGACY_KERAS=1, so tf.keras may be "
        "Keras 3, which TF-GNN cannot use; import tpugraphs_polynormer first, or set TF_USE_LEGACY_KERAS=1"
    )
os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
# TensorFlow's C++ lines (CPU features, missing CUDA, a graph optimizer that gives up) say nothing a user of these
# commands can act on; what really fails raises in Python too.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
