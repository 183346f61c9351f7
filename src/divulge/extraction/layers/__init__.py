"""The machinery of extraction beyond the first hidden layer: kinks on segments, peeled into layers one by one."""
