"""schema.pbtxt: the GraphTensors that a dataset's records hold, as plain text, so that writing it needs no TensorFlow.

Node sets: "op" (the HLO instructions), "slot" (what a candidate decides), "setting" (the distinct values of slots).
Edge sets: "feeds" (op -> op, producer to consumer), "decides" (slot -> op; layout only). Context: the graph's name.
"""

from __future__ import annotations

from pathlib import Path

from tpugraphs_polynormer.catalog import NUM_LAYOUT_FEATURES, NUM_NODE_FEATURES, NUM_TILE_FEATURES
from tpugraphs_polynormer.datasets.encoding import NUM_TILE_SLOTS
from tpugraphs_polynormer.files import write_text

SCHEMA_NAME = "schema.pbtxt"
_SCHEMA = """\
# The GraphTensors of the .tfrecord files beside: tfgnn.read_schema, then tfgnn.parse_single_example.
context {{
  features {{ key: "name" value {{ dtype: DT_STRING shape {{ }} }} }}
}}
node_sets {{
  key: "op"
  value {{
    description: "HLO instructions in topological order"
    features {{ key: "features" value {{ dtype: DT_FLOAT shape {{ dim {{ size: {num_features} }} }} }} }}
    features {{ key: "node_id" value {{ dtype: DT_INT64 shape {{ }} }} }}
    features {{ key: "opcode" value {{ dtype: DT_INT64 shape {{ }} }} }}
  }}
}}
node_sets {{
  key: "setting"
  value {{
    description: "the distinct values that the slots of this graph's candidates take"
    features {{ key: "values" value {{ dtype: DT_FLOAT shape {{ dim {{ size: {setting_dim} }} }} }} }}
  }}
}}
node_sets {{
  key: "slot"
  value {{ description: "what a candidate decides: a configurable node, or a set of tile bounds" }}
}}
edge_sets {{
  key: "feeds"
  value {{ description: "producer to consumer, sorted by consumer" source: "op" target: "op" }}
}}
"""
_LAYOUT_EDGES = """\
edge_sets {
  key: "decides"
  value { description: "slot to its configurable node" source: "slot" target: "op" }
}
"""


def schema_text(kind: str) -> str:
    """The GraphSchema of a "layout" or "tile" dataset in protobuf's text format."""
    is_layout = kind == "layout"
    setting_dim = NUM_LAYOUT_FEATURES if is_layout else NUM_TILE_FEATURES // NUM_TILE_SLOTS
    text = _SCHEMA.format(num_features=NUM_NODE_FEATURES, setting_dim=setting_dim)
    return text + _LAYOUT_EDGES if is_layout else text


def write_schema(folder: Path, kind: str) -> None:
    """Writes schema.pbtxt beside the shards."""
    write_text(folder / SCHEMA_NAME, schema_text(kind))
