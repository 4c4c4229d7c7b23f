"""What hookline costs, as ratios to the least that Python can do: `python -m benchmarks [names...]`."""
