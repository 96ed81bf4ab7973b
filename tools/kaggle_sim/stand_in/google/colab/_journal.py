"A line for each thing that the page, or the account, would have noticed."


def note(text: str) -> None:
    with open("/opt/page/journal", "a", encoding="utf-8") as file:
        file.write(text + "\n")
