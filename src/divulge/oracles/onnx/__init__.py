"""ONNX files as oracles, read as a graph, and written."""
