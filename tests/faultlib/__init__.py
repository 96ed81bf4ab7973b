"""The fault matrix: real runs, started as a person's script starts them, that come to grief in every way, and what is
left of them.
"""
