"""A run on one page that opens offline, and several runs beside each other.

Others use `run_report.report`, `comparison.compare` and `prediction_plots`; `html` holds what both pages share.
"""
