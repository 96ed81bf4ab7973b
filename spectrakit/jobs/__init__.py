"""Work of training processes besides training: measurement, prediction, learning-rate range test, serving."""
