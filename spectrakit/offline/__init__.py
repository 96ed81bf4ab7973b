"""Notebooks without internet: what a platform ships, and a folder of wheels with the rest.

For others: `platform_packages.shipped_on`, `import_names.importable_offline`, `wheelhouse.make_wheelhouse`, and
`installer`, the file that every wheelhouse carries.
"""
