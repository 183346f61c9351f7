"""ONNX files behind the counter, read as a graph, and written."""
