"""Folders that train elsewhere: an app for Modal, a batch job for SLURM, a session for Colab's client.

For others: `modal_app.init_modal`, `slurm_job.init_slurm`, `colab_session.init_colab`, `cloud_job.CloudJob`.
"""
