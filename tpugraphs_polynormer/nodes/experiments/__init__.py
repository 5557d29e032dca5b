"""The paper's other experiments on nodes; each is a function that writes a JSON file and a figure."""
