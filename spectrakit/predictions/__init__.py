"""What a trained model answers: predictions kept as they come, averaged, and written as a submission.

Others use `predictions`, `prediction_spool.PredictionSpool`, `submission_file` and `ensemble`.
"""
