"""Other libraries behind hookline, and hookline behind them: one module each, with an extra of its own name."""
