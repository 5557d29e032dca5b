"""schema.pbtxt: the schema of the GraphTensors in a dataset's records, as text that needs no TensorFlow.

Node sets: "op" (the HLO instructions), "nconfig" (the config nodes, which a candidate decides), "config_value" (the
distinct values that they take). Edge sets: "feed" (op -> op), "config" (config node -> op; layout only). Context: the
graph's name. "feed" runs from producer to consumer; the set of that name in the official loader runs the other way.
"""

from __future__ import annotations

from tpugraphs_polynormer.catalog import NUM_NODE_FEATURES
from tpugraphs_polynormer.datasets.encoding import CONFIG_VALUE_DIMS

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
  key: "config_value"
  value {{
    description: "the distinct values that the config nodes of this graph's candidates take"
    features {{ key: "values" value {{ dtype: DT_FLOAT shape {{ dim {{ size: {config_value_dim} }} }} }} }}
  }}
}}
node_sets {{
  key: "nconfig"
  value {{ description: "what a candidate decides: a config node, or a set of tile bounds" }}
}}
edge_sets {{
  key: "feed"
  value {{ description: "producer to consumer, sorted by consumer" source: "op" target: "op" }}
}}
"""
_LAYOUT_EDGES = """\
edge_sets {
  key: "config"
  value { description: "config node to its config node" source: "nconfig" target: "op" }
}
"""


def schema_text(kind: str) -> str:
    """The GraphSchema of a "layout" or "tile" dataset in protobuf's text format."""
    text = _SCHEMA.format(num_features=NUM_NODE_FEATURES, config_value_dim=CONFIG_VALUE_DIMS[kind])
    return text + _LAYOUT_EDGES if kind == "layout" else text
