"What a notebook may ask of the page that shows its outputs."

from google.colab._journal import note


def enable_custom_widget_manager() -> None:
    note("output: custom widgets enabled")


def disable_custom_widget_manager() -> None:
    note("output: custom widgets disabled")


def clear(wait: bool = False, output_tags=()) -> None:
    from IPython.display import clear_output

    clear_output(wait)
