"""The form in which a profile and settings are picked, and the record of where each of them comes from.

Used from outside: `picker.ProfilePicker`.
"""
