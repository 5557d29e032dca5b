"""schema.pbtxt: the schema of the GraphTensors in a dataset's records, as text that needs no TensorFlow.

Node sets: "op" (the HLO instructions; "operands" as in hlo/operands.py, 0 where the archive has none), "nconfig" (the
config nodes, which a candidate decides; for layouts with the dimensions of their result and of their first and last
operand), "config_value" (the distinct values that they take). Edge sets: "feed" (op -> op), and for layouts "config"
(config node -> op) and "meet" (config node - config node, see config_graph.py). Context: the graph's name. "feed" runs
from producer to consumer; the set of that name in the official loader runs the other way.
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
    features {{ key: "operands" value {{ dtype: DT_INT64 shape {{ }} }} }}
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
  value {{
    description: "what a candidate decides: a config node, or a set of tile bounds"{nconfig_features}
  }}
}}
edge_sets {{
  key: "feed"
  value {{ description: "producer to consumer, sorted by consumer" source: "op" target: "op" }}
}}
"""
_DIMS = """
    features { key: "dims" value { dtype: DT_FLOAT shape { dim { size: 3 } dim { size: 6 } } } }"""
_LAYOUT_EDGES = """\
edge_sets {
  key: "config"
  value { description: "config node to the op that it decides" source: "nconfig" target: "op" }
}
edge_sets {
  key: "meet"
  value { description: "config nodes whose layouts meet, each pair once" source: "nconfig" target: "nconfig" }
}
"""


def schema_text(kind: str) -> str:
    """The GraphSchema of a "layout" or "tile" dataset in protobuf's text format."""
    is_layout = kind == "layout"
    sizes = {"num_features": NUM_NODE_FEATURES, "config_value_dim": CONFIG_VALUE_DIMS[kind]}
    text = _SCHEMA.format(**sizes, nconfig_features=_DIMS if is_layout else "")
    return text + _LAYOUT_EDGES if is_layout else text
