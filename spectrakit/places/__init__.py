"""What a forecast knows of Kaggle, Colab and a cloud: hours, sessions, speed and prices, dated, from YAML.

Others use `places` and `prices`.
"""
